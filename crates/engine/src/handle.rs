//! The engine's channel client. `EngineHandle` names branches and sends commands without waiting for the step in
//! progress; an `EventReceiver` (`receiver`) receives what happens. Neither knows model, backend or type parameters, so
//! a test can answer the channel with a script (`scripted`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::adapters::{AdapterLimits, AdapterSource, LoadedAdapter, NewAdapter, unknown_adapter};
use crate::events::EventSender;
use crate::facts::EngineFacts;
use crate::lent::{Lend, LentPart};
use crate::live::{LiveMetrics, LivePlace};
use crate::metrics::Metrics;
use crate::place::{QueueKey, RootOptions};
use crate::ready::{FormSource, ReadyExtend};
use crate::said::Said;
use crate::status::{EngineStatus, Pause, StatusPlace};
use crate::token_path::TokenPath;
use crate::weights::{CheckedWeights, WeightLabels, Weights, WeightsUpdate};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};
use offshoot_core::setting::{MAX_LORA_RANK, MAX_LORAS};
use offshoot_kv::{CacheSalt, MappedSegment};
use offshoot_model::{Sleep, SleepParts, SleepTags, WeightForm};

/// Messages to the engine's thread. The sender names new branches, so only those with a
/// `reply` wait for one.
pub(crate) enum Command {
    Root {
        place: QueueKey,
        path: TokenPath,
        /// As [`RootOptions::home`]; of no use to one engine.
        home: Option<usize>,
    },
    Fork {
        at: BranchId,
        children: Vec<BranchId>,
    },
    Start {
        extends: Vec<ReadyExtend>,
        events: EventSender,
    },
    /// Begins an extend behind what another engine has sampled for it. Its end has all of its tokens.
    Continue {
        extend: ReadyExtend,
        said: Said,
        events: EventSender,
    },
    Cancel {
        branches: Vec<BranchId>,
    },
    Release {
        branches: Vec<BranchId>,
    },
    Prune {
        branches: Vec<BranchId>,
    },
    Metrics {
        reply: Sender<Metrics>,
    },
    /// Once this branch rests, it keeps its path until it is released.
    Pin {
        branch: BranchId,
    },
    CacheMap {
        most: usize,
        reply: Sender<Vec<MappedSegment>>,
    },
    /// Frees the cached pages that no branch holds, and before that, if `held`, has branches give up theirs. The reply
    /// says whether any are held still.
    Evict {
        held: bool,
        reply: Sender<bool>,
    },
    /// Asks for a part of a prefix, for another engine.
    Lend(Lend),
    /// Takes a part of the prefix `tokens` that another engine has lent. The reply says whether it did.
    Borrow {
        tokens: Arc<[TokenId]>,
        part: LentPart,
        reply: Sender<bool>,
    },
    /// Answered once the pause holds.
    Pause {
        pause: Pause,
        reply: Sender<Result<()>>,
    },
    Resume {
        reply: Sender<Result<()>>,
    },
    UpdateWeights {
        update: CheckedWeights,
        /// What becomes of extends in progress if no weights are left: with `true` they stand still until `FailAll`, as
        /// another engine may have what they need to go on; with `false` they fail.
        stands: bool,
        reply: Sender<Result<Weights>>,
    },
    /// Fails what stands still since an update has left no weights.
    FailAll {
        why: String,
    },
    SetLabel {
        label: String,
        reply: Sender<Weights>,
    },
    /// Gives memory of a paused engine back.
    Sleep {
        sleep: Sleep,
        reply: Sender<Result<()>>,
    },
    Wake {
        parts: SleepParts,
        reply: Sender<Result<()>>,
    },
    /// What these branches are extended by from now on is computed with this adapter, or with none. Of no effect on
    /// branches that are being extended.
    SetAdapter {
        branches: Vec<BranchId>,
        adapter: Option<AdapterVersion>,
    },
    /// Adapters that stay in their slots though no branch of this engine has them: one that it is given later does.
    KeepAdapters {
        versions: BTreeSet<AdapterVersion>,
    },
    /// Loads an adapter that no name stands for yet: what can fail of a load.
    StageAdapter {
        new: NewAdapter,
        reply: Sender<Result<()>>,
    },
    /// Gives up what was staged.
    DropAdapter,
    /// Lets its name stand for the adapter that was staged.
    PutAdapter {
        reply: Sender<Result<LoadedAdapter>>,
    },
    /// Lets a name stand for nothing.
    UnloadAdapter {
        name: String,
        reply: Sender<Result<()>>,
    },
}

