//! What every HTTP task sees of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::HeaderMap;
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use offshoot_engine::{EngineHandle, LogprobsMode, Priority};
use offshoot_form::CompiledForm;
use offshoot_launch::guarded;
use offshoot_model::ModelConfig;
use offshoot_openai::protocol::{
    CallGrammars, ProtocolRequest, Reasoning, Refusal, RefusalKind, RequestReader, ServedAdapter, ServedModel,
    parse_body,
};
use offshoot_text::Tokenizer;

use super::batches::Batches;
use super::dispatch::Dispatcher;
use super::form_permits::{FormPermits, PERMIT_WAIT};
use super::keys::{ApiKeys, ClientId};
use super::leases::Leases;
use super::metrics::ServeMetrics;
use super::names::ServedNames;
use super::options::ServeLimits;
use super::pooling::ServedScorer;
use super::random::random_seed;
use super::rollout::{Admission, Rollout};
use super::ticks::Ticks;

/// Longest time that the body of a request may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(120);

/// Bodies up to this length, in bytes, are not counted among the large ones.
const SMALL_BODY: usize = 1 << 20;
/// Large bodies at once: as JSON values they take many times their length.
pub const LARGE_BODIES: usize = 4;

/// How much, and how long, of a refused body is read and dropped.
const DRAINED: usize = 64 << 20;
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// Reads what comes of a refused body. A client that sends its body before it reads would see a closed connection and
/// no answer. One that expects a word before it sends gets the answer instead.
pub async fn drain_refused(headers: &HeaderMap, body: &mut Body) {
    if !headers.contains_key("expect") {
        let _ = tokio::time::timeout(DRAIN_PATIENCE, drain(body)).await;
    }
}

async fn drain(body: &mut Body) {
    let mut bytes = 0;
    while bytes < DRAINED
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes += frame.data_ref().map_or(0, |piece| piece.len());
    }
}

/// The body of a request, before it is parsed.
pub struct JsonBody {
    bytes: Vec<u8>,
    /// Its place among the large ones.
    room: Option<OwnedSemaphorePermit>,
}

impl JsonBody {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn parse(&self) -> Result<Map<String, Value>, Refusal> {
        parse_body(&self.bytes)
    }
}

/// The server, as handlers are given it.
pub type AppState = State<Arc<Server>>;

pub struct Server {
    /// The generator's; of a server that only scores, the scorer's.
    pub engine: EngineHandle,
    /// Whether its model generates.
    pub generates: bool,
    /// The model that scores texts, beside a generator or alone.
    pub scorer: Option<ServedScorer>,
    pub dispatcher: Dispatcher,
    pub leases: Arc<Leases>,
    pub metrics: Arc<ServeMetrics>,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub names: Arc<ServedNames>,
    pub keys: ApiKeys,
    pub seed: Option<u64>,
    pub reasoning: Reasoning,
    pub logprobs_mode: LogprobsMode,
    pub limits: ServeLimits,
    pub ticks: Ticks,
    /// `None`: no files are kept.
    pub batches: Option<Batches>,
    pub system_fingerprint: String,
    /// Whether requests for samples are admitted.
    pub admission: Admission,
    /// `None`: it has no verbs for rollouts.
    pub rollout: Option<Rollout>,
    /// Seconds since 1970 at which the server started.
    pub created: u64,
    /// Requests that are encoded, and answers that are written, at once: threads beside those of the connections.
    pub workers: Semaphore,
    /// Permits to compile forms: apart from other work, so that a form that takes long holds up no request without one.
    pub form_permits: Arc<FormPermits>,
    /// Those of the calls that requests' answers make.
    pub grammars: CallGrammars,
    /// See [`LARGE_BODIES`].
    pub large_bodies: Arc<Semaphore>,
}

impl Server {
    /// The model, with the adapters that are loaded.
    pub fn served<'a>(&'a self, adapters: &'a [ServedAdapter]) -> ServedModel<'a> {
        ServedModel { names: self.names.of_model(), adapters, created: self.created, context: self.config.context }
    }

    /// The model that scores texts.
    pub fn scorer(&self) -> Result<&ServedScorer, Refusal> {
        let none = || Refusal::not_found("this server was started without a scorer, which computes values of texts");
        self.scorer.as_ref().ok_or_else(none)
    }

    /// Refuses what only a model that generates can do.
    pub fn check_generates(&self) -> Result<(), Refusal> {
        let what = "this server's model reads texts and generates none: ask /pooling, or /v1/models for what it is";
        if self.generates { Ok(()) } else { Err(Refusal::not_found(what)) }
    }

