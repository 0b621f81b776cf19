//! Cuts a job into parts for several processes, each of which keeps its own keys and values: parts of about equal work
//! that compute few prompt tokens twice. Integers only; who runs a part is left to the callers.
//!
//! Prompts that stand in a depth-first order of the prefix tree and are cut into contiguous parts lose only the paths
//! at the cuts: what a part computes is, of its first prompt, all tokens, and of every other one those that it does not
//! share with the prompt before it. So the parts together compute the distinct tokens of the job and, for each cut,
//! once more what the prompts on both sides of it share. That is nothing between groups, a system prompt between the
//! documents behind it, a document between its questions. `spread` chooses an order in which whole groups fill the
//! parts; here the cheapest cuts of that order are found exactly, by dynamic programming over the places that any cut
//! within the bound can have.

use std::collections::VecDeque;

use super::{PromptTree, SortedPrompt};

/// What one token costs, in any unit that is the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCosts {
    /// To compute a token of a prompt.
    pub prompt: u16,
    /// To sample a token.
    pub output: u16,
}

impl Default for TokenCosts {
    fn default() -> Self {
        Self { prompt: 1, output: 1 }
    }
}

/// A job in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptParts {
    /// As many as were requested; the last ones are empty if there are fewer prompts.
    pub parts: Vec<PromptPart>,
    /// Prompt tokens that one process computes: the distinct ones of the whole job.
    pub distinct_tokens: u64,
    /// The bound that was kept: no part has more work.
    pub most_work: u64,
}

impl PromptParts {
    /// Prompt tokens that all parts compute together.
    pub fn prompt_tokens(&self) -> u64 {
        self.parts.iter().map(|part| part.prompt_tokens).sum()
    }

    /// Prompt tokens that another part computes too.
    pub fn tokens_twice(&self) -> u64 {
        self.prompt_tokens() - self.distinct_tokens
    }
}

/// Prompts for one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptPart {
    /// Indices by arrival, in depth-first order.
    pub prompts: Vec<u32>,
    /// Distinct tokens of these prompts, which the process computes.
    pub prompt_tokens: u64,
    /// Expected sampled tokens.
    pub output_tokens: u64,
    /// Both, weighted by their costs.
    pub work: u64,
}

/// The largest part may have this many hundredths more work than an equal share.
const UNEVEN_PERCENT: u64 = 5;

impl PromptTree {
    /// Cuts the job into `parts` (at least 1) such that the fewest prompt tokens are computed twice of all cuts of the
    /// order in which no part has more than 1.05 times an equal share of one process' work, or, if a prompt or what
    /// parts must share makes that impossible, than the largest part of the most even cut. Of cuts that compute equally
    /// many, an even one is chosen. `outputs`: expected sampled tokens of each prompt, over its samples, by arrival.
    pub fn parts(&self, outputs: &[u64], costs: TokenCosts, parts: usize) -> PromptParts {
        let prompts = self.sorted().len();
        // Sums of work stay far below 2^64.
        let most = (u64::MAX >> 2) / (prompts as u64).max(1);
        let output = |prompt: u32| outputs[prompt as usize].saturating_mul(u64::from(costs.output)).min(most);
        let of_node = |node: usize| {
            let own = self.sorted()[self.own(node)].iter().map(|sorted| output(sorted.prompt)).sum::<u64>();
            u64::from(self.nodes()[node].tokens()) * u64::from(costs.prompt) + own
        };
        let order = self.spread(of_node, parts);
        let ends = self.ends();
        let length = |prompt: u32| ends[prompt as usize].map_or(0, |node| self.nodes()[node as usize].end);
        let cutter = Cutter::new(&order, length, output, costs);

        let filled = parts.min(prompts);
        let (cuts, most_work) = if filled == 0 { (vec![0], 0) } else { cutter.cut(filled) };
        let part = |range: &[usize]| {
            let (from, to) = (range[0], range[1]);
            let repeated = u64::from(order[from].shared);
            let own = |at: &SortedPrompt| u64::from(length(at.prompt) - at.shared);
            PromptPart {
                prompts: order[from..to].iter().map(|at| at.prompt).collect(),
                prompt_tokens: repeated + order[from..to].iter().map(own).sum::<u64>(),
                output_tokens: order[from..to].iter().map(|at| outputs[at.prompt as usize]).sum(),
                work: cutter.work(from, to),
            }
        };
        let mut list: Vec<PromptPart> = cuts.windows(2).map(part).collect();
        list.resize(parts, PromptPart::default());
        PromptParts { parts: list, distinct_tokens: self.distinct_tokens(), most_work }
    }
}

/// The work of contiguous parts of an order.
struct Cutter {
    /// The work of the prompts before each place, each without what it shares with the prompt before it.
    sums: Vec<u64>,
    /// For each prompt the tokens that it shares with the one before it, and the work to compute them again.
    shared: Vec<u32>,
    again: Vec<u64>,
}

impl Cutter {
    fn new(
        order: &[SortedPrompt],
        length: impl Fn(u32) -> u32,
        output: impl Fn(u32) -> u64,
        costs: TokenCosts,
    ) -> Cutter {
        let cost = u64::from(costs.prompt);
        let mut sums = vec![0];
        for at in order {
            let own = u64::from(length(at.prompt) - at.shared) * cost + output(at.prompt);
            sums.push(sums[sums.len() - 1] + own);
        }
        let shared: Vec<u32> = order.iter().map(|at| at.shared).collect();
        let again = shared.iter().map(|shared| u64::from(*shared) * cost).collect();
        Cutter { sums, shared, again }
    }