/// Why the engine's thread ended, once it has.
pub(crate) type ExitReason = Arc<OnceLock<String>>;

/// The engine's thread, where it has one. Dropped by the last handle: waits until the engine and its backend are
/// dropped, so that no call to a device is under way when the process exits. On a thread of rayon's pool it does not
/// wait, so that work of the pool is not held up by a step.
#[derive(Default)]
pub(crate) struct EngineThread(OnceLock<JoinHandle<()>>);

impl EngineThread {
    pub fn set(&self, thread: JoinHandle<()>) {
        self.0.set(thread).expect("an engine is moved to a thread once");
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        let is_engine = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        let in_pool = rayon::current_thread_index().is_some();
        if let Some(thread) = self.0.take().filter(|thread| !in_pool && !is_engine(thread)) {
            // It catches its panics; the exit reason has them.
            let _ = thread.join();
        }
    }
}

/// A client of the engine; clones share it. The engine ends when the last handle and the last receiver are dropped;
/// dropping the last one waits for the step in progress.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    exit_reason: ExitReason,
    facts: Arc<EngineFacts>,
    next_branch: Arc<AtomicU64>,
    live: LivePlace,
    status: StatusPlace,
    /// By which new weights are checked; `None`: the engine is scripted.
    form: Option<Arc<WeightForm>>,
    /// What compiles forms. Several engines behind one handle have one tokenizer, so that the first one's serves all.
    forms: FormSource,
    /// Held while the weights are updated.
    updating: Arc<Mutex<()>>,
    /// Held while adapters change.
    adapting: Arc<Mutex<()>>,
    next_adapter: Arc<AtomicU64>,
    /// Last: dropped once this handle's sender is.
    thread: Arc<EngineThread>,
}

impl EngineHandle {
    pub(crate) fn new(
        facts: EngineFacts,
        weights: Weights,
        form: Option<Arc<WeightForm>>,
        forms: FormSource,
    ) -> (Self, Receiver<Command>, ExitReason) {
        Self::publishing(facts, weights, form, forms, LivePlace::default())
    }

    /// A handle for an engine that publishes in `live`.
    pub(crate) fn publishing(
        facts: EngineFacts,
        weights: Weights,
        form: Option<Arc<WeightForm>>,
        forms: FormSource,
        live: LivePlace,
    ) -> (Self, Receiver<Command>, ExitReason) {
        let (commands, receiver) = unbounded();
        let exit_reason = ExitReason::default();
        let handle = EngineHandle {
            commands,
            exit_reason: exit_reason.clone(),
            facts: Arc::new(facts),
            next_branch: Arc::new(AtomicU64::new(0)),
            live,
            status: StatusPlace::new(EngineStatus::new(weights)),
            form,
            forms,
            updating: Arc::default(),
            adapting: Arc::default(),
            next_adapter: Arc::default(),
            thread: Arc::default(),
        };
        (handle, receiver, exit_reason)
    }

    /// Lets the last handle wait for this thread.
    pub(crate) fn set_thread(&self, thread: JoinHandle<()>) {
        self.thread.set(thread);
    }

    /// Why the engine's thread has ended, for a channel found closed: see `stopped`.
    pub(crate) fn exit_reason(&self) -> String {
        self.exit_reason.wait().clone()
    }

    pub(crate) fn thread(&self) -> Weak<EngineThread> {
        Arc::downgrade(&self.thread)
    }

    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// Makes a branch of these tokens. They are computed when something is sampled or scored after them, except for
    /// prefixes that the cache holds by then. Branches of equal priority are served in the
    /// order in which their roots were made.
    pub fn root(&self, tokens: Vec<TokenId>) -> Result<BranchId> {
        self.root_with(tokens, RootOptions::default())
    }

    /// Makes a branch of these tokens with a place of its own in the queue. Forks inherit it.
    pub fn root_with(&self, tokens: Vec<TokenId>, options: RootOptions) -> Result<BranchId> {
        self.send_root(options, |salt, adapter| TokenPath::of(salt, adapter, tokens))
    }

    /// Makes a branch of the path that `path` makes with the salt and the adapter of `options`.
    pub(crate) fn send_root(
        &self,
        options: RootOptions,
        path: impl FnOnce(Option<CacheSalt>, Option<AdapterVersion>) -> TokenPath,
    ) -> Result<BranchId> {
        let RootOptions { priority, beside, home, salt, adapter } = options;
        let path = path(salt, adapter);
        self.check_prompt(&path.all())?;
        self.check_adapter(adapter)?;
        let branch = self.name_branch();
        let place = QueueKey { priority, order: beside.unwrap_or(branch), branch };
        self.send(Command::Root { place, path, home })?;
        Ok(branch)
    }

