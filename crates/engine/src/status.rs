//! What can be asked of an engine at any time without waiting for it: whether it is paused, what sleeps, and which
//! weights are in force, as of the last command that changed one of these. The handle's clones share the place.

use std::sync::{Arc, Mutex, MutexGuard};

use offshoot_model::SleepParts;

use crate::adapters::LoadedAdapter;
use crate::weights::Weights;

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

/// An engine's state between two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    pub weights: Weights,
    /// Whether extends that are started wait; also while those before them go on to their ends.
    pub is_paused: bool,
    /// What was given back of the device's memory.
    pub asleep: SleepParts,
    /// The adapters that requests can name, by their names.
    pub adapters: Vec<LoadedAdapter>,
}

impl EngineStatus {
    pub(crate) fn new(weights: Weights) -> Self {
        EngineStatus { weights, is_paused: false, asleep: SleepParts::NONE, adapters: Vec::new() }
    }
}

/// Where an engine's status is read.
#[derive(Clone)]
pub(crate) struct StatusPlace(Arc<Mutex<EngineStatus>>);

impl StatusPlace {
    pub fn new(status: EngineStatus) -> Self {
        StatusPlace(Arc::new(Mutex::new(status)))
    }

    pub fn lock(&self) -> MutexGuard<'_, EngineStatus> {
        self.0.lock().expect("nothing panics while it holds the status")
    }

    pub fn read(&self) -> EngineStatus {
        self.lock().clone()
    }
}
