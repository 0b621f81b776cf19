//! The memory for states of recurrent layers. Slots have no meaning here: the prefix tree says which sequence's state
//! is where.

use std::ops::Range;

use half::bf16;

use super::Isa;
use super::rows::for_each_isa;
use offshoot_backend::{LayerState, StateDtype, StateShape};
use offshoot_core::ids::StateId;
use offshoot_kv::StateRun;

/// The states of one layer in all slots.
pub struct LayerStates {
    layer: LayerState,
    matrices: Matrices,
    /// The last inputs of the convolution, the newest last: `[slot][tokens][width]`.
    tails: Vec<f32>,
    slots: usize,
}

/// `[matrix of a layer][slot][its elements]`
enum Matrices {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// One of a layer's matrices in all slots, `[slot][its elements]`: that of a value head, or of a block of channels.
pub enum HeadMatrices<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
}

impl HeadMatrices<'_> {
    /// Whether they are rounded to bf16 after each token.
    pub fn rounds(&self) -> bool {
        matches!(self, HeadMatrices::Bf16(_))
    }

    /// Calls `go_on` with the matrix of `size` elements that a run continues, and keeps what it leaves where the run
    /// says. `unkept`: memory for a matrix that is not kept, or is stored in another dtype.
    pub fn advance(
        &mut self,
        isa: Isa,
        run: &StateRun,
        size: usize,
        unkept: &mut Vec<f32>,
        go_on: impl FnOnce(&mut [f32]),
    ) {
        let of = |slot: StateId| slot.ix() * size..(slot.ix() + 1) * size;
        match (self, run.from, run.to) {
            (HeadMatrices::F32(matrices), from, Some(to)) => {
                match from {
                    Some(from) if from == to => {}
                    Some(from) => matrices.copy_within(of(from), to.ix() * size),
                    None => matrices[of(to)].fill(0.0),
                }
                go_on(&mut matrices[of(to)]);
            }
            (HeadMatrices::F32(matrices), from, None) => {
                unkept.clear();
                match from {
                    Some(from) => unkept.extend_from_slice(&matrices[of(from)]),
                    None => unkept.resize(size, 0.0),
                }
                go_on(unkept);
            }
            (HeadMatrices::Bf16(matrices), from, to) => {
                unkept.clear();
                unkept.resize(size, 0.0);
                if let Some(from) = from {
                    widen(isa, unkept, &matrices[of(from)]);
                }
                go_on(unkept);
                if let Some(to) = to {
                    narrow(isa, &mut matrices[of(to)], unkept);
                }
            }
        }
    }
}

for_each_isa! {
    /// Numbers of bf16 as f32.
    fn widen(to: &mut [f32], from: &[bf16]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16));
    }

    /// Numbers that bf16 has, which were rounded as they were computed.
    fn narrow(to: &mut [bf16], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_bits((from.to_bits() >> 16) as u16));
    }
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
        let StateShape { layers, slots, dtype } = shape;
        let of_layer = |&layer: &LayerState| {
            let (count, elements) = layer.matrices();
            let matrices = Matrices::zeros(*dtype, count * slots * elements);
            LayerStates { layer, matrices, tails: vec![0.0; slots * layer.tail()], slots: *slots }
        };
        layers.iter().map(of_layer).collect()
    }

    pub fn layer(&self) -> LayerState {
        self.layer
    }

    pub fn tail(&self, slot: StateId) -> &[f32] {
        let size = self.layer.tail();
        &self.tails[slot.ix() * size..][..size]
    }

    pub fn tail_mut(&mut self, slot: StateId) -> &mut [f32] {
        let size = self.layer.tail();
        &mut self.tails[slot.ix() * size..][..size]
    }

    /// Appends the state in `slot` to `saved`: its matrices, then its last inputs.
    pub fn save(&self, slot: StateId, saved: &mut Vec<u8>) {
        for head in 0..self.layer.matrices().0 {
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
        for head in 0..self.layer.matrices().0 {
            let at = self.bytes_of(head, slot);
            fill(&mut self.matrices.bytes_mut()[at]);
        }
        fill(bytemuck::cast_slice_mut(self.tail_mut(slot)));
        saved
    }

    /// Where a matrix of the layer in `slot` is among the bytes of all.
    fn bytes_of(&self, head: usize, slot: StateId) -> Range<usize> {
        let bytes = self.layer.matrices().1
            * match self.matrices {
                Matrices::F32(_) => StateDtype::F32.bytes(),
                Matrices::Bf16(_) => StateDtype::Bf16.bytes(),
            };
        let at = (head * self.slots + slot.ix()) * bytes;
        at..at + bytes
    }

    /// Each of the layer's matrices in all slots.
    pub fn by_head(&mut self) -> Vec<HeadMatrices<'_>> {
        let size = (self.slots * self.layer.matrices().1).max(1);
        match &mut self.matrices {
            Matrices::F32(all) => all.chunks_exact_mut(size).map(HeadMatrices::F32).collect(),
            Matrices::Bf16(all) => all.chunks_exact_mut(size).map(HeadMatrices::Bf16).collect(),
        }
    }
}
