//! Shares a level only where it pays, by a cost model: an item reads its keys and values once, but has a fixed cost,
//! and a partial state for each row. Short or little-shared segments are folded into their children; long items are
//! split at tile borders among several workers. In a deep thin chain everything folds into the leaf.

use super::builder::{Division, Node, build};
use super::latents::ItemRows;
use super::{AttentionPlan, PlanHints};
use crate::{Forest, ForestSegment};

pub(super) struct Balanced<'a> {
    hints: &'a PlanHints,
    /// For each segment the cost of one of its tokens, in nanoseconds, if it is folded into the items beneath it.
    folded: Vec<f64>,
    /// For each segment whether it or one beneath it has rows of a prompt: others than a leaf's one row.
    has_prompt: Vec<bool>,
    /// Rows x tokens of all segments, each read once.
    work: u64,
}

/// Costs of the two ways to read a segment's tokens, in nanoseconds of the whole device, for one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// Read by an item of its own, including its fixed cost and partial states.
    pub shared_ns: f64,
    /// Folded into the items beneath it.
    pub folded_ns: f64,
}

impl Weighed {
    fn sharing_pays(&self) -> bool {
        self.shared_ns < self.folded_ns
    }
}

impl<'a> Balanced<'a> {
    pub(super) fn new(forest: &Forest, hints: &'a PlanHints) -> Self {
        let rows = |segment: &ForestSegment| segment.rows.len();
        let work = forest.segments.iter().map(|segment| rows(segment) as u64 * u64::from(segment.tokens)).sum();
        let count = forest.segments.len();
        let mut balanced = Self { hints, folded: vec![0.0; count], has_prompt: vec![false; count], work };
        let alone = hints.cost.token(hints, ItemRows::ONE);
        // Children come after their parents.
        for (index, segment) in forest.segments.iter().enumerate().rev() {
            let own = forest.own_rows(index);
            balanced.has_prompt[index] |= forest.has_prompt(index);
            match own.len() {
                0 => {}
                1 => balanced.folded[index] += alone,
                own => balanced.folded[index] += hints.cost.token(hints, ItemRows { rows: own, has_prompt: true }),
            }
            let Some(parent) = segment.parent else { continue };
            balanced.has_prompt[parent as usize] |= balanced.has_prompt[index];
            if forest.is_leaf(index) {
                // With an item or not, its rows read what is above it together.
                balanced.folded[parent as usize] += balanced.folded[index];
                continue;
            }
            let shares = balanced.weigh(index, rows(segment), segment.tokens, 1).sharing_pays();
            // Tokens folded from above are read by this segment's item, or by all items beneath it.
            let through = match shares {
                true => hints.cost.token(hints, balanced.item_rows(index, rows(segment))),
                false => balanced.folded[index],
            };
            balanced.folded[parent as usize] += through;
        }
        balanced
    }

    /// So many rows of a segment and of those beneath it.
    fn item_rows(&self, index: usize, rows: usize) -> ItemRows {
        ItemRows { rows, has_prompt: self.has_prompt[index] }
    }

    /// Cost of reading `tokens` of a segment: once for all its rows, which adds `states` partial states per row, or in
    /// the items beneath it.
    fn weigh(&self, index: usize, rows: usize, tokens: u32, states: usize) -> Weighed {
        let (hints, cost, item) = (self.hints, &self.hints.cost, self.item_rows(index, rows));
        let states = states as f64 * cost.states(hints, item);
        Weighed {
            shared_ns: cost.token(hints, item) * f64::from(tokens) + cost.start(hints, rows) + states,
            folded_ns: self.folded[index] * f64::from(tokens),
        }
    }

    /// `weigh` for a segment visited by the walk over the forest.
    pub(super) fn weigh_node(&self, node: &Node<'_>) -> Weighed {
        // A row with one item has no state to merge; with two it has two.
        let states = if node.topmost { 2 } else { 1 };
        self.weigh(node.index, node.segment.rows.len(), node.tokens, states)
    }
}

impl Division for Balanced<'_> {
    fn shares(&self, node: &Node<'_>) -> bool {
        self.weigh_node(node).sharing_pays()
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
    build(forest, hints, &Balanced::new(forest, hints))
}
