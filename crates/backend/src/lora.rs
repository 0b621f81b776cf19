//! Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685): what an adapter adds to linear layers. A layer has a
//! table of slots ([`Backend::Lora`](crate::Backend::Lora)), a row of a step names a slot or none, and `add_lora`
//! defines the sum. Files of adapters, and which layer a tensor belongs to, are left to `model`.
//!
//! A layer may be stacked of several modules (queries, keys and values), each with an adapter of its own: its *parts*.
//! [`LoraPiece`]s say which outputs of the layer belong to which part.

use std::ops::Range;

use super::weights::{Dtype, WeightView};

/// Slots of adapters that can be loaded at once.
pub const MOST_ADAPTERS: usize = 256;

/// The largest rank of an adapter.
pub const MOST_RANK: usize = 512;

/// The place of a loaded adapter, below [`MOST_ADAPTERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterSlot(u16);

impl AdapterSlot {
    /// `None` from [`MOST_ADAPTERS`] on.
    pub fn new(slot: u16) -> Option<Self> {
        (usize::from(slot) < MOST_ADAPTERS).then_some(Self(slot))
    }

    pub fn ix(self) -> usize {
        usize::from(self.0)
    }

    pub fn number(self) -> u16 {
        self.0
    }
}

/// Which rows of a step a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRows {
    All,
    /// Those whose logits are computed, in the order of `StepBatch::logit_rows`.
    Logits,
}

impl StepRows {
    /// The adapter of row `row` of such a buffer. `adapters`: as `StepBatch::adapters`.
    pub fn adapter(self, adapters: &[Option<AdapterSlot>], logit_rows: &[u32], row: usize) -> Option<AdapterSlot> {
        let row = match self {
            StepRows::All => row,
            StepRows::Logits => *logit_rows.get(row)? as usize,
        };
        adapters.get(row).copied().flatten()
    }
}

/// The shape of a linear layer, as its adapters see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraShape {
    /// The compute dtype: that of the layer's input where buffers hold operands.
    pub dtype: Dtype,
    pub inputs: usize,
    /// Modules that are stacked in the layer.
    pub parts: usize,
    /// In the order of the layer's outputs, all of which they have.
    pub pieces: Vec<LoraPiece>,
}

/// Neighbouring outputs of a layer, which are neighbouring outputs of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraPiece {
    pub part: usize,
    /// Outputs of the part.
    pub rows: Range<usize>,
}

/// An adapter's weights of one part: the layer's outputs become larger by `scale * B A x`.
#[derive(Clone, Copy, Debug)]
pub struct LoraWeights<'a> {
    pub scale: f32,
    /// `[rank, inputs]`
    pub a: WeightView<'a>,
    /// `[outputs of the part, rank]`
    pub b: WeightView<'a>,
}

impl LoraWeights<'_> {
    pub fn rank(&self) -> usize {
        self.a.rows
    }
}

impl LoraShape {
    pub fn outputs(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rows.len()).sum()
    }

    /// The pieces of these outputs of the layer, neighbours each.
    pub fn cut(&self, outputs: impl IntoIterator<Item = Range<usize>>) -> Vec<LoraPiece> {
        let mut own = Vec::new();
        for range in outputs {
            let mut first = 0;
            for LoraPiece { part, rows } in &self.pieces {
                let (from, to) = (range.start.max(first), range.end.min(first + rows.len()));
                if from < to {
                    own.push(LoraPiece { part: *part, rows: rows.start + from - first..rows.start + to - first });
                }
                first += rows.len();
            }
        }
        own
    }

    /// The largest rank of these parts; 0 if there is none.
    pub fn rank(&self, parts: &[Option<LoraWeights<'_>>]) -> usize {
        assert_eq!(parts.len(), self.parts, "an adapter's parts of a layer");
        parts.iter().flatten().map(LoraWeights::rank).max().unwrap_or(0)
    }

    /// A of all parts, `[parts, rank, inputs]`: zeros where a part has less than `rank`, or nothing.
    pub fn stacked_a(&self, parts: &[Option<LoraWeights<'_>>], rank: usize) -> Vec<f32> {
        let mut stacked = vec![0.0; self.parts * rank * self.inputs];
        for (weights, stacked) in parts.iter().zip(stacked.chunks_exact_mut((rank * self.inputs).max(1))) {
            let Some(LoraWeights { a, .. }) = weights else { continue };
            assert_eq!(a.cols, self.inputs, "the inputs of an adapter and its layer");
            stacked[..a.rows * a.cols].iter_mut().enumerate().for_each(|(i, x)| *x = a.get(i));
        }
        stacked
    }

    /// B of all parts in the order of the layer's outputs, `[outputs, rank]`: zeros as in `stacked_a`.
    pub fn stacked_b(&self, parts: &[Option<LoraWeights<'_>>], rank: usize) -> Vec<f32> {
        let mut stacked = vec![0.0; self.outputs() * rank];
        let rows = self.pieces.iter().flat_map(|piece| piece.rows.clone().map(move |row| (piece.part, row)));
        for ((part, row), to) in rows.zip(stacked.chunks_exact_mut(rank.max(1))) {
            let Some(LoraWeights { b, .. }) = parts[part] else { continue };
            to[..b.cols].iter_mut().enumerate().for_each(|(i, x)| *x = b.get(row * b.cols + i));
        }
        stacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_a_share_are_pieces_of_the_same_parts() {
        let piece = |part, rows| LoraPiece { part, rows };
        let pieces = vec![piece(0, 0..8), piece(1, 0..4), piece(1, 0..4)];
        let shape = LoraShape { dtype: Dtype::F32, inputs: 3, parts: 2, pieces };
        assert_eq!(shape.outputs(), 16);
        assert_eq!(shape.cut([4..8, 10..12, 14..16]), [piece(0, 4..8), piece(1, 2..4), piece(1, 2..4)]);
        assert_eq!(shape.cut(std::iter::once(6..14)), [piece(0, 6..8), piece(1, 0..4), piece(1, 0..2)]);
    }

    #[test]
    fn smaller_ranks_and_missing_parts_are_zeros() {
        let pieces = vec![LoraPiece { part: 1, rows: 1..2 }, LoraPiece { part: 0, rows: 0..1 }];
        let shape = LoraShape { dtype: Dtype::F32, inputs: 2, parts: 2, pieces };
        let (a, b) = (Dtype::F32.encode(&[1.0, 2.0]), Dtype::F32.encode(&[3.0, 4.0]));
        let view = |rows, cols, bytes| WeightView { dtype: Dtype::F32, rows, cols, bytes };
        let parts = [None, Some(LoraWeights { scale: 1.0, a: view(1, 2, &a), b: view(2, 1, &b) })];
        assert_eq!(shape.rank(&parts), 1);
        assert_eq!(shape.stacked_a(&parts, 2), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        assert_eq!(shape.stacked_b(&parts, 2), [4.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn slots_are_few() {
        let most = u16::try_from(MOST_ADAPTERS).unwrap();
        assert!(AdapterSlot::new(most - 1).is_some() && AdapterSlot::new(most).is_none());
    }
}
