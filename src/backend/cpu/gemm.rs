//! Linear layers.
use super::{Buffer, Isa};
use crate::backend::{Dtype, WeightView};
use crate::ids::TokenId;

#[derive(Default)]
pub struct Scratch {}

/// Whether a linear layer replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    Replace,
    Add,
}

pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub dtype: Dtype,
}

impl Matrix {
    pub fn pack(isa: Isa, parts: &[WeightView<'_>]) -> Self {
        let _ = (isa, parts);
        unimplemented!("owner: gemm")
    }
}

pub fn embed(out: &mut Buffer, table: &Matrix, tokens: &[TokenId]) {
    let _ = (out, table, tokens);
    unimplemented!("owner: gemm")
}

pub fn linear(
    isa: Isa,
    scratch: &mut Scratch,
    out: &mut Buffer,
    x: &Buffer,
    w: &Matrix,
    bias: Option<&Vec<f32>>,
    into: Into,
) {
    let _ = (isa, scratch, out, x, w, bias, into);
    unimplemented!("owner: gemm")
}
