//! Runs batches, one after the other, on a thread of its own: the same code as `offshoot batch`, on the server's engine
//! and behind the requests of its clients. A batch in progress is on disk: after a crash it goes on where it was.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::Value;

use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::write_whole;
use offshoot_core::setting::MAX_DATA;
use offshoot_engine::{EngineHandle, Priority};
use offshoot_lines::open;
use offshoot_model::ModelConfig;
use offshoot_openai::batch::{
    AnswerOrigin, AnswerProgress, DEFAULT_MOST_OF_LINE, InputLine, RequestFile, read_lines, reader,
};
use offshoot_openai::protocol::files::{
    BatchError, BatchErrors, BatchObject, BatchStatus, FileObject, FilePurpose, RequestCounts,
};
use offshoot_openai::protocol::{ProtocolLimits, Refusal, RequestReader};
use offshoot_text::Tokenizer;

use super::attempts::{Attempt, EarlierAttempts, Suspicion, given_up};
use super::names::ServedNames;
use super::store::{Record, Store};

/// Batches come after the requests of clients.
const PRIORITY: Priority = Priority(1000);
/// The answers of a batch, in messages.
const ANSWERS: &str = "the answers of the batch";

/// What batches are answered with.
pub struct BatchEngine {
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub names: Arc<ServedNames>,
    pub limits: ProtocolLimits,
    /// The origin of the answers. Its seed is that of requests without one.
    pub origin: AnswerOrigin,
}

impl BatchEngine {
    /// The limits of a request in a batch: those of the server's clients, without what needs a connection.
    pub fn limits(of_clients: &ProtocolLimits) -> ProtocolLimits {
        let ProtocolLimits { choices, streams, keeps, .. } = ProtocolLimits::BATCH;
        ProtocolLimits { choices, streams, keeps, ..of_clients.clone() }
    }
}

/// A batch that waits or runs. Lists of them are in the order in which they run.
struct OpenBatch {
    id: String,
    /// Whether it shall end.
    end: Arc<AtomicBool>,
}

/// The batches that wait or run. Dropping it stops the one that runs, which goes on at the next start.
pub struct Batches {
    pub store: Arc<Store>,
    queue: Option<Sender<(String, String)>>,
    open: Arc<Mutex<Vec<OpenBatch>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Batches {
    /// Starts the thread, with the batches that were left.
    pub fn start(store: Arc<Store>, with: BatchEngine) -> Result<Batches> {
        let (queue, waiting) = unbounded();
        let open: Arc<Mutex<Vec<OpenBatch>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Runner { store: store.clone(), with, open: open.clone(), stop: stop.clone() };
        let thread = std::thread::Builder::new().name("batches".to_owned()).spawn(move || runner.run(&waiting));
        let thread = thread.map_err(Error::io("a thread", "start"))?;
        let batches = Batches { store, queue: Some(queue), open, stop, thread: Some(thread) };
        let mut left = batches.store.all::<BatchObject>();
        left.reverse();
        for record in left.into_iter().filter(|record| !record.object.status.is_end()) {
            let is_cancelled = record.object.status == BatchStatus::Cancelling;
            batches.queue(record.owner, record.object.id, is_cancelled);
        }
        Ok(batches)
    }

    /// Queues a batch that is in the store.
    pub fn add(&self, owner: String, id: String) {
        self.queue(owner, id, false);
    }

    fn queue(&self, owner: String, id: String, is_cancelled: bool) {
        // Held, so that the list and the queue have one order.
        let mut open = self.open_batches();
        open.push(OpenBatch { id: id.clone(), end: Arc::new(AtomicBool::new(is_cancelled)) });
        if let Some(queue) = &self.queue {
            // Without its thread, batches wait for the next start.
            drop(queue.send((owner, id)));
        }
    }

    /// Asks a batch to end, and says how it is.
    pub fn cancel(&self, owner: &str, id: &str) -> Result<BatchObject, Refusal> {
        let batch = self.store.get::<BatchObject>(owner, id)?;
        let Some(end) = end_of(&self.open, id) else { return Ok(batch) };
        let changed = self.store.change::<BatchObject>(id, |record| {
            // It may have ended just now.
            if !record.object.status.is_end() {
                record.object.enter(BatchStatus::Cancelling, now());
            }
        });
        let record = changed.map_err(|error| Refusal::of(&error))?;
        end.store(true, Ordering::Relaxed);
        Ok(record.object)
    }

    /// The first batches that run or wait, in the order in which they run. Reads the records of at most `most`.
    pub fn open(&self, most: usize) -> Vec<BatchObject> {
        let ids: Vec<String> = self.open_batches().iter().take(most).map(|batch| batch.id.clone()).collect();
        let records = ids.iter().filter_map(|id| self.store.record::<BatchObject>(id).ok());
        records.map(|record| record.object).filter(|batch| !batch.status.is_end()).collect()
    }

    fn open_batches(&self) -> MutexGuard<'_, Vec<OpenBatch>> {
        locked(&self.open)
    }
}

