//! The prefix store keeps keys and values of prompts on disk, so that a restart or another job reads them instead of
//! computing them: which chunks there are ([`chunk`]), threads that read and write them, and what waits to be copied.
//! The copies between device and host are made by `stored`, between steps; the bound of the folder is kept by `folder`.
//!
//! # Chunks
//! A prompt is cut at multiples of [`CHUNK_TOKENS`]. The name of a chunk is a hash of what it was computed with and of
//! all tokens up to its end, behind the prompt's salt if it has one, so a prompt's longest prefix on disk is found by
//! walking from its start. Bytes are those of the device's pages: what is read has the bits of what was computed.
//!
//! # States
//! In models with recurrent layers, chunks help where the state after one is on disk too: rows behind it continue from
//! that. A state has as many bytes as many tokens' keys and values, so one is kept for the last chunk of each segment
//! alone: where prompts end, and where those known together part. A prefix is read up to its last state.
//!
//! # Adapters
//! The name of a chunk that an adapter has computed has the adapter's identity in it; what an adapter without one has
//! computed is not stored.
//!
//! # Weights that change
//! What a chunk was computed with names its weights. Those of an update that nothing identifies, such as tensors from
//! memory, never touch the store: nothing is read or written while they are in force.
//!
//! # Failures
//! A file that is damaged is removed with a warning and computed again; one that has vanished is computed again. The
//! first file that cannot be written ends writing, with a warning. Neither ends the job.

mod chunk;
mod folder;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

pub use chunk::CHUNK_TOKENS;

use chunk::{ChunkKey, ChunkName, ChunkPart, Identity, Unread, is_there, path_of};
use folder::{FolderWriter, touch};

use crate::branch::Branch;
use crate::facts::EngineFacts;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, SegmentId};
use offshoot_core::memory::MemoryFault;
use offshoot_kv::PathMark;

/// Where computed prefixes are kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixStoreOptions {
    /// Made if it is missing. Several processes may use it at once.
    pub folder: PathBuf,
    /// Most bytes of all files; those used longest ago are removed.
    pub most_bytes: u64,
    /// Identifies the model's weights: chunks that others have computed are not read.
    pub weights: String,
    /// What keys and values follow from beside the weights and the tokens, such as their dtype; the same as long as the
    /// engine lives.
    pub formats: String,
    pub keeps: StoredPrefixes,
}

/// Which prefixes a prefix store writes. It reads whatever it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredPrefixes {
    /// The prefixes of all prompts. Keys and values in the folder tell what a prompt was.
    #[default]
    Prompts,
    /// Pinned prefixes alone.
    Pinned,
}

/// Chunks that wait for the reader's or the writer's thread: enough that neither waits for a step.
const QUEUED: usize = 4;

/// What the store has for a branch that would be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Nothing that the tree lacks.
    Nothing,
    /// Its chunks are read from now on.
    Begun,
    /// Chunks of a prefix are being read.
    UnderWay,
}

/// A chunk that was read. Positions are tokens from the prompt's start.
pub(super) struct ReadChunk {
    /// The branch for which it was read.
    pub branch: BranchId,
    /// The path that its tokens are on.
    pub mark: PathMark,
    pub begin: usize,
    pub bytes: ChunkBytes,
}

/// What is stored of a chunk.
pub(super) struct ChunkBytes {
    pub pages: Vec<u8>,
    /// The state after it.
    pub state: Option<Vec<u8>>,
}

/// What has come of the prefix that is read.
pub(super) enum Arrival {
    Chunk(ReadChunk),
    /// No more chunks follow.
    End,
    Nothing,
}

struct Reading {
    branch: BranchId,
    mark: PathMark,
    /// Kept until the branch holds the path.
    leased: Option<SegmentId>,
    /// Position of the next chunk.
    next: usize,
    chunks: Receiver<ChunkBytes>,
    /// A chunk that was waited for.
    arrived: Option<ChunkBytes>,
}

