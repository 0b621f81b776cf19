//! How many pages branches that sample will take at once: each lays out one token a step, and gives back what it alone
//! holds when it has ended, so that what the short ones give back serves the long ones. Gong et al., "Past-Future
//! Scheduler for LLM Serving under SLA Guarantees" (arXiv 2507.10150), admit by such a peak. Who counts, and how long a
//! branch is expected to become, is `admission`'s.

use std::collections::BTreeMap;

/// Steps for which a branch that has laid out its last token still holds its pages: the one that was submitted before
/// its end was collected.
const STEPS_UNTIL_FREE: usize = 1;

/// A branch that lays out one token a step: from now on, or, as long as nothing of it is sampled, from now on at the
/// earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrowingBranch {
    /// Tokens that it is expected to lay out yet.
    pub steps: usize,
    /// With how many of them it takes pages: from then on it gives back behind its window what it takes. At most
    /// `steps`.
    pub grows: usize,
    /// Tokens of its path that are laid out.
    pub laid_out: usize,
    /// Whether the first of them takes a page of its own, even where the last one has room.
    pub opens_page: bool,
    /// Pages only this branch holds, freed when it finishes together with those that it takes until then; `None` during
    /// prefill, when it may end later than after `steps` and is counted as freeing nothing.
    pub alone: Option<usize>,
}

/// The peak number of pages of branches that grow side by side. Branches with equal growth are counted, not listed, so
/// that admitting many siblings of one prompt costs as much as admitting a few.
pub(super) struct PeakMemory {
    page_tokens: usize,
    /// How many grow so; only the remainder of `laid_out` by the page is kept, as no more of it matters.
    alike: BTreeMap<GrowingBranch, usize>,
    /// No less than the most pages that all hold at any moment beyond those in use now: as they were counted once, and
    /// all that those take which came since, with nothing given back.
    at_most: usize,
}

impl PeakMemory {
    pub fn new(page_tokens: usize, branches: impl IntoIterator<Item = GrowingBranch>) -> Self {
        let mut all = PeakMemory { page_tokens, alike: BTreeMap::new(), at_most: 0 };
        branches.into_iter().for_each(|branch| all.add(branch));
        all
    }

    pub fn add(&mut self, branch: GrowingBranch) {
        self.enter(branch);
        self.at_most += branch.pages_to_come(self.page_tokens);
    }

    /// Whether `pages` beside those in use now suffice for these and one more, at any moment. All kinds are looked at
    /// only where the bound leaves it open: as a count tightens it, that is seldom where many are let in one after the
    /// other.
    pub fn fit_in(&mut self, pages: usize, one_more: Option<GrowingBranch>) -> bool {
        let more = one_more.map_or(0, |branch| branch.pages_to_come(self.page_tokens));
        self.at_most + more <= pages || {
            one_more.into_iter().for_each(|branch| self.enter(branch));
            let most = self.most_pages();
            one_more.into_iter().for_each(|branch| self.leave(branch));
            // One that gives nothing back takes nothing from what the others hold at any moment.
            if one_more.is_none_or(|branch| branch.alone.is_none()) {
                self.at_most = self.at_most.min(most);
            }
            most <= pages
        }
    }

    fn enter(&mut self, branch: GrowingBranch) {
        *self.alike.entry(self.kind(branch)).or_default() += 1;
    }

    fn leave(&mut self, branch: GrowingBranch) {
        let kind = self.kind(branch);
        let alike = self.alike.get_mut(&kind).expect("only what entered leaves");
        *alike -= 1;
        if *alike == 0 {
            self.alike.remove(&kind);
        }
    }

    fn kind(&self, branch: GrowingBranch) -> GrowingBranch {
        GrowingBranch { laid_out: branch.laid_out % self.page_tokens, ..branch }
    }

