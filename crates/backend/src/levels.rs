//! Attention attribution: the share of a row's attention on each level of its context (few-shot text, problem, the
//! sample's own text). A level is a range of positions and may begin anywhere in a segment or page. The ops are a
//! separate trait and take all their operands as arguments: steps, plans and the engine do not know about levels.
//! `model::Attribution` drives them.

use std::ops::Range;

use super::{Backend, Scoring};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::AttentionPlan;

/// The largest number of levels.
pub const MOST_LEVELS: usize = 8;

/// Positions that divide a context into levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelBounds {
    /// First position of each level except the first: `levels - 1` entries, then zeros.
    begins: [u32; MOST_LEVELS - 1],
    levels: usize,
}

/// The share of a row's attention on each level; the sum is 1.
pub type LevelMass = [f32; MOST_LEVELS];

impl LevelBounds {
    /// Levels that end at `ends`, and one more for all positions after them. `None` if that is more than
    /// [`MOST_LEVELS`] or `ends` is not sorted.
    pub fn behind(ends: &[u32]) -> Option<Self> {
        let mut begins = [0; MOST_LEVELS - 1];
        begins.get_mut(..ends.len())?.copy_from_slice(ends);
        ends.is_sorted().then_some(LevelBounds { begins, levels: 1 + ends.len() })
    }

    /// A single level.
    pub fn none() -> Self {
        LevelBounds { begins: [0; MOST_LEVELS - 1], levels: 1 }
    }

    /// The number of levels, including empty ones.
    pub fn count(&self) -> usize {
        self.levels
    }

    /// The positions of a level; empty if there are fewer levels. The last level ends at `u32::MAX`, beyond any
    /// context.
    pub fn level(&self, level: usize) -> Range<u32> {
        let bounds = &self.begins[..self.levels - 1];
        let begin = if level == 0 { 0 } else { bounds.get(level - 1).copied().unwrap_or(u32::MAX) };
        begin..bounds.get(level).copied().unwrap_or(u32::MAX)
    }

    /// First position of each level except the first, as kernels read it: `u32::MAX` for levels that do not exist.
    pub fn words(&self) -> [u32; MOST_LEVELS - 1] {
        std::array::from_fn(|bound| self.level(bound + 1).start)
    }
}

/// A row of a step whose attention is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelRow {
    /// Index in the step.
    pub row: u32,
    pub bounds: LevelBounds,
}

/// The operands of one layer's tree attention, passed to the observer of `Decoder::forward_observed`.
pub struct Attended<'a, B: Backend> {
    /// Which of the layers that store keys and values it reads.
    pub stored: LayerIx,
    pub layer: LayerIx,
    /// `[rows, qkv width]`, after rope.
    pub qkv: &'a B::Buffer,
    /// Includes the keys and values of this step's rows.
    pub kv: &'a B::Kv,
    /// Index of the layer's plan in the step.
    pub plan: usize,
    pub scoring: Scoring<'a, B::Vector>,
}

/// A backend that can attribute attention to levels.
pub trait AttentionLevels: Backend + Sized {
    /// Rows with their level bounds and plans, in the memory [`AttentionLevels::level_lse`] reads.
    type LevelRows;

    /// Prepares `rows` of a step with these plans, over keys and values stored as in `kv`.
    fn level_rows(&mut self, kv: &Self::Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<Self::LevelRows>;
    /// For each of `rows`, query head and level: the log-sum-exp of the scores (`Scoring::score`) over the positions of
    /// the level that the row attends to by the layer's plan; -inf if there are none. Exponentiated and summed over the
    /// levels of a head, this is the denominator of `tree_attention` without the sink's term. `out` is f32
    /// `[rows.len(), q_heads * MOST_LEVELS]`, the levels of a head side by side. Reads the keys of each row separately,
    /// without sharing.
    fn level_lse(&mut self, out: &mut Self::Buffer, read: &Attended<'_, Self>, rows: &Self::LevelRows);
    /// Adds the attention shares of layer `layer` of `layers`, computed from its `level_lse`:
    /// `mass[i][l] += mean over heads of exp(lse[i][h][l]) / sum_l exp(lse[i][h][l]) / layers`. Layer 0 first clears
    /// `mass`, which is f32 `[rows.len(), MOST_LEVELS]`.
    fn add_level_mass(&mut self, mass: &mut Self::Buffer, lse: &Self::Buffer, layer: LayerIx, layers: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_in_one_level() {
        let most: Vec<u32> = (0..MOST_LEVELS as u32 - 1).map(|i| 5 * i).collect();
        for ends in [&[][..], &[7], &[0, 7, 7, 40], &most] {
            let bounds = LevelBounds::behind(ends).unwrap();
            for position in 0..50 {
                let of: Vec<usize> = (0..MOST_LEVELS).filter(|&l| bounds.level(l).contains(&position)).collect();
                assert_eq!(of, [ends.iter().filter(|&&end| end <= position).count()], "{position} in {ends:?}");
            }
            assert_eq!(bounds.count(), ends.len() + 1);
            let words = bounds.words();
            assert_eq!(words[..ends.len()], *ends);
            assert!(words[ends.len()..].iter().all(|&word| word == u32::MAX), "{words:?}: levels that do not exist");
        }
        assert_eq!(LevelBounds::behind(&[]), Some(LevelBounds::none()));
        assert_eq!(LevelBounds::behind(&[3, 2]), None);
        assert_eq!(LevelBounds::behind(&[1; MOST_LEVELS]), None);
    }
}
