//! The source of tensors: a model's files (`files`: `checkpoint` or `gguf`) or a seed (`random`).
//! `layout` lists which tensors are stacked; the backend packs them.

mod checkpoint;
mod experts;
mod files;
mod gguf;
mod matrix_loader;
mod moved;
mod naming;
mod quantised;
mod random;
mod safetensors_file;
mod stored;
mod tensor_source;
mod value_head;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use offshoot_backend::{
    Backend, Dtype, Elements, HeldPart, LatentHeads, MatrixPart, QuantFormat, QuantSource, QuantView, Split,
    StackShape, WeightFormat, WeightView, with_bytes,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WEIGHTS;
use offshoot_gguf::Gguf;

use super::config::{ModelConfig, ModelFolder, Quantisation, ValueHead};
use super::layout::{Layout, TensorSpec};
use super::loader::Changes;
pub use checkpoint::Checkpoint;
pub use checkpoint::{IndexFacts, compare_index};
pub use experts::ExpertStack;
pub use files::{FileFacts, ModelFiles};
pub use gguf::GgufModel;
use matrix_loader::{Maps, Matrices, MatrixLoader};
use moved::{Moved, all_on_host, moved};
pub use naming::{Naming, stored_modules};
pub use random::RandomWeights;
pub use safetensors_file::SafetensorsFile;
pub use stored::{Check, dense_dtype};
pub use tensor_source::{TensorData, TensorDtype, TensorFolder, TensorSource, TensorView, TensorsInMemory};

/// Where weights come from.
pub enum WeightSource<'a> {
    Checkpoint {
        checkpoint: Box<dyn ModelFiles + 'a>,
        /// The compute dtype of the layers.
        dtype: Dtype,
        /// Whether dense matrices of other dtypes become it, also where the backend mixes dtypes.
        converts: bool,
        /// Those of an update, whose values have been checked: how the matrices were stored whose place they take.
        /// `None`: they are loaded for the first time.
        update: Option<Formats>,
    },
    Random(Box<RandomWeights>),
}

/// How matrices are stored, by their names in the layout; `None`: not known, as those were random.
pub type Formats = Option<Arc<HashMap<String, WeightFormat>>>;

/// The elements of a stack of which some tensors do not change.
pub struct Kept<'a> {
    /// Those of all tensors, row after row; what changes is not read.
    pub elements: &'a Elements,
    pub changes: &'a Changes,
}

/// Maps the files of a model.
pub fn open(model: &ModelFolder) -> Result<Box<dyn ModelFiles>> {
    Ok(match offshoot_gguf::files(&model.path)? {
        Some(_) => Box::new(GgufModel::new(Gguf::open(&model.path)?, &model.config, model.dtype)?),
        None => Box::new(Checkpoint::open(model)?),
    })
}

/// The value head among the tensors of a folder. `labels`: the number of values, where config.json says it.
///
/// # Errors
///
/// The folder has no tensors, no head or more than one, or the head's shapes do not fit.
pub fn value_head_of(folder: &Path, config: &ModelConfig, labels: Option<usize>) -> Result<ValueHead> {
    value_head::value_head(&TensorFolder::of_model(folder)?, config, labels)
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
    Ok(offshoot_gguf::files(&model.path)?.is_some() || tensor_source::are_there(&model.path)?)
}

