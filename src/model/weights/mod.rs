//! Where tensors come from: a checkpoint's files (`checkpoint`) or a seed (`random`), behind one `Source`. What becomes of them
//! (stacking, packing) is `parts` and the backend.

mod checkpoint;
mod random;
mod safetensors_file;

use std::borrow::Cow;

use crate::backend::{Dtype, WeightView};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::Checkpoint;
pub use random::RandomWeights;

/// One tensor: bytes of the map where it lies in a file, own bytes where it was drawn.
pub struct Tensor<'a> {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    bytes: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    pub fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes: &self.bytes }
    }
}

pub enum Source {
    Checkpoint(Checkpoint),
    Random(RandomWeights),
}

impl Source {
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Tensor<'_>> {
        match self {
            Source::Checkpoint(checkpoint) => checkpoint.tensor(spec),
            Source::Random(random) => Ok(random.tensor(spec)),
        }
    }

    /// To be called when a tensor has been packed: its mapped pages go back to the system, so that weights are held once.
    pub fn release(&self, spec: &TensorSpec) {
        if let Source::Checkpoint(checkpoint) = self {
            checkpoint.release(spec);
        }
    }
}
