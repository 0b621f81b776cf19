//! When a group, the samples of one prompt, ends before each of them has: what counts, and whose branches stay. Callers
//! cancel the others.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::request::{Finish, FinishReason};
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

    /// Whether the branch of a sample that ended for this reason stays, to be continued later.
    pub fn keeps(&self, reason: &FinishReason) -> bool {
        self.stragglers == Stragglers::Keep && reason.is_cut()
    }
}

/// A group in progress: when it ends, if it does before all of its samples have, and how many have finished.
#[derive(Clone, Copy, Debug)]
pub struct OpenGroup {
    end: Option<GroupEnd>,
    finished: usize,
}

impl OpenGroup {
    /// A group of which no sample has finished. `None`: it ends when all have.
    pub fn new(end: Option<GroupEnd>) -> Self {
        OpenGroup { end, finished: 0 }
    }

    /// Counts a sample that ended for this reason; those that were cut short do not count. True if the group ends with
    /// it, once: the samples that have not ended are then to be cancelled.
    pub fn ends_with(&mut self, reason: &FinishReason) -> bool {
        if reason.is_cut() {
            return false;
        }
        self.finished += 1;
        self.end.is_some_and(|end| end.is_over(self.finished) && !end.is_over(self.finished - 1))
    }

    /// Whether the branch of a sample that ended for this reason stays ([`GroupEnd::keeps`]).
    pub fn keeps(&self, reason: &FinishReason) -> bool {
        self.end.is_some_and(|end| end.keeps(reason))
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
        let (stop_token, form_ended, routes) = (later.stop_token, later.form_ended, later.routes);
        Finish { reason, logprob, stop_token, form_ended, routes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the group ends with each of these samples.
    fn ends(end: Option<GroupEnd>, reasons: &[FinishReason]) -> Vec<bool> {
        let mut group = OpenGroup::new(end);
        reasons.iter().map(|reason| group.ends_with(reason)).collect()
    }

    #[test]
    fn a_group_ends_once_with_the_sample_that_makes_enough() {
        use FinishReason::{Aborted, Cancelled, EndOfText, Length, OutOfTime};
        let two = Some(GroupEnd::new(NonZeroUsize::new(2).expect("not 0")));
        assert_eq!(ends(two, &[EndOfText, Length, EndOfText]), [false, true, false]);
        let cut = [Cancelled, EndOfText, Aborted, OutOfTime, Length];
        assert_eq!(ends(two, &cut), [false, false, false, false, true], "what was cut short does not count");
        assert_eq!(ends(None, &[EndOfText, Length]), [false, false]);
    }

    #[test]
    fn branches_of_stragglers_stay_where_they_are_kept() {
        let cancels = GroupEnd::new(NonZeroUsize::MIN);
        let keeps = |end, reason| OpenGroup::new(end).keeps(&reason);
        assert!(keeps(Some(cancels.keeping_stragglers()), FinishReason::Cancelled));
        assert!(!keeps(Some(cancels.keeping_stragglers()), FinishReason::Length), "it has finished");
        assert!(!keeps(Some(cancels), FinishReason::Cancelled) && !keeps(None, FinishReason::Cancelled));
    }
}