fn locked(open: &Mutex<Vec<OpenBatch>>) -> MutexGuard<'_, Vec<OpenBatch>> {
    open.lock().expect("nothing panics while it holds the batches")
}

/// What ends the batch `id`; `None`: it neither waits nor runs.
fn end_of(open: &Mutex<Vec<OpenBatch>>, id: &str) -> Option<Arc<AtomicBool>> {
    locked(open).iter().find(|batch| batch.id == id).map(|batch| batch.end.clone())
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.open_batches().iter().for_each(|batch| batch.end.store(true, Ordering::Relaxed));
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it is on standard error; its batch goes on at the next start.
            drop(thread.join());
        }
    }
}

struct Runner {
    store: Arc<Store>,
    with: BatchEngine,
    open: Arc<Mutex<Vec<OpenBatch>>>,
    stop: Arc<AtomicBool>,
}

impl Runner {
    fn run(&self, waiting: &Receiver<(String, String)>) {
        for (owner, id) in waiting {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let (Some(end), Ok(_)) = (end_of(&self.open, &id), self.store.get::<BatchObject>(&owner, &id)) else {
                continue;
            };
            let record = self.store.record::<BatchObject>(&id);
            match record.and_then(|record| self.batch(record, &end)) {
                Err(Error::Interrupted) if self.stop.load(Ordering::Relaxed) => return,
                Err(error @ Error::EngineStopped { .. }) => {
                    log::warn!("batch {id} and those behind it wait for the next start: {error}");
                    return;
                }
                Err(error) => log::warn!("batch {id}: {error}"),
                Ok(()) => {}
            }
            locked(&self.open).retain(|batch| batch.id != id);
        }
    }

    /// Answers one batch, up to a state that is its end.
    ///
    /// # Errors
    ///
    /// `Interrupted` and `EngineStopped` leave the batch to the next start.
    fn batch(&self, mut record: Record<BatchObject>, end: &AtomicBool) -> Result<()> {
        let answered = self.answer(&mut record, end);
        self.store.count(&self.store.answers_of(&record.object.id));
        let batch = &mut record.object;
        match answered {
            Ok(end) => batch.enter(end, now()),
            Err(error @ (Error::EngineStopped { .. } | Error::Interrupted)) => return Err(error),
            Err(error) => {
                let failed = BatchError::new(&Refusal::of(&error), None);
                batch.errors = Some(BatchErrors::new(vec![failed]));
                batch.enter(BatchStatus::Failed, now());
            }
        }
        // What was answered is kept, however it ended.
        self.publish(&mut record)?;
        // What is not removed now is at the next start.
        drop(fs::remove_file(self.store.attempts_of(&record.object.id)));
        Ok(())
    }

