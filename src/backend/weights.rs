//! Weights as stored in a file (format, shape, borrowed bytes), and random weights where there is no file.
//! `model::weights` loads them; each backend packs them in its own layout.
//!
//! Three types are separate: how a matrix is stored ([`WeightFormat`]), the dtype of the operands of its products
//! ([`Dtype`], the compute dtype), and how keys and values are stored (`KvDtype`).

use std::fmt;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::mix::{GOLDEN, mix};

/// Element type of activations, vectors and dense arrays. As the type of the operands of products: the *compute dtype*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

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

/// The name in configs, on the command line and in messages.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        })
    }
}

/// How a weight matrix is stored, in its file and on the device. Formats with scales (FP8 in blocks, 4-bit groups)
/// would be further variants, each with a variant of [`MatrixPart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// Elements of one dtype, without scales.
    Dense(Dtype),
}

impl WeightFormat {
    /// The dtype of the operands of such a matrix's products.
    pub fn compute_dtype(self) -> Dtype {
        match self {
            WeightFormat::Dense(dtype) => dtype,
        }
    }

    /// Bytes of this many elements.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            WeightFormat::Dense(dtype) => elements * dtype.bytes(),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightFormat::Dense(dtype) => dtype.fmt(f),
        }
    }
}

/// One of the tensors that are stacked into a matrix (`Backend::matrix`).
#[derive(Clone, Copy, Debug)]
pub enum MatrixPart<'a> {
    Dense(WeightView<'a>),
    /// Random numbers, generated on the device.
    Random(RandomWeight),
}

impl MatrixPart<'_> {
    pub fn format(&self) -> WeightFormat {
        match self {
            MatrixPart::Dense(view) => WeightFormat::Dense(view.dtype),
            MatrixPart::Random(random) => WeightFormat::Dense(random.dtype),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.rows,
            MatrixPart::Random(random) => random.rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            MatrixPart::Dense(view) => view.cols,
            MatrixPart::Random(random) => random.cols,
        }
    }
}

/// The shape of stacked parts: their common format and width, and the sum of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackShape {
    pub format: WeightFormat,
    pub rows: usize,
    pub cols: usize,
}

impl StackShape {
    /// Panics if `parts` is empty or parts differ in width or format.
    pub fn of(parts: &[MatrixPart<'_>]) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let (format, cols) = (first.format(), first.cols());
        assert!(
            parts.iter().all(|part| (part.format(), part.cols()) == (format, cols)),
            "stacked parts agree in width and format"
        );
        Self { format, rows: parts.iter().map(MatrixPart::rows).sum(), cols }
    }
}

/// Calls `pack` with views of `parts` in host memory; random parts are generated first.
pub fn with_bytes<T>(parts: &[MatrixPart<'_>], pack: impl FnOnce(&[WeightView<'_>]) -> T) -> T {
    let generate = |part: &MatrixPart<'_>| match part {
        MatrixPart::Dense(_) => Vec::new(),
        MatrixPart::Random(random) => random.generate(),
    };
    let generated: Vec<Vec<u8>> = parts.iter().map(generate).collect();
    let views = parts.iter().zip(&generated).map(|(part, bytes)| match part {
        MatrixPart::Dense(view) => *view,
        MatrixPart::Random(random) => random.view(bytes),
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
