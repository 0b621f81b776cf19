//! In which order the prompts of a job are begun: depth-first over what they share, so that groups which share a prefix
//! run together, and at every level what draws most for its prompt tokens first. How much a sample draws is known where
//! nothing but its length ends it, else expected as those that ended tell. The tree is `PromptTree`'s, when a prompt
//! really starts the engine's affair.

use std::cmp::Reverse;

use crate::ids::TokenId;
use crate::kv::PromptTree;

/// What the samples of one prompt may draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    /// Tokens of all its samples, at most.
    pub most: u64,
    /// Whether they draw exactly so many.
    pub is_exact: bool,
}

/// Prompts by their index of arrival, in the order in which they are to be begun.
pub struct Order {
    tree: PromptTree,
    draws: Vec<Draws>,
    /// Whether some lengths are known and others not: else the share changes no ratio's place among the others.
    is_mixed: bool,
    /// Those that are left, the next one last.
    ahead: Vec<u32>,
    /// The one that was begun last.
    last: Option<u32>,
    lengths: Lengths,
    /// The share by which `ahead` was ordered.
    ordered_by: f64,
}

/// Tokens that samples drew whose lengths nobody knew, and those that they might have drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    drawn: u64,
    most: u64,
}

impl Lengths {
    /// The part of what it may draw that a sample is expected to draw: all, before any has ended.
    fn share(self) -> f64 {
        if self.most == 0 { 1.0 } else { self.drawn as f64 / self.most as f64 }
    }
}

/// The order is made anew when the share has changed by this factor.
const CHANGE: f64 = 1.25;

impl Order {
    /// `draws`: of each prompt.
    pub fn new<T: AsRef<[TokenId]> + Sync>(prompts: &[T], draws: Vec<Draws>) -> Self {
        let tree = PromptTree::new(prompts);
        let is_mixed = draws.iter().any(|draws| draws.is_exact) && draws.iter().any(|draws| !draws.is_exact);
        let (lengths, ahead) = (Lengths::default(), Vec::new());
        let mut order = Order { tree, draws, is_mixed, ahead, last: None, lengths, ordered_by: lengths.share() };
        order.ahead = order.depth_first();
        order.ahead.reverse();
        order
    }

    /// The prompt to begin next.
    pub fn next_prompt(&mut self) -> Option<usize> {
        self.make_anew();
        self.last = self.ahead.pop();
        self.last.map(|prompt| prompt as usize)
    }

    /// A sample whose length nobody knew has ended with `drawn` tokens of `most` that it might have drawn.
    pub fn note(&mut self, drawn: usize, most: usize) {
        self.lengths.drawn += drawn as u64;
        self.lengths.most += most as u64;
    }

    /// All prompts, by what is expected now.
    fn depth_first(&self) -> Vec<u32> {
        let share = self.lengths.share();
        let expected = |draws: &Draws| if draws.is_exact { draws.most } else { (draws.most as f64 * share) as u64 };
        self.tree.order_by(&self.draws.iter().map(expected).collect::<Vec<_>>())
    }

    /// Orders what is left by the latest lengths. Groups that were begun are ended first, the innermost before the
    /// others.
    fn make_anew(&mut self) {
        let share = self.lengths.share();
        let changed = (share / self.ordered_by).max(self.ordered_by / share) > CHANGE;
        if !changed || !self.is_mixed || self.ahead.is_empty() {
            return;
        }
        self.ordered_by = share;
        let mut is_left = vec![false; self.draws.len()];
        self.ahead.iter().for_each(|&prompt| is_left[prompt as usize] = true);
        self.ahead = self.depth_first();
        self.ahead.retain(|&prompt| is_left[prompt as usize]);
        if let Some(last) = self.last {
            let shared = self.shared_with(last);
            self.ahead.sort_by_key(|&prompt| Reverse(shared[prompt as usize]));
        }
        self.ahead.reverse();
    }

    /// How many tokens each prompt begins with as `other` does.
    fn shared_with(&self, other: u32) -> Vec<u32> {
        let sorted = self.tree.sorted();
        let at = sorted.iter().position(|sorted| sorted.prompt == other).expect("each prompt has its place");
        let mut shared = vec![u32::MAX; sorted.len()];
        let mut common = u32::MAX;
        for pair in sorted[..=at].windows(2).rev() {
            common = common.min(pair[1].shared);
            shared[pair[0].prompt as usize] = common;
        }
        common = u32::MAX;
        for sorted in &sorted[at + 1..] {
            common = common.min(sorted.shared);
            shared[sorted.prompt as usize] = common;
        }
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(texts: &[&str]) -> Vec<Vec<TokenId>> {
        texts.iter().map(|text| text.bytes().map(|byte| TokenId(u32::from(byte))).collect()).collect()
    }

    fn exact(most: u64) -> Draws {
        Draws { most, is_exact: true }
    }

    fn unsure(most: u64) -> Draws {
        Draws { most, is_exact: false }
    }

    fn rest(order: &mut Order) -> Vec<usize> {
        std::iter::from_fn(|| order.next_prompt()).collect()
    }

    #[test]
    fn what_draws_most_for_its_prompt_goes_first_and_groups_stay_together() {
        let prompts = prompts(&["bb1", "aa1", "bb2", "aa2", "c"]);
        let draws = vec![exact(5), exact(20), exact(50), exact(30), exact(1)];
        assert_eq!(rest(&mut Order::new(&prompts, draws)), [2, 0, 3, 1, 4]);
    }

    #[test]
    fn lengths_that_come_in_choose_the_next_group_but_end_the_one_at_hand() {
        let prompts = prompts(&["aa1", "aa2", "bb1", "bb2", "cc1", "cc2"]);
        let draws = || vec![unsure(90), unsure(90), exact(20), exact(20), unsure(60), unsure(60)];
        assert_eq!(rest(&mut Order::new(&prompts, draws())), [0, 1, 4, 5, 2, 3], "all is expected");
        let mut order = Order::new(&prompts, draws());
        assert_eq!(order.next_prompt(), Some(0));
        order.note(10, 100);
        assert_eq!(rest(&mut order), [1, 2, 3, 4, 5], "samples turned out to be short");
    }
}
