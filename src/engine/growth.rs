//! How many pages branches that draw will take at once: each lays out one token a step, and gives back what it alone holds when
//! it has ended, so that what the short ones give back serves the long ones. Gong et al., "Past-Future Scheduler for LLM Serving
//! under SLA Guarantees" (arXiv 2507.10150), admit by such a peak, which there includes who is to be let in. Who counts, and how
//! long a branch is expected to become, is `admission`'s.

/// Steps for which a branch that has laid out its last token still holds its pages: the one that was submitted before its end was
/// collected.
const STEPS_UNTIL_FREE: usize = 1;

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

/// The most pages, beyond those in use now, that these branches hold at any moment until all have ended. What several of them
/// share counts as held to the end.
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

/// Of the branches that still lay out tokens how many have which remainder, from which the pages that all take by any step follow
/// without looking at each: ceil(x / p) is floor(y / p) with y = x + p - 1, and by s tokens floor(y / p) rises by floor(s / p),
/// and by one more where the remainders of y and s are p or more together.
struct Still {
    branches: usize,
    /// By y mod p, of p entries.
    with_remainder: Vec<usize>,
}

impl Still {
    fn new(page_tokens: usize) -> Self {
        Still { branches: 0, with_remainder: vec![0; page_tokens] }
    }

    fn add(&mut self, branch: &Growing) {
        self.branches += 1;
        *self.with_remainder_of(branch) += 1;
    }

    fn remove(&mut self, branch: &Growing) {
        self.branches -= 1;
        *self.with_remainder_of(branch) -= 1;
    }

    fn with_remainder_of(&mut self, branch: &Growing) -> &mut usize {
        let page_tokens = self.with_remainder.len();
        &mut self.with_remainder[(branch.laid_out + page_tokens - 1) % page_tokens]
    }

    fn pages_taken_by(&self, step: usize) -> usize {
        let page_tokens = self.with_remainder.len();
        let one_more = &self.with_remainder[page_tokens - step % page_tokens..];
        self.branches * (step / page_tokens) + one_more.iter().sum::<usize>()
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
        // Both hold ten pages of 16; the long one takes ten more, six of them until the short one's pages are free.
        let (short, long) =
            (Growing { laid_out: 160, steps: 94, alone: 10 }, Growing { laid_out: 160, steps: 160, alone: 10 });
        assert_eq!(most_pages(vec![short], 16), 6);
        assert_eq!(most_pages(vec![long], 16), 10);
        assert_eq!(most_pages(vec![long, short], 16), 12, "when the short one ends");
    }
}
