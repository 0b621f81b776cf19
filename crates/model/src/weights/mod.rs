//! The source of tensors: a model's files (`files`: `checkpoint` or `gguf`) or a seed (`random`).
//! `layout` lists which tensors are stacked; the backend packs them.

mod checkpoint;
mod experts;
mod files;
mod gguf;
mod naming;
mod quantised;
mod random;
mod safetensors_file;

use std::ops::Range;

use offshoot_backend::{
    Backend, Dtype, HeldPart, MatrixPart, QuantFormat, QuantSource, QuantView, Split, StackShape, WeightFormat,
    WeightView, with_bytes,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WEIGHTS;

use super::config::Quantisation;
use super::layout::TensorSpec;
pub use checkpoint::{IndexFacts, compare_index};
pub use files::ModelFiles;
pub use gguf::GgufModel;
pub use quantised::Check;
pub use random::RandomWeights;

/// Where weights come from.
pub enum WeightSource {
    Checkpoint {
        checkpoint: ModelFiles,
        /// The compute dtype of the layers.
        dtype: Dtype,
        /// Whether dense matrices of other dtypes become it, also where the backend mixes dtypes.
        converts: bool,
    },
    Random(Box<RandomWeights>),
}

/// Whether a backend multiplies matrices of experts of this width as they are.
fn multiplies_experts<B: Backend>(width: usize) -> impl Fn(&B, WeightFormat) -> bool {
    move |backend, format| backend.multiplies_experts(format, width)
}

impl WeightSource {
    /// The matrices of `specs`, stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec], split: &Split) -> Result<B::Matrix> {
        self.stacked(backend, specs, split, B::multiplies)
    }

    /// The same of an expert of this width.
    fn expert_matrix<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        width: usize,
        split: &Split,
    ) -> Result<B::Matrix> {
        self.stacked(backend, specs, split, multiplies_experts(width))
    }

    fn stacked<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        split: &Split,
        multiplies: impl Fn(&B, WeightFormat) -> bool,
    ) -> Result<B::Matrix> {
        match self {
            WeightSource::Checkpoint { checkpoint, dtype, .. } => {
                let check = Check::on(backend);
                checkpoint
                    .parts(specs, *dtype, check, |parts| self.matrix_of(backend, specs, parts, split, &multiplies))
            }
            WeightSource::Random(random) => self.matrix_of(backend, specs, &random.parts(specs), split, multiplies),
        }
    }

    /// The same with these rows of the stack only, in this order. What is stored in codes becomes dense.
    pub fn matrix_rows<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        rows: &[Range<usize>],
        split: &Split,
    ) -> Result<B::Matrix> {
        let check = Check::on(backend);
        let mut select = |parts: &[MatrixPart<'_>], made: Option<QuantFormat>| {
            let dense = StackShape::of(parts).dense;
            if dense.is_none() && made.is_none() && backend.is_first() {
                log::warn!("tensor `{}` becomes dense: its rows are put in another order", specs[0].name);
            }
            let (dtype, cols) = (dense.unwrap_or(self.compute().0), parts[0].cols());
            let stack: Vec<u8> = parts.iter().flat_map(|part| part.dense_bytes(dtype, 0..cols)).collect();
            let row = cols * dtype.bytes();
            let bytes: Vec<u8> =
                rows.iter().flat_map(|rows| &stack[rows.start * row..rows.end * row]).copied().collect();
            let view = WeightView { dtype, rows: rows.iter().map(Range::len).sum(), cols, bytes: &bytes };
            let part = match made {
                None => MatrixPart::Dense(view),
                Some(format) => {
                    MatrixPart::Quantised(QuantView::of(format, view.rows, view.cols, QuantSource::Dense(view)))
                }
            };
            self.matrix_of(backend, specs, &[part], split, B::multiplies)
        };
        match self {
            WeightSource::Checkpoint { checkpoint, dtype, .. } => match checkpoint.made_format(&specs[0]) {
                None => checkpoint.parts(specs, *dtype, check, |parts| select(parts, None)),
                made => checkpoint.packed(specs, |views| {
                    if check == Check::Values {
                        views.iter().zip(specs).try_for_each(|(view, spec)| checkpoint.refuse_nan(view, spec))?;
                    }
                    select(&views.iter().copied().map(MatrixPart::Dense).collect::<Vec<_>>(), made)
                }),
            },
            WeightSource::Random(random) => {
                let parts = random.parts(specs);
                let made = match parts[0].format() {
                    WeightFormat::Quantised(format) => Some(format),
                    WeightFormat::Dense(_) | WeightFormat::Blocks(_) => None,
                };
                select(&parts, made)
            }
        }
    }

    /// The vectors of `specs`, concatenated.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        self.split_vector(backend, specs, &Split::Whole)
    }

    /// The same, divided as the matrix beside it.
    pub fn split_vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec], split: &Split) -> Result<B::Vector> {
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => {
                checkpoint.packed(specs, |views| backend.split_vector(views, split))
            }
            WeightSource::Random(random) => {
                with_bytes(&random.parts(specs), |views| backend.split_vector(views, split))
            }
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

    /// The compute dtype, and whether dense matrices of others become it on a backend that mixes dtypes.
    fn compute(&self) -> (Dtype, bool) {
        match self {
            WeightSource::Checkpoint { dtype, converts, .. } => (*dtype, *converts),
            WeightSource::Random(random) => (random.dtype, false),
        }
    }

    /// The matrices of `parts` stacked into one. Parts become dense and of the compute dtype where the backend does not
    /// multiply them as they are, which `multiplies` says.
    fn matrix_of<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        parts: &[MatrixPart<'_>],
        split: &Split,
        multiplies: impl Fn(&B, WeightFormat) -> bool,
    ) -> Result<B::Matrix> {
        let (dtype, converts) = self.compute();
        let is_ordered = |part: &MatrixPart<'_>| matches!(part, MatrixPart::Quantised(view) if view.order.is_some());
        let is_plain =
            B::ORDERS_INPUTS || parts.iter().all(|part| part.format() == parts[0].format() && !is_ordered(part));
        let is_kept = |part: &MatrixPart<'_>| match part.format() {
            WeightFormat::Dense(other) => (B::MIXES_DTYPES && !converts) || other == dtype,
            format @ (WeightFormat::Quantised(_) | WeightFormat::Blocks(_)) => is_plain && multiplies(backend, format),
        };
        let held = parts.iter().map(|&part| HeldPart { part, becomes: (!is_kept(&part)).then_some(dtype) });
        let held: Vec<_> = held.collect();
        if held.iter().all(|held| held.becomes.is_none()) {
            return backend.split_matrix(&held, split);
        }
        let quantisation = match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.quantisation(),
            WeightSource::Random(random) => random.config.quantisation.as_ref(),
        };
        let other = parts.iter().map(MatrixPart::format).find(|format| format.dense().is_none());
        // An output layer made at load may become dense, the layers not.
        if let (Some(made), Some(format)) = (quantisation.and_then(Quantisation::made_layers), other)
            && format == WeightFormat::Quantised(made)
        {
            let found = format!("{format} on {}, which does not multiply it", backend.describe());
            return Err(Error::value(WEIGHTS, "a format that the device multiplies (the CPU: all)", found));
        }
        // Of quantised matrices `Decoder` says it once for all.
        let dense = |held: &HeldPart<'_>| held.part.format().dense().filter(|_| held.becomes.is_some());
        let changed = specs.iter().zip(&held).filter(|_| backend.is_first());
        for (spec, other) in changed.filter_map(|(spec, held)| Some((spec, dense(held)?))) {
            log::warn!("tensor `{}` is {other}; on this device it becomes {dtype}, as the layers are", spec.name);
        }
        backend.split_matrix(&held, split)
    }
}

/// A vector of these numbers.
pub fn vector_of<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    split_vector_of(backend, values, &Split::Whole)
}

/// The same, divided as the matrix beside it.
pub fn split_vector_of<B: Backend>(backend: &mut B, values: &[f32], split: &Split) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.split_vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }], split)
}
