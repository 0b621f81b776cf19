//! Whether another branch may begin: only while the pages suffice for the most that it and all that run are expected to
//! hold at any moment (`growth`), and while every one of them could be brought to its end alone, with nothing lost that
//! the others were given. Branches that are let in too freely push each other out again, and each return costs time or
//! computation.

use crate::engine::branch::{Branch, BranchWork, KvHold, Lease, SamplingState, Stage};
use crate::engine::cache::KvCache;
use crate::engine::growth::{GrowingBranch, PeakMemory};
use crate::kv::Usage;

/// Expected output length as a fraction of `max_tokens` (moving average over finished extends, 0 to 1). Extends that
/// only their length can end are not estimated: they sample `max_tokens`.
pub(super) struct LengthEstimator(f64);

/// Weight of one finished extend in the moving average.
const WEIGHT: f64 = 1.0 / 32.0;

impl Default for LengthEstimator {
    /// 1 until an extend has finished.
    fn default() -> Self {
        LengthEstimator(1.0)
    }
}

impl LengthEstimator {
    /// Records an extend that is about to end. One that is `cut` short never lowers the estimate: it would have sampled
    /// at least as many tokens.
    pub fn note(&mut self, branch: &Branch, cut: bool) {
        if let BranchWork::Sample(sampling) = &branch.work
            && !sampling.stop.is_exact()
        {
            self.take(sampling.logprobs.len() as f64 / (sampling.limit - sampling.begin).max(1) as f64, cut);
        }
    }

    fn take(&mut self, share: f64, cut: bool) {
        let told = if cut { share.max(self.0) } else { share };
        self.0 += WEIGHT * (told - self.0);
    }

    /// Expected number of tokens sampled by a branch that may sample `tokens` more.
    fn expected_of(&self, tokens: usize, sampling: &SamplingState) -> usize {
        if sampling.stop.is_exact() { tokens } else { (tokens as f64 * self.0).ceil() as usize }
    }

    /// How `branch` is expected to go on once what it needs now is laid out, as all tokens are that it was given; in
    /// the end it gives back `alone`. None where it samples nothing.
    fn growing(&self, branch: &Branch, cache: &KvCache, alone: Option<usize>) -> Option<GrowingBranch> {
        let BranchWork::Sample(sampling) = &branch.work else { return None };
        let page_tokens = cache.prefix.page_tokens() as usize;
        let now = branch.tokens.len() + sampling.in_flight.tokens;
        // One that was divided at its end, as others go on from there, has no page any more.
        let has_page =
            |lease: Lease| lease.own && cache.prefix.first_position(lease.segment) < cache.prefix.end(lease.segment);
        let (laid_out, has_own_page) = match branch.hold {
            // It has not laid out the token that it sampled last.
            KvHold::Path(lease) if branch.stage == Stage::Running => {
                (cache.prefix.end(lease.segment) as usize, has_page(lease))
            }
            KvHold::Path(lease) => (now, has_page(lease)),
            KvHold::Swapped(_) => (now, true),
            KvHold::Nothing => (now, false),
        };
        // The last token sampled is not computed.
        let most = (sampling.limit - 1).saturating_sub(laid_out);
        // Where its length is not known it goes on for a page at least.
        let least = if sampling.stop.is_exact() { 0 } else { page_tokens };
        let steps = self.expected_of(most, sampling).max(least).min(most);
        // In its parent's last page only one branch can go on, which may be another.
        let opens_page = !has_own_page && !laid_out.is_multiple_of(page_tokens) && steps > 0;
        // What it has of its own, and so how far from its window it is.
        let own = match branch.hold {
            KvHold::Path(lease) if lease.own => {
                laid_out.saturating_sub(cache.prefix.first_position(lease.segment) as usize)
            }
            _ => 0,
        };
        let grows = cache.window.map_or(steps, |window| steps.min(window.most_kept().saturating_sub(own)));
        Some(GrowingBranch { laid_out, steps, grows, opens_page, alone })
    }
}