    fn check_prompt(&self, tokens: &[TokenId]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::value("prompt", "at least one token", "none"));
        }
        if tokens.len() > self.facts.context {
            let (what, tokens, context) = ("the prompt".to_owned(), tokens.len(), self.facts.context);
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        if let Some(token) = tokens.iter().find(|token| token.ix() >= self.facts.vocab) {
            return Err(Error::value("prompt", format!("tokens below {}", self.facts.vocab), token.to_string()));
        }
        Ok(())
    }

    /// `n` new branches that go on where `at` ends now. `at` must rest: a fork of a branch that is being extended fails
    /// when its children are.
    pub fn fork(&self, at: BranchId, n: usize) -> Result<Vec<BranchId>> {
        if n == 0 {
            return Err(Error::value("branches of a fork", "a number from 1 up", "0"));
        }
        let children: Vec<BranchId> = (0..n).map(|_| self.name_branch()).collect();
        self.send(Command::Fork { at, children: children.clone() })?;
        Ok(children)
    }

    /// `n` new branches as `fork` makes them, which go on with this adapter, or with none: the prefix that they share
    /// with `at` stays as it was computed, all but its last token, from which their first one follows.
    pub fn fork_with(&self, at: BranchId, n: usize, adapter: Option<AdapterVersion>) -> Result<Vec<BranchId>> {
        self.check_adapter(adapter)?;
        let children = self.fork(at, n)?;
        self.set_adapter(&children, adapter)?;
        Ok(children)
    }

    /// What these branches are extended by from now on is computed with this adapter, or with none, and so is the last
    /// token that they have, from which their next one follows. Of no effect on branches that are being extended. Forks
    /// inherit it.
    pub fn set_adapter(&self, branches: &[BranchId], adapter: Option<AdapterVersion>) -> Result<()> {
        self.check_adapter(adapter)?;
        self.send(Command::SetAdapter { branches: branches.to_vec(), adapter })
    }

    fn check_adapter(&self, adapter: Option<AdapterVersion>) -> Result<()> {
        match adapter.filter(|version| version.0 >= self.next_adapter.load(Ordering::Relaxed)) {
            None => Ok(()),
            Some(version) => Err(Error::value("adapter", "a version that was loaded", version.to_string())),
        }
    }

    /// Loads an adapter while steps are made; it is read and checked on the caller's thread. If one of this name is
    /// loaded, the name stands for the new one from now on: branches that have the old version keep it until they are
    /// released, unless its slot is needed before ([`AdapterLimits::most`](crate::AdapterLimits::most)). Then they go
    /// on with the new version, by which their tokens are computed again, and their records name both. Several engines
    /// behind one handle load it all or none.
    ///
    /// # Errors
    ///
    /// The adapter can't be read, is not one for this model or of a larger rank than it may have, memory is short, or
    /// as many as may be loaded at once are loaded or still in use: nothing has changed.
    pub fn load_adapter(&self, name: &str, source: AdapterSource) -> Result<LoadedAdapter> {
        let AdapterLimits { most, rank } = self.facts.adapters;
        if most == 0 {
            let expected = format!("an engine that takes some ({MAX_LORAS})");
            return Err(Error::value("adapters", expected, "one that takes none"));
        }
        if name.is_empty() {
            return Err(Error::value("an adapter's name", "text", "an empty string"));
        }
        let adapter = source.read()?;
        if adapter.rank() > rank {
            let (what, expected) = (format!("rank of adapter {name}"), format!("at most {rank} ({MAX_LORA_RANK})"));
            return Err(Error::value(what, expected, adapter.rank().to_string()));
        }
        let _adapting = self.adapting();
        let version = AdapterVersion(self.next_adapter.fetch_add(1, Ordering::Relaxed));
        let new = NewAdapter { name: name.to_owned(), version, adapter };
        self.ask(|reply| Command::StageAdapter { new, reply })??;
        self.ask(|reply| Command::PutAdapter { reply })?
    }

    /// Unloads an adapter: no new branch can have it. Branches that have it go on with it, and its slot is free once
    /// they are released.
    ///
    /// # Errors
    ///
    /// No adapter of this name is loaded.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        let _adapting = self.adapting();
        self.ask(|reply| Command::UnloadAdapter { name: name.to_owned(), reply })?
    }

    /// The adapters that are loaded, by their names, without waiting for the engine.
    pub fn adapters(&self) -> Vec<LoadedAdapter> {
        self.status.read().adapters
    }

    /// The adapter that a name stands for now, without waiting for the engine.
    ///
    /// # Errors
    ///
    /// None of this name is loaded.
    pub fn adapter(&self, name: &str) -> Result<LoadedAdapter> {
        let loaded = self.adapters();
        let found = loaded.iter().find(|adapter| adapter.name == name).cloned();
        found.ok_or_else(|| unknown_adapter(name, &loaded))
    }

    /// One caller after the other. One that has panicked has left nothing half done here.
    fn adapting(&self) -> MutexGuard<'_, ()> {
        self.adapting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets branches; their keys and values stay cached until room is needed. A branch in progress is cancelled
    /// first.
    pub fn release(&self, branches: &[BranchId]) {
        self.tell(Command::Release { branches: branches.to_vec() });
    }

    /// Forgets branches and gives back at once the pages that no other branch holds.
    pub fn prune(&self, branches: &[BranchId]) {
        self.tell(Command::Prune { branches: branches.to_vec() });
    }

    /// The counters as they are after the step in progress.
    pub fn metrics(&self) -> Result<Metrics> {
        self.ask(|reply| Command::Metrics { reply })
    }

    /// The counters, and what the engine holds, after its last turn. Does not wait for the engine.
    pub fn live(&self) -> Result<LiveMetrics> {
        if self.has_stopped() { Err(self.stopped()) } else { Ok(self.live.read()) }
    }

    pub(crate) fn live_place(&self) -> LivePlace {
        self.live.clone()
    }

    /// The `most` segments of the prefix tree whose subtrees have the most pages; parents come before their children.
    /// Answered between two steps, without waiting for the one in flight.
    pub fn cache_map(&self, most: usize) -> Result<Vec<MappedSegment>> {
        self.ask(|reply| Command::CacheMap { most, reply })
    }

    /// Gives up the cached pages that no branch holds: what comes next computes its prompts anew. Whether nothing is
    /// cached any more; false while branches hold pages. A prefix store keeps what it has.
    pub fn evict(&self) -> Result<bool> {
        Ok(!self.ask(|reply| Command::Evict { held: false, reply })?)
    }

    /// As [`evict`](Self::evict), and gives up the pages that branches hold, too: those in progress go on, and compute
    /// again what they had, as the others do when they go on.
    pub fn evict_held(&self) -> Result<bool> {
        Ok(!self.ask(|reply| Command::Evict { held: true, reply })?)
    }

    /// Keeps extends that are started from now on waiting until `resume`, and ends those in progress, or not, as the
    /// pause's [mode](crate::PauseMode) says. Returns when that holds: after `Abort` and `Wait` nothing runs, after
    /// `Keep` nothing is stepped. Pins in progress go on to their ends, but for `Keep`; one that is made during a pause
    /// waits. A pause of another mode may follow.
    ///
    /// # Errors
    ///
    /// The engine was resumed before the extends in progress had ended, another pause let them stand still, or they
    /// cannot end because the engine sleeps or has no weights; or it has stopped.
    pub fn pause(&self, pause: impl Into<Pause>) -> Result<()> {
        let pause = pause.into();
        self.ask(|reply| Command::Pause { pause, reply })?
    }

    /// Ends a pause: what waited is begun, what stood still goes on. Of no effect if the engine is not paused.
    ///
    /// # Errors
    ///
    /// Memory of the engine was given back by `sleep` and not taken again, or the engine has no weights.
    pub fn resume(&self) -> Result<()> {
        self.ask(|reply| Command::Resume { reply })?
    }

    /// Whether the engine is paused, without waiting for it; also while a pause waits for extends in progress.
    pub fn is_paused(&self) -> bool {
        self.status.lock().is_paused()
    }

    /// What is known of the engine's state without waiting for it.
    pub fn status(&self) -> EngineStatus {
        self.status.read()
    }

    /// By what new weights are checked; `None`: the engine is scripted and has no weights.
    pub fn weight_form(&self) -> Option<Arc<WeightForm>> {
        self.form.clone()
    }

    pub(crate) fn forms(&self) -> &FormSource {
        &self.forms
    }

    pub(crate) fn status_place(&self) -> StatusPlace {
        self.status.clone()
    }

    /// The weights in force, without waiting for the engine.
    pub fn weights(&self) -> Weights {
        self.status.read().weights
    }

    /// What versions of the weights are called, also of those that were in force before.
    pub fn labels(&self) -> Arc<WeightLabels> {
        self.status.labels.clone()
    }

    /// Names the weights in force, and returns them.
    pub fn set_label(&self, label: impl Into<String>) -> Result<Weights> {
        let label = label.into();
        self.ask(|reply| Command::SetLabel { label, reply })
    }

    /// Changes the weights between two steps, paused or not. The tensors are checked before, on the caller's thread,
    /// while steps are made. All keys and values, states and scores of the old weights are given up: what is in
    /// progress goes on under the new ones, by which its tokens are computed again. Several engines behind one handle
    /// change together. Returns what is in force now.
    ///
    /// # Errors
    ///
    /// The tensors do not fit the model, memory is short, or another update is under way: the old weights stay in
    /// force, and everything goes on as if nothing had been asked. Only where a device that replaces weights in place
    /// fails midway, none are left ([`EngineStatus::lacks_weights`]): what is in progress fails, and so does what is
    /// started, until an update of all weights succeeds.
    pub fn update_weights(&self, update: WeightsUpdate) -> Result<Weights> {
        let _updating = match self.updating.try_lock() {
            Ok(updating) => updating,
            // A source of tensors panicked while it was read: that update is over.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::value("updates of weights", "one at a time", "another one that is under way"));
            }
        };
        let update = CheckedWeights::of(update, self.form.as_deref())?;
        self.ask(|reply| Command::UpdateWeights { update, stands: false, reply })?
    }

    /// Pauses the engine and gives the memory of the parts of `sleep` back; it is only paused if there are none. What
    /// is in progress is treated as by this pause; keys and values are computed again once they are awake.
    ///
    /// # Errors
    ///
    /// The errors of [`EngineHandle::pause`]; or the host lacks memory for the weights, or the device fails: then all
    /// that was awake is awake again, and the engine runs if it did.
    pub fn sleep(&self, sleep: Sleep, pause: impl Into<Pause>) -> Result<()> {
        let pause = pause.into();
        if !sleep.parts().any() {
            return self.pause(pause);
        }
        self.pause(pause.before_sleep())?;
        self.ask(|reply| Command::Sleep { sleep, reply })?
    }

    /// Takes memory again that `sleep` gave back. Once nothing sleeps and the weights are there, the engine is resumed,
    /// unless it was paused by itself, before it slept or since.
    ///
    /// # Errors
    ///
    /// The device lacks memory: the parts that could not wake sleep on.
    pub fn wake(&self, parts: SleepParts) -> Result<()> {
        self.ask(|reply| Command::Wake { parts, reply })?
    }

    /// Takes memory again by its tags, all of it if `None`. The pause ends, too, once nothing sleeps, if the tags say
    /// so or, without tags, nothing slept. Whether something sleeps still.
    ///
    /// # Errors
    ///
    /// As [`EngineHandle::wake`] and [`EngineHandle::resume`].
    pub fn wake_by(&self, tags: Option<SleepTags>) -> Result<bool> {
        let slept = self.status().asleep.any();
        let tags = tags.unwrap_or(SleepTags { parts: SleepParts::ALL, scheduling: !slept });
        self.wake(tags.parts)?;
        let sleeps = self.status().asleep.any();
        if tags.scheduling && !sleeps {
            self.resume()?;
        }
        Ok(sleeps)
    }

    /// Sends a command, and waits for its reply.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T> {
        let (reply, receiver) = bounded(1);
        self.send(command(reply))?;
        receiver.recv().map_err(|_| self.stopped())
    }

    fn name_branch(&self) -> BranchId {
        BranchId(self.next_branch.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.exit_reason.get().is_some()
    }

    pub(crate) fn send(&self, command: Command) -> Result<()> {
        if self.has_stopped() {
            return Err(self.stopped());
        }
        self.commands.send(command).map_err(|_| self.stopped())
    }

    /// For commands that ask for nothing: an engine that has stopped holds nothing to give back.
    pub(crate) fn tell(&self, command: Command) {
        drop(self.commands.send(command));
    }

    /// For a channel found closed. The engine's thread usually sets the reason before its channels close; after a panic
    /// it may follow a moment later, so this waits. It is always set.
    pub(crate) fn stopped(&self) -> Error {
        Error::EngineStopped { why: self.exit_reason() }
    }
}

/// Runs the body of an engine's thread and records why it ended. The caller keeps what holds the channels' other ends
/// alive until then, so that whoever sees them close finds the reason.
pub(crate) fn live(exit_reason: &ExitReason, body: impl FnOnce() -> Result<()>) {
    let why = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => "all its handles were dropped".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&what| what.to_owned()))
            .unwrap_or_else(|| "a panic without words".to_owned()),
    };
    exit_reason.get_or_init(|| why);
}
