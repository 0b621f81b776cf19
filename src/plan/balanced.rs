//! All levels where it pays, by a cost model: an item reads its keys and values once, but costs a fixed amount, and each of
//! its rows a partial state. Short or little-shared segments are folded into those beneath them, long items are split at
//! tiles so that several workers can share them. In a deep thin chain everything folds into the leaf.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::kv::Forest;

struct Balanced<'a> {
    hints: &'a PlanHints,
    /// For each segment the items that it would be folded into: one a child, and one for its own rows.
    readers: Vec<u32>,
    /// Rows x tokens of all segments, each read once.
    work: u64,
}

impl Balanced<'_> {
    /// Nanoseconds that reading the node once for all its rows saves, instead of once for each reader, beyond its cost.
    fn gain(&self, node: &Node<'_>) -> f64 {
        let PlanHints { cost, .. } = self.hints;
        let spared = f64::from(self.readers[node.index].saturating_sub(1)) * f64::from(node.tokens);
        // A row with one item has no state to merge; with two it has two.
        let states = node.segment.rows.len() * if node.topmost { 2 } else { 1 };
        spared * self.hints.token_bytes() as f64 * cost.kv_byte
            - cost.item
            - states as f64 * self.hints.state_bytes() as f64 * cost.state_byte
    }
}

impl Division for Balanced<'_> {
    fn shares(&self, node: &Node<'_>) -> bool {
        self.gain(node) > 0.0
    }

    fn most_tokens(&self, rows: usize) -> u32 {
        match self.hints.cost.split {
            Some(split) => {
                let fair = self.work / split.parts / rows as u64;
                u32::try_from(fair).unwrap_or(u32::MAX).max(split.tokens)
            }
            None => u32::MAX,
        }
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    let mut readers = vec![0; forest.segments.len()];
    let mut work = 0;
    for (index, segment) in forest.segments.iter().enumerate() {
        work += segment.rows.len() as u64 * u64::from(segment.tokens);
        readers[index] += u32::from(!forest.own_rows(index).is_empty());
        if let Some(parent) = segment.parent {
            readers[parent as usize] += 1;
        }
    }
    build(forest, hints, &Balanced { hints, readers, work })
}