/// A computed chunk that is not on disk yet.
pub(super) struct UnsavedChunk {
    /// The path that its tokens are on.
    pub mark: PathMark,
    pub end: usize,
    /// Whether the state after it is to be stored, too.
    pub with_state: bool,
    key: ChunkKey,
    /// Its name, after those of the chunks before it.
    chain: Vec<ChunkName>,
}

/// Chunks of a prompt that a store has and the prefix tree lacks.
pub(super) struct Found {
    branch: BranchId,
    first: usize,
    keys: Vec<ChunkKey>,
    /// From the prompt's start.
    chain: Vec<ChunkName>,
}

impl Found {
    /// Position of their end.
    pub fn end(&self) -> usize {
        self.chain.len() * CHUNK_TOKENS
    }
}

pub(super) struct PrefixStore {
    folder: PathBuf,
    /// What chunks are computed by; `None`: by weights that nothing identifies. Then nothing is read or written.
    identity: Option<Identity>,
    /// The parts of the identity that follow the weights'.
    formats: [String; 4],
    /// Those of the adapters that have one.
    adapters: BTreeMap<AdapterVersion, Identity>,
    /// Bytes of the pages of a chunk.
    chunk_bytes: usize,
    /// Bytes of a state; 0 for models without.
    state_bytes: usize,
    /// Names of the chunks of one branch's tokens, as far as they were needed.
    chain: Option<(BranchId, Vec<ChunkName>)>,
    reading: Option<Reading>,
    /// The branch looked up last: it is not looked up again before another one is.
    looked_up: Option<BranchId>,
    /// Whether a file could not be read, of which one warning is enough.
    unreadable: Arc<AtomicBool>,
    unsaved: VecDeque<UnsavedChunk>,
    writer: Writer,
    keeps: StoredPrefixes,
}

impl PrefixStore {
    /// `layout`: names the order of the bytes of pages.
    pub fn open(options: &PrefixStoreOptions, facts: &EngineFacts, layout: &str) -> Result<Self> {
        folder::make(&options.folder)?;
        assert!(CHUNK_TOKENS.is_multiple_of(facts.page_tokens), "chunks of {} tokens a page", facts.page_tokens);
        let EngineFacts { arithmetic, batch_invariant, page_tokens, page_bytes, page_groups, state_bytes, .. } = facts;
        let mut numbers = format!("{batch_invariant}\0{page_tokens}\0{page_bytes}\0{CHUNK_TOKENS}");
        // Chunks of models with one group keep their names.
        if page_groups.count() > 1 {
            numbers.push_str(&format!("\0{} page groups", page_groups.count()));
        }
        if *state_bytes > 0 {
            numbers.push_str(&format!("\0states of {state_bytes}"));
        }
        let formats = [&options.formats, layout, arithmetic, &numbers].map(|part| part.replace('\0', " "));
        Ok(PrefixStore {
            folder: options.folder.clone(),
            identity: Some(identity_of(&options.weights, &formats)),
            formats,
            adapters: BTreeMap::new(),
            chunk_bytes: CHUNK_TOKENS / page_tokens * page_groups.count() * page_bytes,
            state_bytes: *state_bytes,
            chain: None,
            reading: None,
            looked_up: None,
            unreadable: Arc::default(),
            unsaved: VecDeque::new(),
            writer: Writer::start(FolderWriter::new(options.folder.clone(), options.most_bytes))?,
            keeps: options.keeps,
        })
    }

    /// Whether the prefixes of `branch` are written.
    pub fn keeps(&self, branch: &Branch) -> bool {
        self.identity.is_some() && (branch.is_pin || self.keeps == StoredPrefixes::Prompts)
    }

    /// Chunks are computed by other weights from now on, with this identity. What was handed over is still written.
    pub fn change_weights(&mut self, identity: Option<&str>) {
        self.forget_marks();
        self.chain = None;
        self.identity = identity.map(|weights| identity_of(weights, &self.formats));
    }

    /// Notes an adapter that branches may have, with this identity.
    pub fn note_adapter(&mut self, version: AdapterVersion, identity: Option<&str>) {
        if let Some(identity) = identity {
            self.adapters.insert(version, blake3::hash(identity.as_bytes()).into());
        }
    }