    /// Why an interrupted batch ends; `None`: the server ends, and the batch goes on at the next start.
    fn early_end(&self, batch: &BatchObject) -> Option<EarlyEnd> {
        match batch.status {
            _ if self.stop.load(Ordering::Relaxed) => None,
            BatchStatus::Cancelling => Some(EarlyEnd::Cancelled),
            _ if is_past(batch) => Some(EarlyEnd::Expired),
            // A cancellation is on disk before it interrupts the batch, and may be newer than `batch`.
            _ => Some(EarlyEnd::Cancelled),
        }
    }

    /// Answers the open requests of a batch. Returns the state that the batch is to end in.
    fn answer(&self, record: &mut Record<BatchObject>, end: &AtomicBool) -> Result<BatchStatus> {
        let attempts = self.store.attempts_of(&record.object.id);
        let earlier = EarlierAttempts::read(&attempts)?;
        earlier.check()?;
        let attempt = Attempt::begin(&attempts)?;
        let done = self.answer_open(record, &earlier, &attempt, end);
        if matches!(done, Err(Error::Interrupted)) {
            attempt.stopped();
        }
        done
    }

    fn answer_open(
        &self,
        record: &mut Record<BatchObject>,
        earlier: &EarlierAttempts,
        attempt: &Attempt,
        end: &AtomicBool,
    ) -> Result<BatchStatus> {
        let BatchEngine { engine, tokenizer, config, names, limits, origin } = &self.with;
        let input = self.store.bytes_of(&record.object.input_file_id);
        check_unpacked(&input, self.store.most_bytes)?;
        let mut lines = read_lines(&input, DEFAULT_MOST_OF_LINE)?;
        keep_place(&mut lines);
        let reader = reader(tokenizer, config, &names.of_model()[0], origin.seed);
        let reader = RequestReader { names: &**names, limits, priority: PRIORITY, ..reader };
        let all = lines.len() as u64;
        let lines = of_endpoint(lines, &record.object.endpoint);
        let out = self.store.answers_of(record.object.id.as_str());
        let mut file = RequestFile::open(lines, &out, true, origin.clone(), &reader)?;
        attempt.has_read();
        let Suspicion { groups, given_up: guilty } = earlier.suspicion(file.open_requests());
        for line in guilty {
            file.refuse(line, given_up())?;
        }
        let (answered, refused) = file.counts();
        let counts = RequestCounts { total: all, completed: answered as u64, failed: refused as u64 };
        record.object.request_counts = counts;
        if record.object.status == BatchStatus::Validating {
            record.object.enter(BatchStatus::InProgress, now());
        }
        save(&self.store, record)?;
        let bytes = fs::metadata(&out).map_err(Error::io(&out, "look at"))?.len();
        self.store.reserve(ANSWERS, &out, bytes)?;
        if is_past(&record.object) {
            end.store(true, Ordering::Relaxed);
        }
        let written = Mutex::new(Written { record, at: now(), bytes });
        let progress = StoredProgress { store: &self.store, out: &out, attempt, written, end };
        // A suspected request ends, at worst, what comes after all others.
        let apart: HashSet<usize> = groups.iter().flatten().copied().collect();
        let mut answer = |is_wanted: &dyn Fn(usize) -> bool| {
            file.answer(is_wanted, engine.clone(), reader, &progress, end).map(drop)
        };
        let done = answer(&|line| !apart.contains(&line))
            .and_then(|()| groups.iter().try_for_each(|group| answer(&|line| group.contains(&line))));
        let early = match done {
            Err(Error::Interrupted) => self.early_end(&record.object),
            _ => None,
        };
        if let Some(early) = early {
            self.leave(&mut file, &out, early)?;
        }
        // Also of a batch that is cut short: its answers stay.
        file.finish()?;
        match early {
            Some(early) => Ok(early.status()),
            None => done.map(|()| BatchStatus::Completed),
        }
    }

