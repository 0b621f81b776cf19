//! What the ops of the simulated device work on: shapes and bytes in place of numbers.

use offshoot_backend::{Dtype, LatentHeads, LoraShape, Router, Share, StackShape};

/// The shape of an activation buffer.
#[derive(Debug)]
pub struct SimBuffer {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) element_bytes: usize,
    /// The most rows it ever had, which its memory is counted for.
    pub(super) most_rows: usize,
    pub(super) share: Share,
}

impl SimBuffer {
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.width * self.element_bytes
    }

    /// The bytes of a buffer that an op takes as sums: devices refuse others, which the CPU cannot tell apart.
    pub(super) fn bytes_of_sums(&self) -> usize {
        assert_eq!(self.element_bytes, Dtype::F32.bytes(), "a buffer of sums is f32");
        self.bytes()
    }
}

/// The shape of a weight matrix `[rows, cols]` (outputs, inputs).
#[derive(Clone, Copy, Debug)]
pub struct SimMatrix {
    pub(super) shape: StackShape,
    /// How many times the rate of 16 bits its products have.
    pub(super) speed: f64,
    /// Whether its inputs, or its outputs, are divided among devices.
    pub(super) split: [bool; 2],
}

impl SimMatrix {
    pub(super) fn bytes(&self) -> usize {
        self.shape.bytes
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.shape.bytes / self.shape.rows.max(1)
    }
}

/// The experts of a mixture.
pub struct SimExperts(pub(super) Vec<SimMatrix>);

/// What adapters add to a layer: its shape, and the rank and bytes of each slot.
pub struct SimLora {
    pub(super) shape: LoraShape,
    pub(super) slots: Vec<Option<SimLoraTerm>>,
}

/// The rank of an adapter's parts of a layer, and their bytes.
#[derive(Clone, Copy, Debug)]
pub struct SimLoraTerm {
    pub(super) rank: usize,
    pub(super) bytes: usize,
}

/// The maps of a layer's latents: their widths, and their bytes.
#[derive(Clone, Copy, Debug)]
pub struct SimMaps {
    pub(super) heads: LatentHeads,
    pub(super) bytes: usize,
}

/// Only numbers: which experts rows choose is not simulated.
pub struct SimRoutes {
    pub(super) router: Router,
    pub(super) rows: usize,
}