    /// Reads requests; those without a seed get a random one, if the server has none.
    pub fn reader(&self) -> RequestReader<'_> {
        RequestReader {
            tokenizer: &self.tokenizer,
            config: &self.config,
            model: &self.names.of_model()[0],
            names: &*self.names,
            seed: self.seed.unwrap_or_else(random_seed),
            limits: &self.limits.protocol,
            reasoning: self.reasoning,
            logprobs_mode: self.logprobs_mode,
            priority: Priority::default(),
            keeps_routes: self.engine.facts().keeps_routes,
        }
    }

    /// The body of a request, which should be JSON.
    pub async fn receive(&self, headers: &HeaderMap, mut body: Body) -> Result<JsonBody, Refusal> {
        let received = self.receive_from(headers, &mut body).await;
        if received.is_err() {
            drain_refused(headers, &mut body).await;
        }
        received
    }

    async fn receive_from(&self, headers: &HeaderMap, body: &mut Body) -> Result<JsonBody, Refusal> {
        let kind = headers.get("content-type").map(|kind| kind.as_bytes().to_ascii_lowercase());
        if kind.is_some_and(|kind| !kind.starts_with(b"application/json")) {
            let what = "expected `Content-Type: application/json`, found another one";
            return Err(Refusal::of_kind(RefusalKind::MediaType, "unsupported_media_type", what));
        }
        // What the head announces need not come before it is refused.
        if body.size_hint().lower() > self.limits.body as u64 {
            return Err(Refusal::too_large(self.limits.body));
        }
        tokio::time::timeout(BODY_PATIENCE, self.read(body)).await.unwrap_or_else(|_| {
            let what = format!("the body did not arrive within {} s", BODY_PATIENCE.as_secs());
            Err(Refusal::of_kind(RefusalKind::Timeout, "timeout", what))
        })
    }

    async fn read(&self, body: &mut Body) -> Result<JsonBody, Refusal> {
        let mut read = JsonBody { bytes: Vec::new(), room: None };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::new("invalid_request", "the body did not arrive whole"))?;
            let Ok(piece) = frame.into_data() else { continue };
            let bytes = read.bytes.len() + piece.len();
            if bytes > self.limits.body {
                return Err(Refusal::too_large(self.limits.body));
            }
            if bytes > SMALL_BODY && read.room.is_none() {
                let room = self.large_bodies.clone().try_acquire_owned();
                let full = |_| Refusal::rate_limit("as many large bodies as there may be at once are being read", 1);
                read.room = Some(room.map_err(full)?);
            }
            read.bytes.extend_from_slice(&piece);
        }
        Ok(read)
    }

    /// Runs `work`, which takes long or may panic, on a thread of its own, a bounded number at once.
    pub async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Server) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let _permit = self.workers.acquire().await.expect("the semaphore is never closed");
        self.on_thread(work).await
    }

    /// A client's request, which came at `arrived`, with its form, compiled, if it has one. One that is known waits for
    /// none that is not, and those of one client hold up no other's. It waits for its turn [`PERMIT_WAIT`] at most, and
    /// no longer than the request's `timeout`.
    pub async fn compile_form(
        self: &Arc<Self>,
        client: ClientId,
        request: ProtocolRequest,
        arrived: Instant,
    ) -> Result<(ProtocolRequest, Option<Arc<CompiledForm>>), Refusal> {
        if request.form.is_none() {
            return Ok((request, None));
        }
        let mut request = request;
        let find = move |server: &Server| {
            let found = request.find_form(&server.engine, &server.grammars)?;
            Ok((request, found))
        };
        let (mut request, found) = self.work(find).await?;
        if found.is_some() {
            return Ok((request, found));
        }
        let patience = Instant::now() + PERMIT_WAIT;
        let until = request.timeout.and_then(|timeout| arrived.checked_add(timeout)).filter(|until| *until < patience);
        let permit = self.form_permits.take(client, until.unwrap_or(patience)).await;
        let permit = permit.map_err(|busy| match until {
            Some(until) if until <= Instant::now() => Refusal::timeout(arrived.elapsed().as_secs_f64()),
            _ => busy,
        })?;
        let compile = move |server: &Server| {
            // Held until nothing of the form is being compiled, though nobody may wait for it any more.
            let held = Some(Arc::new(permit) as _);
            let compiled = request.compile_form(&server.engine, &server.tokenizer, &server.grammars, held)?;
            Ok((request, compiled))
        };
        self.on_thread(compile).await
    }

    async fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Server) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let server = self.clone();
        let guarded = move || guarded(|| Ok(work(&server))).unwrap_or_else(|error| Err(Refusal::of(&error)));
        tokio::task::spawn_blocking(guarded).await.unwrap_or_else(|_| Err(Refusal::shutting_down()))
    }
}