    /// Notes that no branch has this adapter any more.
    pub fn forget_adapter(&mut self, version: AdapterVersion) {
        self.adapters.remove(&version);
    }

    /// Forgets the names of the chunks of a branch, whose tokens are computed with another adapter from now on.
    pub fn forget_branch(&mut self, branch: BranchId) {
        self.chain.take_if(|(of, _)| *of == branch);
    }

    /// How many leading tokens of `branch` have no adapter without an identity.
    fn storable(&self, branch: &Branch) -> usize {
        let is_named =
            |adapter: Option<AdapterVersion>| adapter.is_none_or(|version| self.adapters.contains_key(&version));
        branch
            .tokens
            .adapters()
            .runs(0..usize::MAX)
            .find(|(_, adapter)| !is_named(*adapter))
            .map_or(usize::MAX, |(from, _)| from)
    }

    /// The key of the chunk with this number, of a branch with these names of the chunks before it, whose tokens are
    /// storable.
    fn key_of(&self, identity: Identity, branch: &Branch, chain: &[ChunkName], chunk: usize) -> ChunkKey {
        let before = match (chunk.checked_sub(1), branch.tokens.salt()) {
            (Some(last), _) => chain[last],
            (None, None) => identity,
            // The names of all chunks behind it depend on it, too.
            (None, Some(salt)) => blake3::hash(&[&identity[..], &salt.0].concat()).into(),
        };
        let positions = chunk * CHUNK_TOKENS..(chunk + 1) * CHUNK_TOKENS;
        let runs: Vec<_> = branch.tokens.adapters().runs(positions.clone()).collect();
        let before = match runs[..] {
            [(_, None)] => before,
            _ => {
                let mut hash = blake3::Hasher::new();
                hash.update(&before);
                for (from, adapter) in runs {
                    hash.update(&((from - positions.start) as u64).to_le_bytes());
                    hash.update(adapter.map_or(&[0; 32], |version| &self.adapters[&version]));
                }
                hash.finalize().into()
            }
        };
        ChunkKey { identity, before, tokens: branch.tokens.slice(positions).into_owned() }
    }

    /// Forgets which paths of the prefix tree are read into and are to be written: there are none any more.
    pub fn forget_marks(&mut self) {
        self.reading = None;
        self.looked_up = None;
        self.unsaved.clear();
    }

    /// The names of the first `chunks` chunks of the tokens of `branch`.
    fn chain(&mut self, identity: Identity, branch: &Branch, chunks: usize) -> &[ChunkName] {
        let (of, mut chain) = self.chain.take().unwrap_or((branch.id, Vec::new()));
        if of != branch.id {
            chain.clear();
        }
        while chain.len() < chunks {
            let key = self.key_of(identity, branch, &chain, chain.len());
            chain.push(key.name());
        }
        &self.chain.insert((branch.id, chain)).1[..chunks]
    }

