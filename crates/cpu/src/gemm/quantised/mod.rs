//! Linear layers with quantised weights: the layout (`panels`, `scales`), activations (`operand`), the clear loops
//! (`clear`), and the fast path: what a few panels are multiplied by (`drive`; `wide` for many rows) and the kernels of
//! each instruction set (`layouts` lists the formats that they are compiled for).
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
#[cfg(target_arch = "x86_64")]
mod layouts;
mod operand;
mod panels;
mod scales;
mod wide;

use super::coded::CodedCall;
use crate::{Cores, CpuBuffer, Isa};
use drive::QuantKernels;
use offshoot_backend::OutputMode;

pub use drive::{QuantScratch, multiply};
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
    let (mut parts, input) = (std::iter::once((0, 0..x.rows)), |row: usize| x.row(row));
    let weights = |_: usize| (w, bias);
    let call = CodedCall { cores, out, parts: &mut parts, input: &input, like: w, weights: &weights, mode };
    multiply(call, &kernels, scratch);
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
