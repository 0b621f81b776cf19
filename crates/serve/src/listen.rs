//! Connections: accepts them, bounds their number and the time that a request's head may take, and ends them when the
//! server is asked to stop: no new ones, and each open one after its response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::TryFutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

use super::head_refusals::{ClientStream, ConnectionState, OpenBody};
use super::metrics::ServeMetrics;

/// Longest time in which the head of a request may arrive, from the last response or the connection's beginning.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Longest time in which a client may take nothing of what is sent to it.
const WRITE_PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at the request to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Most bytes of a request's head, and most headers.
const MOST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 128;
/// Descriptors that are not for connections.
const OTHER_FILES: u64 = 256;

/// Whether the server was asked to stop; every request has it as an extension. Responses without an end of their own
/// end with it.
#[derive(Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Returns once the server was asked to stop.
    pub async fn wait(&mut self) {
        // Without a sender the server has ended already.
        drop(self.0.wait_for(|stopped| *stopped).await);
    }
}

/// Serves until `stop` is set, then until every connection has ended.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    connections: usize,
    metrics: Arc<ServeMetrics>,
    stop: &AtomicBool,
) {
    let places = Arc::new(Semaphore::new(connections));
    let (stopping, stopped) = watch::channel(false);
    loop {
        let place = places.clone().acquire_owned();
        let accepted = tokio::select! {
            accepted = async { (place.await, listener.accept().await) } => accepted,
            () = asked_to(stop) => break,
        };
        match accepted {
            (Ok(place), Ok((stream, _))) => {
                let (routes, metrics, stopped) = (routes.clone(), metrics.clone(), stopped.clone());
                tokio::spawn(async move {
                    connection(stream, routes, metrics, stopped).await;
                    drop(place);
                });
            }
            (_, Err(error)) => {
                // A client that left again, or too many open files: both pass.
                log::debug!("a connection was not accepted: {error}");
                tokio::time::sleep(LOOK).await;
            }
            (Err(_), _) => break,
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    // All places are free once every connection has ended.
    let all = u32::try_from(connections).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

async fn asked_to(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}

async fn connection(stream: TcpStream, routes: Router, metrics: Arc<ServeMetrics>, mut stopped: watch::Receiver<bool>) {
    let patience = u32::try_from(WRITE_PATIENCE.as_millis()).unwrap_or(u32::MAX);
    // Without these the connection works, too.
    let _ = setsockopt(&stream, TcpUserTimeout, &patience);
    let _ = stream.set_nodelay(true);
    let stopping = Stopping(stopped.clone());
    let state = Arc::new(ConnectionState::default());
    let of_requests = state.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(stopping.clone());
        let (open, response) = (of_requests.begin(), routes.clone().oneshot(request.map(Body::new)));
        response.map_ok(|response| response.map(|body| OpenBody::new(body, open)))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE).max_buf_size(MOST_HEAD).max_headers(MOST_HEADERS);
    let stream = ClientStream::new(stream, state.clone(), metrics);
    {
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let has_ended = tokio::select! {
            _ = connection.as_mut() => true,
            _ = stopped.wait_for(|stopped| *stopped) => false,
        };
        if !has_ended {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    state.linger().await;
}

/// Raises the limit of open files as far as it goes. Returns for how many connections it suffices, at most `wanted`.
pub fn room_for(wanted: usize) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let need = (wanted as u64).saturating_add(OTHER_FILES).min(hard);
    let have = match need > soft && setrlimit(Resource::RLIMIT_NOFILE, need, hard).is_ok() {
        true => need,
        false => soft,
    };
    usize::try_from(have.saturating_sub(OTHER_FILES)).unwrap_or(wanted).clamp(1, wanted)
}
