//! What can be asked of an engine at any time without waiting for it: whether it is paused and how, what sleeps, and
//! which weights are in force, as of the last command that changed one of these. The engine itself reads here whether
//! it makes steps, so nothing else can say otherwise. The handle's clones share the place.

use std::sync::{Arc, Mutex, MutexGuard};

use offshoot_core::error::{Error, Result};
use offshoot_model::SleepParts;

use crate::adapters::LoadedAdapter;
use crate::weights::{CheckedWeights, WeightLabels, Weights};

/// What becomes of the extends in progress when an engine is paused. Those that are started afterwards wait until it is
/// resumed, in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseMode {
    /// They end with the tokens that they have ([`FinishReason::Aborted`](crate::FinishReason::Aborted)).
    #[default]
    Abort,
    /// They go on to their ends.
    Wait,
    /// They stand still, and go on when the engine is resumed; under other weights if these have changed.
    Keep,
}

impl PauseMode {
    /// The modes by their names.
    pub const WORDS: [(&str, PauseMode); 3] =
        [("abort", PauseMode::Abort), ("wait", PauseMode::Wait), ("keep", PauseMode::Keep)];
}

/// A pause of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    mode: PauseMode,
    admits: bool,
    end: PauseEnd,
}

/// What ends a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseEnd {
    /// Somebody resumes the engine.
    Resumed,
    /// A sleep made it, of an engine that ran, and has not begun: until then nothing ends it by itself.
    BeforeSleep,
    /// That sleep has begun, or failed: it ends by itself once the engine is awake and has weights.
    Awake,
}

impl From<PauseMode> for Pause {
    /// A pause during which requests wait.
    fn from(mode: PauseMode) -> Self {
        Pause { mode, admits: true, end: PauseEnd::Resumed }
    }
}

impl Pause {
    /// The same pause, but whoever serves clients refuses the requests that come meanwhile. (Extends that are started
    /// nevertheless wait, as in any pause.)
    #[must_use]
    pub fn refusing(self) -> Self {
        Pause { admits: false, ..self }
    }

    /// The pause that a sleep makes before it begins ([`EngineStatus::note_sleep`]).
    #[must_use]
    pub(crate) fn before_sleep(self) -> Self {
        Pause { end: PauseEnd::BeforeSleep, ..self }
    }

    pub fn mode(self) -> PauseMode {
        self.mode
    }

    /// Whether requests that come meanwhile wait; else they are refused.
    pub fn admits(self) -> bool {
        self.admits
    }
}

/// An engine's state between two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    pub weights: Weights,
    /// The pause that holds, or begins: extends before it may still go on to their ends. `None`: the engine runs.
    pub pause: Option<Pause>,
    /// What was given back of the device's memory. Steps are made only where this is nothing.
    pub asleep: SleepParts,
    /// Whether no weights are loaded: they were dropped, or an update failed midway. No step is made until an update of
    /// all weights has succeeded.
    pub lacks_weights: bool,
    /// The adapters that requests can name, by their names.
    pub adapters: Vec<LoadedAdapter>,
}

impl EngineStatus {
    pub(crate) fn new(weights: Weights) -> Self {
        EngineStatus { weights, pause: None, asleep: SleepParts::NONE, lacks_weights: false, adapters: Vec::new() }
    }

    /// Whether extends that are started wait.
    pub fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Whether all memory and the weights are there.
    pub fn is_ready(&self) -> bool {
        !self.asleep.any() && !self.lacks_weights
    }

    /// Whether steps are made of what is in progress.
    pub(crate) fn makes_steps(&self) -> bool {
        self.is_ready() && self.pause.is_none_or(|pause| pause.mode != PauseMode::Keep)
    }

    /// An error if memory or weights are missing to do `what`.
    pub(crate) fn check_ready(&self, what: &str) -> Result<()> {
        if self.asleep.any() {
            return Err(Error::value(what, "one that is awake", "one that sleeps: wake it first"));
        }
        if self.lacks_weights {
            let why = "they were dropped, or lost in an update that failed: update them first";
            return Err(Error::no_weights(format!("{what} needs them; {why}")));
        }
        Ok(())
    }