    /// Says of each request that is not answered why it will not be, if there is room for that.
    fn leave(&self, file: &mut RequestFile, out: &Path, early: EarlyEnd) -> Result<()> {
        let lines = file.unanswered(early.code(), early.message());
        let more: usize = lines.iter().map(|(_, line)| line.len() + 1).sum();
        let bytes = fs::metadata(out).map_err(Error::io(out, "look at"))?.len();
        match self.store.reserve(ANSWERS, out, bytes + more as u64) {
            Ok(()) => file.leave(lines),
            Err(error) => {
                log::warn!("the {} requests that are not answered have no lines: {error}", lines.len());
                Ok(())
            }
        }
    }

    /// Puts the answers of a batch into files of their own: those of answered requests, and those of refused ones.
    fn publish(&self, record: &mut Record<BatchObject>) -> Result<()> {
        let answers = self.store.answers_of(record.object.id.as_str());
        let Ok(file) = File::open(&answers) else { return save(&self.store, record) };
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for line in BufReader::new(file).split(b'\n') {
            let mut line = line.map_err(Error::io(&answers, "read"))?;
            // A crash may have cut the last line.
            let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
            line.push(b'\n');
            if answer["response"]["status_code"] == 200 { &mut done } else { &mut failed }.extend(line);
        }
        let name = record.object.id.clone();
        record.object.output_file_id = self.keep(&record.owner, format!("{name}_output.jsonl"), &done)?;
        record.object.error_file_id = self.keep(&record.owner, format!("{name}_error.jsonl"), &failed)?;
        save(&self.store, record)?;
        let removed = fs::remove_file(&answers).map_err(Error::io(&answers, "remove"));
        self.store.count(&answers);
        removed
    }

    /// A new file with these bytes, if there are any.
    fn keep(&self, owner: &str, filename: String, bytes: &[u8]) -> Result<Option<String>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let id = Store::new_id::<FileObject>();
        let path = self.store.bytes_of(&id);
        write_whole(&path, |file| file.write_all(bytes))?;
        // There is room: the answers that are copied had it.
        self.store.count(&path);
        let object = FileObject::new(id.clone(), bytes.len() as u64, filename, FilePurpose::BatchOutput, now());
        self.store.put(&Record::new(owner.to_owned(), object))?;
        Ok(Some(id))
    }
}

/// Why a batch ends before all of its requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyEnd {
    Cancelled,
    Expired,
}

impl EarlyEnd {
    fn status(self) -> BatchStatus {
        match self {
            EarlyEnd::Cancelled => BatchStatus::Cancelled,
            EarlyEnd::Expired => BatchStatus::Expired,
        }
    }

    /// OpenAI's `code` of a request that was not answered, and a sentence.
    fn code(self) -> &'static str {
        match self {
            EarlyEnd::Cancelled => "batch_cancelled",
            EarlyEnd::Expired => "batch_expired",
        }
    }

    fn message(self) -> &'static str {
        match self {
            EarlyEnd::Cancelled => "the batch was cancelled before this request was answered",
            EarlyEnd::Expired => "the batch's completion window ended before this request was answered",
        }
    }
}

/// Refuses the calls of other endpoints than the batch's.
fn of_endpoint(mut lines: Vec<InputLine>, endpoint: &str) -> Vec<InputLine> {
    for line in &mut lines {
        if let Ok(call) = &line.call
            && call.endpoint.path() != endpoint
        {
            let found = call.endpoint.path();
            line.call = Err(Refusal::value("url", &format!("{endpoint:?}, the batch's endpoint"), found));
        }
    }
    lines
}

/// Takes the priority from each line that would come before the other lines of batches, and so among the requests of
/// clients. It then has that of the batch.
fn keep_place(lines: &mut [InputLine]) {
    for call in lines.iter_mut().filter_map(|line| line.call.as_mut().ok()) {
        let own = call.body.get("priority").and_then(Value::as_i64);
        if own.is_some_and(|own| own < i64::from(PRIORITY.0)) {
            call.body.remove("priority");
        }
    }
}

