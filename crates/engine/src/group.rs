//! When a group, the samples of one prompt, ends before each of them has. Counting and cancelling is left to callers.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::request::Finish;
use crate::weights::append_versions;

/// A group ends when so many of its samples have finished; the others are stragglers. Which samples these are depends
/// on the lengths of all and on what else runs, so the finished ones are shorter than all would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEnd {
    /// Samples that must finish. Cancelled and failed ones do not count.
    pub min_finished: NonZeroUsize,
    /// What becomes of the others.
    pub stragglers: Stragglers,
}

/// What becomes of the samples of a group that run when it ends. Each is cancelled with its tokens so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stragglers {
    /// Their branches are released.
    #[default]
    Cancel,
    /// Their branches stay, to be continued later or released by the caller.
    Keep,
}

impl GroupEnd {
    /// A group that ends when `min_finished` of its samples have, and cancels the others.
    pub fn new(min_finished: NonZeroUsize) -> Self {
        GroupEnd { min_finished, stragglers: Stragglers::Cancel }
    }

    /// Keeps the branches of the others.
    pub fn keeping_stragglers(self) -> Self {
        GroupEnd { stragglers: Stragglers::Keep, ..self }
    }

    /// Whether the group ends once `finished` of its samples have.
    pub fn is_over(&self, finished: usize) -> bool {
        finished >= self.min_finished.get()
    }
}

impl Finish {
    /// Both parts of a sample that was cancelled and continued by a later extend, as one.
    pub fn followed_by(mut self, later: Finish) -> Finish {
        self.text.push_str(&later.text);
        append_versions(&mut self.weights, self.tokens.len(), &later.weights);
        append_versions(&mut self.adapters, self.tokens.len(), &later.adapters);
        self.tokens.extend(later.tokens);
        self.records.append(later.records);
        let (reason, logprob) = (later.reason, self.logprob + later.logprob);
        Finish { reason, logprob, stop_token: later.stop_token, routes: later.routes, ..self }
    }
}
