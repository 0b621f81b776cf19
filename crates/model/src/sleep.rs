//! Which parts of a loaded model give their memory back while it sleeps, and take it again when it wakes. When a model
//! may sleep is left to the engine.

/// Parts of a loaded model that have memory of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepParts {
    pub weights: bool,
    /// Keys, values and states.
    pub kv: bool,
}

impl SleepParts {
    pub const ALL: Self = Self { weights: true, kv: true };
    pub const NONE: Self = Self { weights: false, kv: false };

    pub fn any(self) -> bool {
        self.weights || self.kv
    }
}

/// What becomes of weights whose memory is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSleep {
    /// They wait in host memory, and are there again after `wake`.
    InHostMemory,
    /// They are gone: after `wake` no step is taken until an update has brought all of them.
    Dropped,
}

/// What gives its memory back. Keys, values and states are always gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// `None`: weights stay where they are.
    pub weights: Option<WeightSleep>,
    pub kv: bool,
}

impl Sleep {
    /// Weights wait in host memory; keys and values are dropped.
    pub const LEVEL_1: Self = Self { weights: Some(WeightSleep::InHostMemory), kv: true };
    /// Both are dropped.
    pub const LEVEL_2: Self = Self { weights: Some(WeightSleep::Dropped), kv: true };

    /// What gives its memory back.
    pub fn parts(self) -> SleepParts {
        SleepParts { weights: self.weights.is_some(), kv: self.kv }
    }
}
