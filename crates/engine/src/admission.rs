//! Decides whether another branch may be admitted: the pages must suffice for the expected peak of all running branches
//! and it (`growth`), and each branch must be able to finish alone while the others keep their given tokens. Admitting
//! more would cause preemptions, each of which costs a swap or recomputation.

use crate::branch::{Branch, BranchWork, KvHold, Lease, SamplingState, Stage};
use crate::cache::KvCache;
use crate::growth::{GrowingBranch, PeakMemory};
use crate::place::Priority;
use crate::token_path::position;
use offshoot_kv::{Reach, Usage};

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
            && !sampling.rules.stop.is_exact()
        {
            self.take(sampling.records.len() as f64 / (sampling.limit - sampling.rules.begin).max(1) as f64, cut);
        }
    }

    fn take(&mut self, share: f64, cut: bool) {
        let told = if cut { share.max(self.0) } else { share };
        self.0 += WEIGHT * (told - self.0);
    }

    /// Expected number of tokens sampled by a branch that may sample `tokens` more.
    fn expected_of(&self, tokens: usize, sampling: &SamplingState) -> usize {
        if sampling.rules.stop.is_exact() { tokens } else { (tokens as f64 * self.0).ceil() as usize }
    }

    /// Expected growth of `branch` once its known tokens have slots; it frees `alone` pages at its end. `None` if it
    /// does not sample.
    fn growing(&self, branch: &Branch, cache: &KvCache, alone: Option<usize>) -> Option<GrowingBranch> {
        let BranchWork::Sample(sampling) = &branch.work else { return None };
        let page_tokens = cache.prefix.page_tokens() as usize;
        let now = branch.tokens.len().max(sampling.requested());
        // A segment that was split at its end, because others continue there, has no page left.
        let has_page =
            |lease: Lease| lease.own && cache.prefix.first_position(lease.segment) < cache.prefix.end(lease.segment);
        let (laid_out, has_own_page) = match branch.hold {
            // The token sampled last has no slot yet.
            KvHold::Path(lease) if branch.stage == Stage::Running => {
                (cache.prefix.end(lease.segment) as usize, has_page(lease))
            }
            KvHold::Path(lease) => (now, has_page(lease)),
            KvHold::Swapped(_) => (now, true),
            KvHold::Nothing => (now, false),
        };
        // The last token sampled is not computed.
        let most = (sampling.limit - 1).saturating_sub(laid_out);
        // If its length is not known, it is expected to take at least a page more.
        let least = if sampling.rules.stop.is_exact() { 0 } else { page_tokens };
        let steps = self.expected_of(most, sampling).max(least).min(most);
        // Only one branch can continue in its parent's last page, and that may be another one.
        let opens_page = !has_own_page && !laid_out.is_multiple_of(page_tokens) && steps > 0;
        // Tokens in its own segment: what is left until its window starts to free pages.
        let own = match branch.hold {
            KvHold::Path(lease) if lease.own => laid_out.saturating_sub(cache.prefix.passed(lease.segment) as usize),
            _ => 0,
        };
        let window = cache.prefix.groups().window();
        let grows = window.map_or(steps, |window| steps.min(window.most_kept().saturating_sub(own)));
        Some(GrowingBranch { laid_out, steps, grows, opens_page, alone })
    }
}

/// Whether the running `branch` is past prefill: every step then adds one token to a segment of its own.
fn decodes(branch: &Branch) -> bool {
    branch.lease().is_some_and(|lease| lease.own)
        && matches!(
            &branch.work,
            BranchWork::Sample(sampling) if branch.tokens.len().max(sampling.requested()) > sampling.rules.begin
        )
}

/// Most pages that the tokens which `branch` samples can take, after its given tokens. 0 if they would not fit
/// even alone: nothing is guaranteed to such a branch.
fn own_at_most(branch: &Branch, cache: &KvCache) -> usize {
    let (page_tokens, groups) = (cache.prefix.page_tokens() as usize, cache.prefix.groups());
    let (given, end) = match &branch.work {
        BranchWork::Idle => return 0,
        BranchWork::Sample(sampling) => (sampling.rules.begin, sampling.limit - 1),
        BranchWork::Score(_) | BranchWork::Values(_) => (branch.given(), branch.given()),
    };
    let own = if end > given { end.div_ceil(page_tokens) - given / page_tokens } else { 0 };
    let windowed = groups.window().map_or(0, |window| own.min(window.most_kept().div_ceil(page_tokens) + 1));
    // A recomputed branch has its tokens in two segments, known and new ones, which cost at most one page more where
    // they meet.
    let pages = groups.with(Reach::All) * (own + 1) + groups.with(Reach::Window) * (windowed + 1);
    let needed = cache.prefix.to_admit(0, position(given)) + pages - groups.count();
    if needed <= cache.pages.capacity() { pages } else { 0 }
}

