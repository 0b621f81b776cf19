//! Linear layers: weights packed in panels (`pack`), the clear loops (`clear`), and the fast path: activations packed
//! for the kernels (`operand`), the loops over rows and panels (`drive`), which threads share out (`shares`), the lines
//! that are prefetched (`lines_ahead`), and the kernels of each instruction set.
//! Which operands may be rounded is stated in [`offshoot_backend`].
//!
//! Every output is one sequence of sums over the inputs in rising order, whatever the number of rows: the work is
//! divided by rows and outputs, never along the sum.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
pub mod blocks;
mod clear;
pub mod drive;
mod grouped;
pub mod lines_ahead;
#[cfg(target_arch = "x86_64")]
mod one_row;
pub mod operand;
pub mod pack;
mod quantised;
pub mod shares;
mod stack;
#[cfg(target_arch = "x86_64")]
mod widening;

use super::{Cores, CpuBuffer, Isa};
pub use drive::GemmScratch;
pub use grouped::expert_linear;
use offshoot_backend::Dtype;
pub use pack::CpuMatrix;
pub use stack::{CpuWeights, Piece, embed, linear_stack};

/// Whether a linear layer replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Replace,
    Add,
}

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &CpuMatrix,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    assert_eq!((x.width, out.width, out.rows), (w.cols, w.rows, x.rows), "linear: shapes of input and output");
    assert!(bias.is_none_or(|bias| bias.len() == w.rows), "linear: length of the bias");
    match kernels(cores.isa, w.dtype()) {
        Some(kernels) => drive::linear(cores, kernels, scratch, out, x, w, bias, mode),
        None => clear::linear(&cores.team, out, x, w, bias, mode),
    }
}

/// The kernels of a path for weights of this dtype; `None` where the clear loops are used.
fn kernels(isa: Isa, weights: Dtype) -> Option<&'static drive::GemmKernels> {
    match isa {
        Isa::Portable => None,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(&avx2::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(&avx512::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => Some(&avx512_bf16::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if weights == Dtype::Bf16 => Some(&amx::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => Some(&avx512::KERNELS),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
            let _ = weights;
            None
        }
    }
}