    /// The chunks on disk of the first `upto` tokens of `branch`, of which the first `computed` need not be read.
    /// `None` if there are none, or the branch was looked up before. Of models with states, up to the last one on disk.
    pub fn find(&mut self, branch: &Branch, computed: usize, upto: usize) -> Option<Found> {
        let identity = self.identity?;
        if self.looked_up.replace(branch.id) == Some(branch.id) {
            return None;
        }
        let (first, last) = (computed / CHUNK_TOKENS, upto.min(self.storable(branch)) / CHUNK_TOKENS);
        let mut chain = if first < last { self.chain(identity, branch, last).to_vec() } else { return None };
        let has = |name: &&ChunkName, part: ChunkPart| is_there(&path_of(&self.folder, name, part));
        let there = chain[first..].iter().take_while(|name| has(name, ChunkPart::Pages)).count();
        let of_states = |there: usize| chain[first..][..there].iter().rposition(|name| has(&name, ChunkPart::State));
        let there = if self.state_bytes > 0 { of_states(there).map_or(0, |last| last + 1) } else { there };
        chain.truncate(first + there);
        let keys = (first..chain.len()).map(|chunk| self.key_of(identity, branch, &chain, chunk)).collect();
        (there > 0).then_some(Found { branch: branch.id, first, keys, chain })
    }

    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Begins to read chunks into the path of `leased`, which is released by [`PrefixStore::take_lease`].
    pub fn begin(&mut self, found: Found, leased: SegmentId, mark: PathMark) {
        let (sender, chunks) = bounded(QUEUED);
        let (branch, next) = (found.branch, found.first * CHUNK_TOKENS);
        let (page_bytes, state_bytes) = (self.chunk_bytes, self.state_bytes);
        let (folder, unreadable) = (self.folder.clone(), self.unreadable.clone());
        let read = move |name: &ChunkName, key: &ChunkKey, part: ChunkPart, bytes: usize| {
            let path = path_of(&folder, name, part);
            match chunk::read(&path, key, part, bytes) {
                Ok(held) => Some(held),
                Err(Unread::Missing) => None,
                Err(Unread::Damaged(why)) => {
                    log::warn!("{}: {why}; it is removed, and its tokens are computed again", path.display());
                    let _ = fs::remove_file(&path);
                    None
                }
                Err(Unread::Unreadable(error)) => {
                    if !unreadable.swap(true, Ordering::Relaxed) {
                        log::warn!("{}: cannot be read: {error}; its tokens are computed", path.display());
                    }
                    None
                }
            }
        };
        let folder = self.folder.clone();
        let thread = std::thread::Builder::new().name("prefix reader".to_owned());
        // If it cannot start, the channel is closed, and the prefix is computed.
        let _ = thread.spawn(move || {
            touch(&folder, &found.chain);
            let names = &found.chain[found.first..];
            for (number, (key, name)) in (1..).zip(found.keys.iter().zip(names)) {
                let Some(pages) = read(name, key, ChunkPart::Pages, page_bytes) else { return };
                let is_last = state_bytes > 0 && number == names.len();
                let state = if is_last { read(name, key, ChunkPart::State, state_bytes) } else { None };
                if sender.send(ChunkBytes { pages, state }).is_err() {
                    return;
                }
            }
        });
        self.reading = Some(Reading { branch, mark, leased: Some(leased), next, chunks, arrived: None });
    }

    /// The lease of the prefix that is read, for its branch to take over.
    pub fn take_lease(&mut self) -> Option<SegmentId> {
        self.reading.as_mut()?.leased.take()
    }

    /// The next chunk that was read, without waiting.
    pub fn arrival(&mut self) -> Arrival {
        let Some(reading) = &mut self.reading else { return Arrival::Nothing };
        let bytes = match reading.arrived.take().map_or_else(|| reading.chunks.try_recv(), Ok) {
            Ok(bytes) => bytes,
            Err(TryRecvError::Empty) => return Arrival::Nothing,
            Err(TryRecvError::Disconnected) => {
                self.stop_reading();
                return Arrival::End;
            }
        };
        let begin = reading.next;
        reading.next += CHUNK_TOKENS;
        Arrival::Chunk(ReadChunk { branch: reading.branch, mark: reading.mark, begin, bytes })
    }