    /// An error if there is no memory for other weights.
    pub(crate) fn check_updatable(&self) -> Result<()> {
        match self.asleep.weights {
            true => {
                let found = "one whose weights sleep: wake them first";
                Err(Error::value("an engine to update", "one whose weights are awake", found))
            }
            false => Ok(()),
        }
    }

    /// Begins a pause, or makes that which holds into another one. A pause that somebody has asked for does not end by
    /// itself.
    pub(crate) fn begin_pause(&mut self, pause: Pause) {
        let is_asked_for = self.pause.is_some_and(|before| before.end == PauseEnd::Resumed);
        self.pause = Some(Pause { end: if is_asked_for { PauseEnd::Resumed } else { pause.end }, ..pause });
    }

    /// The sleep for which the engine was paused has begun, or failed.
    pub(crate) fn note_sleep(&mut self) {
        if let Some(pause) = self.pause.as_mut().filter(|pause| pause.end == PauseEnd::BeforeSleep) {
            pause.end = PauseEnd::Awake;
        }
    }

    /// Whether the pause ends now by itself.
    pub(crate) fn is_to_resume(&self) -> bool {
        self.is_ready() && self.pause.is_some_and(|pause| pause.end == PauseEnd::Awake)
    }
}

/// Where an engine's status, and what its weights are called, is read.
#[derive(Clone)]
pub(crate) struct StatusPlace {
    status: Arc<Mutex<EngineStatus>>,
    pub labels: Arc<WeightLabels>,
}

impl StatusPlace {
    pub fn new(status: EngineStatus) -> Self {
        let labels = Arc::<WeightLabels>::default();
        labels.set(status.weights.version, &status.weights.label);
        StatusPlace { status: Arc::new(Mutex::new(status)), labels }
    }

    pub fn lock(&self) -> MutexGuard<'_, EngineStatus> {
        self.status.lock().expect("nothing panics while it holds the status")
    }

    pub fn read(&self) -> EngineStatus {
        self.lock().clone()
    }

    /// The weights that `update` makes of those in force. Their label is known from here on, before anything is sampled
    /// under them.
    pub fn weights_after(&self, update: &CheckedWeights) -> Weights {
        let weights = self.lock().weights.after(update);
        self.labels.set(weights.version, &weights.label);
        weights
    }

    /// Names the weights in force, and returns them.
    pub fn set_label(&self, label: String) -> Weights {
        let mut status = self.lock();
        self.labels.set(status.weights.version, &label);
        status.weights.label = label;
        status.weights.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused(pauses: impl IntoIterator<Item = Pause>) -> EngineStatus {
        let mut status = EngineStatus::new(Weights::first(None));
        pauses.into_iter().for_each(|pause| status.begin_pause(pause));
        assert!(!status.is_to_resume(), "no sleep has begun");
        status.note_sleep();
        status
    }

    #[test]
    fn only_a_pause_that_nobody_asked_for_ends_by_itself() {
        let (asked, of_sleep) = (Pause::from(PauseMode::Abort), Pause::from(PauseMode::Keep).before_sleep());
        assert!(paused([of_sleep]).is_to_resume() && paused([of_sleep, of_sleep]).is_to_resume());
        for pauses in [vec![asked], vec![asked, of_sleep], vec![of_sleep, asked], vec![of_sleep, asked, of_sleep]] {
            assert!(!paused(pauses.clone()).is_to_resume(), "{pauses:?}");
        }
        let mut asleep = paused([of_sleep]);
        asleep.asleep.kv = true;
        assert!(!asleep.is_to_resume());
    }

    #[test]
    fn nothing_steps_without_memory_or_weights_whatever_the_pause() {
        for pause in [None, Some(PauseMode::Abort), Some(PauseMode::Wait), Some(PauseMode::Keep)] {
            let status = paused(pause.map(Pause::from));
            assert_eq!(status.makes_steps(), pause != Some(PauseMode::Keep));
            let asleep = EngineStatus { asleep: SleepParts { weights: false, kv: true }, ..status.clone() };
            let lacking = EngineStatus { lacks_weights: true, ..status };
            assert!(!asleep.makes_steps() && !lacking.makes_steps());
            assert!(asleep.check_ready("an engine").unwrap_err().to_string().contains("wake it first"));
            assert!(lacking.check_ready("an engine").unwrap_err().to_string().contains("update them first"));
        }
    }
}
