//! Quantised matrices: codes of 4 or 8 bits, the scales and zero points by which they become numbers, and what
//! activations are rounded to before they are multiplied. `codes` decodes single codes, `source` reads the packings in
//! which checkpoints are published and makes codes of dense weights, `view` reads rows of either, `rounding` rounds
//! activations. `model::weights` finds the tensors; each backend packs them in its own layout.
//!
//! An element is `scale * (code - zero)`: `scale` is that of the element's output and group of inputs, `zero` is 0
//! where the format has no zero points. Scales of e2m1 are powers of two in groups of 32 (MXFP4), and in groups of 16
//! e4m3 numbers times a factor of the output (NVFP4).

mod codes;
mod rounding;
mod source;
mod view;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use codes::{CodeFormat, e2m1, e4m3_code, e4m3_value};
pub use rounding::{ActivationScale, Rounding, RoundingKind, int8_code, largest, round_row};
pub use source::{QuantRow, QuantSource, ScaleSource, power_of_two};
pub use view::{QuantView, row_of_stack};

/// Inputs that share a scale of NVFP4.
pub const NVFP4_GROUP: u32 = 16;

/// How a quantised matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QuantFormat {
    pub codes: CodeFormat,
    /// Inputs that share a scale; `None`: all inputs of an output.
    pub group: Option<u32>,
    /// Whether each group has a zero point.
    pub zeros: bool,
    /// What the activations are rounded to.
    pub rounding: Rounding,
}

impl QuantFormat {
    /// Whether it is one that GPUs multiply from 4-bit codes, and the inputs that share a scale there: int4 in groups
    /// of 32, 64 or a multiple of 128, or with a scale for each output; e2m1 in groups of 32, or 16 as NVFP4.
    /// Activations are not rounded.
    pub fn four_bit_group(self) -> Option<usize> {
        let group = match (self.codes, self.group) {
            (CodeFormat::Int4, Some(group @ (32 | 64))) => group,
            (CodeFormat::Int4, None) => 128,
            (CodeFormat::Int4, Some(group)) if group > 0 && group.is_multiple_of(128) => 128,
            (CodeFormat::Fp4, Some(group @ (32 | NVFP4_GROUP))) if !self.zeros => group,
            _ => return None,
        };
        (self.rounding == Rounding::Exact).then_some(group as usize)
    }

    /// Whether its scales are e4m3 numbers times a factor of each output (NVFP4).
    pub fn is_nvfp4(self) -> bool {
        self.codes == CodeFormat::Fp4 && self.group == Some(NVFP4_GROUP)
    }

    /// Scales of each output.
    pub fn groups(self, cols: usize) -> usize {
        self.group.map_or(1, |group| cols.div_ceil(group as usize))
    }

    /// Inputs that share a scale.
    pub fn group_inputs(self, cols: usize) -> usize {
        self.group.map_or(cols, |group| group as usize)
    }

    /// Bytes of the codes, scales (f32, of e2m1 one byte) and zero points (one byte each) of a matrix in memory, and of
    /// its factors (f32).
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        let scale = if self.codes == CodeFormat::Fp4 { 1 } else { size_of::<f32>() };
        let factor = if self.is_nvfp4() { size_of::<f32>() } else { 0 };
        let codes = rows * (cols * self.codes.bits()).div_ceil(8);
        codes + rows * (self.groups(cols) * (scale + usize::from(self.zeros)) + factor)
    }
}

/// `int4 in groups of 128`: the codes and the groups; two formats that differ by their activations have equal names.
impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = if self.is_nvfp4() { "nvfp4" } else { self.codes.name() };
        match self.group {
            None => f.write_str(codes),
            Some(group) => write!(f, "{codes} in groups of {group}"),
        }
    }
}
