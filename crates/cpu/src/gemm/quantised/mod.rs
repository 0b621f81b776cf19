//! Linear layers with quantised weights: the layout (`panels`), activations (`operand`), the clear loops (`clear`), and
//! the fast path: loops over rows and panels (`drive`; `wide` for many rows) and the kernels of each instruction set.
//!
//! Products of integers are exact, so all paths agree in every bit where weights and activations are int8. Elsewhere
//! paths differ as sums in f32 do: the kernels fuse the multiply-adds that the clear loops round twice.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_wide;
mod clear;
mod drive;
mod operand;
mod panels;
mod wide;

use std::ops::Range;

use super::output::OutputMode;
use crate::{Cores, CpuBuffer, Isa};

pub use drive::{QuantKernels, QuantScratch};
pub use panels::QuantPanels;

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    cores: &Cores,
    scratch: &mut QuantScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &QuantPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    let Some(kernels) = kernels(cores.isa, w) else {
        return clear::linear(&cores.team, out, x, w, bias, mode);
    };
    let parts = std::iter::once((0, 0..x.rows));
    drive::multiply(cores, &kernels, scratch, out, parts, |row| x.row(row), |_| (w, bias), mode);
}

/// Multiplies neighbouring rows by the matrix of their expert, as `drive::grouped` of dense weights does. All matrices
/// have one shape and format, that of `kernels`.
pub fn grouped<'x>(
    cores: &Cores,
    kernels: &QuantKernels,
    scratch: &mut QuantScratch,
    out: &mut CpuBuffer,
    expert_rows: impl Iterator<Item = (usize, Range<usize>)>,
    input: impl Fn(usize) -> &'x [f32] + Sync,
    weights: impl Fn(usize) -> (&'x QuantPanels, Option<&'x [f32]>) + Sync,
) {
    drive::multiply(cores, kernels, scratch, out, expert_rows, input, weights, OutputMode::Replace);
}

/// The kernels of a path for these weights; `None` where the clear loops are used.
pub fn kernels(isa: Isa, w: &QuantPanels) -> Option<QuantKernels> {
    #[cfg(target_arch = "x86_64")]
    {
        let is_integer = operand::is_integer(w);
        match isa {
            Isa::Portable => None,
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if is_integer && is_x86_feature_detected!("avx512vnni") => {
                Some(avx512::BYTES)
            }
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if !is_integer => Some(avx512::numbers(w.format)),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if is_integer => Some(avx2::BYTES),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => Some(avx2::numbers(w.format)),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, w);
        None
    }
}
