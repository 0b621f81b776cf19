//! The matrices of a model as they are stored: dense (`weights`), in codes with scales (`quantised`) or in blocks of
//! GGUF files, and how several tensors become one matrix. `model::weights` loads them; each backend packs them in its
//! own layout.
//!
//! Three types are separate: how a matrix is stored ([`WeightFormat`]), the dtype of the operands of its products
//! ([`Dtype`], the compute dtype), and how keys and values are stored (`KvDtype`).

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::device_memory::DeviceView;
use super::quantised::{QuantFormat, QuantRow, QuantSource, QuantView};
use super::weights::{Dtype, RandomWeight, WeightView};
use offshoot_gguf::TensorType;

/// How a weight matrix is stored, in its file and on the device. Each format has a variant of [`MatrixPart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// Elements of one dtype, without scales.
    Dense(Dtype),
    /// Codes with scales.
    Quantised(QuantFormat),
    /// Blocks of GGUF files, which hold their scales; the type is quantised.
    Blocks(TensorType),
}

impl WeightFormat {
    /// The dtype of the elements of a dense matrix, which is that of its products' operands.
    pub fn dense(self) -> Option<Dtype> {
        match self {
            WeightFormat::Dense(dtype) => Some(dtype),
            WeightFormat::Quantised(_) | WeightFormat::Blocks(_) => None,
        }
    }

    /// Bytes of a matrix of this shape.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            WeightFormat::Dense(dtype) => rows * cols * dtype.bytes(),
            WeightFormat::Quantised(format) => format.bytes(rows, cols),
            WeightFormat::Blocks(kind) => rows * kind.row_bytes(cols),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightFormat::Dense(dtype) => dtype.fmt(f),
            WeightFormat::Quantised(format) => format.fmt(f),
            WeightFormat::Blocks(kind) => kind.fmt(f),
        }
    }
}

/// One of the tensors that are stacked into a matrix (`Backend::matrix`).
#[derive(Clone, Copy, Debug)]
pub enum MatrixPart<'a> {
    Dense(WeightView<'a>),
    /// Dense, in the memory of a GPU.
    Device(DeviceView<'a>),
    /// Random numbers, generated on the device.
    Random(RandomWeight),
    Quantised(QuantView<'a>),
    Blocks(BlockView<'a>),
}

/// A matrix `[rows, cols]` (outputs, inputs) in blocks of a GGUF file, whole blocks to a row, row after row.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    pub kind: TensorType,
    pub rows: usize,
    pub cols: usize,
    pub bytes: &'a [u8],
    /// Whether activations stay as they are; else each 32 neighbours are rounded to int8 with a scale of their own.
    pub exact: bool,
}

impl BlockView<'_> {
    /// Row `row` as numbers.
    pub fn numbers(&self, row: usize, out: &mut [f32]) {
        let width = self.kind.row_bytes(self.cols);
        self.kind.decode(&self.bytes[row * width..][..width], out);
    }
}

impl<'a> MatrixPart<'a> {
    pub fn format(&self) -> WeightFormat {
        match self {
            MatrixPart::Dense(view) => WeightFormat::Dense(view.dtype),
            MatrixPart::Device(view) => WeightFormat::Dense(view.dtype),
            MatrixPart::Random(random) => WeightFormat::Dense(random.dtype),
            MatrixPart::Quantised(view) => WeightFormat::Quantised(view.format),
            MatrixPart::Blocks(view) => WeightFormat::Blocks(view.kind),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.rows,
            MatrixPart::Device(view) => view.rows,
            MatrixPart::Random(random) => random.rows,
            MatrixPart::Quantised(view) => view.rows,
            MatrixPart::Blocks(view) => view.rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.cols,
            MatrixPart::Device(view) => view.cols,
            MatrixPart::Random(random) => random.cols,
            MatrixPart::Quantised(view) => view.cols,
            MatrixPart::Blocks(view) => view.cols,
        }
    }

    /// Elements of these columns as little-endian bytes of `dtype`, row-major: for backends that do not multiply the
    /// part's format. Panics if the part lies on a device.
    pub fn dense_bytes(&self, dtype: Dtype, columns: Range<usize>) -> Vec<u8> {
        let cols = self.cols();
        let mut bytes = vec![0; self.rows() * columns.len() * dtype.bytes()];
        let rows = bytes.par_chunks_exact_mut((columns.len() * dtype.bytes()).max(1)).enumerate();
        rows.for_each_init(
            || (vec![0.0; cols], QuantRow::default()),
            |(numbers, scratch), (row, bytes)| {
                match self {
                    MatrixPart::Dense(view) => {
                        numbers.iter_mut().enumerate().for_each(|(k, x)| *x = view.get(row * cols + k));
                    }
                    MatrixPart::Device(_) => panic!("{ON_A_DEVICE}"),
                    MatrixPart::Random(random) => {
                        numbers.iter_mut().enumerate().for_each(|(k, x)| *x = random.at(row, k));
                    }
                    MatrixPart::Quantised(view) => view.numbers(row, scratch, numbers),
                    MatrixPart::Blocks(view) => view.numbers(row, numbers),
                }
                dtype.write(numbers[columns.clone()].iter().copied(), bytes);
            },
        );
        bytes
    }
}

/// The shape of stacked parts: their common width, and the sum of their rows and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackShape {
    pub rows: usize,
    pub cols: usize,
    pub bytes: usize,
    /// The dtype that all parts have; `None` if any is quantised or they differ.
    pub dense: Option<Dtype>,
}

