//! The order in which the prompts of a job start: depth-first over their shared prefixes, so that prompts with a common
//! prefix run together; at every level, the subtree with the most output tokens per prompt token first. The number of
//! output tokens is known if only the length limit ends a sample; otherwise it is estimated from the samples that have
//! finished. `PromptTree` finds the shared prefixes; the engine decides when a prompt really starts. Prompts that are
//! not encoded yet are ordered by their texts ([`TextKey`]).

use std::cmp::Reverse;

use offshoot_core::ids::TokenId;
use offshoot_core::mix::fnv1a;
use offshoot_engine::SampledLengths;
use offshoot_kv::{PromptTree, TokenCosts};

/// Output tokens of the samples of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTokens {
    /// Upper bound, in tokens over all samples.
    pub most: u64,
    /// Whether the samples always reach the bound.
    pub is_exact: bool,
}

/// Replaces a prompt's tokens in [`PromptOrder`] before they are known: one hash for each piece of its text. Texts with
/// a common beginning have keys with a common beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextKey(Vec<TokenId>);

impl TextKey {
    /// Most bytes of a piece, about 8 tokens. A piece also ends at the end of a line, because documents and examples
    /// usually end there.
    pub const BYTES: usize = 32;

    /// A piece in place of a token: it stands for several.
    pub const COSTS: TokenCosts = TokenCosts { prompt: 8, output: 1 };

    pub fn of(text: &str) -> Self {
        // Different pieces with equal hashes are treated as equal: the order may be worse, results are the same.
        let number = |piece: &[u8]| TokenId((fnv1a(piece) >> 32) as u32);
        let lines = text.as_bytes().split_inclusive(|&byte| byte == b'\n');
        TextKey(lines.flat_map(|line| line.chunks(Self::BYTES)).map(number).collect())
    }
}

impl AsRef<[TokenId]> for TextKey {
    fn as_ref(&self) -> &[TokenId] {
        &self.0
    }
}

/// A queue of prompts, by index, in the order in which they should start. Among several replicas, the job is cut into
/// as many parts of about equal work, along its shared prefixes; prompts of all parts start in turn.
pub struct PromptOrder {
    tree: PromptTree,
    draws: Vec<OutputTokens>,
    /// Whether some output lengths are exact and others estimated. If not, the estimate scales all ratios alike and
    /// cannot change the order.
    is_mixed: bool,
    /// One, or one for each replica.
    parts: Vec<PartOrder>,
    /// The part of each prompt; empty if there is one.
    homes: Vec<usize>,
    lengths: SampledLengths,
    /// The value of [`share`] when `ahead` was last sorted.
    ordered_by: f64,
}

/// The prompts of one part.
#[derive(Default)]
struct PartOrder {
    /// Prompts that have not started, the next one last.
    ahead: Vec<u32>,
    /// The prompt that was started last.
    last: Option<u32>,
    /// Most output tokens of the prompts that have started, and of all.
    begun: u64,
    all: u64,
}

impl PartOrder {
    /// The share of it that has started.
    fn share(&self) -> f64 {
        self.begun as f64 / self.all.max(1) as f64
    }
}

/// Expected output length as a fraction of the limit; 1 before any sample has finished.
fn share(lengths: SampledLengths) -> f64 {
    if lengths.most == 0 { 1.0 } else { lengths.sampled as f64 / lengths.most as f64 }
}

/// The remaining prompts are sorted again when the estimate has changed by this factor.
const CHANGE: f64 = 1.25;

impl PromptOrder {
    /// `draws`: the output tokens of each prompt.
    pub fn new<T: AsRef<[TokenId]> + Sync>(prompts: &[T], draws: Vec<OutputTokens>) -> Self {
        Self::among(1, TokenCosts::default(), prompts, draws)
    }

    /// The order of a job among `replicas`, where a token of `prompts` costs as much as `costs` says.
    pub fn among<T: AsRef<[TokenId]> + Sync>(
        replicas: usize,
        costs: TokenCosts,
        prompts: &[T],
        draws: Vec<OutputTokens>,
    ) -> Self {
        let tree = PromptTree::new(prompts);
        let is_mixed = draws.iter().any(|draws| draws.is_exact) && draws.iter().any(|draws| !draws.is_exact);
        let mut homes = Vec::new();
        if replicas > 1 {
            homes = vec![0; draws.len()];
            let most: Vec<u64> = draws.iter().map(|draws| draws.most).collect();
            let cut = tree.parts(&most, costs, replicas);
            for (home, part) in cut.parts.iter().enumerate() {
                part.prompts.iter().for_each(|&prompt| homes[prompt as usize] = home);
            }
        }
        let lengths = SampledLengths::default();
        let parts = (0..replicas.max(1)).map(|_| PartOrder::default()).collect();
        let mut order = PromptOrder { tree, draws, is_mixed, parts, homes, lengths, ordered_by: share(lengths) };
        for prompt in order.depth_first().into_iter().rev() {
            let (home, draws) = (order.part_of(prompt), order.draws[prompt as usize].most);
            order.parts[home].ahead.push(prompt);
            order.parts[home].all += draws.max(1);
        }
        order
    }

    fn part_of(&self, prompt: u32) -> usize {
        self.homes.get(prompt as usize).copied().unwrap_or(0)
    }

    /// The part of the job, and so the replica, to which a prompt belongs; `None` if there is one.
    pub fn home(&self, prompt: usize) -> Option<usize> {
        self.homes.get(prompt).copied()
    }