    /// Waits a moment for the next chunk; short, so that commands are heard.
    pub fn wait(&mut self) {
        if let Some(reading) = self.reading.as_mut().filter(|reading| reading.arrived.is_none()) {
            match reading.chunks.recv_timeout(Duration::from_millis(2)) {
                Ok(bytes) => reading.arrived = Some(bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Stops reading; the branch is not looked up again at once.
    pub fn stop_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.looked_up = Some(reading.branch);
        }
    }

    /// Notes the chunk that ends at `end` of the tokens of `branch`, and the state after it if that is to be stored,
    /// unless they are noted or on disk. `mark`: a path with them.
    pub fn note(&mut self, branch: &Branch, end: usize, mark: PathMark, with_state: bool) {
        let Some(identity) = self.identity.filter(|_| end <= self.storable(branch)) else { return };
        let chain = self.chain(identity, branch, end / CHUNK_TOKENS).to_vec();
        let last = chain.last().expect("a chunk ends at a position above 0");
        let lacks = |part: ChunkPart| !is_there(&path_of(&self.folder, last, part));
        let is_noted = self.unsaved.iter().any(|chunk| chunk.chain == chain && chunk.with_state >= with_state);
        if !self.writer.has_failed() && !is_noted && (lacks(ChunkPart::Pages) || with_state && lacks(ChunkPart::State))
        {
            let key = self.key_of(identity, branch, &chain, chain.len() - 1);
            self.unsaved.push_back(UnsavedChunk { mark, end, with_state, key, chain });
        }
    }

    pub fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// The next chunk to save, if the writer has room for it.
    pub fn next_unsaved(&mut self) -> Option<UnsavedChunk> {
        if self.writer.has_failed() {
            self.unsaved.clear();
        }
        if self.writer.has_room() { self.unsaved.pop_front() } else { None }
    }

    /// Hands the bytes of a chunk to the writer.
    pub fn write(&mut self, chunk: UnsavedChunk, bytes: ChunkBytes) {
        self.writer.send(WriteJob { key: chunk.key, chain: chunk.chain, bytes });
    }

    /// Ends writing: keys and values cannot be copied to host memory.
    pub fn stop_writing(&mut self, error: &Error) {
        self.writer.fail(error);
    }
}

/// The identity of what these weights compute.
fn identity_of(weights: &str, formats: &[String; 4]) -> Identity {
    // The first of the formats follows the weights as one part, as in the names of chunks that are there already.
    let [first, others @ ..] = formats;
    let parts = [&[format!("{}, {first}", weights.replace('\0', " "))], &others[..]].concat();
    blake3::hash(parts.join("\0").as_bytes()).into()
}

struct WriteJob {
    key: ChunkKey,
    chain: Vec<ChunkName>,
    bytes: ChunkBytes,
}

impl WriteJob {
    fn write(&self, folder: &mut FolderWriter) -> Result<()> {
        folder.write(&self.key, &self.chain, ChunkPart::Pages, &self.bytes.pages)?;
        let state = self.bytes.state.as_ref();
        state.map_or(Ok(()), |state| folder.write(&self.key, &self.chain, ChunkPart::State, state))
    }
}

/// The writer's thread. Dropping it waits until all jobs are written.
struct Writer {
    jobs: Option<Sender<WriteJob>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<AtomicBool>,
}

impl Writer {
    fn start(mut folder: FolderWriter) -> Result<Self> {
        let (jobs, receiver) = bounded::<WriteJob>(QUEUED);
        let failed = Arc::new(AtomicBool::new(false));
        let ends = failed.clone();
        let write = move || {
            for job in receiver {
                if !ends.load(Ordering::Relaxed)
                    && let Err(error) = job.write(&mut folder)
                {
                    warn_of_end(&ends, &error);
                }
            }
        };
        let thread = std::thread::Builder::new().name("prefix writer".to_owned()).spawn(write);
        let thread = thread.map_err(|error| Error::EngineStopped {
            why: format!("its writer cannot start: {}", MemoryFault(&error)),
        })?;
        Ok(Writer { jobs: Some(jobs), thread: Some(thread), failed })
    }

    fn jobs(&self) -> &Sender<WriteJob> {
        self.jobs.as_ref().expect("the channel is closed by drop alone")
    }

    fn has_room(&self) -> bool {
        !self.jobs().is_full()
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn send(&self, job: WriteJob) {
        // A writer that has panicked has said so.
        drop(self.jobs().send(job));
    }

    fn fail(&self, error: &Error) {
        warn_of_end(&self.failed, error);
    }
}

fn warn_of_end(failed: &AtomicBool, error: &Error) {
    if !failed.swap(true, Ordering::Relaxed) {
        log::warn!("no more prefixes are written to the prefix store: {error}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
