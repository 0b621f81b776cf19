//! Predicts the peak number of pages of branches that sample side by side. Each takes slots for one token a step and,
//! when it finishes, frees the pages that only it holds, which later serve longer branches. Admission by such a peak:
//! Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (arXiv 2507.10150). Which branches count,
//! and their expected lengths, is left to `admission`.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use offshoot_kv::{PageGroups, Reach};

/// Steps for which a finished branch still holds its pages: the one submitted before its end was collected.
const STEPS_UNTIL_FREE: usize = 1;

/// A branch that takes slots for one token a step, from the next step on; during prefill, from then on at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrowingBranch {
    /// Expected number of further tokens.
    pub steps: usize,
    /// Number of those for which its pages of groups with a window grow; later tokens reuse pages freed behind it. At
    /// most `steps`; those of other groups grow for all.
    pub grows: usize,
    /// Tokens of its path that have slots.
    pub laid_out: usize,
    /// Whether its first further token needs a new page even if the last page has room.
    pub opens_page: bool,
    /// Pages only this branch holds, freed when it finishes together with those it takes until then. `None` during
    /// prefill: it may end later than after `steps`, and is counted as freeing nothing.
    pub alone: Option<usize>,
}

/// Peak number of pages of branches that run side by side. Branches with equal growth are counted, not listed, so that
/// admitting many siblings of one prompt costs as much as admitting a few.
pub(super) struct PeakMemory {
    page_tokens: usize,
    groups: PageGroups,
    /// Number of branches by growth, in each page group; of `laid_out` only the remainder by the page size matters and
    /// is kept.
    alike: BTreeMap<GrowingBranch, usize>,
    /// Upper bound on the peak beyond the pages in use now: the last exact count, plus all pages of the branches added
    /// since, with nothing freed.
    at_most: usize,
}

impl PeakMemory {
    pub fn new(page_tokens: usize, groups: PageGroups, branches: impl IntoIterator<Item = GrowingBranch>) -> Self {
        let mut all = PeakMemory { page_tokens, groups, alike: BTreeMap::new(), at_most: 0 };
        branches.into_iter().for_each(|branch| all.add(branch));
        all
    }

    pub fn add(&mut self, branch: GrowingBranch) {
        self.enter(branch);
        self.at_most += self.pages_to_come(branch);
    }

    /// Whether `pages` beyond those in use now suffice for these branches and one more. Counts exactly only if the
    /// bound does not decide; a count tightens the bound, so this is rare when many are admitted in a row.
    pub fn fit_in(&mut self, pages: usize, one_more: Option<GrowingBranch>) -> bool {
        let more = one_more.map_or(0, |branch| self.pages_to_come(branch));
        self.at_most + more <= pages || {
            one_more.into_iter().for_each(|branch| self.enter(branch));
            let most = self.most_pages();
            one_more.into_iter().for_each(|branch| self.leave(branch));
            // A branch that frees nothing never lowers the peak, so the count with it bounds the count without it.
            if one_more.is_none_or(|branch| branch.alone.is_none()) {
                self.at_most = self.at_most.min(most);
            }
            most <= pages
        }
    }

    /// What a branch grows by in each page group, as a branch of its own: those of the groups with a window grow for
    /// `grows` steps, the others to the end. The first has the pages that it frees.
    fn by_group(&self, branch: GrowingBranch) -> impl Iterator<Item = GrowingBranch> + use<> {
        let of = |reach, grows| std::iter::repeat_n(grows, self.groups.with(reach));
        let grows = of(Reach::All, branch.steps).chain(of(Reach::Window, branch.grows));
        grows.enumerate().map(move |(number, grows)| {
            let alone = branch.alone.map(|alone| if number == 0 { alone } else { 0 });
            GrowingBranch { grows, alone, ..branch }
        })
    }

    fn pages_to_come(&self, branch: GrowingBranch) -> usize {
        self.by_group(branch).map(|branch| branch.pages_to_come(self.page_tokens)).sum()
    }

    fn enter(&mut self, branch: GrowingBranch) {
        for branch in self.by_group(branch) {
            *self.alike.entry(self.kind(branch)).or_default() += 1;
        }
    }

    fn leave(&mut self, branch: GrowingBranch) {
        for branch in self.by_group(branch) {
            let kind = self.kind(branch);
            let alike = self.alike.get_mut(&kind).expect("only a branch that was entered leaves");
            *alike -= 1;
            if *alike == 0 {
                self.alike.remove(&kind);
            }
        }
    }

    fn kind(&self, branch: GrowingBranch) -> GrowingBranch {
        GrowingBranch { laid_out: branch.laid_out % self.page_tokens, ..branch }
    }

