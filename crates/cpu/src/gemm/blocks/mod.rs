//! Linear layers with weights in the blocks of GGUF files: their layout (`codes`, `panels`), activations (`operand`),
//! the definition (`clear`), and the fast path: what a few panels are multiplied by (`drive`) and the kernels of each
//! instruction set (`layouts` lists what they are compiled for). Where activations are to stay as they are, `numbers`
//! multiplies.
//!
//! Activations are rounded to int8, each 32 neighbours by a scale of their own (llama.cpp: Q8_0). Products of codes are
//! summed as integers, exactly, where they share a scale; these sums times both scales are added in f32 in rising
//! order. Every instruction set computes the same bits.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod clear;
mod codes;
mod drive;
pub mod kernel;
#[cfg(target_arch = "x86_64")]
mod layouts;
mod numbers;
pub mod operand;
pub mod panels;

use super::coded::CodedCall;
use crate::{Cores, CpuBuffer, Isa};
use kernel::BlockKernels;
use offshoot_backend::OutputMode;

pub use drive::{BlockScratch, multiply};
pub use panels::BlockPanels;

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    cores: &Cores,
    scratch: &mut BlockScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &BlockPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    let (mut parts, input) = (std::iter::once((0, 0..x.rows)), |row: usize| x.row(row));
    let weights = |_: usize| (w, bias);
    let call = CodedCall { cores, out, parts: &mut parts, input: &input, like: w, weights: &weights, mode };
    multiply(call, &kernels(cores.isa, w), scratch);
}

/// The fastest kernels of a path for these weights.
pub fn kernels(isa: Isa, w: &BlockPanels) -> BlockKernels {
    if w.exact {
        return numbers::KERNELS;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let vnni = is_x86_feature_detected!("avx512vnni");
        let avx_vnni = is_x86_feature_detected!("avxvnni");
        match isa {
            Isa::Portable => clear::KERNELS,
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if vnni => avx512::kernels(w.kind),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if avx_vnni => avx2::vnni(w.kind),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx2::pairs(w.kind),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        clear::KERNELS
    }
}
