//! All levels where it pays, by a cost model: an item reads its keys and values once, but costs a fixed amount, and each of
//! its rows a partial state. Short or little-shared segments are folded into those beneath them, long items are split at
//! tiles so that several workers can share them. In a deep thin chain everything folds into the leaf.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::kv::{Forest, ForestSegment};

struct Balanced<'a> {
    hints: &'a PlanHints,
    /// For each segment what a token of it costs, in nanoseconds, where it is folded into the items beneath it.
    folded: Vec<f64>,
    /// Rows x tokens of all segments, each read once.
    work: u64,
}

impl<'a> Balanced<'a> {
    fn new(forest: &Forest, hints: &'a PlanHints) -> Self {
        let rows = |segment: &ForestSegment| segment.rows.len();
        let work = forest.segments.iter().map(|segment| rows(segment) as u64 * u64::from(segment.tokens)).sum();
        let mut balanced = Self { hints, folded: vec![0.0; forest.segments.len()], work };
        let alone = hints.cost.token(hints, 1);
        // Children stand behind their parents.
        for (index, segment) in forest.segments.iter().enumerate().rev() {
            match forest.own_rows(index).len() {
                0 => {}
                1 => balanced.folded[index] += alone,
                own => balanced.folded[index] += hints.cost.token(hints, own),
            }
            let Some(parent) = segment.parent else { continue };
            if forest.is_leaf(index) {
                // An item of its own or none: its rows read what is above it together.
                balanced.folded[parent as usize] += balanced.folded[index];
                continue;
            }
            let shares = balanced.gain(index, rows(segment), segment.tokens, 1) > 0.0;
            // Of what is folded from above, either one item takes it up or all beneath it.
            let through = if shares { hints.cost.token(hints, rows(segment)) } else { balanced.folded[index] };
            balanced.folded[parent as usize] += through;
        }
        balanced
    }

    /// Nanoseconds that reading `tokens` of a segment once for all its rows saves, instead of in the items beneath it, beyond
    /// the cost of its item and of `states` more partial states a row.
    fn gain(&self, index: usize, rows: usize, tokens: u32, states: usize) -> f64 {
        let (hints, cost) = (self.hints, &self.hints.cost);
        let spared = (self.folded[index] - cost.token(hints, rows)) * f64::from(tokens);
        spared - cost.start(hints, rows) - (rows * states) as f64 * hints.state_bytes() as f64 * cost.state_byte
    }
}

impl Division for Balanced<'_> {
    fn shares(&self, node: &Node<'_>) -> bool {
        // A row with one item has no state to merge; with two it has two.
        let states = if node.topmost { 2 } else { 1 };
        self.gain(node.index, node.segment.rows.len(), node.tokens, states) > 0.0
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
