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

/// The memory of a loaded model's parts, as [`sleep`] and [`wake`] use it.
pub(super) trait PartMemory {
    /// Gives the weights' memory back; returns whether it is there again when they wake. After an error they have it,
    /// and are as they were if they were to wait in host memory; if they were to be dropped, what they hold is
    /// unspecified.
    fn sleep_weights(&mut self, weights: WeightSleep) -> Result<bool>;

    /// There are no weights any more; `keeps_memory`: their memory stays, for an update.
    fn drop_weights(&mut self, keeps_memory: bool);

    /// Gives that of keys, values and states back. After an error they have it, and hold nothing of worth.
    fn sleep_kv(&mut self) -> Result<()>;

    fn wake_weights(&mut self) -> Result<()>;
    fn wake_kv(&mut self) -> Result<()>;
}

/// Gives memory back, and notes it in `asleep`: all that `sleep` names, or after an error nothing of it. What may fail
/// for want of memory comes first, and what cannot be taken back last: weights go to host memory before keys and values
/// are given up, and are dropped after that. If that fails there are none: they are loaded again before the next step.
pub(super) fn sleep(memory: &mut impl PartMemory, asleep: &mut SleepParts, sleep: Sleep) -> Result<()> {
    let before = *asleep;
    let slept = sleep_in_order(memory, asleep, sleep);
    slept.map_err(|error| undone(&error, wake(memory, asleep, asleep.without(before))))
}

fn sleep_in_order(memory: &mut impl PartMemory, asleep: &mut SleepParts, sleep: Sleep) -> Result<()> {
    let weights = sleep.weights.filter(|_| !asleep.weights);
    if weights == Some(WeightSleep::InHostMemory) {
        memory.sleep_weights(WeightSleep::InHostMemory)?;
        asleep.weights = true;
    }
    if sleep.kv && !asleep.kv {
        memory.sleep_kv()?;
        asleep.kv = true;
    }
    if weights == Some(WeightSleep::Dropped) {
        let slept = memory.sleep_weights(WeightSleep::Dropped);
        memory.drop_weights(*slept.as_ref().unwrap_or(&true));
        slept?;
        asleep.weights = true;
    }
    Ok(())
}

/// Takes the memory of these parts again, and notes it in `asleep`. After an error those that could not wake sleep on.
pub(super) fn wake(memory: &mut impl PartMemory, asleep: &mut SleepParts, parts: SleepParts) -> Result<()> {
    if parts.weights && asleep.weights {
        memory.wake_weights()?;
        asleep.weights = false;
    }
    if parts.kv && asleep.kv {
        memory.wake_kv()?;
        asleep.kv = false;
    }
    Ok(())
}

/// The error of a sleep after which what slept was `woken` again.
pub(super) fn undone(error: &Error, woken: Result<()>) -> Error {
    let found = match woken {
        Ok(()) => format!("one that failed ({error}): what slept of them is awake again"),
        Err(still) => format!("one that failed ({error}) and cannot be undone ({still}): wake what sleeps"),
    };
    Error::value("memory to give back", "a sleep of all parts", found)
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

    /// Memory of which one part fails to sleep, and perhaps the other to wake. It notes what is done.
    #[derive(Default)]
    struct Failing {
        weights: bool,
        kv: bool,
        waking: bool,
        done: Vec<&'static str>,
    }

    impl Failing {
        fn note(&mut self, what: &'static str, fails: bool) -> Result<()> {
            self.done.push(what);
            if fails { Err(Error::value("memory", "enough", "too little")) } else { Ok(()) }
        }
    }

    impl PartMemory for Failing {
        fn sleep_weights(&mut self, weights: WeightSleep) -> Result<bool> {
            let what = if weights == WeightSleep::Dropped { "free weights" } else { "copy weights" };
            self.note(what, self.weights).map(|()| true)
        }

        fn drop_weights(&mut self, keeps_memory: bool) {
            assert!(keeps_memory, "a device keeps their addresses");
            self.done.push("no weights");
        }

        fn sleep_kv(&mut self) -> Result<()> {
            self.note("drop kv", self.kv)
        }

        fn wake_weights(&mut self) -> Result<()> {
            self.note("wake weights", self.waking)
        }

        fn wake_kv(&mut self) -> Result<()> {
            self.note("wake kv", self.waking)
        }
    }

    /// What is done, what sleeps then, and what is said.
    fn slept(level: Sleep, mut memory: Failing) -> (Vec<&'static str>, SleepParts, String) {
        let mut asleep = SleepParts::NONE;
        let error = sleep(&mut memory, &mut asleep, level).map_or_else(|error| error.to_string(), |()| String::new());
        (memory.done, asleep, error)
    }

    #[test]
    fn a_sleep_that_fails_in_part_leaves_all_awake_and_says_so() {
        assert_eq!(slept(Sleep::LEVEL_1, Failing::default()).0, ["copy weights", "drop kv"]);
        assert_eq!(slept(Sleep::LEVEL_2, Failing::default()).0, ["drop kv", "free weights", "no weights"]);
        let (done, asleep, said) = slept(Sleep::LEVEL_1, Failing { weights: true, ..Failing::default() });
        assert_eq!((done, asleep), (vec!["copy weights"], SleepParts::NONE), "keys and values are still there");
        assert!(said.contains("too little") && said.contains("awake again"), "{said}");
        let (done, asleep, _) = slept(Sleep::LEVEL_1, Failing { kv: true, ..Failing::default() });
        assert_eq!((done, asleep), (vec!["copy weights", "drop kv", "wake weights"], SleepParts::NONE));
        let (done, asleep, _) = slept(Sleep::LEVEL_2, Failing { kv: true, ..Failing::default() });
        assert_eq!((done, asleep), (vec!["drop kv"], SleepParts::NONE), "weights are still there");
        // Some of the weights may have been freed: what is there instead may not be used.
        let (done, asleep, _) = slept(Sleep::LEVEL_2, Failing { weights: true, ..Failing::default() });
        let expected = vec!["drop kv", "free weights", "no weights", "wake kv"];
        assert_eq!((done, asleep), (expected, SleepParts::NONE));
        let (_, asleep, said) = slept(Sleep::LEVEL_1, Failing { kv: true, waking: true, ..Failing::default() });
        assert_eq!(asleep, SleepParts { weights: true, kv: false });
        assert!(said.contains("wake what sleeps"), "{said}");
    }

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
