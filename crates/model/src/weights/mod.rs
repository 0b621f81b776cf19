//! The source of tensors: a model's files (`files`: `checkpoint` or `gguf`) or a seed (`random`).
//! `layout` lists which tensors are stacked; the backend packs them.

mod checkpoint;
mod experts;
mod files;
mod gguf;
mod matrix_loader;
mod naming;
mod quantised;
mod random;
mod safetensors_file;
mod stored;

use std::ops::Range;

use offshoot_backend::{
    Backend, Dtype, HeldPart, MatrixPart, QuantFormat, QuantSource, QuantView, Split, StackShape, WeightFormat,
    WeightView, with_bytes,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WEIGHTS;
use offshoot_gguf::Gguf;

use super::config::{ModelConfig, ModelFolder, Quantisation};
use super::layout::{Layout, TensorSpec};
use checkpoint::Checkpoint;
pub use checkpoint::{IndexFacts, compare_index};
pub use files::{FileFacts, ModelFiles};
pub use gguf::GgufModel;
use matrix_loader::{Matrices, MatrixLoader};
pub use random::RandomWeights;
pub use safetensors_file::SafetensorsFile;
pub use stored::{Check, dense_dtype};

/// Where weights come from.
pub enum WeightSource {
    Checkpoint {
        checkpoint: Box<dyn ModelFiles>,
        /// The compute dtype of the layers.
        dtype: Dtype,
        /// Whether dense matrices of other dtypes become it, also where the backend mixes dtypes.
        converts: bool,
    },
    Random(Box<RandomWeights>),
}

/// Maps the files of a model.
pub fn open(model: &ModelFolder) -> Result<Box<dyn ModelFiles>> {
    Ok(match offshoot_gguf::files(&model.path)? {
        Some(_) => Box::new(GgufModel::new(Gguf::open(&model.path)?, &model.config, model.dtype)?),
        None => Box::new(Checkpoint::open(model)?),
    })
}

/// The files of a model whose tensors are checked against its configuration, that with what only they tell, and the
/// compute dtype.
pub fn open_verified(model: &ModelFolder) -> Result<(Box<dyn ModelFiles>, ModelConfig, Layout, Dtype)> {
    let files = open(model)?;
    let config = files.complete(&model.config);
    let layout = Layout::of(&config);
    files.verify(&layout)?;
    let dtype = config.compute.map_or_else(|| files.dtype(&layout), Ok)?;
    Ok((files, config, layout, dtype))
}

/// Whether all files of a model's weights are there.
pub fn are_there(model: &ModelFolder) -> Result<bool> {
    Ok(offshoot_gguf::files(&model.path)?.is_some() || checkpoint::are_there(&model.path)?)
}

impl WeightSource {
    /// The matrices of `specs`, stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec], split: &Split) -> Result<B::Matrix> {
        let mut loading = Matrices::new(backend, split);
        self.stack(&mut loading, specs)?;
        Ok(loading.only())
    }

    /// These rows of the matrices of `specs`, in this order, stacked into one. What is stored in codes becomes dense.
    pub fn matrix_rows<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        rows: &[Range<usize>],
        split: &Split,
    ) -> Result<B::Matrix> {
        let mut loading = Matrices::new(backend, split);
        self.stack_rows(&mut loading, specs, rows)?;
        Ok(loading.only())
    }

    /// Loads the matrices of `specs` stacked into one.
    fn stack(&self, loader: &mut dyn MatrixLoader, specs: &[TensorSpec]) -> Result<()> {
        match self {
            WeightSource::Checkpoint { checkpoint, dtype, .. } => {
                let check = Check::by(loader.is_first());
                checkpoint.parts(specs, *dtype, check, &mut |parts| self.load(loader, specs, parts))
            }
            WeightSource::Random(random) => self.load(loader, specs, &random.parts(specs)),
        }
    }

    fn stack_rows(&self, loader: &mut dyn MatrixLoader, specs: &[TensorSpec], rows: &[Range<usize>]) -> Result<()> {
        let check = Check::by(loader.is_first());
        let mut select = |parts: &[MatrixPart<'_>], made: Option<QuantFormat>| {
            let dense = StackShape::of(parts).dense;
            if dense.is_none() && made.is_none() && loader.is_first() {
                log::warn!("tensor `{}` becomes dense: its rows are put in another order", specs[0].name);
            }
            let (dtype, cols) = (dense.unwrap_or(self.compute().0), parts[0].cols());
            let stack: Vec<u8> = parts.iter().flat_map(|part| part.dense_bytes(dtype, 0..cols)).collect();
            let row = cols * dtype.bytes();
            let bytes: Vec<u8> =
                rows.iter().flat_map(|rows| &stack[rows.start * row..rows.end * row]).copied().collect();
            let view = WeightView { dtype, rows: rows.iter().map(Range::len).sum(), cols, bytes: &bytes };
            self.load(loader, specs, &[dense_part(view, made)])
        };
        match self {
            WeightSource::Checkpoint { checkpoint, dtype, .. } => match checkpoint.made_format(&specs[0]) {
                None => checkpoint.parts(specs, *dtype, check, &mut |parts| select(parts, None)),
                made => checkpoint.packed(specs, &mut |views| {
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

    /// The vectors of `specs`, concatenated and divided as the matrix beside them.
    pub fn split_vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec], split: &Split) -> Result<B::Vector> {
        let mut vector = None;
        self.with_views(specs, &mut |views| {
            vector = Some(backend.split_vector(views, split)?);
            Ok(())
        })?;
        Ok(vector.expect("it is loaded when its views are there"))
    }

    /// The elements of a tensor.
    pub fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        self.with_views(std::slice::from_ref(spec), &mut |views| {
            values = views.iter().flat_map(|view| (0..view.rows * view.cols).map(|i| view.get(i))).collect();
            Ok(())
        })?;
        Ok(values)
    }

    /// Calls `read` once, with the tensors of `specs` as dense ones.
    fn with_views(&self, specs: &[TensorSpec], read: &mut dyn FnMut(&[WeightView<'_>]) -> Result<()>) -> Result<()> {
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, read),
            WeightSource::Random(random) => with_bytes(&random.parts(specs), read),
        }
    }

    pub fn compute_dtype(&self) -> Dtype {
        self.compute().0
    }

    /// The compute dtype, and whether dense matrices of others become it on a backend that mixes dtypes.
    fn compute(&self) -> (Dtype, bool) {
        match self {
            WeightSource::Checkpoint { dtype, converts, .. } => (*dtype, *converts),
            WeightSource::Random(random) => (random.dtype, false),
        }
    }

    /// Loads the matrices of `parts` stacked into one. Parts become dense and of the compute dtype where the device
    /// does not multiply them as they are.
    fn load(&self, loader: &mut dyn MatrixLoader, specs: &[TensorSpec], parts: &[MatrixPart<'_>]) -> Result<()> {
        let (dtype, converts) = self.compute();
        let is_ordered = |part: &MatrixPart<'_>| matches!(part, MatrixPart::Quantised(view) if view.order.is_some());
        let is_plain =
            loader.orders_inputs() || parts.iter().all(|part| part.format() == parts[0].format() && !is_ordered(part));
        let is_kept = |part: &MatrixPart<'_>| match part.format() {
            WeightFormat::Dense(other) => (loader.mixes_dtypes() && !converts) || other == dtype,
            format @ (WeightFormat::Quantised(_) | WeightFormat::Blocks(_)) => is_plain && loader.multiplies(format),
        };
        let held = parts.iter().map(|&part| HeldPart { part, becomes: (!is_kept(&part)).then_some(dtype) });
        let held: Vec<_> = held.collect();
        if held.iter().all(|held| held.becomes.is_none()) {
            return loader.load(&held);
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
            let found = format!("{format} on {}, which does not multiply it", loader.describe());
            return Err(Error::value(WEIGHTS, "a format that the device multiplies (the CPU: all)", found));
        }
        // Of quantised matrices `Decoder` says it once for all.
        let dense = |held: &HeldPart<'_>| held.part.format().dense().filter(|_| held.becomes.is_some());
        let changed = specs.iter().zip(&held).filter(|_| loader.is_first());
        for (spec, other) in changed.filter_map(|(spec, held)| Some((spec, dense(held)?))) {
            log::warn!("tensor `{}` is {other}; on this device it becomes {dtype}, as the layers are", spec.name);
        }
        loader.load(&held)
    }
}

/// A dense matrix, to be made into codes if a format is given.
fn dense_part(view: WeightView<'_>, made: Option<QuantFormat>) -> MatrixPart<'_> {
    match made {
        None => MatrixPart::Dense(view),
        Some(format) => MatrixPart::Quantised(QuantView::of(format, view.rows, view.cols, QuantSource::Dense(view))),
    }
}

/// A vector of these numbers.
pub fn vector_of<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    split_vector_of(backend, values, &Split::Whole)
}

/// A vector of these numbers, divided as the matrix beside it.
pub fn split_vector_of<B: Backend>(backend: &mut B, values: &[f32], split: &Split) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.split_vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }], split)
}