impl StackShape {
    /// Panics if `parts` is empty or parts differ in width.
    pub fn of(parts: &[MatrixPart<'_>]) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let cols = first.cols();
        assert!(parts.iter().all(|part| part.cols() == cols), "stacked parts agree in width");
        let dense = first.format().dense().filter(|_| parts.iter().all(|part| part.format() == first.format()));
        let bytes = parts.iter().map(|part| part.format().bytes(part.rows(), cols)).sum();
        Self { rows: parts.iter().map(MatrixPart::rows).sum(), cols, bytes, dense }
    }
}

/// The quantised parts, if all are.
pub fn all_quantised<'a>(parts: &[MatrixPart<'a>]) -> Option<Vec<QuantView<'a>>> {
    let view = |part: &MatrixPart<'a>| if let MatrixPart::Quantised(view) = part { Some(*view) } else { None };
    parts.iter().map(view).collect()
}

impl MatrixPart<'_> {
    /// Random numbers, made into codes where `format` is quantised. Panics where it is of blocks, which are not made.
    pub fn random(random: RandomWeight, format: WeightFormat) -> Self {
        match format {
            WeightFormat::Dense(_) => MatrixPart::Random(random),
            WeightFormat::Quantised(format) => {
                MatrixPart::Quantised(QuantView::of(format, random.rows, random.cols, QuantSource::Random(random)))
            }
            WeightFormat::Blocks(_) => panic!("random weights are not made into {format}"),
        }
    }
}

/// Why a host is never asked to read a part in device memory.
const ON_A_DEVICE: &str = "`Backend::copies_from_devices` denies parts on a device, and what the host reads is copied";

/// A part of a matrix, and the dtype in which it becomes dense first, where a device does not multiply it as it is. A
/// part in device memory has become so before.
#[derive(Clone, Copy, Debug)]
pub struct HeldPart<'a> {
    pub part: MatrixPart<'a>,
    pub becomes: Option<Dtype>,
}

/// Calls `pack` with these parts, dense where they are to become so.
pub fn with_dense<T>(parts: &[HeldPart<'_>], pack: impl FnOnce(&[MatrixPart<'_>]) -> T) -> T {
    let made = |held: &HeldPart<'_>| Some(held.part.dense_bytes(held.becomes?, 0..held.part.cols()));
    let made: Vec<Option<Vec<u8>>> = parts.iter().map(made).collect();
    let parts = parts.iter().zip(&made).map(|(&HeldPart { part, becomes }, made)| match (becomes, made) {
        (Some(dtype), Some(bytes)) => {
            MatrixPart::Dense(WeightView { dtype, rows: part.rows(), cols: part.cols(), bytes })
        }
        _ => part,
    });
    pack(&parts.collect::<Vec<_>>())
}

/// Calls `pack` with views of dense `parts` in host memory; random parts are generated first. Panics if a part is
/// quantised, or lies on a device.
pub fn with_bytes<T>(parts: &[MatrixPart<'_>], pack: impl FnOnce(&[WeightView<'_>]) -> T) -> T {
    let generate = |part: &MatrixPart<'_>| match part {
        MatrixPart::Random(random) => random.generate(),
        MatrixPart::Dense(_) | MatrixPart::Device(_) | MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => Vec::new(),
    };
    let generated: Vec<Vec<u8>> = parts.iter().map(generate).collect();
    let views = parts.iter().zip(&generated).map(|(part, bytes)| match part {
        MatrixPart::Dense(view) => *view,
        MatrixPart::Random(random) => random.view(bytes),
        MatrixPart::Device(_) => panic!("{ON_A_DEVICE}"),
        MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => {
            panic!("a dense part is expected, {} is given", part.format())
        }
    });
    pack(&views.collect::<Vec<_>>())
}