    fn count(&self) -> usize {
        self.shared.len()
    }

    /// The work of a part of the prompts `from .. to`, at least one. It rises with `to` and falls with `from`, because
    /// fewer prompts have fewer distinct tokens.
    fn work(&self, from: usize, to: usize) -> u64 {
        self.sums[to] - self.sums[from] + self.again[from]
    }

    /// The last end of a part from `from` with at most this work; `from` if there is none.
    fn last_end(&self, from: usize, most: u64) -> usize {
        let ends = &self.sums[from + 1..];
        from + ends.partition_point(|sum| sum - self.sums[from] + self.again[from] <= most)
    }

    /// The first beginning of a part to `to` with at most this work; `to` if there is none.
    fn first_begin(&self, to: usize, most: u64) -> usize {
        let (mut low, mut high) = (0, to);
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = if self.work(middle, to) <= most { (low, middle) } else { (middle + 1, high) };
        }
        low
    }

    /// Whether so many parts with at most this work hold all prompts. Parts as long as possible need the fewest.
    fn is_enough(&self, parts: usize, most: u64) -> bool {
        let mut at = 0;
        for _ in 0..parts {
            at = if at < self.count() { self.last_end(at, most) } else { at };
        }
        at == self.count()
    }

    /// The cheapest cuts into this many parts, none empty, with 0 and the end; and the bound on a part's work.
    fn cut(&self, parts: usize) -> (Vec<usize>, u64) {
        /// Halvings of the range between the most even cut and the bound, to find an even one among the cheapest.
        const HALVINGS: u32 = 16;
        let total = self.work(0, self.count());
        let (mut low, mut high) = (total / parts as u64, total);
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = if self.is_enough(parts, middle) { (low, middle) } else { (middle + 1, high) };
        }
        let share = total.div_ceil(parts as u64);
        let most = low.max(share + share / 100 * UNEVEN_PERCENT + share % 100 * UNEVEN_PERCENT / 100);
        let (cost, mut cuts) = self.cheapest(parts, most);
        let mut high = most;
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2;
            if middle == high {
                break;
            }
            let (even_cost, even) = self.cheapest(parts, middle);
            if even_cost == cost {
                (cuts, high) = (even, middle);
            } else {
                low = middle + 1;
            }
        }
        (cuts, most)
    }

    /// The cuts into this many parts with at most this work, which is enough for all, that compute the fewest tokens
    /// again; and how many that are.
    fn cheapest(&self, parts: usize, most: u64) -> (u64, Vec<usize>) {
        let places = self.places(parts, most);
        let mut layers: Vec<CutLayer> = vec![CutLayer { first: 0, costs: vec![0], before: vec![0] }];
        for (first, last) in places {
            let above = layers.last().expect("the beginning is a layer");
            layers.push(self.layer(above, first, last, most));
        }
        let mut at = self.count();
        let cost = layers.last().expect("the end is a layer").costs[0];
        let mut cuts = Vec::with_capacity(layers.len());
        for layer in layers.iter().rev() {
            cuts.push(at);
            at = layer.before[at - layer.first] as usize;
        }
        cuts.reverse();
        (cost, cuts)
    }

    /// For each cut, and the end, the first and the last place that it can have: the prompts before it fit into the
    /// parts before it, those behind it into the parts behind it, and no part is empty.
    fn places(&self, parts: usize, most: u64) -> Vec<(usize, usize)> {
        let count = self.count();
        let (mut first, mut last) = (vec![count; parts], vec![count; parts]);
        let (mut begin, mut end) = (count, 0);
        for (cut, last) in last.iter_mut().enumerate() {
            end = if end < count { self.last_end(end, most) } else { end };
            *last = end.min(count - (parts - 1 - cut));
        }
        for cut in (0..parts - 1).rev() {
            begin = self.first_begin(begin, most);
            first[cut] = begin.max(cut + 1);
        }
        first.into_iter().zip(last).collect()
    }

    /// The cheapest ways to the places `first ..= last`, each by one part from a place in `above`. The part must not
    /// have more than this work; the least place from which it has not never falls as its end rises.
    fn layer(&self, above: &CutLayer, first: usize, last: usize, most: u64) -> CutLayer {
        let mut layer = CutLayer { first, costs: Vec::new(), before: Vec::new() };
        // Places of `above` by rising cost and rising place: the first is the cheapest that is near enough.
        let mut near: VecDeque<usize> = VecDeque::new();
        let mut next = above.first;
        for to in first..=last {
            while next < to.min(above.first + above.costs.len()) {
                while near.back().is_some_and(|from| above.cost(*from) >= above.cost(next)) {
                    near.pop_back();
                }
                near.push_back(next);
                next += 1;
            }
            while near.front().is_some_and(|from| self.work(*from, to) > most) {
                near.pop_front();
            }
            let from = *near.front().expect("a place within the bounds can be reached");
            let again = self.shared.get(to).map_or(0, |shared| u64::from(*shared));
            layer.costs.push(above.cost(from) + again);
            layer.before.push(u32::try_from(from).expect("prompts are counted in u32"));
        }
        layer
    }
}

/// The places of one cut.
struct CutLayer {
    first: usize,
    /// For each place from `first` on: the fewest tokens computed again by this cut and those before it, and the place
    /// of the cut before it.
    costs: Vec<u64>,
    before: Vec<u32>,
}

impl CutLayer {
    fn cost(&self, place: usize) -> u64 {
        self.costs[place - self.first]
    }
}
