//! The source of tensors: a model's files (`files`: `checkpoint` or `gguf`) or a seed (`random`).
//! `layout` lists which tensors are stacked; the backend packs them.

mod checkpoint;
mod experts;
mod files;
mod gguf;
mod naming;
mod random;
mod safetensors_file;

use crate::backend::{Backend, Dtype, MatrixPart, WeightFormat, WeightView, with_bytes};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::{IndexFacts, compare_index};
pub use files::ModelFiles;
pub use gguf::GgufModel;
pub use random::RandomWeights;

/// Where weights come from.
pub enum WeightSource {
    Checkpoint {
        checkpoint: ModelFiles,
        /// The compute dtype of the layers.
        dtype: Dtype,
    },
    Random(RandomWeights),
}

impl WeightSource {
    /// The matrices of `specs`, stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Matrix> {
        match self {
            WeightSource::Checkpoint { checkpoint, dtype } => {
                checkpoint.parts(specs, *dtype, |parts| matrix_of(backend, specs, parts, *dtype))
            }
            WeightSource::Random(random) => backend.matrix(&random.parts(specs)),
        }
    }

    /// The vectors of `specs`, concatenated.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| backend.vector(views)),
            WeightSource::Random(random) => with_bytes(&random.parts(specs), |views| backend.vector(views)),
        }
    }

    /// The elements of a tensor.
    pub fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let elements = |views: &[WeightView<'_>]| -> Vec<f32> {
            views.iter().flat_map(|view| (0..view.rows * view.cols).map(|i| view.get(i))).collect()
        };
        let specs = std::slice::from_ref(spec);
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| Ok(elements(views))),
            WeightSource::Random(random) => Ok(with_bytes(&random.parts(specs), elements)),
        }
    }
}

/// A vector of these numbers.
pub fn vector_of<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }])
}

/// The matrices of `parts` stacked into one; `dtype`: the compute dtype. Parts become dense and of this dtype where the
/// backend does not multiply them as they are.
fn matrix_of<B: Backend>(
    backend: &mut B,
    specs: &[TensorSpec],
    parts: &[MatrixPart<'_>],
    dtype: Dtype,
) -> Result<B::Matrix> {
    let is_kept = |part: &MatrixPart<'_>| match part.format() {
        WeightFormat::Dense(other) => B::MIXES_DTYPES || other == dtype,
        format @ (WeightFormat::Quantised(_) | WeightFormat::Blocks(_)) => backend.multiplies(format),
    };
    // Stacked parts are of one dtype where dtypes do not mix.
    if parts.iter().all(is_kept) {
        return backend.matrix(parts);
    }
    for (spec, part) in specs.iter().zip(parts) {
        let (name, format) = (&spec.name, part.format());
        log::warn!("tensor `{name}` is {format}; on this device it becomes {dtype}, as the layers are");
    }
    let bytes: Vec<Vec<u8>> = parts.iter().map(|part| part.dense_bytes(dtype)).collect();
    let dense = parts
        .iter()
        .zip(&bytes)
        .map(|(part, bytes)| MatrixPart::Dense(WeightView { dtype, rows: part.rows(), cols: part.cols(), bytes }));
    backend.matrix(&dense.collect::<Vec<_>>())
}
