//! Weights as they lie in a file (dtype, shape and bytes, borrowed) and the numbers that stand for them where there is no file.
//! Loading is `model::weights`; packing is each backend's.

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
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
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