/// Whether `branch`, which runs, samples from now on: then a token of it is laid out in every step, in a segment of its
/// own.
fn decodes(branch: &Branch) -> bool {
    branch.lease().is_some_and(|lease| lease.own)
        && matches!(&branch.work, BranchWork::Sample(sampling) if branch.tokens.len() + sampling.in_flight.tokens > sampling.begin)
}

/// Pages that the tokens which `branch` samples or scores can take at most, laid out behind those that it was given.
/// None where it could not have them even alone: to such a branch nothing is promised.
fn own_at_most(branch: &Branch, cache: &KvCache) -> usize {
    let page_tokens = cache.prefix.page_tokens() as usize;
    let (given, end) = match &branch.work {
        BranchWork::Idle => return 0,
        BranchWork::Sample(sampling) => (sampling.begin, sampling.limit - 1),
        BranchWork::Score(scoring) => (scoring.begin, branch.tokens.len() - 1),
    };
    let own = if end > given { end.div_ceil(page_tokens) - given / page_tokens } else { 0 };
    // One that was dropped has its tokens laid out as known ones and new ones, at most with a page of their own where
    // they meet.
    if given.div_ceil(page_tokens) + own <= cache.pages.capacity() { own + 1 } else { 0 }
}

/// Pages committed to branches: to all running ones, and to waiting ones for the prefixes that they hold.
pub(super) struct Commitment {
    /// In use now, and how those that run go on.
    used: Usage,
    growing: PeakMemory,
    /// Of `used`, what each of those that decode gives back when it has ended.
    alone: Usage,
    /// Pages of `alone` that are not given back: others were let in that need them, too.
    kept: usize,
    /// Whether any of them may end sooner than it could, or later than expected.
    is_unsure: bool,
    /// What was given to all of them, which is not to be computed twice, and the most that a single one can have beside
    /// it.
    given: Usage,
    own: usize,
}

