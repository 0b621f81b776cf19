//! Runs batches, one after the other, on a thread of its own: the same code as `offshoot batch`, on the server's engine and
//! behind the requests of its clients. A batch in progress is on disk: after a crash it goes on where it was.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::Value;

use crate::backend::KvDtype;
use crate::engine::{EngineHandle, Priority};
use crate::error::{Error, Result};
use crate::model::ModelConfig;
use crate::openai::batch::{AnswerOrigin, AnswerProgress, InputLine, RequestFile, read_lines, reader};
use crate::openai::protocol::Refusal;
use crate::openai::protocol::files::{
    BatchError, BatchErrors, BatchObject, BatchStatus, FileObject, FilePurpose, FileStatus, FileTag, RequestCounts,
};
use crate::out::files::write_whole;
use crate::tokenizer::Tokenizer;

use super::store::{Record, Store};

/// Batches come after the requests of clients.
const PRIORITY: Priority = Priority(1000);
/// The longest line of an input file, in bytes.
const MOST_OF_LINE: usize = 64 << 20;

/// What batches are answered with.
pub struct BatchEngine {
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub model: PathBuf,
    pub name: String,
    pub kv: KvDtype,
    /// Seed of requests without one.
    pub seed: u64,
}

/// The batches that wait or run. Dropping it stops the one that runs, which goes on at the next start.
pub struct Batches {
    pub store: Arc<Store>,
    queue: Option<Sender<(String, String)>>,
    /// Of the batch that runs and those that wait: whether it shall end.
    ends: Arc<Mutex<HashMap<String, Arc<AtomicBool>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Batches {
    /// Starts the thread, with the batches that were left.
    pub fn start(store: Arc<Store>, with: BatchEngine) -> Result<Batches> {
        let (queue, waiting) = unbounded();
        let ends: Arc<Mutex<HashMap<String, Arc<AtomicBool>>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Runner { store: store.clone(), with, ends: ends.clone(), stop: stop.clone() };
        let thread = std::thread::Builder::new().name("batches".to_owned()).spawn(move || runner.run(&waiting));
        let thread = thread.map_err(Error::io("a thread", "start"))?;
        let batches = Batches { store, queue: Some(queue), ends, stop, thread: Some(thread) };
        let mut left = batches.store.all::<BatchObject>();
        left.reverse();
        for record in left.into_iter().filter(|record| !record.object.status.is_end()) {
            batches.add(record.owner, record.object.id);
        }
        Ok(batches)
    }

    /// Queues a batch that is in the store.
    pub fn add(&self, owner: String, id: String) {
        self.ends().insert(id.clone(), Arc::default());
        if let Some(queue) = &self.queue {
            // Without its thread, batches wait for the next start.
            drop(queue.send((owner, id)));
        }
    }

    /// Asks a batch to end, and says how it is.
    pub fn cancel(&self, owner: &str, id: &str) -> Result<BatchObject, Refusal> {
        let mut batch = self.store.get::<BatchObject>(owner, id)?;
        if let Some(end) = self.ends().get(id).filter(|_| !batch.status.is_end()) {
            batch.enter(BatchStatus::Cancelling, now());
            let record = Record { owner: owner.to_owned(), object: batch };
            self.store.put(&record).map_err(|error| Refusal::of(&error))?;
            end.store(true, Ordering::Relaxed);
            return Ok(record.object);
        }
        Ok(batch)
    }

    fn ends(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<AtomicBool>>> {
        self.ends.lock().expect("nothing panics while it holds the batches")
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ends().values().for_each(|end| end.store(true, Ordering::Relaxed));
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
    ends: Arc<Mutex<HashMap<String, Arc<AtomicBool>>>>,
    stop: Arc<AtomicBool>,
}

impl Runner {
    fn run(&self, waiting: &Receiver<(String, String)>) {
        for (owner, id) in waiting {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let end = self.ends.lock().expect("nothing panics while it holds the batches").get(&id).cloned();
            let (Some(end), Ok(batch)) = (end, self.store.get::<BatchObject>(&owner, &id)) else { continue };
            let record = Record { owner, object: batch };
            match self.batch(record, &end) {
                Err(Error::Interrupted) if self.stop.load(Ordering::Relaxed) => return,
                Err(error) => log::warn!("batch {id}: {error}"),
                Ok(()) => {}
            }
            self.ends.lock().expect("nothing panics while it holds the batches").remove(&id);
        }
    }

    /// Answers one batch, up to a state that is its end.
    fn batch(&self, mut record: Record<BatchObject>, end: &AtomicBool) -> Result<()> {
        let answered = self.answer(&mut record, end);
        let batch = &mut record.object;
        match answered {
            Ok(()) => batch.enter(BatchStatus::Completed, now()),
            Err(Error::Interrupted) if self.stop.load(Ordering::Relaxed) => return Err(Error::Interrupted),
            Err(Error::Interrupted) if is_past(batch) => batch.enter(BatchStatus::Expired, now()),
            Err(Error::Interrupted) => batch.enter(BatchStatus::Cancelled, now()),
            Err(error) => {
                let failed = BatchError::new(&Refusal::of(&error), None);
                batch.errors = Some(BatchErrors::new(vec![failed]));
                batch.enter(BatchStatus::Failed, now());
            }
        }
        // What was answered is kept, however it ended.
        if batch.status != BatchStatus::Failed {
            self.publish(&mut record)?;
        }
        self.store.put(&record)
    }

    fn answer(&self, record: &mut Record<BatchObject>, end: &AtomicBool) -> Result<()> {
        let BatchEngine { engine, tokenizer, config, model, name, kv, seed } = &self.with;
        let lines = read_lines(&self.store.bytes_of(&record.object.input_file_id), MOST_OF_LINE)?;
        let mut reader = reader(tokenizer, config, name, *seed);
        reader.priority = PRIORITY;
        let origin = AnswerOrigin::new(model, *kv, *seed)?;
        let all = lines.len() as u64;
        let lines = of_endpoint(lines, &record.object.endpoint);
        let out = self.store.answers_of(record.object.id.as_str());
        let mut file = RequestFile::open(lines, &out, true, origin, &reader)?;
        let (answered, refused) = file.counts();
        let counts = RequestCounts { total: all, completed: answered as u64, failed: refused as u64 };
        record.object.request_counts = counts;
        if record.object.status == BatchStatus::Validating {
            record.object.enter(BatchStatus::InProgress, now());
        }
        self.store.put(record)?;
        let progress = StoredProgress { store: &self.store, record: Mutex::new((record, now())), end };
        let done = file.answer(engine.clone(), reader, &progress, end);
        drop(progress);
        // Also of a batch that is cut short: its answers stay.
        file.finish()?;
        done.map(drop)
    }

    /// Puts the answers of a batch into files of their own: those of answered requests, and those of refused ones.
    fn publish(&self, record: &mut Record<BatchObject>) -> Result<()> {
        let answers = self.store.answers_of(record.object.id.as_str());
        let Ok(file) = File::open(&answers) else { return Ok(()) };
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for line in BufReader::new(file).split(b'\n') {
            let mut line = line.map_err(Error::io(&answers, "read"))?;
            let status = serde_json::from_slice::<Value>(&line).ok().map(|line| line["response"]["status_code"] == 200);
            line.push(b'\n');
            if status == Some(true) { &mut done } else { &mut failed }.extend(line);
        }
        let name = record.object.id.clone();
        record.object.output_file_id = self.keep(&record.owner, format!("{name}_output.jsonl"), &done)?;
        record.object.error_file_id = self.keep(&record.owner, format!("{name}_error.jsonl"), &failed)?;
        self.store.put(record)?;
        fs::remove_file(&answers).map_err(Error::io(&answers, "remove"))
    }

    /// A new file with these bytes, if there are any.
    fn keep(&self, owner: &str, filename: String, bytes: &[u8]) -> Result<Option<String>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let id = Store::new_id::<FileObject>();
        write_whole(&self.store.bytes_of(&id), |file| file.write_all(bytes))?;
        let object = FileObject {
            id: id.clone(),
            object: FileTag::File,
            bytes: bytes.len() as u64,
            created_at: now(),
            expires_at: None,
            filename,
            purpose: FilePurpose::BatchOutput,
            status: FileStatus::Processed,
        };
        self.store.put(&Record { owner: owner.to_owned(), object })?;
        Ok(Some(id))
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

/// Writes the counts of a batch to disk, at most once a second, and ends it when its time is over.
struct StoredProgress<'a> {
    store: &'a Store,
    record: Mutex<(&'a mut Record<BatchObject>, u64)>,
    end: &'a AtomicBool,
}

impl AnswerProgress for StoredProgress<'_> {
    fn sample_done(&self, _tokens: usize) {}

    fn request_done(&self, is_refused: bool) {
        let mut record = self.record.lock().expect("nothing panics while it counts");
        let (record, written) = &mut *record;
        let counts = &mut record.object.request_counts;
        *if is_refused { &mut counts.failed } else { &mut counts.completed } += 1;
        let time = now();
        if time > *written {
            *written = time;
            // A state that is not written is written with the next one; a cancellation in between is not overwritten.
            if !self.end.load(Ordering::Relaxed)
                && let Err(error) = self.store.put(record)
            {
                log::warn!("a batch's progress is not written: {error}");
            }
        }
        if is_past(&record.object) {
            self.end.store(true, Ordering::Relaxed);
        }
    }
}

fn is_past(batch: &BatchObject) -> bool {
    batch.expires_at.is_some_and(|expires| now() > expires)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
