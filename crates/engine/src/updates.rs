//! Pauses, changes the weights, and gives memory back and takes it again: commands that act between two steps, on all
//! branches at once.
//!
//! # Pauses
//! Extends that are started during a pause are held ([`Scheduler::hold`]) until its end. Those before them end at once,
//! go on to their ends, or stand still: [`PauseMode`]. An engine that sleeps is paused, and makes no step whatever the
//! pause's mode.
//!
//! # Updates
//! What is in flight is collected first, so that every token is sampled and recorded under one version. If the model
//! refuses the new weights, nothing has changed; if it has lost its weights in the attempt, what is in progress fails,
//! and what is started fails until an update has succeeded. Otherwise the version rises, every branch gives up what it
//! holds, and the prefix tree is empty: branches that run are queued as preempted ones and computed again, in the order
//! of the queue. Pins are computed again, too. What could still name old keys and values (copies in host memory,
//! prefixes on their way from the store or from another engine) is dropped, or has a version by which it is refused.
//!
//! [`Scheduler::hold`]: crate::scheduler::Scheduler::hold

use crossbeam_channel::Sender;

use crate::branch::{Branch, BranchWork, ScoringState, WantedScores};
use crate::engine::Engine;
use crate::events::{EventReader, Hear};
use crate::request::{FinishReason, Stop};
use crate::status::{Pause, PauseMode};
use crate::text::BranchText;
use crate::weights::{CheckedWeights, Weights};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_model::{Sleep, SleepParts};

/// Clients that wait for a pause to hold: until the extends before it have come to their ends.
#[derive(Default)]
pub(crate) struct Draining(Vec<Sender<Result<()>>>);

impl Draining {
    pub fn add(&mut self, reply: Sender<Result<()>>) {
        self.0.push(reply);
    }

    /// All extends have ended.
    pub fn end(&mut self) {
        self.answer(|| Ok(()));
    }

    /// The pause was ended before it held.
    pub fn end_early(&mut self) {
        self.answer(|| Err(Error::value("a pause", "to hold until its extends have ended", "it was ended before")));
    }

    /// What they wait for stands still.
    pub fn stand(&mut self) {
        let found = "another one, in which they stand still";
        self.answer(|| Err(Error::value("a pause", "to hold until its extends have ended", found)));
    }

    /// They cannot come to their ends.
    pub fn fail(&mut self, error: &Error) {
        let found = error.to_string();
        self.answer(|| Err(Error::value("a pause", "to hold until its extends have ended", &*found)));
    }

    fn answer(&mut self, with: impl Fn() -> Result<()>) {
        // Who asked may be gone.
        self.0.drain(..).for_each(|reply| drop(reply.send(with())));
    }
}

/// The error of a pause that waits for what cannot go on.
pub(crate) fn cannot_wait() -> Error {
    let expected = "an engine that is awake and has weights, or in which nothing is in progress";
    let found = "extends that stand still on one that sleeps or has none: wake it first, or pause by abort or keep";
    Error::value("a pause that waits", expected, found)
}

/// The error of an engine that is to sleep while it runs.
pub(crate) fn not_paused() -> Error {
    Error::value("an engine to put to sleep", "one that is paused", "one that runs")
}

/// The error of what was in progress while an update failed midway.
pub(crate) fn weights_lost(why: &str) -> Error {
    Error::no_weights(format!("an update failed midway ({why}); update all of them, then sample again"))
}

impl Engine {
    /// Begins a pause; it is answered once it holds.
    pub(super) fn pause(&mut self, pause: Pause, reply: Sender<Result<()>>) -> Result<()> {
        self.collect_all()?;
        let is_ready = self.status.lock().is_ready();
        if pause.mode() == PauseMode::Wait && !is_ready && !self.scheduler.is_idle() {
            drop(reply.send(Err(cannot_wait()))); // Who asked may be gone.
            return Ok(());
        }
        self.status.lock().begin_pause(pause);
        match pause.mode() {
            PauseMode::Keep => {
                self.draining.stand();
                drop(reply.send(Ok(())));
                return Ok(());
            }
            PauseMode::Abort => self.abort_all(),
            PauseMode::Wait => {}
        }
        self.draining.add(reply);
        match is_ready {
            true => self.note_drained(),
            // What is left are pins that stand still.
            false => self.draining.end(),
        }
        Ok(())
    }

    /// Ends the extends in progress with what they have, but for those of pins, which come to their ends.
    fn abort_all(&mut self) {
        let ids = self.in_progress(|branch| !branch.is_pin);
        self.cut(&ids, FinishReason::Aborted);
    }

    /// The branches with work that began before a pause.
    fn in_progress(&self, of: impl Fn(&Branch) -> bool) -> Vec<BranchId> {
        let is_in_progress = |branch: &&Branch| !branch.rests() && !self.scheduler.is_held(branch) && of(branch);
        self.branches.values().filter(is_in_progress).map(|branch| branch.id).collect()
    }

    /// Answers those who wait for the extends in progress to end, if all have.
    pub(super) fn note_drained(&mut self) {
        if self.scheduler.is_idle() && self.submitted.is_empty() {
            self.draining.end();
        }
    }

