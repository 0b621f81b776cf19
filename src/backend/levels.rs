//! Attention attribution: which share of a row's attention falls on each level of its context (a few-shot text, a
//! problem, a sample's own text). A level is a range of positions and may begin anywhere in a segment or page. The ops
//! are a trait of their own, given all their operands: nothing in a step, a plan or an engine knows of levels. Who
//! attributes what is `model::Attribution`'s affair.

use std::ops::Range;

use super::Backend;
use crate::error::Result;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Levels of a context at most.
pub const MOST_LEVELS: usize = 8;

/// The position at which each level but the first begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelBounds {
    /// The first `levels - 1` of them; behind these are zeros.
    begins: [u32; MOST_LEVELS - 1],
    levels: usize,
}

/// The share of a row's attention that falls on each level: 1 in all.
pub type LevelMass = [f32; MOST_LEVELS];

impl LevelBounds {
    /// The first levels end at `ends`, one more has all behind them. `None` where that makes more than [`MOST_LEVELS`],
    /// or where `ends` fall.
    pub fn behind(ends: &[u32]) -> Option<Self> {
        let mut begins = [0; MOST_LEVELS - 1];
        begins.get_mut(..ends.len())?.copy_from_slice(ends);
        ends.is_sorted().then_some(LevelBounds { begins, levels: 1 + ends.len() })
    }

    /// One level.
    pub fn none() -> Self {
        LevelBounds { begins: [0; MOST_LEVELS - 1], levels: 1 }
    }

    /// How many levels there are, empty ones among them.
    pub fn count(&self) -> usize {
        self.levels
    }

    /// The positions of a level; none where there are fewer levels. No context reaches the last position of all.
    pub fn level(&self, level: usize) -> Range<u32> {
        let bounds = &self.begins[..self.levels - 1];
        let begin = if level == 0 { 0 } else { bounds.get(level - 1).copied().unwrap_or(u32::MAX) };
        begin..bounds.get(level).copied().unwrap_or(u32::MAX)
    }

    /// Where each level but the first begins, as kernels read it: those that are not there, behind every position.
    pub fn words(&self) -> [u32; MOST_LEVELS - 1] {
        std::array::from_fn(|bound| self.level(bound + 1).start)
    }
}

/// A row of a step whose attention is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelRow {
    /// Its number in the step.
    pub row: u32,
    pub bounds: LevelBounds,
}

/// What one layer's tree attention reads: its operands, for whoever observes it (`Decoder::forward_observed`).
pub struct Attended<'a, B: Backend> {
    pub layer: LayerIx,
    /// `[rows, qkv width]`, rotated.
    pub qkv: &'a B::Buffer,
    /// The rows' own keys and values are in it.
    pub kv: &'a B::Kv,
    /// Number of the layer's plan among the step's.
    pub plan: usize,
    pub scale: f32,
}

/// A backend that can attribute attention to levels.
pub trait AttentionLevels: Backend + Sized {
    /// Rows with their level bounds, and the plans that say what they see, where [`AttentionLevels::level_lse`] reads
    /// them.
    type LevelRows;

    /// Puts there `rows` of a step that has these plans, over keys and values kept as in `kv`.
    fn level_rows(&mut self, kv: &Self::Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<Self::LevelRows>;
    /// For each of `rows`, query head and level: the logarithm of the sum of `exp(q . k[p] * scale)` over the positions
    /// of the level that the row sees by the layer's plan; -inf where it sees none. The exponentials of a head's levels
    /// add up to the denominator of `tree_attention`. `out` is f32 `[rows.len(), q_heads * MOST_LEVELS]`, the levels of
    /// a head side by side. Reads for every row the keys that it sees, unshared.
    fn level_lse(&mut self, out: &mut Self::Buffer, read: &Attended<'_, Self>, rows: &Self::LevelRows);
    /// Adds layer `layer` of `layers` to the share of attention that falls on each level, from its `level_lse`:
    /// `mass[i][l] += mean over heads of exp(lse[i][h][l]) / sum_l exp(lse[i][h][l]) / layers`; layer 0 begins the sums
    /// instead. `mass` is f32 `[rows.len(), MOST_LEVELS]`.
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
            assert!(words[ends.len()..].iter().all(|&word| word == u32::MAX), "{words:?}: no position is in them");
        }
        assert_eq!(LevelBounds::behind(&[]), Some(LevelBounds::none()));
        assert_eq!(LevelBounds::behind(&[3, 2]), None);
        assert_eq!(LevelBounds::behind(&[1; MOST_LEVELS]), None);
    }
}
