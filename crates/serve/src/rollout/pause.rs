//! Pauses: whether requests for samples are admitted, what becomes of those in progress, and requests that are ended by
//! name. Whether a pause holds is the engine's status; nothing here remembers it. Requests of batches stand still in
//! every pause and go on behind it, so that no line of a result is cut short.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use offshoot_engine::{EngineHandle, Pause, PauseMode};
use offshoot_model::Sleep;
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::failed;
use super::forms::{Pairs, QueryFields, fields, waiting};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// Between two looks at what is in progress.
const LOOK: Duration = Duration::from_millis(5);

/// A sleep that only pauses.
const NOTHING: Sleep = Sleep::LEVELS[0];

/// Whether requests for samples are admitted: as the engine's status says, and not while a pause waits for those in
/// progress to end.
#[derive(Default)]
pub struct Admission(Mutex<Gate>);

#[derive(Default)]
struct Gate {
    /// Pauses and ends of pauses so far.
    turns: u64,
    /// The turn of a pause that waits for requests to end.
    draining: Option<u64>,
}

impl Admission {
    /// Refuses a request that no engine would answer, or that a pause does not let wait.
    pub fn check(&self, engine: &EngineHandle) -> Result<(), Refusal> {
        self.lock().check(engine)
    }

    /// Does what takes a request in, if one is admitted. Who begins a pause sees it done, or it is refused.
    pub fn admit<T>(&self, engine: &EngineHandle, take_in: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        let gate = self.lock();
        gate.check(engine)?;
        take_in()
    }

    /// Whether a pause waits for requests to end.
    fn is_draining(&self) -> bool {
        self.lock().draining.is_some()
    }

    /// Ends the turn of a pause that waits for requests to end, if one does.
    fn end_turn(&self) {
        let mut gate = self.lock();
        gate.turns += 1;
        gate.draining = None;
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    fn check(&self, engine: &EngineHandle) -> Result<(), Refusal> {
        let status = engine.status();
        let refuses = self.draining.is_some() || status.pause.is_some_and(|pause| !pause.admits());
        let waits = status.is_paused() && !refuses;
        if status.lacks_weights && !status.asleep.any() && !waits {
            return Err(Refusal::no_weights());
        }
        match refuses {
            true => {
                let what = "generation is paused; the request may be sent again once it is resumed";
                Err(Refusal::of_kind(RefusalKind::Unavailable, "paused", what))
            }
            false => Ok(()),
        }
    }
}

/// A pause that waits for requests to end. Once it is dropped, the engine's status alone says what is admitted: also
/// where the pause failed, or its client has gone.
struct Drain {
    server: Arc<Server>,
    turn: u64,
}

impl Drain {
    fn begin(server: &Arc<Server>) -> Self {
        let mut gate = server.admission.lock();
        gate.turns += 1;
        gate.draining = Some(gate.turns);
        Drain { server: server.clone(), turn: gate.turns }
    }

