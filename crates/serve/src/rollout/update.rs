//! Weight updates: their beginning, their tensors, their end. Until the end nothing of them is in force; an error, or a
//! trainer's silence, drops them, and the old weights stay. What is in progress meanwhile goes on under the new ones.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};

use offshoot_engine::WeightsUpdate;
use offshoot_launch::UpdateFolder;
use offshoot_model::UpdateScope;
use offshoot_openai::protocol::{BodyFields, Refusal, RefusalKind};

use super::forms::{Pairs, QueryFields, fields, object, waiting};
use super::pending::{PendingUpdate, UpdateId};
use super::transfer::{
    DescribedTensor, IpcUpdate, NcclSession, Session, SessionStart, StepFolder, described, packing, session_start,
};
use super::{Rollout, failed};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server, drain_refused};

/// The `Content-Type` of a body that is a safetensors file.
const TENSORS: &[u8] = b"application/octet-stream";

const SCOPES: [(&str, UpdateScope); 2] = [("whole", UpdateScope::Whole), ("changed", UpdateScope::Changed)];

/// The state of a server whose routes these are.
pub fn rollout(server: &Server) -> &Rollout {
    server.rollout.as_ref().expect("a server without rollouts has no routes of theirs")
}

fn said(what: &str) -> Answer {
    Ok(reply::value(&json!({ "message": what })))
}

pub async fn init_transfer(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = fields(&server, &headers, body).await?;
    let init = fields.object("init_info")?;
    fields.finish()?;
    let start = session_start(&init)?;
    let open = move |server: &Server| {
        let rollout = rollout(server);
        let session = match start {
            SessionStart::Requests => Session::Requests,
            SessionStart::Nccl(info) => {
                Session::Nccl(NcclSession::open(&info, rollout.gpu, rollout.pending.patience())?)
            }
        };
        *session_of(rollout)? = session;
        Ok(())
    };
    waiting(&server, open).await?;
    said("the transfer of weights is set up")
}

/// The session, unless it receives at this moment.
fn session_of(rollout: &Rollout) -> Result<MutexGuard<'_, Session>, Refusal> {
    match rollout.session.try_lock() {
        Ok(session) => Ok(session),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(std::sync::TryLockError::WouldBlock) => {
            let what = "tensors are being received; the session can change when that has ended";
            Err(Refusal::of_kind(RefusalKind::Conflict, "update_open", what))
        }
    }
}

/// Ends the session, and drops the update that is open.
pub async fn shut_transfer(State(server): AppState) -> Answer {
    let shut = |server: &Server| {
        let rollout = rollout(server);
        *session_of(rollout)? = Session::Requests;
        rollout.pending.drop_it();
        Ok(())
    };
    waiting(&server, shut).await?;
    said("the transfer of weights is shut down")
}

pub async fn start(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    begin(&server, &object(&server, &headers, body).await?)?;
    said("the weight update has begun")
}

/// Begins an update, as these fields say.
pub fn begin(server: &Arc<Server>, told: &Map<String, Value>) -> Result<(), Refusal> {
    let mut fields = BodyFields::new(told);
    if fields.choice("is_checkpoint_format")? == Some(false) {
        let expected = "true: tensors with the names and shapes of the model's checkpoint";
        return Err(Refusal::value("is_checkpoint_format", expected, "false"));
    }
    let scope = fields.word("scope", &SCOPES)?.unwrap_or(UpdateScope::Changed);
    fields.finish()?;
    let id = rollout(server).pending.start(scope, Instant::now())?;
    // What came of it takes no memory longer than it must.
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        let mut dropped_at = Instant::now();
        loop {
            tokio::time::sleep_until(dropped_at.into()).await;
            let Some(server) = server.upgrade() else { return };
            match rollout(&server).pending.expire(id, Instant::now()) {
                Some(at) => dropped_at = at,
                None => return,
            }
        }
    });
    Ok(())
}

/// Takes tensors of the open update, in one of several forms; or a folder with all of a new one.
pub async fn update(State(server): AppState, pairs: Pairs, headers: HeaderMap, body: Body) -> Answer {
    QueryFields::new(pairs).finish()?;
    let is_file =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(TENSORS));
    if is_file {
        receive_file(&server, &headers, body).await?;
        return said("the tensors have come");
    }
    let told = object(&server, &headers, body).await?;
    if let Some(Value::String(folder)) = told.get("weight_dir") {
        return update_from_folder(&server, folder.clone(), &told).await;
    }
    let info = told.get("update_info").ok_or_else(|| {
        let expected = "what comes, beside it or in place of it `weight_dir` or a body of tensors";
        Refusal::value("update_info", expected, "nothing")
    })?;
    receive_told(&server, info.clone()).await?;
    said("the tensors have come")
}

/// A body that is a safetensors file with tensors of the open update.
async fn receive_file(server: &Arc<Server>, headers: &HeaderMap, mut body: Body) -> Result<(), Refusal> {
    let read = read_file(&rollout(server).pending, &mut body).await;
    if read.is_err() {
        drain_refused(headers, &mut body).await;
    }
    let (id, file) = read?;
    let add = move |server: &Server| {
        let pending = &rollout(server).pending;
        pending.add(id, Instant::now(), |tensors| tensors.add_safetensors(file))
    };
    waiting(server, add).await
}

