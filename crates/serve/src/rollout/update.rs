//! Weight updates: their beginning, their tensors, their end. Until the end nothing of them is in force; an error, or a
//! trainer's silence, drops them, and the old weights stay. What is in progress meanwhile goes on under the new ones.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};

use offshoot_backend::DeviceLender;
use offshoot_engine::WeightsUpdate;
use offshoot_launch::{UpdateFolder, device_lender};
use offshoot_model::UpdateScope;
use offshoot_openai::protocol::{BodyFields, Refusal, RefusalKind};

use super::forms::{Pairs, QueryFields, fields, object, optional_fields, optional_object, waiting};
use super::pending::{PendingUpdate, Room, UpdateId};
use super::transfer::{
    HANDLES, IpcUpdate, NcclSession, SessionStart, StepFolder, bytes_of, described, packing, session_start,
};
use super::{Rollout, failed};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server, drain_refused};

/// The `Content-Type` of a body that is a safetensors file.
const TENSORS: &[u8] = b"application/octet-stream";

/// The field with a folder of weights.
const FOLDER: &str = "weight_dir";

const SCOPES: [(&str, UpdateScope); 2] = [("whole", UpdateScope::Whole), ("changed", UpdateScope::Changed)];

/// The state of a server whose routes these are.
pub fn rollout(server: &Server) -> &Rollout {
    server.rollout.as_ref().expect("a server without rollouts has no routes of theirs")
}

fn said(what: &str) -> Answer {
    Ok(reply::value(&json!({ "message": what })))
}

pub async fn init_transfer(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut told = object(&server, &headers, body).await?;
    let init = match told.remove("init_info") {
        Some(Value::Object(init)) => init,
        other => {
            let found = if other.is_none() { "nothing" } else { "something else" };
            return Err(Refusal::value("init_info", "an object, which may be empty", found).into());
        }
    };
    BodyFields::new(&told).finish()?;
    let start = session_start(&init)?;
    let open = move |server: &Server| {
        let rollout = rollout(server);
        let session = match start {
            SessionStart::Requests => None,
            SessionStart::Nccl(info) => Some(NcclSession::open(&info, rollout.facts.gpu, rollout.pending.timeout())?),
        };
        rollout.pending.set_session(session)
    };
    waiting(&server, open).await?;
    said("the transfer of weights is set up")
}

/// Ends the session, and drops the update that is open.
pub async fn shut_transfer(State(server): AppState) -> Answer {
    rollout(&server).pending.drop_all();
    said("the transfer of weights is shut down")
}

pub async fn start(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    begin(&server, &optional_object(&server, &headers, body).await?)?;
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
    // Others are of no effect, as in vLLM.
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
    let is_file =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(TENSORS));
    let query = QueryFields::new(pairs);
    if is_file {
        query.finish()?;
        receive_file(&server, &headers, body).await?;
        return said("the tensors have come");
    }
    let mut info = UpdateInfo::new(&server);
    query.finish()?;
    let mut told = object(&server, &headers, body).await?;
    match (told.remove(FOLDER), told.contains_key("update_info")) {
        (Some(folder), false) => {
            info.settle();
            return update_from_folder(&server, &folder, &told).await;
        }
        (Some(_), true) => return Err(Refusal::out_of_place(FOLDER, "beside `update_info`").into()),
        (None, _) => {}
    }
    let told = told.remove("update_info").ok_or_else(|| {
        let expected = "what comes, beside it or in place of it `weight_dir` or a body of tensors";
        Refusal::value("update_info", expected, "nothing")
    })?;
    info.receive(told).await?;
    said("the tensors have come")
}

/// A body that is a safetensors file with tensors of the open update.
async fn receive_file(server: &Arc<Server>, headers: &HeaderMap, mut body: Body) -> Result<(), Refusal> {
    let read = read_file(&rollout(server).pending, &mut body).await;
    if read.is_err() {
        drain_refused(headers, &mut body).await;
    }
    let (mut room, file) = read?;
    waiting(server, move |_| room.fill(Instant::now(), |tensors| tensors.add_safetensors(file))).await
}

/// The bytes of a body, and the room for them in the update for which they come.
async fn read_file(pending: &Arc<PendingUpdate>, body: &mut Body) -> Result<(Room, Vec<u8>), Refusal> {
    let id = pending.current(Instant::now())?;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut room = pending.room(id, announced, Instant::now())?;
    let mut file = Vec::with_capacity(announced);
    loop {
        let frame = tokio::time::timeout(pending.timeout(), body.frame()).await;
        let Ok(frame) = frame else {
            let what = format!("the tensors did not go on coming within {} s", pending.timeout().as_secs_f64());
            return Err(Refusal::of_kind(RefusalKind::Timeout, "timeout", what));
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| Refusal::new("invalid_request", "the body did not arrive whole"))?;
        let Ok(piece) = frame.into_data() else { continue };
        let more = (file.len() + piece.len()).saturating_sub(announced.max(file.len()));
        room.grow(more, Instant::now())?;
        file.extend_from_slice(&piece);
    }
    Ok((room, file))
}