    /// Whether another pause, or a resume, has followed.
    fn is_over(&self) -> bool {
        self.server.admission.lock().turns != self.turn
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let mut gate = self.server.admission.lock();
        gate.draining = gate.draining.filter(|&turn| turn != self.turn);
    }
}

/// Deals with the requests in progress as `mode` says, then pauses the engine, which gives the memory of `sleep` back.
/// Returns when that holds.
pub async fn hold(server: &Arc<Server>, mode: PauseMode, sleep: Sleep) -> Result<(), Refusal> {
    let drain = match mode {
        PauseMode::Keep => {
            server.admission.end_turn();
            None
        }
        PauseMode::Abort | PauseMode::Wait => {
            let drain = Drain::begin(server);
            settle(&drain, mode).await?;
            Some(drain)
        }
    };
    // What is still in the engine is not of clients, or is to stand still.
    let stands = Pause::from(PauseMode::Keep);
    let pause = if mode == PauseMode::Keep { stands } else { stands.refusing() };
    waiting(server, move |server| {
        let held = server.engine.sleep(sleep, pause).map_err(|error| failed(&error));
        drop(drain);
        held
    })
    .await
}

/// Waits until no request of a client is in progress; `Abort` ends them.
async fn settle(drain: &Drain, mode: PauseMode) -> Result<(), Refusal> {
    let server = &drain.server;
    if mode == PauseMode::Wait && server.dispatcher.open() > 0 && server.engine.is_paused() {
        // What stands still comes to its end first.
        waiting(server, |server| server.engine.resume().map_err(|error| failed(&error))).await?;
    }
    if mode == PauseMode::Abort {
        waiting(server, |server| Ok(server.dispatcher.abort(None))).await?;
    }
    while server.dispatcher.open() > 0 {
        if drain.is_over() {
            let what = "the pause was ended, or another one followed, before all requests in progress had ended";
            return Err(Refusal::of_kind(RefusalKind::Conflict, "pause_ended", what));
        }
        server.dispatcher.check_alive().map_err(|refusal| Refusal { kind: RefusalKind::Conflict, ..refusal })?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// What the verbs of pauses answer: their errors are of a form of their own.
pub type PauseAnswer = Result<Response, PauseRefused>;

/// A refusal in the form that `vllm serve` gives those of pauses.
pub struct PauseRefused(Refusal);

impl From<Refusal> for PauseRefused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for PauseRefused {
    fn into_response(self) -> Response {
        let Self(refusal) = self;
        let mut response = reply::value(&json!({ "error": refusal.message }));
        *response.status_mut() = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
        response
    }
}

/// `mode`, and fields that change nothing: no keys and values of old weights are ever read again.
pub fn mode(query: &mut QueryFields) -> Result<PauseMode, Refusal> {
    let mode = query.word("mode", &PauseMode::WORDS)?;
    query.flag("clear_cache")?;
    let waits = query.flag("wait_for_inflight_requests")?.unwrap_or(false);
    Ok(mode.unwrap_or(if waits { PauseMode::Wait } else { PauseMode::Abort }))
}

pub async fn pause(State(server): AppState, pairs: Pairs) -> PauseAnswer {
    let mut query = QueryFields::new(pairs);
    let mode = mode(&mut query)?;
    query.finish()?;
    hold(&server, mode, NOTHING).await?;
    Ok(reply::value(&json!({ "status": "paused" })))
}

pub async fn resume(State(server): AppState) -> PauseAnswer {
    server.admission.end_turn();
    waiting(&server, |server| server.engine.resume().map_err(|error| failed(&error))).await?;
    Ok(reply::value(&json!({ "status": "resumed" })))
}

pub async fn is_paused(State(server): AppState) -> PauseAnswer {
    Ok(reply::value(&json!({ "is_paused": has_paused(&server) })))
}

/// Whether the engine is paused, or a pause waits for requests to end.
pub fn has_paused(server: &Server) -> bool {
    server.admission.is_draining() || server.engine.is_paused()
}

/// Ends requests by name; all of them if none is named.
pub async fn abort_requests(State(server): AppState, headers: HeaderMap, body: Body) -> PauseAnswer {
    let mut fields = fields(&server, &headers, body).await?;
    let names = fields.words("request_ids")?;
    fields.finish()?;
    let names = (!names.is_empty()).then_some(names);
    let aborted = waiting(&server, |server| Ok(server.dispatcher.abort(names))).await?;
    Ok(reply::value(&json!({ "status": "aborted", "aborted": aborted })))
}

/// Ends requests by name, at the path that routers have; none if none is named.
pub async fn abort_named(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut object = super::forms::object(&server, &headers, body).await?;
    if !object.contains_key("request_ids") {
        return Err(Refusal::value("request_ids", "a list of strings", "nothing").into());
    }
    let names = object.remove("request_ids").unwrap_or_default();
    let names = names.as_array().and_then(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    let names: Vec<String> =
        names.ok_or_else(|| Refusal::value("request_ids", "a list of strings", "something else"))?;
    offshoot_openai::protocol::BodyFields::new(&object).finish()?;
    if !names.is_empty() {
        waiting(&server, |server| Ok(server.dispatcher.abort(Some(names)))).await?;
    }
    Ok(reply::value(&json!({})))
}
