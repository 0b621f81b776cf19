//! The memory for states of delta-rule layers. Slots have no meaning here: the prefix tree says which sequence's state
//! is where.

use crate::backend::{CONV_TOKENS, DeltaHeads, StateShape};
use crate::ids::StateId;

/// The states of one layer in all slots.
pub struct LayerStates {
    heads: DeltaHeads,
    /// `[value_head][slot][key_dim][value_dim]`
    matrices: Vec<f32>,
    /// The last inputs of the convolution, the newest last: `[slot][CONV_TOKENS][conv_width]`.
    tails: Vec<f32>,
    slots: usize,
}

impl LayerStates {
    /// One for each layer. The system backs zeros with memory as they are first written.
    pub fn all(shape: &StateShape) -> Vec<Self> {
        let StateShape { heads, slots } = shape;
        let layer = |&heads: &DeltaHeads| LayerStates {
            heads,
            matrices: vec![0.0; heads.value_heads * slots * heads.matrix()],
            tails: vec![0.0; slots * CONV_TOKENS * heads.conv_width()],
            slots: *slots,
        };
        heads.iter().map(layer).collect()
    }

    pub fn heads(&self) -> DeltaHeads {
        self.heads
    }

    pub fn tail(&self, slot: StateId) -> &[f32] {
        let size = CONV_TOKENS * self.heads.conv_width();
        &self.tails[slot.ix() * size..][..size]
    }

    pub fn tail_mut(&mut self, slot: StateId) -> &mut [f32] {
        let size = CONV_TOKENS * self.heads.conv_width();
        &mut self.tails[slot.ix() * size..][..size]
    }

    /// Appends the state in `slot` to `saved`: its matrices, then its last inputs.
    pub fn save(&self, slot: StateId, saved: &mut Vec<u8>) {
        let size = self.heads.matrix();
        for head in 0..self.heads.value_heads {
            let at = (head * self.slots + slot.ix()) * size;
            saved.extend_from_slice(bytemuck::cast_slice(&self.matrices[at..at + size]));
        }
        saved.extend_from_slice(bytemuck::cast_slice(self.tail(slot)));
    }

    /// Writes the first bytes of `saved` to `slot`; returns the rest.
    pub fn restore<'s>(&mut self, slot: StateId, mut saved: &'s [u8]) -> &'s [u8] {
        let mut fill = |to: &mut [f32]| {
            let to: &mut [u8] = bytemuck::cast_slice_mut(to);
            let (bytes, rest) = saved.split_at(to.len());
            to.copy_from_slice(bytes);
            saved = rest;
        };
        let size = self.heads.matrix();
        for head in 0..self.heads.value_heads {
            let at = (head * self.slots + slot.ix()) * size;
            fill(&mut self.matrices[at..at + size]);
        }
        fill(self.tail_mut(slot));
        saved
    }

    /// The matrices of each value head in all slots.
    pub fn by_head(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.matrices.chunks_exact_mut((self.slots * self.heads.matrix()).max(1))
    }
}
