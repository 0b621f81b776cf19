//! Depth-first order of a job's prompts. Prompts that share a prefix follow each other, so that no prefix has to be
//! kept, or computed again, for a prompt that comes much later.

use std::cmp::Ordering;
use std::ops::Range;

use super::PromptTree;

impl PromptTree {
    /// All prompts depth-first, siblings by falling ratio of expected sampled tokens to distinct prompt tokens of their
    /// subtrees. `samples`: expected sampled tokens of each prompt, in order of arrival. So long decodes run while
    /// other prompts are computed (as BatchLLM orders its groups, section 4.2). Prompts that end with a node come
    /// before its children; ties keep the lexicographic order of tokens.
    pub fn order_by(&self, samples: &[u64]) -> Vec<u32> {
        let sampled = |range: Range<usize>| {
            let prompts = self.sorted()[range].iter();
            prompts.map(|sorted| samples[sorted.prompt as usize]).sum::<u64>()
        };
        let sampled = self.sums_beneath(|node| sampled(self.own(node)));
        let tokens = self.sums_beneath(|node| u64::from(self.nodes()[node].tokens()));
        let by_falling_ratio = |&a: &u32, &b: &u32| -> Ordering {
            let product = |sampled_of: u32, tokens_of: u32| {
                u128::from(sampled[sampled_of as usize]) * u128::from(tokens[tokens_of as usize])
            };
            product(b, a).cmp(&product(a, b))
        };

        let Children { mut roots, mut nodes, offsets } = self.children();
        roots.sort_by(by_falling_ratio);
        for range in offsets.windows(2) {
            nodes[range[0]..range[1]].sort_by(by_falling_ratio);
        }
        let empty = self.nodes().first().map_or(self.sorted().len(), |first| first.prompts.start as usize);
        let prompts = |range: Range<usize>| self.sorted()[range].iter().map(|sorted| sorted.prompt);
        let mut order: Vec<u32> = prompts(0..empty).collect();
        let mut ahead: Vec<u32> = roots.into_iter().rev().collect();
        while let Some(node) = ahead.pop() {
            let node = node as usize;
            order.extend(prompts(self.own(node)));
            ahead.extend(nodes[offsets[node]..offsets[node + 1]].iter().rev());
        }
        order
    }

    pub(super) fn children(&self) -> Children {
        let mut offsets = vec![0; self.nodes().len() + 2];
        for parent in self.nodes().iter().filter_map(|node| node.parent) {
            offsets[parent as usize + 2] += 1;
        }
        for node in 2..offsets.len() {
            offsets[node] += offsets[node - 1];
        }
        let (mut roots, mut nodes) = (Vec::new(), vec![0; offsets[offsets.len() - 1]]);
        for (node, index) in self.nodes().iter().zip(0u32..) {
            let Some(parent) = node.parent else {
                roots.push(index);
                continue;
            };
            let next = &mut offsets[parent as usize + 1];
            nodes[*next] = index;
            *next += 1;
        }
        // Each offset has moved to the end of its list, where the next list begins.
        offsets.pop();
        Children { roots, nodes, offsets }
    }
}

/// The children of node `i` are `nodes[offsets[i] .. offsets[i + 1]]`, rising.
pub(super) struct Children {
    pub roots: Vec<u32>,
    nodes: Vec<u32>,
    offsets: Vec<usize>,
}

impl Children {
    pub fn of(&self, node: usize) -> &[u32] {
        &self.nodes[self.offsets[node]..self.offsets[node + 1]]
    }
}
