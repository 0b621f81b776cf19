//! Weights as stored in a file (format, shape, borrowed bytes), and random weights where there is no file.
//! `model::weights` loads them; each backend packs them in its own layout.
//!
//! Three types are separate: how a matrix is stored ([`WeightFormat`]), the dtype of the operands of its products
//! ([`Dtype`], the compute dtype), and how keys and values are stored (`KvDtype`). `quantised` describes formats with
//! scales.

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::quantised::{QuantFormat, QuantRow, QuantSource, QuantView};
use offshoot_core::mix::{GOLDEN, mix};
use offshoot_core::named;
use offshoot_gguf::TensorType;

/// Element type of activations, vectors and dense arrays. As the type of the operands of products: the *compute dtype*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

named!(Dtype { F32 = "f32", F16 = "f16", Bf16 = "bf16" });

impl Dtype {
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The largest relative error of rounding a normal number to this dtype: half the distance between 1 and the next
    /// larger number.
    pub const fn rounding(self) -> f64 {
        1.0 / match self {
            Dtype::F32 => (1 << 24) as f64,
            Dtype::F16 => (1 << 11) as f64,
            Dtype::Bf16 => (1 << 8) as f64,
        }
    }

    /// `values` rounded to nearest even, as the little-endian bytes of this dtype.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        }
    }

    /// `x` rounded to this dtype, to nearest even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Dtype::F32 => x,
            Dtype::F16 => half::f16::from_f32(x).to_f32(),
            Dtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        }
    }
}

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
            MatrixPart::Random(random) => WeightFormat::Dense(random.dtype),
            MatrixPart::Quantised(view) => WeightFormat::Quantised(view.format),
            MatrixPart::Blocks(view) => WeightFormat::Blocks(view.kind),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.rows,
            MatrixPart::Random(random) => random.rows,
            MatrixPart::Quantised(view) => view.rows,
            MatrixPart::Blocks(view) => view.rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.cols,
            MatrixPart::Random(random) => random.cols,
            MatrixPart::Quantised(view) => view.cols,
            MatrixPart::Blocks(view) => view.cols,
        }
    }

    /// Elements of these columns as little-endian bytes of `dtype`, row-major: for backends that do not multiply the
    /// part's format.
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
                    MatrixPart::Random(random) => {
                        let number = |k: usize| random.dtype.round(random.numbers.at(row * cols + k));
                        numbers.iter_mut().enumerate().for_each(|(k, x)| *x = number(k));
                    }
                    MatrixPart::Quantised(view) => view.numbers(row, scratch, numbers),
                    MatrixPart::Blocks(view) => view.numbers(row, numbers),
                }
                bytes.copy_from_slice(&dtype.encode(&numbers[columns.clone()]));
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

/// A part of a matrix, and the dtype in which it becomes dense first, where a device does not multiply it as it is.
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
/// quantised.
pub fn with_bytes<T>(parts: &[MatrixPart<'_>], pack: impl FnOnce(&[WeightView<'_>]) -> T) -> T {
    let generate = |part: &MatrixPart<'_>| match part {
        MatrixPart::Random(random) => random.generate(),
        MatrixPart::Dense(_) | MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => Vec::new(),
    };
    let generated: Vec<Vec<u8>> = parts.iter().map(generate).collect();
    let views = parts.iter().zip(&generated).map(|(part, bytes)| match part {
        MatrixPart::Dense(view) => *view,
        MatrixPart::Random(random) => random.view(bytes),
        MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => {
            panic!("a dense part is expected, {} is given", part.format())
        }
    });
    pack(&views.collect::<Vec<_>>())
}

/// `rows x cols` elements of `dtype`, row-major, little-endian, not necessarily aligned. A vector has one row.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub bytes: &'a [u8],
}

impl WeightView<'_> {
    /// Element `i` (row-major), widened to f32.
    pub fn get(&self, i: usize) -> f32 {
        let at = i * self.dtype.bytes();
        let bytes = &self.bytes[at..at + self.dtype.bytes()];
        match self.dtype {
            Dtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Dtype::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Dtype::Bf16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }
}

/// Uniform random numbers in `centre - reach .. centre + reach`. Number `i` depends on `stream` and `i` only, so it can
/// be generated on any device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    pub stream: u64,
    pub centre: f32,
    pub reach: f32,
}

impl Uniform {
    /// Number `i`.
    pub fn at(&self, i: usize) -> f32 {
        let upper = mix(self.stream.wrapping_add(i as u64).wrapping_add(GOLDEN)) >> 40;
        // In [-1, 1), from the upper 24 bits.
        let unit = upper as f32 / (1 << 23) as f32 - 1.0;
        self.centre + self.reach * unit
    }
}

/// A random tensor, not generated yet: `rows x cols` of `numbers`, row-major, rounded to `dtype`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomWeight {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub numbers: Uniform,
}

impl RandomWeight {
    /// All elements as little-endian bytes.
    pub fn generate(&self) -> Vec<u8> {
        const CHUNK: usize = 1 << 14;
        let width = self.dtype.bytes();
        let mut bytes = vec![0; self.rows * self.cols * width];
        bytes.par_chunks_mut(CHUNK * width).enumerate().for_each(|(chunk, bytes)| {
            let first = chunk * CHUNK;
            let values: Vec<f32> = (first..first + bytes.len() / width).map(|i| self.numbers.at(i)).collect();
            bytes.copy_from_slice(&self.dtype.encode(&values));
        });
        bytes
    }

    /// A view of the bytes that `generate` returned.
    pub fn view<'a>(&self, bytes: &'a [u8]) -> WeightView<'a> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes }
    }
}
