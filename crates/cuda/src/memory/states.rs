//! The memory for states of recurrent layers. Slots have no meaning here: the prefix tree says which sequence's state
//! is where.
//!
//! # Layout
//! One allocation, one part after the other for each layer: its matrices, `[slot][value_head][key_dim][value_dim]`, and
//! the last inputs of its convolution, the newest last, `[slot][tokens][width]`. Inputs are f32, matrices of
//! [`StateDtype`].

use std::ops::Range;

use crate::driver::device::Device;
use crate::driver::memory::Memory;
use offshoot_backend::{LayerState, MemoryPart, StateDtype, StateShape};
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, StateId};

/// What kernels load at once.
const ALIGNED: usize = 16;

/// The states of all layers.
pub struct States {
    memory: Memory,
    layers: Vec<LayerPlaces>,
}

/// The state of a layer, and the bytes at which its parts begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerPlaces {
    layer: LayerState,
    dtype: StateDtype,
    matrices: usize,
    tails: usize,
}

/// The states of one layer in all slots.
#[derive(Clone, Copy)]
pub struct LayerStates<'a> {
    memory: &'a Memory,
    places: LayerPlaces,
}

impl States {
    /// States of unspecified contents: one is written before it is read.
    pub fn new(device: &Device, shape: &StateShape) -> Result<Self> {
        let (layers, bytes) = places(shape);
        Ok(Self { memory: device.alloc_of(MemoryPart::Kv, bytes)?, layers })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The bytes of `slot`: for each layer its matrices, then its last inputs.
    pub fn parts_of(&self, slot: StateId) -> impl Iterator<Item = Range<usize>> {
        self.layers.iter().flat_map(move |layer| layer.parts_of(slot))
    }

    pub fn layer(&self, layer: LayerIx) -> LayerStates<'_> {
        let places = self.layers.get(layer.ix());
        let places = places.unwrap_or_else(|| panic!("recurrent layer {layer} of {}", self.layers.len()));
        LayerStates { memory: &self.memory, places: *places }
    }
}

impl LayerPlaces {
    fn parts_of(&self, slot: StateId) -> [Range<usize>; 2] {
        let bytes = [self.layer.matrix_bytes(self.dtype), self.layer.tail_bytes()];
        let part = |(at, bytes): (usize, usize)| at + slot.ix() * bytes..at + (slot.ix() + 1) * bytes;
        [(self.matrices, bytes[0]), (self.tails, bytes[1])].map(part)
    }
}

impl<'a> LayerStates<'a> {
    pub fn layer(&self) -> LayerState {
        self.places.layer
    }

    /// The dtype of the matrices.
    pub fn dtype(&self) -> StateDtype {
        self.places.dtype
    }

    /// Memory, and the byte of it at which the matrices begin.
    pub fn matrices(&self) -> (&'a Memory, usize) {
        (self.memory, self.places.matrices)
    }

    /// Memory, and the byte of it at which the last inputs begin.
    pub fn tails(&self) -> (&'a Memory, usize) {
        (self.memory, self.places.tails)
    }
}

/// The most bytes that the memory has beside `slots` times a state's.
pub fn overhead_bytes(shape: &StateShape) -> usize {
    2 * ALIGNED * shape.layers.len()
}

/// The places of all layers, and the bytes of them all.
fn places(shape: &StateShape) -> (Vec<LayerPlaces>, usize) {
    let mut bytes = 0;
    let mut part = |bytes_of_one: usize| {
        let at = bytes;
        bytes += (shape.slots * bytes_of_one).next_multiple_of(ALIGNED);
        at
    };
    let mut of_layer = |&layer: &LayerState| LayerPlaces {
        layer,
        dtype: shape.dtype,
        matrices: part(layer.matrix_bytes(shape.dtype)),
        tails: part(layer.tail_bytes()),
    };
    let layers = shape.layers.iter().map(&mut of_layer).collect();
    (layers, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::DeltaHeads;

    #[test]
    fn parts_follow_each_other_where_kernels_may_load_them() {
        let odd = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 3, value_dim: 5 };
        let even = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16 };
        let of = |dtype: StateDtype| {
            let layers = [odd, even].map(|heads| LayerState::delta(heads, 4)).to_vec();
            let shape = StateShape { layers, slots: 3, dtype };
            let (layers, bytes) = places(&shape);
            let parts = layers.iter().flat_map(|layer| [layer.matrices, layer.tails]).chain([bytes]).collect();
            check_parts(&shape, &layers, bytes);
            parts
        };
        let parts: [Vec<usize>; 2] = StateDtype::ALL.map(of);
        assert_eq!(parts[0], [0, 192, 720, 720 + 3 * 4096, 720 + 3 * 4096 + 3 * 2048]);
        assert_eq!(parts[1], [0, 96, 624, 624 + 3 * 2048, 624 + 3 * 2048 + 3 * 2048]);
    }

    fn check_parts(shape: &StateShape, layers: &[LayerPlaces], bytes: usize) {
        let parts: Vec<usize> = layers.iter().flat_map(|layer| [layer.matrices, layer.tails]).chain([bytes]).collect();
        assert!(parts.iter().all(|at| at % ALIGNED == 0));
        // Slots are apart, and each has the bytes of one state.
        let of = |slot: usize| layers.iter().flat_map(move |layer| layer.parts_of(StateId::new(slot)));
        assert!((0..3).all(|slot| of(slot).map(|part| part.len()).sum::<usize>() == shape.state_bytes()));
        let mut all: Vec<Range<usize>> = (0..3).flat_map(of).collect();
        all.sort_by_key(|part| part.start);
        assert!(all.is_sorted_by(|a, b| a.end <= b.start) && all.iter().all(|part| part.end <= bytes), "{all:?}");
        let least = shape.slots * shape.state_bytes();
        assert!(bytes >= least && bytes <= least + overhead_bytes(shape));
    }
}
