//! Pauses: whether requests for samples are admitted, what becomes of those in progress, and requests that are ended by
//! name. Requests of batches stand still in every pause and go on behind it, so that no line of a result is cut short.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use offshoot_engine::PauseMode;
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::failed;
use super::forms::{Pairs, QueryFields, fields, waiting};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// Between two looks at what is in progress.
const LOOK: Duration = Duration::from_millis(5);

/// The values of `mode`.
pub const MODES: [(&str, PauseMode); 3] =
    [("abort", PauseMode::Abort), ("wait", PauseMode::Wait), ("keep", PauseMode::Keep)];

/// Whether requests for samples are admitted.
#[derive(Default)]
pub struct Admission(Mutex<Gate>);

#[derive(Default)]
struct Gate {
    is_shut: bool,
    /// Pauses and ends of pauses so far.
    turns: u64,
}

/// A pause, until another one or a resume follows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn(u64);

impl Admission {
    /// Refuses a request while the server is paused in a mode in which requests do not wait.
    pub fn check(&self) -> Result<(), Refusal> {
        match self.lock().is_shut {
            true => {
                let what = "generation is paused; the request may be sent again once it is resumed";
                Err(Refusal::of_kind(RefusalKind::Unavailable, "paused", what))
            }
            false => Ok(()),
        }
    }

    pub fn is_shut(&self) -> bool {
        self.lock().is_shut
    }

    fn set(&self, is_shut: bool) -> Turn {
        let mut gate = self.lock();
        gate.is_shut = is_shut;
        gate.turns += 1;
        Turn(gate.turns)
    }

    fn is_over(&self, turn: Turn) -> bool {
        self.lock().turns != turn.0
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deals with the requests in progress as `mode` says, and admits no more if they would not be answered. Returns when
/// that holds; the engine itself is not paused by this.
pub async fn settle(server: &Arc<Server>, mode: PauseMode) -> Result<(), Refusal> {
    let turn = server.admission.set(mode != PauseMode::Keep);
    if mode == PauseMode::Keep {
        return Ok(());
    }
    if mode == PauseMode::Abort {
        waiting(server, |server| Ok(server.dispatcher.abort(None))).await?;
    }
    while server.dispatcher.open() > 0 {
        if server.admission.is_over(turn) {
            let what = "the pause was ended, or another one followed, before all requests in progress had ended";
            return Err(Refusal::of_kind(RefusalKind::Conflict, "pause_ended", what));
        }
        if mode == PauseMode::Abort {
            // One that was admitted before may have come since.
            waiting(server, |server| Ok(server.dispatcher.abort(None))).await?;
        }
        server.dispatcher.check_alive().map_err(|refusal| Refusal { kind: RefusalKind::Conflict, ..refusal })?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// `mode`, and fields that change nothing: no keys and values of old weights are ever read again.
pub fn mode(query: &mut QueryFields) -> Result<PauseMode, Refusal> {
    let mode = query.word("mode", &MODES)?;
    query.flag("clear_cache")?;
    let waits = query.flag("wait_for_inflight_requests")?.unwrap_or(false);
    Ok(mode.unwrap_or(if waits { PauseMode::Wait } else { PauseMode::Abort }))
}

pub async fn pause(State(server): AppState, pairs: Pairs) -> Answer {
    let mut query = QueryFields::new(pairs);
    let mode = mode(&mut query)?;
    query.finish()?;
    if mode == PauseMode::Wait && server.engine.is_paused() {
        // What stands still would not come to its end.
        waiting(&server, |server| server.engine.resume().map_err(|error| failed(&error))).await?;
    }
    settle(&server, mode).await?;
    // What is still in the engine is not of clients, or is to stand still.
    waiting(&server, |server| server.engine.pause(PauseMode::Keep).map_err(|error| failed(&error))).await?;
    Ok(reply::value(&json!({ "status": "paused" })))
}

pub async fn resume(State(server): AppState) -> Answer {
    waiting(&server, |server| server.engine.resume().map_err(|error| failed(&error))).await?;
    admit(&server);
    Ok(reply::value(&json!({ "status": "resumed" })))
}

/// Admits requests again.
pub fn admit(server: &Server) {
    server.admission.set(false);
}

pub async fn is_paused(State(server): AppState) -> Answer {
    Ok(reply::value(&json!({ "is_paused": has_paused(&server) })))
}

pub fn has_paused(server: &Server) -> bool {
    server.admission.is_shut() || server.engine.is_paused()
}

/// Ends requests by name; all of them if none is named.
pub async fn abort_requests(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
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