    /// Peak number of pages beyond those in use now, until all branches have ended. Pages that several share count as
    /// held to the end.
    fn most_pages(&self) -> usize {
        let page_tokens = self.page_tokens;
        let mut still = PageGrowth::new(page_tokens);
        self.alike.iter().for_each(|(branch, &alike)| still.change(branch, alike, AddAssign::add_assign));
        let mut stopped: Vec<_> = self.alike.iter().collect();
        stopped.sort_by_key(|(branch, _)| branch.grows);
        let mut stopped = stopped.into_iter().peekable();
        let mut ending = self.alike.iter().peekable();
        let (mut most, mut taken, mut given_back) = (0, 0, 0);
        // Between two ends pages are only taken, so a peak lies just before an end.
        while let Some(&(&GrowingBranch { steps, .. }, _)) = ending.peek() {
            let step = steps + STEPS_UNTIL_FREE;
            while let Some((branch, &alike)) = stopped.next_if(|(branch, _)| branch.grows < step) {
                still.change(branch, alike, SubAssign::sub_assign);
                taken += alike * branch.pages_to_come(page_tokens);
            }
            most = most.max((taken + still.pages_taken_by(step)).saturating_sub(given_back));
            while let Some((branch, &alike)) = ending.next_if(|(branch, _)| branch.steps == steps) {
                given_back += branch.alone.map_or(0, |alone| alike * (alone + branch.pages_to_come(page_tokens)));
            }
        }
        most
    }
}

impl GrowingBranch {
    /// Pages that it will take in all, without those it frees behind its window.
    fn pages_to_come(&self, page_tokens: usize) -> usize {
        let full = (self.laid_out + self.grows).div_ceil(page_tokens) - self.laid_out.div_ceil(page_tokens);
        full + usize::from(self.opens_page)
    }
}

/// Growing branches by remainder, which gives the pages that all of them take by any step without visiting each:
/// ceil(x / p) = floor(y / p) with y = x + p - 1; after s tokens floor(y / p) has risen by floor(s / p), and by one
/// more if the remainders of y and s sum to p or more.
struct PageGrowth {
    branches: usize,
    /// Branches whose first token needs a new page.
    opened: usize,
    /// Number of branches by y mod p; p entries.
    with_remainder: Vec<usize>,
}

impl PageGrowth {
    fn new(page_tokens: usize) -> Self {
        PageGrowth { branches: 0, opened: 0, with_remainder: vec![0; page_tokens] }
    }

    /// Adds `alike` branches, or removes them, as `change` does.
    fn change(&mut self, branch: &GrowingBranch, alike: usize, change: fn(&mut usize, usize)) {
        let page_tokens = self.with_remainder.len();
        change(&mut self.branches, alike);
        change(&mut self.opened, alike * usize::from(branch.opens_page));
        change(&mut self.with_remainder[(branch.laid_out + page_tokens - 1) % page_tokens], alike);
    }

    /// `step`: at least 1.
    fn pages_taken_by(&self, step: usize) -> usize {
        let page_tokens = self.with_remainder.len();
        let one_more = &self.with_remainder[page_tokens - step % page_tokens..];
        self.opened + self.branches * (step / page_tokens) + one_more.iter().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{GrowingBranch, PeakMemory, STEPS_UNTIL_FREE};
    use offshoot_kv::{PageGroups, Reach, Window};

    /// One group, and all layers in groups of either reach.
    fn groups() -> [PageGroups; 2] {
        let window = Window { tokens: 20, unit: 16 };
        [PageGroups::windowed(window), PageGroups::mixed(2, 3, window)]
    }

    /// The definition: step by step, branch by branch.
    fn most_pages_by_steps(growing: &[GrowingBranch], page_tokens: usize) -> usize {
        most_pages_in(growing, page_tokens, groups()[0])
    }

    fn most_pages_in(growing: &[GrowingBranch], page_tokens: usize, groups: PageGroups) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(page_tokens);
        let held = |branch: &GrowingBranch, step: usize| match branch.alone {
            Some(_) if step > branch.steps + STEPS_UNTIL_FREE => 0,
            alone => {
                let opened = usize::from(branch.opens_page && step > 0);
                let full = |grows: usize| pages(branch.laid_out + step.min(grows)) - pages(branch.laid_out);
                let windowed = groups.with(Reach::Window) * full(branch.grows);
                alone.unwrap_or(0) + groups.count() * opened + groups.with(Reach::All) * full(branch.steps) + windowed
            }
        };
        let now: usize = growing.iter().filter_map(|branch| branch.alone).sum();
        let last = growing.iter().map(|branch| branch.steps + STEPS_UNTIL_FREE).max().unwrap_or(0);
        let all = |step| growing.iter().map(|branch| held(branch, step)).sum::<usize>();
        (0..=last).map(all).max().unwrap_or(0).saturating_sub(now)
    }

