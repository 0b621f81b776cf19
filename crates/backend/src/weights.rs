//! The dtypes of numbers and activations, dense weights as stored in a file (dtype, shape, borrowed bytes), and random
//! weights where there is no file. `matrix` makes matrices of them.

use std::ops::Range;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use offshoot_core::mix::{GOLDEN, mix};
use offshoot_core::named;

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

    /// Bits without the sign rise with the size of a number. From these on, a number of this dtype is infinite, or NaN,
    /// or one of the two when it is rounded to `becomes`.
    pub const fn not_finite_from(self, becomes: Dtype) -> u32 {
        match (self, becomes) {
            (Dtype::F32, Dtype::F32) => 0x7f80_0000,
            (Dtype::F32, Dtype::Bf16) => 0x7f7f_8000,
            // 65,520 is half-way between the largest number of f16 and what would follow.
            (Dtype::F32, Dtype::F16) => 65520f32.to_bits(),
            (Dtype::Bf16, Dtype::F16) => 65536f32.to_bits() >> 16,
            (Dtype::Bf16, Dtype::F32 | Dtype::Bf16) => 0x7f80,
            (Dtype::F16, _) => 0x7c00,
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
        let mut bytes = vec![0; values.len() * self.bytes()];
        self.write(values.iter().copied(), &mut bytes);
        bytes
    }

    /// Writes `values`, rounded to nearest even, as the little-endian bytes of this dtype, as many as `bytes` has room
    /// for.
    pub fn write(self, values: impl Iterator<Item = f32>, bytes: &mut [u8]) {
        match self {
            Dtype::F32 => bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = x.to_le_bytes()),
            Dtype::F16 => {
                let values = values.map(|x| half::f16::from_f32(x).to_le_bytes());
                bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = x);
            }
            Dtype::Bf16 => {
                let values = values.map(|x| half::bf16::from_f32(x).to_le_bytes());
                bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = x);
            }
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

/// What an activation buffer holds, and so the precision a backend must store it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationDtype {
    /// Sums that many layers add to, and logits: f32.
    Sums,
    /// Operands of dot products and results of linear layers: f32, or the compute dtype (given).
    Operands(Dtype),
}

impl ActivationDtype {
    /// The dtype that holds it in the fewest bytes.
    pub fn narrowest(self) -> Dtype {
        match self {
            ActivationDtype::Sums => Dtype::F32,
            ActivationDtype::Operands(dtype) => dtype,
        }
    }
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

/// `rows x cols` elements that were read from a device, row-major, little-endian. A vector has one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub bytes: Vec<u8>,
}

impl Elements {
    /// A vector of these numbers.
    pub fn of(values: &[f32]) -> Self {
        Self { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: Dtype::F32.encode(values) }
    }

    pub fn zeros(dtype: Dtype, rows: usize, cols: usize) -> Self {
        Self { dtype, rows, cols, bytes: vec![0; rows * cols * dtype.bytes()] }
    }

    pub fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes: &self.bytes }
    }

    /// These rows of it, as bytes.
    pub fn row_bytes(&self, rows: Range<usize>) -> &[u8] {
        let row = self.cols * self.dtype.bytes();
        &self.bytes[rows.start * row..rows.end * row]
    }

    /// Puts `other`, as wide as `columns`, into these columns of the rows from `row` on.
    pub fn put(&mut self, row: usize, columns: Range<usize>, other: WeightView<'_>) {
        assert_eq!((other.dtype, other.cols), (self.dtype, columns.len()), "elements of one dtype and width");
        let size = self.dtype.bytes();
        let (width, own) = (self.cols * size, columns.start * size..columns.end * size);
        let to = self.bytes[row * width..].chunks_exact_mut(width.max(1));
        let from = other.bytes.chunks_exact((columns.len() * size).max(1));
        to.zip(from).take(other.rows).for_each(|(to, from)| to[own.clone()].copy_from_slice(from));
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
    /// The numbers from number `first` on.
    pub fn from(self, first: usize) -> Self {
        // A number follows from the sum of the stream and its index.
        Self { stream: self.stream.wrapping_add(first as u64), ..self }
    }

    /// Number `i`.
    pub fn at(&self, i: usize) -> f32 {
        let upper = mix(self.stream.wrapping_add(i as u64).wrapping_add(GOLDEN)) >> 40;
        // In [-1, 1), from the upper 24 bits.
        let unit = upper as f32 / (1 << 23) as f32 - 1.0;
        self.centre + self.reach * unit
    }
}

/// A random tensor, not generated yet: `rows x cols` of `numbers`, rounded to `dtype`. Row `r` has the numbers from
/// `r * pitch` on: rows of a whole tensor follow each other, those of some of its columns do not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomWeight {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub pitch: usize,
    pub numbers: Uniform,
}

impl RandomWeight {
    /// A whole tensor, row-major.
    pub fn of(dtype: Dtype, rows: usize, cols: usize, numbers: Uniform) -> Self {
        Self { dtype, rows, cols, pitch: cols, numbers }
    }

    /// Element `col` of row `row`, rounded.
    pub fn at(&self, row: usize, col: usize) -> f32 {
        self.dtype.round(self.numbers.at(row * self.pitch + col))
    }

    /// These rows of it.
    pub fn rows(&self, range: Range<usize>) -> Self {
        Self { rows: range.len(), numbers: self.numbers.from(range.start * self.pitch), ..*self }
    }

    /// These columns of it.
    pub fn columns(&self, range: Range<usize>) -> Self {
        Self { cols: range.len(), numbers: self.numbers.from(range.start), ..*self }
    }

    /// All elements as little-endian bytes, row-major.
    pub fn generate(&self) -> Vec<u8> {
        const CHUNK: usize = 1 << 14;
        let width = self.dtype.bytes();
        let mut bytes = vec![0; self.rows * self.cols * width];
        let rows = bytes.par_chunks_mut((self.cols * width).max(1)).enumerate();
        rows.flat_map(|(row, bytes)| bytes.par_chunks_mut(CHUNK * width).enumerate().map(move |chunk| (row, chunk)))
            .for_each(|(row, (chunk, bytes))| {
                let first = row * self.pitch + chunk * CHUNK;
                self.dtype.write((first..).map(|i| self.numbers.at(i)), bytes);
            });
        bytes
    }

    /// A view of the bytes that `generate` returned.
    pub fn view<'a>(&self, bytes: &'a [u8]) -> WeightView<'a> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes }
    }
}
