//! Which parts of a loaded model give their memory back while it sleeps, and take it again when it wakes; levels and
//! tags, by which trainers name them. When a model may sleep is left to the engine.

use offshoot_core::error::{Error, Result};

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

    /// The parts of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { weights: self.weights || other.weights, kv: self.kv || other.kv }
    }

    /// The parts of `self` that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self { weights: self.weights && !other.weights, kv: self.kv && !other.kv }
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

    /// What a sleep of each level gives back, by the level's number; level 0 gives nothing back.
    pub const LEVELS: [Self; 3] = [Self { weights: None, kv: false }, Self::LEVEL_1, Self::LEVEL_2];

    /// What gives its memory back.
    pub fn parts(self) -> SleepParts {
        SleepParts { weights: self.weights.is_some(), kv: self.kv }
    }

    /// Those of `self` that are in `parts`.
    #[must_use]
    pub fn only(self, parts: SleepParts) -> Self {
        Self { weights: self.weights.filter(|_| parts.weights), kv: self.kv && parts.kv }
    }
}

/// What trainers name by tags, when they put an engine to sleep or wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepTags {
    /// Memory.
    pub parts: SleepParts,
    /// What waits while the engine is paused; it has no memory.
    pub scheduling: bool,
}

impl SleepTags {
    /// The tags by their names.
    pub const WORDS: [(&str, SleepTags); 3] = [
        ("weights", SleepTags { parts: SleepParts { weights: true, kv: false }, scheduling: false }),
        ("kv_cache", SleepTags { parts: SleepParts { weights: false, kv: true }, scheduling: false }),
        ("scheduling", SleepTags { parts: SleepParts::NONE, scheduling: true }),
    ];

    /// All that these words name together.
    ///
    /// # Errors
    ///
    /// One of them is no tag.
    pub fn of<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self> {
        let mut all = SleepTags { parts: SleepParts::NONE, scheduling: false };
        for word in words {
            let Some((_, tag)) = Self::WORDS.into_iter().find(|(name, _)| *name == word) else {
                let expected = Self::WORDS.map(|(name, _)| name).join(", ");
                return Err(Error::value("tags", expected, format!("{word:?}")));
            };
            all = SleepTags { parts: all.parts.and(tag.parts), scheduling: all.scheduling || tag.scheduling };
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_name_parts_and_others_are_refused() {
        let all = SleepTags::of(["kv_cache", "scheduling"]).expect("both are tags");
        assert_eq!(all, SleepTags { parts: SleepParts { weights: false, kv: true }, scheduling: true });
        assert_eq!(Sleep::LEVEL_2.only(all.parts), Sleep { weights: None, kv: true });
        assert_eq!(SleepParts::ALL.without(all.parts), SleepParts { weights: true, kv: false });
        let refused = SleepTags::of(["weights", "kv"]).expect_err("the second one is none").to_string();
        assert_eq!(refused, "tags: expected weights, kv_cache, scheduling, found \"kv\"");
    }
}