    fn growing() -> impl Strategy<Value = GrowingBranch> {
        let branch = (1_usize..200, 0_usize..150, 0_usize..300, any::<bool>(), prop::option::of(0_usize..12));
        branch.prop_map(|(laid_out, steps, grows, opens_page, alone)| GrowingBranch {
            laid_out,
            steps,
            grows: grows.min(steps),
            opens_page: opens_page && steps > 0,
            alone,
        })
    }

    proptest! {
        #[test]
        fn pages_at_once_are_those_of_a_walk_step_by_step(
            growing in prop::collection::vec(growing(), 0..40),
            page_tokens in prop::sample::select(vec![1_usize, 4, 16, 32]),
            is_mixed in any::<bool>(),
        ) {
            let groups = groups()[usize::from(is_mixed)];
            let (most, one_more) = (most_pages_in(&growing, page_tokens, groups), growing.first().copied());
            let rest = growing.get(1..).unwrap_or_default();
            let (at_once, later) = rest.split_at(rest.len() / 2);
            let mut all = PeakMemory::new(page_tokens, groups, at_once.to_vec());
            later.iter().for_each(|&branch| all.add(branch));
            prop_assert!(all.fit_in(most, one_more));
            prop_assert!(most == 0 || !all.fit_in(most - 1, one_more));
        }
    }

    proptest! {
        #[test]
        fn earlier_counts_change_no_answer(
            growing in prop::collection::vec(growing(), 0..20),
            asked in prop::collection::vec((growing(), 0_usize..60, any::<bool>()), 0..20),
            page_tokens in prop::sample::select(vec![1_usize, 4, 16, 32]),
        ) {
            let mut all = PeakMemory::new(page_tokens, groups()[0], growing.clone());
            let mut known = growing;
            for (branch, room, is_admitted) in asked {
                let with_it: Vec<GrowingBranch> = known.iter().copied().chain([branch]).collect();
                for (one_more, those) in [(Some(branch), &with_it), (None, &known)] {
                    // About as many as they need: an answer depends on each.
                    let most = most_pages_by_steps(those, page_tokens);
                    let pages = (most + room).saturating_sub(30);
                    prop_assert_eq!(all.fit_in(pages, one_more), most <= pages);
                }
                if is_admitted {
                    all.add(branch);
                    known = with_it;
                }
            }
        }
    }

    #[test]
    fn siblings_that_are_admitted_together_are_one_kind() {
        // So few pages that every one of them is counted.
        let sibling = GrowingBranch { laid_out: 100_000, steps: 64, grows: 64, opens_page: true, alone: None };
        let mut all = PeakMemory::new(
            16,
            groups()[0],
            [GrowingBranch { laid_out: 90, steps: 200, grows: 200, opens_page: false, alone: Some(6) }],
        );
        for siblings in 0..4096_usize {
            let most = 5 * (siblings + 1);
            assert!(all.fit_in(most + 13, Some(sibling)));
            assert!(!all.fit_in(most - 1, Some(sibling)));
            all.add(sibling);
            assert!(all.alike.len() <= 2, "a count looks at {} kinds for {siblings} siblings", all.alike.len());
        }
    }

    #[test]
    fn pages_freed_by_a_short_branch_serve_a_long_one() {
        // Both hold ten pages of 16; the long one takes ten more, six of them until the short one's pages are free.
        let most_pages =
            |growing: &[GrowingBranch]| PeakMemory::new(16, groups()[0], growing.iter().copied()).most_pages();
        let growing = |steps| GrowingBranch { laid_out: 160, steps, grows: steps, opens_page: false, alone: Some(10) };
        let (short, long) = (growing(94), growing(160));
        assert_eq!(most_pages(&[short]), 6);
        assert_eq!(most_pages(&[long]), 10);
        assert_eq!(most_pages(&[short, long]), 12, "when the short one ends");
        let windowed = GrowingBranch { grows: 20, ..long };
        assert_eq!(
            (most_pages(&[windowed]), most_pages(&[short, windowed])),
            (2, 8),
            "it takes two, and then gives back"
        );
        let unknown_end = GrowingBranch { alone: None, ..short };
        assert_eq!(most_pages(&[unknown_end, long]), 16, "it may still be there when the long one ends");
    }
}
