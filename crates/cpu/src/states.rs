//! The memory for states of delta-rule layers. Slots have no meaning here: the prefix tree says which sequence's state
//! is where.

use std::ops::Range;

use half::bf16;

use offshoot_backend::{CONV_TOKENS, DeltaHeads, StateDtype, StateShape};
use offshoot_core::ids::StateId;

/// The states of one layer in all slots.
pub struct LayerStates {
    heads: DeltaHeads,
    matrices: Matrices,
    /// The last inputs of the convolution, the newest last: `[slot][CONV_TOKENS][conv_width]`.
    tails: Vec<f32>,
    slots: usize,
}

/// `[value_head][slot][key_dim][value_dim]`
enum Matrices {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// The matrices of one value head, `[slot][key_dim][value_dim]`.
pub enum HeadMatrices<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
}

impl Matrices {
    fn zeros(dtype: StateDtype, elements: usize) -> Self {
        match dtype {
            StateDtype::F32 => Matrices::F32(vec![0.0; elements]),
            StateDtype::Bf16 => Matrices::Bf16(vec![bf16::ZERO; elements]),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Matrices::F32(all) => bytemuck::cast_slice(all),
            Matrices::Bf16(all) => bytemuck::cast_slice(all),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Matrices::F32(all) => bytemuck::cast_slice_mut(all),
            Matrices::Bf16(all) => bytemuck::cast_slice_mut(all),
        }
    }
}

impl LayerStates {
    /// One for each layer. The system backs zeros with memory as they are first written.
    pub fn all(shape: &StateShape) -> Vec<Self> {
        let StateShape { heads, slots, dtype } = shape;
        let layer = |&heads: &DeltaHeads| LayerStates {
            heads,
            matrices: Matrices::zeros(*dtype, heads.value_heads * slots * heads.matrix()),
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
        for head in 0..self.heads.value_heads {
            saved.extend_from_slice(&self.matrices.bytes()[self.bytes_of(head, slot)]);
        }
        saved.extend_from_slice(bytemuck::cast_slice(self.tail(slot)));
    }

    /// Writes the first bytes of `saved` to `slot`; returns the rest.
    pub fn restore<'s>(&mut self, slot: StateId, mut saved: &'s [u8]) -> &'s [u8] {
        let mut fill = |to: &mut [u8]| {
            let (bytes, rest) = saved.split_at(to.len());
            to.copy_from_slice(bytes);
            saved = rest;
        };
        for head in 0..self.heads.value_heads {
            let at = self.bytes_of(head, slot);
            fill(&mut self.matrices.bytes_mut()[at]);
        }
        fill(bytemuck::cast_slice_mut(self.tail_mut(slot)));
        saved
    }

    /// Where the matrix of a value head in `slot` is among the bytes of all.
    fn bytes_of(&self, head: usize, slot: StateId) -> Range<usize> {
        let bytes = self.heads.matrix()
            * match self.matrices {
                Matrices::F32(_) => StateDtype::F32.bytes(),
                Matrices::Bf16(_) => StateDtype::Bf16.bytes(),
            };
        let at = (head * self.slots + slot.ix()) * bytes;
        at..at + bytes
    }

    /// The matrices of each value head in all slots.
    pub fn by_head(&mut self) -> Vec<HeadMatrices<'_>> {
        let size = (self.slots * self.heads.matrix()).max(1);
        match &mut self.matrices {
            Matrices::F32(all) => all.chunks_exact_mut(size).map(HeadMatrices::F32).collect(),
            Matrices::Bf16(all) => all.chunks_exact_mut(size).map(HeadMatrices::Bf16).collect(),
        }
    }
}
