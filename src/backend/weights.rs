//! Weights as they lie in a file (dtype, shape and bytes, borrowed) and the numbers that stand for them where there is no file.
//! Loading is `model::weights`; packing is each backend's.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::mix::{GOLDEN, mix};

/// Element type of weights, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
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

    /// One rounding to this dtype, relative: half the distance of neighbours above 1, the most that a normal number is off.
    pub const fn rounding(self) -> f64 {
        1.0 / match self {
            Dtype::F32 => (1 << 24) as f64,
            Dtype::F16 => (1 << 11) as f64,
            Dtype::Bf16 => (1 << 8) as f64,
        }
    }

    /// `values` as a file of this dtype holds them, rounded to nearest even.
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

/// Numbers within `reach` of `centre`, uniform: number `i` depends on `stream` and `i` alone, so that it can be drawn anywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    pub stream: u64,
    pub centre: f32,
    pub reach: f32,
}

impl Uniform {
    pub fn at(&self, i: usize) -> f32 {
        let upper = mix(self.stream.wrapping_add(i as u64).wrapping_add(GOLDEN)) >> 40;
        // In [-1, 1), of the upper 24 bits.
        let unit = upper as f32 / (1 << 23) as f32 - 1.0;
        self.centre + self.reach * unit
    }
}

/// A tensor that nobody has yet: `rows x cols` of `numbers`, row-major, rounded to `dtype`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomWeight {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub numbers: Uniform,
}

impl RandomWeight {
    /// All elements, as they would lie in a file.
    pub fn draw(&self) -> Vec<u8> {
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

    /// What `draw` returned, as a tensor.
    pub fn view<'a>(&self, drawn: &'a [u8]) -> WeightView<'a> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes: drawn }
    }
}