impl Commitment {
    /// `keeping`: branches that run, and those that keep something while they wait.
    pub fn of<'a>(keeping: impl Iterator<Item = &'a Branch>, cache: &KvCache, expected: &LengthEstimator) -> Self {
        let (mut used, mut alone, mut given) = (Usage::default(), Usage::default(), Usage::default());
        let (mut growing, mut is_unsure, mut own) = (Vec::new(), false, 0);
        for branch in keeping {
            let Some(segment) = branch.kept() else { continue };
            cache.prefix.add_path(&mut used, segment);
            cache.prefix.add_beginning(&mut given, segment, position(branch.given()));
            if branch.stage == Stage::Running {
                let gives_back = decodes(branch).then(|| cache.prefix.add_alone(&mut alone, segment));
                growing.extend(expected.growing(branch, cache, gives_back));
                is_unsure |= matches!(&branch.work, BranchWork::Sample(sampling) if !sampling.stop.is_exact());
            }
            if branch.stage != Stage::Waiting {
                own = own.max(own_at_most(branch, cache));
            }
        }
        let growing = PeakMemory::new(cache.prefix.page_tokens() as usize, growing);
        Commitment { used, growing, alone, kept: 0, is_unsure, given, own }
    }

    /// The cost of admitting `branch`.
    pub fn cost(&self, branch: &Branch, cache: &KvCache, expected: &LengthEstimator) -> AdmissionCost {
        let prefix = &cache.prefix;
        // Set where it goes on from where it was, whatever of its tokens others have laid out behind.
        let used = match branch.hold {
            KvHold::Path(lease) if lease.used => Some(lease.segment),
            KvHold::Nothing | KvHold::Path(_) | KvHold::Swapped(_) => None,
        };
        let (gain, kept) = branch.need().map_or((0, 0), |need| match (used, branch.hold) {
            (Some(segment), _) => (prefix.gain_after(&self.used, segment, position(need.end)), 0),
            (None, KvHold::Swapped(swapped)) => (prefix.gain_after(&self.used, swapped.before, position(need.end)), 0),
            (None, KvHold::Nothing | KvHold::Path(_)) => {
                let (path, rest) = cache.look_up(branch, need.match_upto);
                let gain = prefix.gain(&self.used, path, &rest, position(need.end));
                (gain, prefix.shared_with_one(&self.alone, path, &rest))
            }
        });
        let given_end = position(branch.given());
        let given = match used {
            Some(segment) => prefix.gain_after(&self.given, segment, given_end.max(prefix.end(segment))),
            None => {
                let (path, rest) = cache.look_up(branch, branch.given());
                prefix.gain(&self.given, path, &rest, given_end)
            }
        };
        let growing = expected.growing(branch, cache, None);
        AdmissionCost {
            gain,
            growing,
            kept,
            given,
            own: own_at_most(branch, cache),
            is_new: branch.stage == Stage::Waiting,
        }
    }

    /// Whether the pages suffice for that beside all that was committed to: as far as growth can be told, and in any
    /// case for one after the other. The second was promised already to those that had to yield.
    pub fn allows(&mut self, cost: AdmissionCost, cache: &KvCache) -> bool {
        let capacity = cache.pages.capacity();
        let one_by_one = self.given.pages() + cost.given + self.own.max(cost.own);
        (!cost.is_new || one_by_one <= capacity) && self.grows_within(cost.gain + cost.kept, cost.growing, capacity)
    }

    /// Whether `capacity` suffices at any moment for those that run and one more, with so many pages beside all that.
    fn grows_within(&mut self, beside: usize, one_more: Option<GrowingBranch>, capacity: usize) -> bool {
        let held = self.used.pages() + self.kept + beside;
        held <= capacity && self.growing.fit_in(capacity - held, one_more)
    }

    /// Whether what `branch` keeps while it waits fits beside all that, one after the other; and all at once, where
    /// that can be told. Nobody is to yield for it.
    pub fn affords(&mut self, branch: &Branch, cache: &KvCache) -> bool {
        let Some(segment) = branch.kept() else { return true };
        let (capacity, end) = (cache.pages.capacity(), cache.prefix.end(segment));
        let beside = |usage: &Usage| cache.prefix.gain_after(usage, segment, end);
        let (given, used) = (beside(&self.given), beside(&self.used));
        let one_by_one = given == 0 || self.given.pages() + given + self.own <= capacity;
        one_by_one && (self.is_unsure || self.grows_within(used, None, capacity))
    }

    /// Adds a branch that was admitted.
    pub fn add(&mut self, branch: &Branch, cost: AdmissionCost, cache: &KvCache) {
        if let Some(lease) = branch.lease() {
            cache.prefix.add_new_path(&mut self.used, lease.segment, u32::MAX, cost.gain);
            cache.prefix.add_new_path(&mut self.given, lease.segment, position(branch.given()), cost.given);
        }
        cost.growing.into_iter().for_each(|growing| self.growing.add(growing));
        self.kept += cost.kept;
        self.own = self.own.max(cost.own);
    }
}

fn position(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("positions fit u32, as contexts do")
}

/// Pages that one more branch takes at once, and its expected growth.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionCost {
    gain: usize,
    growing: Option<GrowingBranch>,
    /// At least as many as stay, as it needs them too, of those that others were reckoned to give back.
    kept: usize,
    /// Pages for what it was given, beyond those of what all others were given.
    given: usize,
    own: usize,
    /// Whether it was never admitted.
    is_new: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_short_never_lowers_what_is_expected() {
        let mut expected = LengthEstimator::default();
        (0..100).for_each(|_| expected.take(0.0, true));
        assert_eq!(expected.0, 1.0);
        (0..200).for_each(|_| expected.take(0.1, false));
        let short = expected.0;
        assert!((0.1..0.11).contains(&short), "{short}");
        (0..100).for_each(|_| expected.take(0.05, true));
        assert_eq!(expected.0, short);
        (0..100).for_each(|_| expected.take(0.6, true));
        assert!(expected.0 > 0.5, "{}", expected.0);
    }
}
