//! Counts each request for samples or scores once when it comes and once by how it ends: answered, refused, or left by
//! its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use offshoot_openai::protocol::Refusal;

use super::keys::ClientId;
use super::metrics::ServeMetrics;
use super::reply::Refused;
use super::server::{AppState, Server};

/// A request for samples, scores or values, as what answers it is given it.
pub struct CountedCall {
    pub server: Arc<Server>,
    pub client: ClientId,
    /// Whoever answers says when the request is answered; refusals are counted where they are sent.
    pub counted: CountedRequest,
    pub headers: HeaderMap,
    pub body: Body,
}

/// The handler of a path whose requests are counted.
pub fn answering<A>(answer: impl Fn(CountedCall) -> A + Clone + Send + Sync + 'static) -> MethodRouter<Arc<Server>>
where
    A: Future<Output = Result<Response, Refusal>> + Send + 'static,
{
    post(
        move |State(server): AppState,
              Extension(client): Extension<ClientId>,
              Extension(counted): Extension<CountedRequest>,
              headers: HeaderMap,
              body: Body| {
            let answered = answer(CountedCall { server, client, counted, headers, body });
            async move { answered.await.map_err(Refused) }
        },
    )
}

/// A request that was counted when it came. Clones are of one request; the first of them that says how it ended counts.
#[derive(Clone)]
pub struct CountedRequest(Arc<Count>);

struct Count {
    metrics: Arc<ServeMetrics>,
    has_ended: AtomicBool,
}

impl CountedRequest {
    pub fn new(metrics: Arc<ServeMetrics>) -> CountedRequest {
        metrics.requests.add(1);
        CountedRequest(Arc::new(Count { metrics, has_ended: AtomicBool::new(false) }))
    }

    pub fn answered(&self) {
        if self.0.ends() {
            self.0.metrics.answered.add(1);
        }
    }

    pub fn refused(&self) {
        if self.0.ends() {
            self.0.metrics.refused.add(1);
        }
    }
}

impl Count {
    /// Whether the request has not ended before.
    fn ends(&self) -> bool {
        !self.has_ended.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Count {
    /// Nobody is left who could answer it: its client has gone.
    fn drop(&mut self) {
        if self.ends() {
            self.metrics.cancelled.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_ends_once() {
        let metrics = Arc::new(ServeMetrics::default());
        let new = || CountedRequest::new(metrics.clone());
        let (answered, refused, left) = (new(), new(), new());
        let stream = answered.clone();
        drop(answered);
        stream.answered();
        stream.refused();
        refused.refused();
        drop((stream, refused, left));
        let counts = [&metrics.requests, &metrics.answered, &metrics.refused, &metrics.cancelled];
        assert_eq!(counts.map(|count| count.get()), [3, 1, 1, 1]);
    }
}
