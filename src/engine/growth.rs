//! How many pages branches that draw will take at once: each lays out one token a step, and gives back what it alone holds when
//! it has ended, so that what the short ones give back serves the long ones. Gong et al., "Past-Future Scheduler for LLM Serving
//! under SLA Guarantees" (arXiv 2507.10150), admit by the same peak. How long a branch is expected to become is `admission`'s.

/// Steps for which a branch that lays out nothing more still holds its pages: its last row's, and one that was submitted before
/// its end was collected.
const STEPS_UNTIL_FREE: usize = 2;

/// A branch that lays out one token a step from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    /// Tokens of its path that are laid out, the last page being its own.
    pub laid_out: usize,
    /// Tokens that it is expected to lay out yet.
    pub steps: usize,
    /// Pages in use that nobody else holds.
    pub alone: usize,
}

/// The most pages, beyond those in use now, that these branches take at any moment until all have ended.
pub(super) fn most_pages(mut growing: Vec<Growing>, page_tokens: usize) -> usize {
    growing.sort_unstable_by_key(|branch| branch.steps);
    let mut still = Still::new(page_tokens);
    growing.iter().for_each(|branch| still.add(branch));
    let mut stopped = growing.iter().peekable();
    let (mut most, mut taken, mut given_back) = (0, 0, 0);
    // Between two ends pages are only taken, so that the most are held when somebody is about to give back.
    for ending in growing.chunk_by(|a, b| a.steps == b.steps) {
        let step = ending[0].steps + STEPS_UNTIL_FREE;
        while let Some(branch) = stopped.next_if(|branch| branch.steps < step) {
            still.remove(branch);
            taken += branch.pages_to_come(page_tokens);
        }
        most = most.max((taken + still.pages_taken_by(step)).saturating_sub(given_back));
        given_back += ending.iter().map(|branch| branch.alone + branch.pages_to_come(page_tokens)).sum::<usize>();
    }
    most
}

impl Growing {
    /// Pages that it will take in all.
    fn pages_to_come(&self, page_tokens: usize) -> usize {
        (self.laid_out + self.steps).div_ceil(page_tokens) - self.laid_out.div_ceil(page_tokens)
    }
}

/// Sums over the branches that still lay out tokens, from which the pages that they take by any step follow without looking at each:
/// ceil(x / p) is (y - y mod p) / p with y = x + p - 1, and the sum of y mod p follows from how many branches have which y mod p.
struct Still {
    page_tokens: usize,
    branches: usize,
    /// Of y now.
    sum: usize,
    /// Of ceil(laid out / page_tokens) now.
    pages: usize,
    /// How many have this y mod page_tokens now.
    with_remainder: Vec<usize>,
}

impl Still {
    fn new(page_tokens: usize) -> Self {
        Still { page_tokens, branches: 0, sum: 0, pages: 0, with_remainder: vec![0; page_tokens] }
    }

    fn add(&mut self, branch: &Growing) {
        let y = branch.laid_out + self.page_tokens - 1;
        self.branches += 1;
        self.sum += y;
        self.pages += y / self.page_tokens;
        self.with_remainder[y % self.page_tokens] += 1;
    }

    fn remove(&mut self, branch: &Growing) {
        let y = branch.laid_out + self.page_tokens - 1;
        self.branches -= 1;
        self.sum -= y;
        self.pages -= y / self.page_tokens;
        self.with_remainder[y % self.page_tokens] -= 1;
    }

    fn pages_taken_by(&self, step: usize) -> usize {
        let remainders = self.with_remainder.iter().enumerate();
        let remainder: usize = remainders.map(|(r, &branches)| branches * ((r + step) % self.page_tokens)).sum();
        (self.sum + self.branches * step - remainder) / self.page_tokens - self.pages
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Growing, STEPS_UNTIL_FREE, most_pages};

    /// The definition: step by step, branch by branch.
    fn most_pages_by_steps(growing: &[Growing], page_tokens: usize) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(page_tokens);
        let held = |branch: &Growing, step: usize| match step <= branch.steps + STEPS_UNTIL_FREE {
            true => branch.alone + pages(branch.laid_out + step.min(branch.steps)) - pages(branch.laid_out),
            false => 0,
        };
        let now: usize = growing.iter().map(|branch| branch.alone).sum();
        let last = growing.iter().map(|branch| branch.steps + STEPS_UNTIL_FREE).max().unwrap_or(0);
        let all = |step| growing.iter().map(|branch| held(branch, step)).sum::<usize>();
        (0..=last).map(all).max().unwrap_or(0).saturating_sub(now)
    }

    proptest! {
        #[test]
        fn pages_at_once_are_those_of_a_walk_step_by_step(
            branches in prop::collection::vec((1_usize..200, 0_usize..150, 0_usize..12), 0..40),
            page_tokens in prop::sample::select(vec![1_usize, 4, 16, 32]),
        ) {
            let growing = |&(laid_out, steps, alone): &(usize, usize, usize)| Growing { laid_out, steps, alone };
            let growing: Vec<Growing> = branches.iter().map(growing).collect();
            prop_assert_eq!(most_pages(growing.clone(), page_tokens), most_pages_by_steps(&growing, page_tokens));
        }
    }

    #[test]
    fn what_a_short_branch_gives_back_serves_a_long_one() {
        // Both hold ten pages of 16; the long one takes ten more, of which six are taken when the short one has ended.
        let (short, long) =
            (Growing { laid_out: 160, steps: 94, alone: 10 }, Growing { laid_out: 160, steps: 160, alone: 10 });
        assert_eq!(most_pages(vec![short], 16), 6);
        assert_eq!(most_pages(vec![long], 16), 10);
        assert_eq!(most_pages(vec![long, short], 16), 12, "when the short one ends");
    }
}
