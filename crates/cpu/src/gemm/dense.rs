//! Linear layers with dense weights: the kernels of each path, or the clear loops.

use super::clear;
use super::drive::{self, DenseScratch};
use super::kernel::GemmKernels;
use super::pack::CpuMatrix;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512, avx512_bf16};
use crate::{Cores, CpuBuffer, Isa};
use offshoot_backend::{Dtype, OutputMode};

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    cores: &Cores,
    scratch: &mut DenseScratch,
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
pub fn kernels(isa: Isa, weights: Dtype) -> Option<&'static GemmKernels> {
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
