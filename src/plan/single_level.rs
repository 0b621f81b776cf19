//! One shared level. The trunk of each tree (its segments down to the first branching) is one item of all the tree's rows;
//! above and below it nothing is shared.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::kv::Forest;

/// Where each trunk ends, as indices of segments, rising.
struct SingleLevel {
    trunk_ends: Vec<usize>,
}

impl Division for SingleLevel {
    fn shares(&self, node: &Node<'_>) -> bool {
        self.trunk_ends.binary_search(&node.index).is_ok()
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    let roots = (0..forest.segments.len()).filter(|&index| forest.segments[index].parent.is_none());
    build(forest, hints, &SingleLevel { trunk_ends: roots.map(|root| trunk_end(forest, root)).collect() })
}

/// The last segment that is on the path of all rows of the tree of `root`.
fn trunk_end(forest: &Forest, root: usize) -> usize {
    let rows = &forest.segments[root].rows;
    let mut end = root;
    while !forest.is_leaf(end) && forest.segments[end + 1].rows == *rows {
        end += 1;
    }
    end
}
