//! Pauses, changes the weights, and gives memory back and takes it again: commands that act between two steps, on all
//! branches at once.
//!
//! # Pauses
//! Extends that are started during a pause are held ([`Scheduler::hold`]) until its end. Those before them end at once,
//! go on to their ends, or stand still: [`PauseMode`]. An engine that sleeps is paused.
//!
//! # Updates
//! What is in flight is collected first, so that every token is sampled and recorded under one version. If the model
//! refuses the new weights, nothing has changed. Otherwise the version rises, every branch gives up what it holds, and
//! the prefix tree is empty: branches that run are queued as preempted ones and computed again, in the order of the
//! queue. Pins are computed again, too. What could still name old keys and values (copies in host memory, prefixes on
//! their way from the store or from another engine) is dropped, or has a version by which it is refused.
//!
//! [`Scheduler::hold`]: crate::scheduler::Scheduler::hold

use crossbeam_channel::Sender;

use crate::branch::{Branch, BranchWork, ScoringState, WantedScores};
use crate::engine::Engine;
use crate::events::{EventReader, Hear};
use crate::request::{FinishReason, Stop};
use crate::status::{PauseMode, StatusPlace};
use crate::text::BranchText;
use crate::weights::{CheckedWeights, Weights};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_model::{Sleep, SleepParts, WeightSleep};

/// Whether extends begin and steps are made.
pub(crate) enum Progress {
    Goes,
    /// Extends that are started are held. Those before them go on; once they have ended, these are answered.
    Drains(Vec<Sender<Result<()>>>),
    /// Extends that are started are held, and no step is made.
    Stands,
}

impl Progress {
    pub fn is_paused(&self) -> bool {
        !matches!(self, Progress::Goes)
    }

    pub fn makes_steps(&self) -> bool {
        !matches!(self, Progress::Stands)
    }

    /// Makes no more steps.
    pub fn stand(&mut self) {
        if let Progress::Drains(waiting) = std::mem::replace(self, Progress::Stands) {
            answer_all(waiting, || Ok(()));
        }
    }

    /// Ends a pause; whether there was one. Who waits for extends to end is told that it did not hold.
    pub fn end(&mut self, status: &StatusPlace) -> bool {
        status.lock().is_paused = false;
        let before = std::mem::replace(self, Progress::Goes);
        let was_paused = before.is_paused();
        if let Progress::Drains(waiting) = before {
            let ended = || Err(Error::value("a pause", "to hold until its extends have ended", "it was ended before"));
            answer_all(waiting, ended);
        }
        was_paused
    }
}

/// What an engine that sleeps, or slept, waits for. What sleeps is part of its status.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sleeping {
    /// Whether it is resumed when all is there.
    pub resumes: bool,
    /// Whether the weights were given up, or an update failed midway, and none have come since: no step is made.
    pub lacks_weights: bool,
}

impl Sleeping {
    /// An error if memory or weights are missing to resume.
    pub fn check_awake(self, status: &StatusPlace) -> Result<()> {
        if status.lock().asleep.any() {
            return Err(Error::value("an engine to resume", "one that is awake", "one that sleeps: wake it first"));
        }
        if self.lacks_weights {
            let found = "one whose weights were given up when it slept: update them first";
            return Err(Error::value("an engine to resume", "one with weights", found));
        }
        Ok(())
    }

    /// An error if there is no memory for weights.
    pub fn check_updatable(self, status: &StatusPlace) -> Result<()> {
        match status.lock().asleep.weights {
            true => {
                let found = "one whose weights sleep: wake them first";
                Err(Error::value("an engine to update", "one whose weights are awake", found))
            }
            false => Ok(()),
        }
    }

    /// Notes what sleeps from now on, of an engine that is to be resumed once all is there, or not.
    pub fn note_asleep(&mut self, status: &StatusPlace, sleep: Sleep, resumes: bool) {
        let (parts, asleep) = (sleep.parts(), &mut status.lock().asleep);
        if !asleep.any() {
            self.resumes = resumes;
        }
        // Weights that sleep already stay where they are.
        self.lacks_weights |= !asleep.weights && sleep.weights == Some(WeightSleep::Dropped);
        *asleep = SleepParts { weights: asleep.weights || parts.weights, kv: asleep.kv || parts.kv };
    }

    /// Notes that these are awake.
    pub fn note_awake(&mut self, status: &StatusPlace, parts: SleepParts) {
        let asleep = &mut status.lock().asleep;
        *asleep = SleepParts { weights: asleep.weights && !parts.weights, kv: asleep.kv && !parts.kv };
    }