/// Pages committed to running branches, and to waiting ones for the prefixes they hold.
pub(super) struct Commitment {
    /// Pages in use now, and the expected growth of running branches.
    used: Usage,
    growing: PeakMemory,
    /// The part of `used` that decoding branches free when they end.
    alone: Usage,
    /// Pages of `alone` that are not freed, because branches admitted since need them too.
    kept: usize,
    /// Whether the length of any running branch is only estimated.
    is_unsure: bool,
    /// Pages of all given tokens, which must not be computed twice; and the most pages a single branch can take beside
    /// them.
    given: Usage,
    own: usize,
}

impl Commitment {
    /// What is committed beside a branch of `priority`. `keeping`: running branches, and waiting ones that hold
    /// prefixes. Less urgent ones give way to it, so what they were given need not be kept for them, nor a prefix while
    /// they wait.
    pub fn of<'a>(
        priority: Priority,
        keeping: impl Iterator<Item = &'a Branch>,
        cache: &KvCache,
        expected: &LengthEstimator,
    ) -> Self {
        let (mut used, mut alone, mut given) = (Usage::default(), Usage::default(), Usage::default());
        let (mut growing, mut is_unsure, mut own) = (Vec::new(), false, 0);
        for branch in keeping {
            let Some(segment) = branch.kept() else { continue };
            let is_kept = branch.is_pin || branch.priority <= priority;
            if !is_kept && branch.stage == Stage::Waiting {
                continue;
            }
            cache.prefix.add_path(&mut used, segment);
            if is_kept {
                cache.prefix.add_beginning(&mut given, segment, position(branch.given()));
            }
            if branch.stage == Stage::Running {
                let gives_back = decodes(branch).then(|| cache.prefix.add_alone(&mut alone, segment));
                growing.extend(expected.growing(branch, cache, gives_back));
                is_unsure |= matches!(&branch.work, BranchWork::Sample(sampling) if !sampling.rules.stop.is_exact());
            }
            if is_kept && branch.stage != Stage::Waiting {
                own = own.max(own_at_most(branch, cache));
            }
        }
        let growing = PeakMemory::new(cache.prefix.page_tokens() as usize, cache.prefix.groups(), growing);
        Commitment { used, growing, alone, kept: 0, is_unsure, given, own }
    }

    /// The cost of admitting `branch`.
    pub fn cost(&self, branch: &Branch, cache: &KvCache, expected: &LengthEstimator) -> AdmissionCost {
        let prefix = &cache.prefix;
        // Set if it continues on its own lease, whatever others have computed after it.
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

    /// Whether the pages suffice for `cost` beside everything committed: for the expected peak, and, for a new branch,
    /// for running one branch after the other. Preempted branches have passed the second test before.
    pub fn allows(&mut self, cost: AdmissionCost, cache: &KvCache) -> bool {
        let capacity = cache.pages.capacity();
        let one_by_one = self.given.committed() + cost.given + self.own.max(cost.own);
        (!cost.is_new || one_by_one <= capacity) && self.grows_within(cost.gain + cost.kept, cost.growing, capacity)
    }

    /// Whether `capacity` suffices for the peak of the running branches and one more, with `beside` further pages.
    fn grows_within(&mut self, beside: usize, one_more: Option<GrowingBranch>, capacity: usize) -> bool {
        let held = self.used.committed() + self.kept + beside;
        held <= capacity && self.growing.fit_in(capacity - held, one_more)
    }

    /// Whether the prefix that the waiting `branch` holds fits beside everything committed, so that no branch is
    /// preempted for it.
    pub fn affords(&mut self, branch: &Branch, cache: &KvCache) -> bool {
        let Some(segment) = branch.kept() else { return true };
        let (capacity, end) = (cache.pages.capacity(), cache.prefix.end(segment));
        let beside = |usage: &Usage| cache.prefix.gain_after(usage, segment, end);
        let (given, used) = (beside(&self.given), beside(&self.used));
        let one_by_one = given == 0 || self.given.committed() + given + self.own <= capacity;
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

/// Pages that one more branch takes at once, and its expected growth, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionCost {
    gain: usize,
    growing: Option<GrowingBranch>,
    /// Pages that others were expected to free and that stay because this branch needs them too.
    kept: usize,
    /// Pages for its given tokens, beyond those of all others' given tokens.
    given: usize,
    own: usize,
    /// Whether it was never admitted.
    is_new: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extends_that_were_cut_short_never_lower_the_estimate() {
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