    /// The index of the prompt to start next; `None` once all have started.
    pub fn next_prompt(&mut self) -> Option<usize> {
        self.sort_again();
        let ahead = self.parts.iter_mut().filter(|part| !part.ahead.is_empty());
        // The first of those of which least has started.
        let part = ahead.min_by(|one, other| one.share().total_cmp(&other.share()))?;
        let prompt = part.ahead.pop()?;
        part.last = Some(prompt);
        part.begun += self.draws[prompt as usize].most.max(1);
        Some(prompt as usize)
    }

    /// Records that a sample of unknown length finished with `drawn` tokens of at most `most`.
    pub fn note(&mut self, drawn: usize, most: usize) {
        self.lengths.note(drawn, most);
    }

    /// All prompts, sorted by the current estimate.
    fn depth_first(&self) -> Vec<u32> {
        let share = share(self.lengths);
        let expected =
            |draws: &OutputTokens| if draws.is_exact { draws.most } else { (draws.most as f64 * share) as u64 };
        self.tree.order_by(&self.draws.iter().map(expected).collect::<Vec<_>>())
    }

    /// Sorts the remaining prompts by the latest estimate. Groups that have started stay first, innermost group first.
    fn sort_again(&mut self) {
        let share = share(self.lengths);
        let changed = (share / self.ordered_by).max(self.ordered_by / share) > CHANGE;
        if !changed || !self.is_mixed || self.parts.iter().all(|part| part.ahead.is_empty()) {
            return;
        }
        self.ordered_by = share;
        let sorted = self.depth_first();
        for number in 0..self.parts.len() {
            let mut is_left = vec![false; self.draws.len()];
            self.parts[number].ahead.iter().for_each(|&prompt| is_left[prompt as usize] = true);
            let mut ahead: Vec<u32> = sorted.iter().copied().filter(|&prompt| is_left[prompt as usize]).collect();
            if let Some(last) = self.parts[number].last {
                let shared = self.shared_with(last);
                ahead.sort_by_key(|&prompt| Reverse(shared[prompt as usize]));
            }
            ahead.reverse();
            self.parts[number].ahead = ahead;
        }
    }

    /// Length of each prompt's common prefix with `other`, in tokens.
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

    fn exact(most: u64) -> OutputTokens {
        OutputTokens { most, is_exact: true }
    }

    fn unsure(most: u64) -> OutputTokens {
        OutputTokens { most, is_exact: false }
    }

    fn rest(order: &mut PromptOrder) -> Vec<usize> {
        std::iter::from_fn(|| order.next_prompt()).collect()
    }

    #[test]
    fn what_draws_most_for_its_prompt_goes_first_and_groups_stay_together() {
        let prompts = prompts(&["bb1", "aa1", "bb2", "aa2", "c"]);
        let draws = vec![exact(5), exact(20), exact(50), exact(30), exact(1)];
        assert_eq!(rest(&mut PromptOrder::new(&prompts, draws)), [2, 0, 3, 1, 4]);
    }

    #[test]
    fn the_parts_of_replicas_start_in_turn_and_each_keeps_its_groups_together() {
        let prompts = prompts(&["hhaa1", "hhbb1", "hhaa2", "hhbb2", "hhaa3", "hhbb3"]);
        let draws = vec![exact(9); 6];
        let mut order = PromptOrder::among(2, TokenCosts::default(), &prompts, draws);
        let started = rest(&mut order);
        let homes: Vec<usize> = started.iter().map(|&prompt| order.home(prompt).expect("two parts")).collect();
        assert_eq!(homes, [0, 1, 0, 1, 0, 1]);
        for home in [0, 1] {
            let of_part = started.iter().filter(|&&prompt| order.home(prompt) == Some(home));
            let groups: Vec<usize> = of_part.map(|prompt| prompt % 2).collect();
            assert!(groups.iter().all(|group| *group == groups[0]), "{started:?}");
        }
        assert_eq!(PromptOrder::new(&prompts, vec![exact(9); 6]).home(0), None);
    }

    #[test]
    fn texts_stand_for_tokens_that_are_not_known_yet() {
        let (boats, books) = ("The boat was warm. ".repeat(100) + "\n", "A book.\n".to_owned());
        let texts = [boats.clone() + "Who?", books.clone() + "Who?", boats + "Where is it?", books + "When?"];
        let keys = texts.map(|text| TextKey::of(&text));
        assert_eq!(keys[0].0.len(), 1901_usize.div_ceil(TextKey::BYTES) + 1);
        let order = rest(&mut PromptOrder::new(&keys, vec![exact(5), exact(5), exact(5), exact(9)]));
        assert_eq!(order[..2], [3, 1], "the short book is worth most, its second question more than its first");
        assert!(order[2..] == [0, 2] || order[2..] == [2, 0], "{order:?}");
    }

    #[test]
    fn lengths_that_come_in_choose_the_next_group_but_end_the_one_at_hand() {
        let prompts = prompts(&["aa1", "aa2", "bb1", "bb2", "cc1", "cc2"]);
        let draws = || vec![unsure(90), unsure(90), exact(20), exact(20), unsure(60), unsure(60)];
        assert_eq!(rest(&mut PromptOrder::new(&prompts, draws())), [0, 1, 4, 5, 2, 3], "all is expected");
        let mut order = PromptOrder::new(&prompts, draws());
        assert_eq!(order.next_prompt(), Some(0));
        order.note(10, 100);
        assert_eq!(rest(&mut order), [1, 2, 3, 4, 5], "samples turned out to be short");
    }
}