    /// Ends a pause, unless memory or weights are missing.
    pub(super) fn resume(&mut self) -> Result<()> {
        self.status.lock().check_ready("an engine to resume")?;
        self.status.lock().pause = None;
        self.draining.end_early();
        self.scheduler.release_held(&mut self.branches, &mut self.cache);
        Ok(())
    }

    /// Changes the weights. All steps are collected. `stands`: see [`Command::UpdateWeights`].
    ///
    /// [`Command::UpdateWeights`]: crate::handle::Command::UpdateWeights
    pub(super) fn update_weights(&mut self, update: &CheckedWeights, stands: bool) -> Result<Weights> {
        self.status.lock().check_updatable()?;
        let none = || Error::Internal("an update for scripted engines was sent to a real one".to_owned());
        let tensors = update.tensors.as_ref().ok_or_else(none)?;
        let weights = self.status.weights_after(update);
        let lacked = self.status.lock().lacks_weights;
        let applied = self.model.apply_update(tensors);
        self.note_model();
        if let Err(error) = applied {
            let has_lost = !lacked && self.status.lock().lacks_weights;
            match stands {
                true => self.stands |= has_lost,
                false if has_lost => self.fail_all(&error.to_string()),
                false => {}
            }
            return Err(error);
        }
        self.stands = false;
        // First, so that nothing is computed again by the old ones.
        self.cache.weights = weights.version;
        if let Some(store) = &mut self.cache.store {
            store.change_weights(weights.identity.as_deref());
        }
        self.forget_computed();
        self.branches.values_mut().for_each(Branch::restart_values);
        self.status.lock().weights = weights.clone();
        log::info!("weights {} ({}) are in force", weights.version, weights.label);
        self.wake_up_whole();
        Ok(weights)
    }

    /// Notes what of the model sleeps, and whether it has weights.
    fn note_model(&mut self) {
        let mut status = self.status.lock();
        (status.asleep, status.lacks_weights) = (self.model.asleep(), !self.model.has_weights());
    }

    /// Fails what is in progress after an update that has failed midway, for this reason, and left no weights.
    pub(super) fn fail_all(&mut self, why: &str) {
        self.stands = false;
        let ids = self.in_progress(|_| true);
        for id in &ids {
            let branch = self.branches.get_mut(id).expect("it was there just now");
            self.scheduler.note_end(branch, true);
            branch.fail(weights_lost(why));
        }
        self.retire(ids);
        self.note_drained();
    }

    /// Gives up all keys, values, states and scores; all branches keep their tokens and their work.
    pub(super) fn forget_computed(&mut self) {
        self.loaded = None;
        let pins = self.scheduler.forget_holds(&mut self.branches);
        self.cache.forget_all(self.branches.values_mut());
        for branch in self.branches.values_mut().filter(|branch| branch.in_flight() > 0) {
            branch.request_again();
        }
        // All that was saved there is of the old weights.
        self.cache.transfers.clear();
        self.swapped.clear();
        pins.into_iter().for_each(|pin| self.compute_pin(pin));
    }

    /// Computes the prefix of a pin at rest again: by scoring its last token, which `EngineHandle::pin` had sampled, so
    /// that it does not grow.
    fn compute_pin(&mut self, id: BranchId) {
        let Some(branch) = self.branches.get_mut(&id) else { return };
        let Some(begin) = branch.tokens.len().checked_sub(1).filter(|&begin| begin > 0) else { return };
        let Ok(text) = BranchText::new(None, &branch.tokens, &Stop::default()) else { return };
        let scores = WantedScores::Model { tops: 0 };
        // Nobody hears of it.
        let scoring = ScoringState::new(EventReader::new().sender(Hear::Finishes), begin, scores, text);
        branch.begin(BranchWork::Score(Box::new(scoring)));
        self.begin_work(id);
    }

    /// Queues a branch that has got work, at the end of a pause if there is one.
    pub(super) fn begin_work(&mut self, id: BranchId) {
        let is_paused = self.status.lock().is_paused();
        match is_paused {
            true => self.scheduler.hold(&self.branches[&id]),
            false => self.scheduler.add(id, &mut self.branches, &mut self.cache),
        }
    }

    /// Gives back memory of the engine, which is paused and has collected its steps. After an error the engine runs
    /// again if it did before.
    pub(super) fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        let (is_paused, makes_steps) = {
            let status = self.status.lock();
            (status.is_paused(), status.makes_steps())
        };
        self.status.lock().note_sleep();
        if !is_paused || (makes_steps && !self.scheduler.is_idle()) {
            return Err(not_paused());
        }
        if sleep.kv {
            self.forget_computed();
        }
        let slept = self.model.sleep(sleep);
        self.note_model();
        self.wake_up_whole();
        slept
    }

    /// Takes memory again that was given back.
    pub(super) fn wake(&mut self, parts: SleepParts) -> Result<()> {
        let woken = self.model.wake(parts);
        self.note_model();
        self.wake_up_whole();
        woken
    }

    /// Resumes an engine that was put to sleep while it ran, once all is there.
    fn wake_up_whole(&mut self) {
        let is_to_resume = self.status.lock().is_to_resume();
        if is_to_resume {
            self.resume().expect("it is awake and has weights");
        }
    }
}