/// Refuses an input file with more than `most` bytes, which a gzipped one has only when it is unpacked.
fn check_unpacked(input: &Path, most: u64) -> Result<()> {
    let mut unpacked = open(input)?.take(most.saturating_add(1));
    let bytes = io::copy(&mut unpacked, &mut io::sink()).map_err(Error::io(input, "read"))?;
    match bytes > most {
        true => Err(Error::format(input, format!("expected at most the {most} bytes of {MAX_DATA}, found more"))),
        false => Ok(()),
    }
}

/// Writes a batch to disk; a cancellation that was written meanwhile stays.
fn save(store: &Store, record: &mut Record<BatchObject>) -> Result<()> {
    let object = record.object.clone();
    *record = store.change::<BatchObject>(&record.object.id, |kept| {
        let before = std::mem::replace(&mut kept.object, object);
        kept.object.cancelling_at = before.cancelling_at;
        if before.status == BatchStatus::Cancelling && !kept.object.status.is_end() {
            kept.object.status = BatchStatus::Cancelling;
        }
    })?;
    Ok(())
}

/// Writes the counts of a batch to disk, at most once a second, and ends it when its time is over or its answers have
/// no room.
struct StoredProgress<'a> {
    store: &'a Store,
    /// The file of answers.
    out: &'a Path,
    attempt: &'a Attempt,
    written: Mutex<Written<'a>>,
    end: &'a AtomicBool,
}

struct Written<'a> {
    record: &'a mut Record<BatchObject>,
    /// When it was written to disk, in seconds since 1970.
    at: u64,
    /// Bytes of the file of answers.
    bytes: u64,
}

impl AnswerProgress for StoredProgress<'_> {
    fn request_begun(&self, line: usize) {
        self.attempt.begun(line);
    }

    fn sample_done(&self, _tokens: usize) {
        let written = self.written.lock().expect("nothing panics while it counts");
        if is_past(&written.record.object) {
            self.end.store(true, Ordering::Relaxed);
        }
    }

    fn request_done(&self, line: usize, is_refused: bool, bytes: usize) -> Result<()> {
        if is_refused {
            self.attempt.refused(line);
        }
        let mut written = self.written.lock().expect("nothing panics while it counts");
        let Written { record, at, bytes: all } = &mut *written;
        let counts = &mut record.object.request_counts;
        *if is_refused { &mut counts.failed } else { &mut counts.completed } += 1;
        let time = now();
        if time > *at {
            *at = time;
            // A state that is not written is written with the next one.
            if let Err(error) = save(self.store, record) {
                log::warn!("a batch's progress is not written: {error}");
            }
        }
        if is_past(&record.object) {
            self.end.store(true, Ordering::Relaxed);
        }
        *all += bytes as u64;
        self.store.reserve(ANSWERS, self.out, *all)
    }
}