    /// The most pages, beyond those in use now, that these branches hold at any moment until all have ended. What
    /// several of them share counts as held to the end.
    fn most_pages(&self) -> usize {
        let page_tokens = self.page_tokens;
        let mut still = PageGrowth::new(page_tokens);
        self.alike.iter().for_each(|(branch, &alike)| still.add(branch, alike));
        let mut stopped: Vec<_> = self.alike.iter().collect();
        stopped.sort_by_key(|(branch, _)| branch.grows);
        let mut stopped = stopped.into_iter().peekable();
        let mut ending = self.alike.iter().peekable();
        let (mut most, mut taken, mut given_back) = (0, 0, 0);
        // Between two ends pages are only taken, so that the most are held when somebody is about to give back.
        while let Some(&(&GrowingBranch { steps, .. }, _)) = ending.peek() {
            let step = steps + STEPS_UNTIL_FREE;
            while let Some((branch, &alike)) = stopped.next_if(|(branch, _)| branch.grows < step) {
                still.remove(branch, alike);
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
    /// Pages that it will take in all, beyond those that it gives back on the way.
    fn pages_to_come(&self, page_tokens: usize) -> usize {
        let full = (self.laid_out + self.grows).div_ceil(page_tokens) - self.laid_out.div_ceil(page_tokens);
        full + usize::from(self.opens_page)
    }
}

/// Of the branches that still lay out tokens how many have which remainder, from which the pages that all take by any
/// step follow without looking at each: ceil(x / p) is floor(y / p) with y = x + p - 1, and by s tokens floor(y / p)
/// rises by floor(s / p), and by one more where the remainders of y and s are p or more together.
struct PageGrowth {
    branches: usize,
    /// Those that opened a page, with their first token.
    opened: usize,
    /// By y mod p, of p entries.
    with_remainder: Vec<usize>,
}

impl PageGrowth {
    fn new(page_tokens: usize) -> Self {
        PageGrowth { branches: 0, opened: 0, with_remainder: vec![0; page_tokens] }
    }

    fn add(&mut self, branch: &GrowingBranch, alike: usize) {
        self.branches += alike;
        self.opened += alike * usize::from(branch.opens_page);
        *self.with_remainder_of(branch) += alike;
    }

    fn remove(&mut self, branch: &GrowingBranch, alike: usize) {
        self.branches -= alike;
        self.opened -= alike * usize::from(branch.opens_page);
        *self.with_remainder_of(branch) -= alike;
    }

    fn with_remainder_of(&mut self, branch: &GrowingBranch) -> &mut usize {
        let page_tokens = self.with_remainder.len();
        &mut self.with_remainder[(branch.laid_out + page_tokens - 1) % page_tokens]
    }

    /// `step`: one at least.
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

    /// The definition: step by step, branch by branch.
    fn most_pages_by_steps(growing: &[GrowingBranch], page_tokens: usize) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(page_tokens);
        let held = |branch: &GrowingBranch, step: usize| match branch.alone {
            Some(_) if step > branch.steps + STEPS_UNTIL_FREE => 0,
            alone => {
                let opened = usize::from(branch.opens_page && step > 0);
                let full = pages(branch.laid_out + step.min(branch.grows)) - pages(branch.laid_out);
                alone.unwrap_or(0) + opened + full
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
        ) {
            let (most, one_more) = (most_pages_by_steps(&growing, page_tokens), growing.first().copied());
            let rest = growing.get(1..).unwrap_or_default();
            let (at_once, later) = rest.split_at(rest.len() / 2);
            let mut all = PeakMemory::new(page_tokens, at_once.to_vec());
            later.iter().for_each(|&branch| all.add(branch));
            prop_assert!(all.fit_in(most, one_more));
            prop_assert!(most == 0 || !all.fit_in(most - 1, one_more));
        }
    }

    proptest! {
        #[test]
        fn what_was_counted_before_changes_no_answer(
            growing in prop::collection::vec(growing(), 0..20),
            asked in prop::collection::vec((growing(), 0_usize..60, any::<bool>()), 0..20),
            page_tokens in prop::sample::select(vec![1_usize, 4, 16, 32]),
        ) {
            let mut all = PeakMemory::new(page_tokens, growing.clone());
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
    fn siblings_that_are_let_in_at_once_are_one_kind() {
        // So few pages that every one of them is counted.
        let sibling = GrowingBranch { laid_out: 100_000, steps: 64, grows: 64, opens_page: true, alone: None };
        let mut all = PeakMemory::new(
            16,
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
    fn what_a_short_branch_gives_back_serves_a_long_one() {
        // Both hold ten pages of 16; the long one takes ten more, six of them until the short one's pages are free.
        let most_pages = |growing: &[GrowingBranch]| PeakMemory::new(16, growing.iter().copied()).most_pages();
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
