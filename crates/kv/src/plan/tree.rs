//! All levels: every segment with rows beneath it is read once, by one item of all these rows.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::Forest;

struct Tree;

impl Division for Tree {
    fn shares(&self, _: &Node<'_>) -> bool {
        true
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    build(forest, hints, &Tree)
}