/// The bytes of a body, and the update for which they come.
async fn read_file(pending: &PendingUpdate, body: &mut Body) -> Result<(UpdateId, Vec<u8>), Refusal> {
    let id = pending.heard(Instant::now())?;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > pending.most_bytes() {
        return Err(pending.too_much());
    }
    let mut file = Vec::with_capacity(announced);
    loop {
        let frame = tokio::time::timeout(pending.patience(), body.frame()).await;
        let Ok(frame) = frame else {
            let what = format!("the tensors did not go on coming within {} s", pending.patience().as_secs_f64());
            return Err(Refusal::of_kind(RefusalKind::Timeout, "timeout", what));
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| Refusal::new("invalid_request", "the body did not arrive whole"))?;
        let Ok(piece) = frame.into_data() else { continue };
        if file.len() + piece.len() > pending.most_bytes() {
            return Err(pending.too_much());
        }
        file.extend_from_slice(&piece);
        pending.go_on(id, Instant::now())?;
    }
    Ok((id, file))
}

/// What an `update_info` says is coming; a list of them has one for each rank, and the server is one.
pub async fn receive_told(server: &Arc<Server>, info: Value) -> Result<(), Refusal> {
    let info = match info {
        Value::Object(info) => info,
        Value::Array(mut list) if list.len() == 1 && list[0].is_object() => match list.remove(0) {
            Value::Object(info) => info,
            _ => Map::new(),
        },
        other => {
            let found = if other.is_array() { "a list of another length" } else { "something else" };
            return Err(Refusal::value("update_info", "an object, or a list of one", found));
        }
    };
    let id = rollout(server).pending.heard(Instant::now())?;
    waiting(server, move |server| receive(server, id, &info)).await
}

fn receive(server: &Server, id: UpdateId, info: &Map<String, Value>) -> Result<(), Refusal> {
    let (rollout, mut fields) = (rollout(server), BodyFields::new(info));
    if info.contains_key("ipc_handles_pickled") {
        let update = IpcUpdate::read(&mut fields)?;
        fields.finish()?;
        rollout.pending.drop_it();
        return Err(update.refusal(rollout.gpu.is_some()));
    }
    let tensors = described(&mut fields)?;
    let mut session = session_of(rollout)?;
    let Session::Nccl(nccl) = &mut *session else {
        let what = "no trainer is joined by NCCL: expected /init_weight_transfer_engine with its address before this";
        return Err(Refusal::of_kind(RefusalKind::Conflict, "no_session", what));
    };
    let packing = packing(&mut fields, nccl.packing)?;
    fields.finish()?;
    let add = |block: Vec<u8>, tensors: &[DescribedTensor]| {
        rollout.pending.add(id, Instant::now(), |received| received.add_block(block, tensors))
    };
    let received = nccl.receive(tensors, packing, add);
    received.inspect_err(|_| {
        // The two sides do not agree any more on what comes next.
        *session = Session::Requests;
        rollout.pending.drop_it();
    })
}

/// An update whose tensors lie in a folder, at once.
async fn update_from_folder(server: &Arc<Server>, folder: String, told: &Map<String, Value>) -> Answer {
    let mut fields = BodyFields::new(told);
    fields.take("weight_dir");
    let scope = fields.word("scope", &SCOPES)?.unwrap_or(UpdateScope::Whole);
    let label = fields.text("weight_version")?;
    fields.finish()?;
    let label = waiting(server, move |server| {
        let step = StepFolder::find(&folder)?;
        let committing = rollout(server).pending.take_whole(Instant::now())?;
        let form =
            server.engine.weight_form().ok_or_else(|| Refusal::new("no_weights", "the engine has no weights"))?;
        let folder = UpdateFolder::open(&step.path, scope, &form).map_err(|error| failed(&error))?;
        let update = folder.into_update(label.or(step.label), rollout(server).keeps_prefixes);
        let label = put_in_force(server, update)?;
        drop(committing);
        Ok(label)
    })
    .await?;
    Ok(reply::value(&json!({ "status": "ok", "weight_version": label })))
}

pub async fn finish(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = fields(&server, &headers, body).await?;
    let label = fields.text("weight_version")?;
    fields.finish()?;
    let label = end(&server, label).await?;
    Ok(reply::value(&json!({ "message": "the weight update is in force", "weight_version": label })))
}

/// Puts the open update in force; what the weights are called then.
pub async fn end(server: &Arc<Server>, label: Option<String>) -> Result<String, Refusal> {
    let commit = move |server: &Server| {
        let (committing, tensors, scope) = rollout(server).pending.take(Instant::now())?;
        if tensors.len() == 0 {
            return Err(Refusal::new(
                "no_tensors",
                "expected tensors between the update's start and its end, found none",
            ));
        }
        let update = WeightsUpdate { label, ..WeightsUpdate::new(Arc::new(tensors), scope) };
        let label = put_in_force(server, update)?;
        drop(committing);
        Ok(label)
    };
    waiting(server, commit).await
}

/// Changes the engine's weights; what they are called then.
fn put_in_force(server: &Server, update: WeightsUpdate) -> Result<String, Refusal> {
    let weights = server.engine.update_weights(update).map_err(|error| failed(&error))?;
    Ok(weights.label)
}

/// Names the weights in force.
pub async fn set_version(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = fields(&server, &headers, body).await?;
    let label = fields.text("new_version")?;
    let label = label.ok_or_else(|| Refusal::value("new_version", "a string", "nothing"))?;
    fields.finish()?;
    let set = move |server: &Server| {
        let weights = server.engine.set_label(label).map_err(|error| failed(&error))?;
        Ok(weights.label)
    };
    let label = waiting(&server, set).await?;
    Ok(reply::value(&json!({ "success": true, "new_version": label })))
}