    /// Whether the engine is to be resumed now.
    pub fn is_to_resume(self, status: &StatusPlace) -> bool {
        self.resumes && self.check_awake(status).is_ok()
    }
}

/// The error of an engine that is to sleep while it runs.
pub(crate) fn not_paused() -> Error {
    Error::value("an engine to put to sleep", "one that is paused", "one that runs")
}

impl Engine {
    /// Begins a pause; it is answered once it holds.
    pub(super) fn pause(&mut self, mode: PauseMode, reply: Sender<Result<()>>) -> Result<()> {
        self.collect_all()?;
        self.status.lock().is_paused = true;
        let mut waiting = match std::mem::replace(&mut self.progress, Progress::Stands) {
            Progress::Drains(waiting) => waiting,
            Progress::Goes | Progress::Stands => Vec::new(),
        };
        waiting.push(reply);
        match mode {
            PauseMode::Abort => self.abort_all(),
            PauseMode::Wait => {}
            PauseMode::Keep => {
                answer_all(waiting, || Ok(()));
                return Ok(());
            }
        }
        self.progress = Progress::Drains(waiting);
        self.note_drained();
        Ok(())
    }

    /// Ends the extends in progress with what they have, but for those of pins, which come to their ends.
    fn abort_all(&mut self) {
        let is_in_progress = |branch: &&Branch| !branch.rests() && !branch.is_pin && !self.scheduler.is_held(branch);
        let ids: Vec<BranchId> = self.branches.values().filter(is_in_progress).map(|branch| branch.id).collect();
        self.cut(&ids, FinishReason::Aborted);
    }

    /// Answers those who wait for the extends in progress to end, if all have.
    pub(super) fn note_drained(&mut self) {
        if self.scheduler.is_idle()
            && self.submitted.is_empty()
            && let Progress::Drains(waiting) = &mut self.progress
        {
            answer_all(std::mem::take(waiting), || Ok(()));
        }
    }

    /// Ends a pause, unless memory or weights are missing.
    pub(super) fn resume(&mut self) -> Result<()> {
        self.sleeping.check_awake(&self.status)?;
        self.progress.end(&self.status);
        self.sleeping.resumes = false;
        self.scheduler.release_held(&mut self.branches, &mut self.cache);
        Ok(())
    }

    /// Changes the weights. All steps are collected.
    pub(super) fn update_weights(&mut self, update: &CheckedWeights) -> Result<Weights> {
        self.sleeping.check_updatable(&self.status)?;
        let none = || Error::Internal("an update for scripted engines was sent to a real one".to_owned());
        let applied = self.model.apply_update(update.tensors.as_ref().ok_or_else(none)?);
        // A device that failed midway has none: no step is made until an update has succeeded.
        self.sleeping.lacks_weights = !self.model.has_weights();
        applied?;
        let weights = self.status.lock().weights.after(update);
        // First, so that nothing is computed again by the old ones.
        self.cache.weights = weights.version;
        if let Some(store) = &mut self.cache.store {
            store.change_weights(weights.identity.as_deref());
        }
        self.forget_computed();
        self.status.lock().weights = weights.clone();
        log::info!("weights {} ({}) are in force", weights.version, weights.label);
        self.wake_up_whole();
        Ok(weights)
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
        match self.progress.is_paused() {
            true => self.scheduler.hold(&self.branches[&id]),
            false => self.scheduler.add(id, &mut self.branches, &mut self.cache),
        }
    }

    /// Gives back memory of the engine, which is paused and has collected its steps.
    pub(super) fn sleep(&mut self, sleep: Sleep, resumes: bool) -> Result<()> {
        let is_still = self.scheduler.is_idle() || !self.progress.makes_steps();
        if !(self.progress.is_paused() && is_still) {
            return Err(not_paused());
        }
        if sleep.kv {
            self.forget_computed();
        }
        self.model.sleep(sleep)?;
        self.sleeping.note_asleep(&self.status, sleep, resumes);
        Ok(())
    }

    /// Takes memory again that was given back.
    pub(super) fn wake(&mut self, parts: SleepParts) -> Result<()> {
        self.model.wake(parts)?;
        self.sleeping.note_awake(&self.status, parts);
        self.wake_up_whole();
        Ok(())
    }

    /// Resumes an engine that was put to sleep while it ran, once all is there.
    fn wake_up_whole(&mut self) {
        if self.sleeping.is_to_resume(&self.status) {
            self.resume().expect("it is awake and has weights");
        }
    }
}

fn answer_all(waiting: Vec<Sender<Result<()>>>, with: impl Fn() -> Result<()>) {
    // Who asked may be gone.
    waiting.into_iter().for_each(|reply| drop(reply.send(with())));
}
