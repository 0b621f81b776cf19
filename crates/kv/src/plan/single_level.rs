//! One shared level. Some segments, none beneath another, are each read, with all above them, by one item of all rows
//! beneath; nothing else is shared. The segments are chosen so that the fewest keys and values are read: the optimum of
//! the choice that BatchLLM makes for a job's prompts.
//!
//! Difference from BatchLLM: it chooses once per job, by the prompt tokens saved from computation; here each step
//! chooses anew, by the tokens saved from reading, among live segments. If a tree branches once, the choice is its
//! trunk, as in RelayAttention.
//!
//! Without any such segment nothing is shared: the flat plan. The rows of one segment are one sequence (a prompt chunk)
//! and share an item over their whole path.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::Forest;
use crate::antichain::best_antichain;

/// The last segments of the shared level, rising.
struct SingleLevel {
    ends: Vec<u32>,
}

impl Division for SingleLevel {
    fn shares(&self, node: &Node<'_>) -> bool {
        u32::try_from(node.index).is_ok_and(|index| self.ends.binary_search(&index).is_ok())
    }

    fn joins_beginnings(&self) -> bool {
        false
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    let ends = best_antichain(|segment| forest.segments[segment].parent, &spared(forest, hints));
    build(forest, hints, &SingleLevel { ends })
}

/// No sharing between segments.
pub(super) fn flat(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    build(forest, hints, &SingleLevel { ends: Vec::new() })
}

/// For each segment the tokens saved if one item covers it and all above it, in whole tiles. Rows of one segment read
/// together in any plan. With a window this is an upper bound, as later rows see less.
fn spared(forest: &Forest, hints: &PlanHints) -> Vec<u64> {
    let count = forest.segments.len();
    let mut readers = vec![0u64; count];
    let mut lowest = vec![u32::MAX; count];
    let mut spared = vec![0; count];
    for (index, segment) in forest.segments.iter().enumerate().rev() {
        if let Some(&first) = forest.row_positions[forest.own_rows(index)].first() {
            readers[index] += 1;
            lowest[index] = lowest[index].min(first);
        }
        let seen_from = hints.window.map_or(0, |window| (lowest[index] + 1).saturating_sub(window));
        let tiles = |position: u32| position - position % hints.tile;
        if !forest.is_leaf(index) {
            let tokens = tiles(segment.end()).saturating_sub(tiles(seen_from));
            spared[index] = (readers[index] - 1) * u64::from(tokens);
        }
        if let Some(parent) = segment.parent.map(|parent| parent as usize) {
            readers[parent] += readers[index];
            lowest[parent] = lowest[parent].min(lowest[index]);
        }
    }
    spared
}