fn is_past(batch: &BatchObject) -> bool {
    batch.expires_at.is_some_and(|expires| now() > expires)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use offshoot_engine::ScriptedReply;
    use offshoot_launch::EngineBudget;
    use offshoot_model::ModelFolder;
    use offshoot_openai::protocol::files::NewBatch;
    use offshoot_openai::protocol::{BatchEndpoint, Endpoint};

    #[test]
    fn no_line_of_a_batch_comes_before_the_others() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let priorities = ["-5", "999", "1000", "2000", "null", "\"a\""];
        let line = |(id, priority): (usize, &&str)| {
            format!("{{\"custom_id\":\"{id}\",\"url\":\"/v1/completions\",\"body\":{{\"priority\":{priority}}}}}\n")
        };
        fs::write(file.path(), priorities.iter().enumerate().map(line).collect::<String>()).expect("it is writable");
        let mut lines = read_lines(file.path(), 1 << 10).expect("sound lines");
        keep_place(&mut lines);
        let priority = |line: &InputLine| line.call.as_ref().ok().and_then(|call| call.body.get("priority").cloned());
        let kept: Vec<Option<Value>> = lines.iter().map(priority).collect();
        assert_eq!(kept, [None, None, Some(1000.into()), Some(2000.into()), Some(Value::Null), Some("a".into())]);
    }

    fn begin(store: &Arc<Store>, engine: EngineHandle) -> Batches {
        let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        let folder = ModelFolder::open(&model).expect("the demo model is part of the project");
        let origin = AnswerOrigin::new(&folder, &EngineBudget::default(), 1).expect("files that can be read");
        let with = BatchEngine {
            engine: engine.clone(),
            tokenizer: Arc::new(Tokenizer::load(&model).expect("the files of the demo model")),
            config: folder.config,
            names: Arc::new(ServedNames::new(vec!["demo".to_owned()], Vec::new(), Vec::new(), engine.clone())),
            limits: BatchEngine::limits(&ProtocolLimits::default()),
            origin,
        };
        Batches::start(store.clone(), with).expect("a thread can start")
    }

    /// Waits until the thread has done what it can.
    fn wait_for(mut batches: Batches) {
        batches.queue = None;
        batches.thread.take().expect("it was started").join().expect("it does not panic");
    }

    /// A file of one request, and a batch of it.
    fn stored(store: &Store) -> String {
        stored_of(store, &[json!({"prompt": "a", "max_tokens": 1})])
    }

    /// A file of these requests, which their numbers name, and a batch of it.
    fn stored_of(store: &Store, bodies: &[Value]) -> String {
        let file = Store::new_id::<FileObject>();
        let line = |(number, body): (usize, &Value)| {
            let id = number.to_string();
            json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}).to_string() + "\n"
        };
        fs::write(store.bytes_of(&file), bodies.iter().enumerate().map(line).collect::<String>()).expect("writable");
        let new =
            NewBatch { input_file_id: file, endpoint: BatchEndpoint::Samples(Endpoint::Completions), metadata: None };
        let batch = BatchObject::new(Store::new_id::<BatchObject>(), new, now());
        let id = batch.id.clone();
        store.put(&Record::new("me".to_owned(), batch)).expect("it is writable");
        id
    }

    #[test]
    fn batches_of_an_engine_that_stops_wait_for_the_next_start() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Arc::new(Store::open(folder.path(), 1 << 20).expect("it is free"));
        let ids = [stored(&store), stored(&store)];
        let states = || {
            let of = |id: &String| store.get::<BatchObject>("me", id).expect("it is there");
            ids.each_ref().map(of).map(|batch| (batch.status, batch.request_counts.completed, batch.errors))
        };
        wait_for(begin(&store, EngineHandle::scripted(|_| panic!("the engine of this test stops"))));
        for (status, completed, errors) in states() {
            assert!(!status.is_end(), "{status:?}");
            assert_eq!((completed, errors), (0, None));
        }
        wait_for(begin(&store, EngineHandle::scripted(|_| ScriptedReply::text("b"))));
        for state in states() {
            assert_eq!(state, (BatchStatus::Completed, 1, None));
        }
    }

    fn lines_of(store: &Store, file: Option<String>) -> Vec<Value> {
        let Some(file) = file else { return Vec::new() };
        let text = fs::read_to_string(store.bytes_of(&file)).expect("it was published");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Whenever the engine samples after the prompt 9 it stops, and with it what it has not finished.
    #[test]
    fn a_request_that_stops_the_engine_is_refused_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Arc::new(Store::open(folder.path(), 1 << 20).expect("it is free"));
        let bodies: Vec<Value> = (0..30).map(|prompt| json!({"prompt": [prompt], "max_tokens": 1})).collect();
        let id = stored_of(&store, &bodies);
        let batch = || store.get::<BatchObject>("me", &id).expect("it is there");
        let mut starts = 0;
        while !batch().status.is_end() {
            starts += 1;
            assert!(starts < 20, "{:?}", batch());
            let script = |call: &offshoot_engine::ScriptedCall<'_>| {
                assert_ne!(call.tokens[0].0, 9, "the engine of this test stops");
                ScriptedReply::text("b")
            };
            wait_for(begin(&store, EngineHandle::scripted(script)));
        }
        let batch = batch();
        assert_eq!((batch.status, batch.errors, starts), (BatchStatus::Completed, None, 8));
        assert_eq!(batch.request_counts, RequestCounts { total: 30, completed: 29, failed: 1 });
        let refused = lines_of(&store, batch.error_file_id);
        assert_eq!((refused.len(), &refused[0]["custom_id"]), (1, &json!("9")));
        assert_eq!(refused[0]["response"]["body"]["error"]["code"], "server_ended");
        assert!(!store.attempts_of(&id).exists(), "it is of no more use");
    }

    #[test]
    fn what_a_batch_leaves_unanswered_is_in_its_error_file() {
        for (end, code) in [(BatchStatus::Cancelled, "batch_cancelled"), (BatchStatus::Expired, "batch_expired")] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let store = Arc::new(Store::open(folder.path(), 1 << 20).expect("it is free"));
            let [sound, wrong] = [json!({"prompt": "a"}), json!({"prompt": "a", "max_tokens": "x"})];
            let id = stored_of(&store, &[sound.clone(), wrong, sound]);
            let changed = store.change::<BatchObject>(&id, |record| match end {
                BatchStatus::Expired => record.object.expires_at = Some(1),
                _ => record.object.enter(BatchStatus::Cancelling, 1),
            });
            changed.expect("it is there");
            wait_for(begin(&store, EngineHandle::scripted(|_| ScriptedReply::text("b").until_cancelled())));
            let batch = store.get::<BatchObject>("me", &id).expect("it is there");
            assert_eq!((batch.status, batch.output_file_id), (end, None));
            assert_eq!(batch.request_counts, RequestCounts { total: 3, completed: 0, failed: 1 });
            let lines = lines_of(&store, batch.error_file_id);
            let ids: Vec<&Value> = lines.iter().map(|line| &line["custom_id"]).collect();
            assert_eq!(ids, ["0", "1", "2"]);
            assert_eq!(lines[1]["response"]["body"]["error"]["param"], "max_tokens");
            for line in [&lines[0], &lines[2]] {
                assert_eq!((&line["response"], &line["error"]["code"]), (&Value::Null, &json!(code)), "{line}");
                assert!(line["id"].is_string() && line["error"]["message"].is_string(), "{line}");
            }
        }
    }

    /// Only the records that are shown are read.
    #[test]
    fn open_batches_are_shown_in_the_order_in_which_they_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Arc::new(Store::open(folder.path(), 1 << 20).expect("it is free"));
        let batches = begin(&store, EngineHandle::scripted(|_| ScriptedReply::text("b").until_cancelled()));
        let ids: Vec<String> = (0..20).map(|_| stored(&store)).collect();
        ids.iter().for_each(|id| batches.add("me".to_owned(), id.clone()));
        let shown = |most: usize| batches.open(most).into_iter().map(|batch| batch.id).collect::<Vec<_>>();
        assert_eq!((shown(3), shown(100)), (ids[..3].to_vec(), ids.clone()));
        fs::remove_file(folder.path().join(format!("batches/{}.json", ids[5]))).expect("it is there");
        assert_eq!(shown(6), ids[..5], "a record that is gone takes a place");
    }

    #[test]
    fn a_packed_input_is_bounded_by_what_it_unpacks_to() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut packer =
            flate2::write::GzEncoder::new(file.reopen().expect("it is there"), flate2::Compression::best());
        packer.write_all(&[b' '; 10_000]).and_then(|()| packer.finish().map(drop)).expect("it is writable");
        assert!(check_unpacked(file.path(), 10_000).is_ok());
        let error = check_unpacked(file.path(), 9_999).expect_err("it is longer").to_string();
        assert!(error.contains("9999"), "{error}");
    }
}
