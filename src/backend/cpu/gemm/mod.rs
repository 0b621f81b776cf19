//! Linear layers: packed weights (`pack`), the clear loops (`clear`), and the fast path: activations interleaved for
//! the kernels (`operand`), the walk over rows and panels (`drive`), and one room of kernels an instruction set. Which
//! numbers a path may round is stated at [`crate::backend`].
//!
//! Every output is one chain of multiply-adds over the inputs in rising order, whatever the number of rows: the walk
//! divides rows and outputs, never the sum.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod bf16_twin;
mod clear;
mod drive;
mod operand;
mod pack;

use super::rows::for_rows;
use super::{Buffer, Isa};
use crate::backend::Dtype;
use crate::ids::TokenId;
pub use pack::Matrix;

/// Memory that linear layers reuse from call to call.
#[derive(Default)]
pub struct Scratch {
    drive: drive::Scratch,
}

/// Whether a linear layer replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    Replace,
    Add,
}

/// `out[r] = table[tokens[r]]`, widened to f32.
pub fn embed(out: &mut Buffer, table: &Matrix, tokens: &[TokenId]) {
    assert_eq!((out.rows, out.width), (tokens.len(), table.cols), "embed: shape of the output");
    for_rows(out, |r, row| table.copy_row(tokens[r].ix(), row));
}

/// `out[r] = w x[r] (+ bias)`, or the same added to `out`. A row's result does not depend on how many rows there are.
pub fn linear(
    isa: Isa,
    scratch: &mut Scratch,
    out: &mut Buffer,
    x: &Buffer,
    w: &Matrix,
    bias: Option<&Vec<f32>>,
    into: Into,
) {
    assert_eq!((x.width, out.width, out.rows), (w.cols, w.rows, x.rows), "linear: shapes of input and output");
    assert!(bias.is_none_or(|bias| bias.len() == w.rows), "linear: length of the bias");
    let bias = bias.map(Vec::as_slice);
    match kernels(isa, w.dtype()) {
        Some(kernels) => drive::linear(isa, kernels, &mut scratch.drive, out, x, w, bias, into),
        None => clear::linear(out, x, w, bias, into),
    }
}

/// The kernels of a path, where they are not the clear loops.
fn kernels(isa: Isa, weights: Dtype) -> Option<&'static drive::Kernels> {
    match isa {
        Isa::Bf16Twin if weights == Dtype::Bf16 => Some(&bf16_twin::KERNELS),
        Isa::Portable | Isa::Bf16Twin => None,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(&avx2::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(&avx512::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => Some(&avx512_bf16::KERNELS),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => None,
    }
}
