//! All levels where it pays, by a cost model: an item reads its keys and values once, but costs a fixed amount, and each of
//! its rows a partial state. Short or little-shared segments are folded into those beneath them, long items are split at
//! tiles so that several workers can share them. In a deep thin chain everything folds into the leaf.

use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::kv::Forest;

/// What an item costs, in nanoseconds, for one layer:
/// `item + kv bytes * kv_byte + rows * state bytes * state_byte + rows * tokens * (a constant)`.
/// The last term is the multiplications, which no division of the work changes; so it has no part in the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Each item: its tiles, pages and queries are looked up.
    pub item: f64,
    /// Each byte of keys and values that an item reads.
    pub kv_byte: f64,
    /// Each byte of a row's state (`o`, `m`, `l` of all heads, f32) that an item takes up and puts down again.
    pub state_byte: f64,
    /// An item is split when it is more than this part of the step's work...
    pub pieces: u64,
    /// ...and longer than this many tokens.
    pub piece_tokens: u32,
}

impl CostModel {
    /// Measured on 2 cores of an Intel Xeon with AVX-512 BF16 (2 MB of second-level cache each), bf16 keys and values,
    /// trunks of 2,048 tokens under 2 to 512 rows, heads (query/key/width) 32/8/128, 9/3/64 and 32/32/128. One item more
    /// took 0.5 to 1.0 us under 2 rows and was lost in the noise under more: states are folded in place, tile by tile, so
    /// that it does not matter where an item ends. A byte read once more took 0.001 to 0.013 ns, as the cores multiply
    /// while it comes from cache.
    pub const CPU: CostModel =
        CostModel { item: 1000.0, kv_byte: 0.005, state_byte: 0.0, pieces: 64, piece_tokens: 512 };

    /// What reading `tokens` once for `rows`, instead of once for each of `readers`, saves beyond its cost.
    fn gain(&self, hints: &PlanHints, readers: u32, rows: usize, tokens: u32) -> f64 {
        let saved =
            f64::from(readers.saturating_sub(1)) * f64::from(tokens) * hints.token_bytes() as f64 * self.kv_byte;
        saved - self.item - rows as f64 * hints.state_bytes() as f64 * self.state_byte
    }
}

struct Balanced<'a> {
    cost: &'a CostModel,
    hints: &'a PlanHints,
    /// For each segment the items that it would be folded into: one a child, and one for its own rows.
    readers: Vec<u32>,
    /// Rows x tokens of an item that is not split.
    fair_work: u64,
}

impl Division for Balanced<'_> {
    fn shares(&self, node: &Node<'_>) -> bool {
        self.cost.gain(self.hints, self.readers[node.index], node.segment.rows.len(), node.tokens) > 0.0
    }

    fn most_tokens(&self, rows: usize) -> u32 {
        let fair = u32::try_from(self.fair_work / rows as u64).unwrap_or(u32::MAX);
        fair.max(self.cost.piece_tokens)
    }
}

pub(super) fn plan(forest: &Forest, hints: &PlanHints, cost: &CostModel) -> AttentionPlan {
    let mut readers = vec![0; forest.segments.len()];
    let mut work = 0;
    for (index, segment) in forest.segments.iter().enumerate() {
        work += segment.rows.len() as u64 * u64::from(segment.tokens);
        readers[index] += u32::from(!forest.own_rows(index).is_empty());
        if let Some(parent) = segment.parent {
            readers[parent as usize] += 1;
        }
    }
    build(forest, hints, &Balanced { cost, hints, readers, fair_work: work / cost.pieces })
}