impl WeightSource<'_> {
    /// The matrices of `specs`, stacked into one: all rows, or these in this order. What is stored in codes becomes
    /// dense where rows are chosen. `old`: the matrix whose place it takes; `kept`: what stays of that.
    pub fn matrix<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        rows: Option<&[Range<usize>]>,
        split: &Split,
        old: Option<&B::Matrix>,
        kept: Option<&Kept<'_>>,
    ) -> Result<B::Matrix> {
        let mut loading = Matrices::in_place_of(backend, split, old);
        match rows {
            None => self.stack(&mut loading, specs, kept)?,
            Some(rows) => self.stack_rows(&mut loading, specs, rows, kept)?,
        }
        Ok(loading.only())
    }

    /// The maps of `spec`, dense and of the compute dtype. `old`: the maps whose place they take.
    pub fn latent_maps<B: Backend>(
        &self,
        backend: &mut B,
        spec: &TensorSpec,
        heads: LatentHeads,
        split: &Split,
        old: Option<&B::LatentMaps>,
    ) -> Result<B::LatentMaps> {
        let mut loading = Maps { backend, heads, dtype: self.compute_dtype(), split, old, loaded: None };
        self.stack(&mut loading, std::slice::from_ref(spec), None)?;
        Ok(loading.loaded.expect("they are loaded unless that is an error"))
    }

    /// How closely a device that loads matrices checks them.
    fn check(&self, loader: &dyn MatrixLoader) -> Check {
        match self {
            WeightSource::Checkpoint { update: Some(_), .. } => Check::Groups,
            _ => Check::by(loader.is_first()),
        }
    }

    /// Loads the matrices of `specs` stacked into one.
    fn stack(&self, loader: &mut dyn MatrixLoader, specs: &[TensorSpec], kept: Option<&Kept<'_>>) -> Result<()> {
        match self {
            WeightSource::Checkpoint { checkpoint, dtype, .. } => {
                let check = self.check(loader);
                let mut load = |parts: &[MatrixPart<'_>]| self.load(loader, specs, parts);
                with_parts(&**checkpoint, specs, *dtype, check, kept, &mut load)
            }
            WeightSource::Random(random) => self.load(loader, specs, &random.parts(specs)),
        }
    }

    fn stack_rows(
        &self,
        loader: &mut dyn MatrixLoader,
        specs: &[TensorSpec],
        rows: &[Range<usize>],
        kept: Option<&Kept<'_>>,
    ) -> Result<()> {
        let check = self.check(loader);
        let mut select = |parts: &[MatrixPart<'_>], made: Option<QuantFormat>| {
            // The host puts rows into another order.
            let parts = all_on_host(parts)?;
            let parts: Vec<MatrixPart<'_>> = parts.iter().map(|moved| moved.held().part).collect();
            let dense = StackShape::of(&parts).dense;
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
                None => with_parts(&**checkpoint, specs, *dtype, check, kept, &mut |parts| select(parts, None)),
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

    /// The vectors of `specs`, concatenated and divided as the matrix beside them: all elements, or these in this
    /// order. `old` and `kept`: see [`WeightSource::matrix`]; what is kept is a column.
    pub fn split_vector<B: Backend>(
        &self,
        backend: &mut B,
        specs: &[TensorSpec],
        elements: Option<&[Range<usize>]>,
        split: &Split,
        old: Option<&B::Vector>,
        kept: Option<&Kept<'_>>,
    ) -> Result<B::Vector> {
        let mut vector = None;
        let mut load = |views: &[WeightView<'_>]| {
            let loaded = match elements {
                None => vector_over(backend, views, split, old)?,
                Some(elements) => {
                    let stack: Vec<f32> = views.iter().flat_map(numbers).collect();
                    let chosen: Vec<f32> = elements.iter().flat_map(|own| &stack[own.clone()]).copied().collect();
                    split_vector_of(backend, &chosen, split, old)?
                }
            };
            vector = Some(loaded);
            Ok(())
        };
        match kept {
            None => self.with_views(specs, &mut load)?,
            Some(kept) => {
                let fresh: Vec<TensorSpec> = specs.iter().filter(|spec| kept.changes.has(spec)).cloned().collect();
                self.with_views(&fresh, &mut |views| {
                    let kept_row = |view, spec: &TensorSpec| WeightView { rows: 1, cols: spec.elements(), ..view };
                    load(&kept.filled(specs, views, kept_row))
                })?;
            }
        }
        Ok(vector.expect("it is loaded when its views are there"))
    }

    /// The elements of a tensor.
    pub fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        self.with_views(std::slice::from_ref(spec), &mut |views| {
            values = views.iter().flat_map(numbers).collect();
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

    /// Of an update: the dtype of the matrix whose place this one takes; `Some(None)` if that is not known by this
    /// name. `None`: it is loaded as it is stored.
    fn stored_before(&self, spec: Option<&TensorSpec>) -> Option<Option<Dtype>> {
        let WeightSource::Checkpoint { update: Some(Some(formats)), .. } = self else { return None };
        Some(spec.and_then(|spec| formats.get(&spec.name)).and_then(|format| format.dense()))
    }

    /// Loads the matrices of `parts` stacked into one. Parts become dense and of the compute dtype where the device
    /// does not multiply them as they are.
    fn load(&self, loader: &mut dyn MatrixLoader, specs: &[TensorSpec], parts: &[MatrixPart<'_>]) -> Result<()> {
        let (dtype, converts) = self.compute();
        let is_ordered = |part: &MatrixPart<'_>| matches!(part, MatrixPart::Quantised(view) if view.order.is_some());
        let is_plain =
            loader.orders_inputs() || parts.iter().all(|part| part.format() == parts[0].format() && !is_ordered(part));
        // The dtype that a dense part has on the device.
        let dense_dtype = |spec: Option<&TensorSpec>, other| match self.stored_before(spec) {
            _ if have_one_dtype(loader.mixes_dtypes(), converts) => dtype,
            None => other,
            Some(before) => before.unwrap_or(dtype),
        };
        let becomes = |(i, part): (usize, &MatrixPart<'_>)| match part.format() {
            WeightFormat::Dense(other) => Some(dense_dtype(specs.get(i), other)).filter(|&dtype| dtype != other),
            format @ (WeightFormat::Quantised(_) | WeightFormat::Blocks(_)) => {
                (!(is_plain && loader.multiplies(format))).then_some(dtype)
            }
        };
        let held = parts.iter().enumerate().map(|(i, part)| HeldPart { part: *part, becomes: becomes((i, part)) });
        let held: Vec<_> = held.collect();
        if held.iter().any(|held| held.becomes.is_some()) {
            self.refuse_made_dense(loader, parts)?;
        }
        let moved = moved(&held, loader.copies_from_devices())?;
        loader.load(&moved.iter().map(Moved::held).collect::<Vec<_>>())
    }

    /// Refuses layers that are made at load of a format that the device does not multiply. An output layer that is made
    /// so may become dense.
    fn refuse_made_dense(&self, loader: &dyn MatrixLoader, parts: &[MatrixPart<'_>]) -> Result<()> {
        let quantisation = match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.quantisation(),
            WeightSource::Random(random) => random.config.quantisation.as_ref(),
        };
        let other = parts.iter().map(MatrixPart::format).find(|format| format.dense().is_none());
        match (quantisation.and_then(Quantisation::made_layers), other) {
            (Some(made), Some(format)) if format == WeightFormat::Quantised(made) => {
                let found = format!("{format} on {}, which does not multiply it", loader.describe());
                Err(Error::value(WEIGHTS, "a format that the device multiplies (the CPU: all)", found))
            }
            _ => Ok(()),
        }
    }
}

/// Whether dense matrices of all dtypes become the compute dtype: on a device that mixes none, and where the user has
/// named it.
pub fn have_one_dtype(mixes_dtypes: bool, converts: bool) -> bool {
    !mixes_dtypes || converts
}

/// A dense matrix, to be made into codes if a format is given.
fn dense_part(view: WeightView<'_>, made: Option<QuantFormat>) -> MatrixPart<'_> {
    match made {
        None => MatrixPart::Dense(view),
        Some(format) => MatrixPart::Quantised(QuantView::of(format, view.rows, view.cols, QuantSource::Dense(view))),
    }
}

/// Calls `load` with the parts of a stack, of which those that do not change are what is kept.
fn with_parts(
    checkpoint: &dyn ModelFiles,
    specs: &[TensorSpec],
    dtype: Dtype,
    check: Check,
    kept: Option<&Kept<'_>>,
    load: &mut dyn FnMut(&[MatrixPart<'_>]) -> Result<()>,
) -> Result<()> {
    let Some(kept) = kept else { return checkpoint.parts(specs, dtype, check, load) };
    let fresh: Vec<TensorSpec> = specs.iter().filter(|spec| kept.changes.has(spec)).cloned().collect();
    checkpoint
        .parts(&fresh, dtype, check, &mut |parts| load(&kept.filled(specs, parts, |view, _| MatrixPart::Dense(view))))
}

impl Kept<'_> {
    /// A stack of `fresh`, which changes, and of what is kept in between: `keep` makes an entry of a tensor's rows.
    fn filled<'v, T: Copy>(
        &'v self,
        specs: &[TensorSpec],
        fresh: &[T],
        keep: impl Fn(WeightView<'v>, &TensorSpec) -> T,
    ) -> Vec<T> {
        let (mut fresh, mut first) = (fresh.iter(), 0);
        let entry = |spec: &TensorSpec| {
            // A column holds all elements of a tensor, whatever its shape.
            let rows = if self.elements.cols == 1 { spec.elements() } else { spec.rows() };
            let own = first..first + rows;
            first = own.end;
            match self.changes.has(spec) {
                true => *fresh.next().expect("what changes is there, in the order of the stack"),
                false => keep(WeightView { rows, bytes: self.elements.row_bytes(own), ..self.elements.view() }, spec),
            }
        };
        specs.iter().map(entry).collect()
    }
}

/// The place of the first element that is not finite, or not when it becomes `becomes`.
pub fn not_finite(view: &WeightView<'_>, becomes: Dtype) -> Option<usize> {
    /// Elements that one thread reads.
    const CHUNK: usize = 1 << 16;
    let too_large = view.dtype.not_finite_from(becomes);
    let short = |bytes: &[u8; 2]| u32::from(u16::from_le_bytes(*bytes)) & 0x7fff >= too_large;
    let long = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & 0x7fff_ffff >= too_large;
    let chunks = view.bytes.par_chunks(CHUNK * view.dtype.bytes()).enumerate();
    // All of a chunk, without a branch for each.
    let bad = match view.dtype.bytes() {
        2 => chunks.find_first(|(_, chunk)| chunk.as_chunks().0.iter().fold(false, |bad, bits| bad | short(bits))),
        _ => chunks.find_first(|(_, chunk)| chunk.as_chunks().0.iter().fold(false, |bad, bits| bad | long(bits))),
    };
    let (chunk, bytes) = bad?;
    let place = match view.dtype.bytes() {
        2 => bytes.as_chunks().0.iter().position(short),
        _ => bytes.as_chunks().0.iter().position(long),
    };
    place.map(|place| chunk * CHUNK + place)
}

fn numbers(view: &WeightView<'_>) -> impl Iterator<Item = f32> {
    (0..view.rows * view.cols).map(|i| view.get(i))
}

/// A vector of these numbers, divided as the matrix beside it. `old`: the vector whose place it takes.
pub fn split_vector_of<B: Backend>(
    backend: &mut B,
    values: &[f32],
    split: &Split,
    old: Option<&B::Vector>,
) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    let view = WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes };
    vector_over(backend, &[view], split, old)
}

fn vector_over<B: Backend>(
    backend: &mut B,
    views: &[WeightView<'_>],
    split: &Split,
    old: Option<&B::Vector>,
) -> Result<B::Vector> {
    match old {
        None => backend.split_vector(views, split),
        Some(old) => backend.replace_vector(old, views, split),
    }
}