/// A request with an `update_info`. A trainer may broadcast what it names while it sends it, so one that is refused, or
/// whose client goes, drops the update and ends the session: what was sent for it must not be received for another.
pub struct UpdateInfo {
    server: Arc<Server>,
    is_settled: bool,
}

impl UpdateInfo {
    pub fn new(server: &Arc<Server>) -> Self {
        UpdateInfo { server: server.clone(), is_settled: false }
    }

    /// Nothing is left of the request that could be received for another: it has none, or all has been received.
    pub fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Receives what an `update_info` says is coming; a list of them has one for each rank, and the server is one.
    pub async fn receive(mut self, told: Value) -> Result<(), Refusal> {
        let info = match told {
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
        let id = rollout(&self.server).pending.current(Instant::now())?;
        waiting(&self.server, move |server| receive(rollout(server), id, &info)).await?;
        self.settle();
        Ok(())
    }
}

impl Drop for UpdateInfo {
    fn drop(&mut self) {
        if !self.is_settled {
            rollout(&self.server).pending.drop_all();
        }
    }
}

fn receive(rollout: &Rollout, id: UpdateId, info: &Map<String, Value>) -> Result<(), Refusal> {
    let (pending, mut fields) = (&rollout.pending, BodyFields::new(info));
    if info.contains_key(HANDLES) {
        let lender = || {
            let gpu = rollout.facts.gpu.ok_or_else(IpcUpdate::without_gpu)?;
            device_lender(gpu).map_err(|error| failed(&error))
        };
        return lend(pending, id, fields, lender());
    }
    let told = described(&mut fields)?;
    pending.by_session(id, Instant::now(), |session| {
        let packing = packing(&mut fields, session.packing)?;
        fields.finish()?;
        let bytes = bytes_of(session.coming(told)?);
        let mut room = pending.room(id, bytes, Instant::now())?;
        session.receive(packing, &mut |block, tensors| {
            room.fill(Instant::now(), |received| received.add_block(block, tensors))
        })
    })
}

/// Takes tensors that a trainer lends by handles of its memory. It waits for the trainer, and holds no lock meanwhile.
fn lend(
    pending: &Arc<PendingUpdate>,
    id: UpdateId,
    mut fields: BodyFields,
    lender: Result<Arc<dyn DeviceLender>, Refusal>,
) -> Result<(), Refusal> {
    let uuid = lender.as_ref().ok().and_then(|lender| lender.uuid().ok());
    let exports = IpcUpdate::exports(&mut fields);
    // Dropped behind all that is opened here; counted from now on, as what follows may be refused.
    let _users = exports.as_ref().map(|exports| {
        let counters = exports.counters(uuid.as_deref());
        pending.users(id, counters, Instant::now())
    });
    let lender = lender?;
    let update = IpcUpdate::read(exports?, &mut fields)?;
    fields.finish()?;
    let mut room = pending.room(id, update.bytes(), Instant::now())?;
    let lent = update.open(&*lender, Instant::now() + pending.timeout())?;
    room.fill(Instant::now(), |received| received.add_lent(lent))
}

/// An update whose tensors lie in a folder, at once.
async fn update_from_folder(server: &Arc<Server>, folder: &Value, told: &Map<String, Value>) -> Answer {
    let expected = "the path of a folder with the weights of a step";
    let wrong = || Refusal::value(FOLDER, expected, if folder.is_null() { "null" } else { "something else" });
    let folder = folder.as_str().ok_or_else(wrong)?.to_owned();
    let mut fields = BodyFields::new(told);
    let scope = fields.word("scope", &SCOPES)?.unwrap_or(UpdateScope::Whole);
    let label = fields.text("weight_version")?;
    fields.finish()?;
    let label = waiting(server, move |server| {
        let step = StepFolder::find(&folder)?;
        let committing = rollout(server).pending.take_whole(Instant::now())?;
        let form =
            server.engine.weight_form().ok_or_else(|| Refusal::new("no_weights", "the engine has no weights"))?;
        let folder = UpdateFolder::open(&step.path, scope, &form).map_err(|error| failed(&error))?;
        let update = folder.into_update(label.or(step.label), rollout(server).facts.keeps_prefixes);
        let label = put_in_force(server, update)?;
        drop(committing);
        Ok(label)
    })
    .await?;
    Ok(reply::value(&json!({ "status": "ok", "weight_version": label })))
}

pub async fn finish(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    // Fields beside it are of no effect, as in vLLM.
    let label = optional_fields(&server, &headers, body).await?.text("weight_version")?;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use offshoot_model::TensorSource;

    use super::super::transfer::exports_tests::{by_gpu, list, named};
    use super::super::transfer::ipc_tests::{Lender, both, told};
    use super::*;

    fn fields() -> BodyFields {
        BodyFields::new(told(&both(7)).as_object().expect("an object"))
    }

    /// The server goes on while a trainer that lends tensors has not written them.
    #[test]
    fn a_trainer_that_hangs_holds_nobody_else_up() {
        let (pending, now) = (Arc::new(PendingUpdate::new(Duration::from_secs(600), 1000)), Instant::now());
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        let others = pending.clone();
        let lender = Lender::writing(move || {
            let (answer, answers) = mpsc::channel();
            let other = others.clone();
            thread::spawn(move || drop(answer.send(other.current(Instant::now()))));
            // A limit for a server that stands.
            let answered = answers.recv_timeout(Duration::from_secs(60));
            answered.expect("the update's state is free").is_ok_and(|current| current == id)
        });
        lend(&pending, id, fields(), Ok(Arc::new(lender))).expect("it is written");
        let (_committing, tensors, _) = pending.take(now).expect("all have come");
        assert_eq!(tensors.names(), ["a", "b"]);
    }

    #[test]
    fn tensors_that_are_not_written_in_time_drop_the_update() {
        let (pending, now) = (Arc::new(PendingUpdate::new(Duration::from_secs(600), 1000)), Instant::now());
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        let refused = lend(&pending, id, fields(), Ok(Arc::new(Lender::writing(|| false))));
        assert_eq!(refused.expect_err("it is never written").code, "timeout");
        assert_eq!(pending.take(now).map(drop).expect_err("it was dropped").code, "no_update");
    }

    /// A file of torch's numbers of users, in its place.
    struct Counter(tempfile::NamedTempFile);

    impl Counter {
        /// Number 3 of its file, which is one.
        fn new() -> Self {
            let file = tempfile::Builder::new().prefix("torch_").rand_bytes(12).tempfile_in("/dev/shm");
            let file = file.expect("shared memory is writable");
            std::fs::write(file.path(), [&[0; 64][..], &[1i64; 4].map(i64::to_ne_bytes).concat()].concat())
                .expect("it is writable");
            Counter(file)
        }

        /// Where the tensors' file is named in its place.
        fn told(&self, pickle: &[u8]) -> Value {
            let name = self.0.path().file_name().and_then(|name| name.to_str()).expect("UTF-8");
            told(&named(pickle, &format!("/{name}")))
        }

        fn users(&self) -> i64 {
            let bytes = std::fs::read(self.0.path()).expect("it is there");
            i64::from_ne_bytes(bytes[88..96].try_into().expect("eight bytes"))
        }

        /// What is dropped is dropped on another thread.
        fn wait_for_none(&self) {
            for _ in 0..60_000 {
                if self.users() == 0 {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
            panic!("the trainer never hears that its memory is free");
        }
    }

    /// torch keeps what it exports until all users are gone: they are counted from the moment when it is known.
    #[test]
    fn a_trainer_hears_that_its_memory_is_free_whatever_becomes_of_the_update() {
        let (pending, now) = (Arc::new(PendingUpdate::new(Duration::from_secs(600), 1000)), Instant::now());
        let open = || pending.start(UpdateScope::Changed, now).expect("none is open");
        let lender = || -> Result<Arc<dyn DeviceLender>, Refusal> { Ok(Arc::new(Lender::writing(|| true))) };
        let lend = |id, told: &Value, lender| {
            let fields = BodyFields::new(told.as_object().expect("an object"));
            lend(&pending, id, fields, lender).map_err(|refusal| refusal.code)
        };
        // In force.
        let (counter, id) = (Counter::new(), open());
        lend(id, &counter.told(&both(7)), lender()).expect("it is right");
        let (committing, tensors, _) = pending.take(now).expect("all have come");
        assert_eq!(counter.users(), 1, "it is read still");
        drop((tensors, committing));
        assert_eq!(counter.users(), 0);
        // Refused, before a handle is opened and after that.
        let elsewhere = list(&[by_gpu("another", [2, 3], 16, &[7; 64]), by_gpu("another", [4, 1], 64, &[7; 64])]);
        let with_field = |told: Value| {
            let Value::Object(mut told) = told else { panic!("an object") };
            told.insert("other".to_owned(), json!(1));
            Value::Object(told)
        };
        let refused = |counter: Counter, told: Value, lender| {
            lend(open(), &told, lender).expect_err("it is wrong");
            pending.drop_all();
            counter.wait_for_none();
        };
        let counted = |pickle: &[u8]| {
            let counter = Counter::new();
            let told = counter.told(pickle);
            (counter, told)
        };
        let (counter, told) = counted(&elsewhere);
        refused(counter, told, lender());
        let (counter, told) = counted(&both(7));
        refused(counter, with_field(told), lender());
        let (counter, told) = counted(&both(8));
        refused(counter, told, lender());
        let (counter, told) = counted(&both(7));
        refused(counter, told, Err(IpcUpdate::without_gpu()));
        // Dropped, and for an update that is not open any more.
        let (counter, id) = (Counter::new(), open());
        lend(id, &counter.told(&both(7)), lender()).expect("it is right");
        assert_eq!(counter.users(), 1, "it is held");
        pending.drop_all();
        counter.wait_for_none();
        let late = Counter::new();
        assert_eq!(lend(id, &late.told(&both(7)), lender()), Err("no_update"));
        assert_eq!(late.users(), 0);
    }
}
