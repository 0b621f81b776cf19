//! What every HTTP task sees of the server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::engine::{EngineHandle, Priority};
use crate::launch::guarded;
use crate::model::ModelConfig;
use crate::openai::protocol::{Reasoning, Refusal, RefusalKind, RequestReader, ServedModel, parse_body};
use crate::tokenizer::Tokenizer;

use super::batches::Batches;
use super::dispatch::Dispatcher;
use super::keys::ApiKeys;
use super::leases::Leases;
use super::metrics::ServeMetrics;
use super::options::ServeLimits;
use super::random::random_seed;
use super::stream::Ticks;

/// Longest time that the body of a request may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(120);

pub struct Server {
    pub engine: EngineHandle,
    pub dispatcher: Dispatcher,
    pub leases: Arc<Leases>,
    pub metrics: Arc<ServeMetrics>,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub names: Vec<String>,
    pub keys: ApiKeys,
    pub seed: Option<u64>,
    pub reasoning: Reasoning,
    pub limits: ServeLimits,
    pub ticks: Ticks,
    /// `None`: no files are kept.
    pub batches: Option<Batches>,
    pub system_fingerprint: String,
    /// Seconds since 1970 at which the server started.
    pub created: u64,
    /// Requests that are encoded, and answers that are written, at once: threads beside those of the connections.
    pub workers: Semaphore,
}

impl Server {
    pub fn served(&self) -> ServedModel<'_> {
        ServedModel { names: &self.names, created: self.created, context: self.config.context }
    }

    /// Reads requests; those without a seed get a random one, if the server has none.
    pub fn reader(&self) -> RequestReader<'_> {
        RequestReader {
            tokenizer: &self.tokenizer,
            config: &self.config,
            model: &self.names[0],
            served: Some(&self.names),
            seed: self.seed.unwrap_or_else(random_seed),
            limits: &self.limits.protocol,
            reasoning: self.reasoning,
            priority: Priority::default(),
        }
    }

    /// The JSON object in the body of a request.
    pub async fn body(&self, headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, Refusal> {
        let kind = headers.get("content-type").map(|kind| kind.as_bytes().to_ascii_lowercase());
        if kind.is_some_and(|kind| !kind.starts_with(b"application/json")) {
            let what = "expected `Content-Type: application/json`, found another one";
            return Err(Refusal::of_kind(RefusalKind::MediaType, "unsupported_media_type", what));
        }
        let most = self.limits.body;
        // What the head announces need not come before it is refused.
        if body.size_hint().lower() > most as u64 {
            return Err(Refusal::too_large(most));
        }
        let read = Limited::new(body, most).collect();
        let read = tokio::time::timeout(BODY_PATIENCE, read).await;
        let read = read.map_err(|_| {
            let what = format!("the body did not arrive within {} s", BODY_PATIENCE.as_secs());
            Refusal::of_kind(RefusalKind::Timeout, "timeout", what)
        })?;
        match read {
            Ok(bytes) => parse_body(&bytes.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Refusal::too_large(most)),
            Err(_) => Err(Refusal::new("invalid_request", "the body did not arrive whole")),
        }
    }

    /// Runs `work`, which takes long or may panic, on a thread of its own, a bounded number at once.
    pub async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Server) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let _permit = self.workers.acquire().await.expect("the semaphore is never closed");
        let server = self.clone();
        let guarded = move || guarded(|| Ok(work(&server))).unwrap_or_else(|error| Err(Refusal::of(&error)));
        tokio::task::spawn_blocking(guarded).await.unwrap_or_else(|_| Err(Refusal::shutting_down()))
    }
}
