//! No sharing between segments. The rows of one segment are one sequence (a prompt chunk) and share an item over their
//! whole path.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::Forest;

struct Flat;

impl Division for Flat {
    fn shares(&self, _: &Node<'_>) -> bool {
        false
    }

    fn joins_beginnings(&self) -> bool {
        false
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    build(forest, hints, &Flat)
}
