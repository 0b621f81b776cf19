//! Where tensors come from: a checkpoint's files (`checkpoint`) or a seed (`random`), behind one `Source`. What they are stacked
//! into is said by `layout`, how they are packed is the backend's.

mod checkpoint;
mod random;
mod safetensors_file;

use crate::backend::{Backend, WeightView};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::Checkpoint;
pub use random::RandomWeights;

pub enum Source {
    Checkpoint(Checkpoint),
    Random(RandomWeights),
}

impl Source {
    /// The matrices of `specs` stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Matrix> {
        match self {
            Source::Checkpoint(checkpoint) => checkpoint.packed(specs, |views| backend.matrix(views)),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| random.tensor(spec)).collect();
                backend.random_matrix(&parts)
            }
        }
    }

    /// The vectors of `specs` one after another.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        match self {
            Source::Checkpoint(checkpoint) => checkpoint.packed(specs, |views| backend.vector(views)),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| random.tensor(spec)).collect();
                let drawn: Vec<_> = parts.iter().map(|part| part.draw()).collect();
                let views: Vec<WeightView<'_>> =
                    parts.iter().zip(&drawn).map(|(part, bytes)| part.view(bytes)).collect();
                backend.vector(&views)
            }
        }
    }
}
