//! Linear layers with quantised weights: the layout (`panels`), activations (`operand`), the clear loops (`clear`), and the
//! fast path: loops over rows and panels (`drive`) and the kernels of each instruction set.
//!
//! Products of integers are exact, so all paths agree in every bit where weights and activations are int8. Elsewhere paths
//! differ as sums in f32 do: the kernels fuse the multiply-adds that the clear loops round twice.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod clear;
mod drive;
mod operand;
mod panels;

use super::{GemmScratch, OutputMode};
use crate::backend::cpu::{CpuBuffer, Isa};

pub use drive::{QuantPart, QuantScratch};
pub use panels::QuantPanels;

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    isa: Isa,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &QuantPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    match kernels(isa, w) {
        Some(kernels) => {
            let part = QuantPart { w, bias, rows: 0..x.rows };
            drive::multiply(&kernels, &mut scratch.quantised, out, x, &[part], mode);
        }
        None => clear::linear(out, x, w, bias, mode),
    }
}

/// Multiplies the rows of each part by its matrix, on a path that has kernels; returns whether this one has.
pub fn grouped(
    isa: Isa,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    parts: &[QuantPart<'_>],
) -> bool {
    let Some(kernels) = parts.first().and_then(|part| kernels(isa, part.w)) else { return false };
    drive::multiply(&kernels, &mut scratch.quantised, out, x, parts, OutputMode::Replace);
    true
}

/// The kernels of a path for these weights; `None` where the clear loops are used.
fn kernels(isa: Isa, w: &QuantPanels) -> Option<drive::QuantKernels> {
    #[cfg(target_arch = "x86_64")]
    {
        let is_integer = operand::is_integer(w);
        match isa {
            Isa::Portable | Isa::Bf16Twin => None,
            Isa::Avx512 | Isa::Avx512Bf16 if is_integer && is_x86_feature_detected!("avx512vnni") => {
                Some(avx512::BYTES)
            }
            Isa::Avx512 | Isa::Avx512Bf16 if !is_integer => Some(avx512::numbers(w.format)),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 if is_integer => Some(avx2::BYTES),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => Some(avx2::numbers(w.format)),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, w);
        None
    }
}
