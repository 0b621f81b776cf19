//! Linear layers: packed weights (`pack`), the clear loops (`clear`) and the fast paths beside them. Here are the entry points
//! and the choice between paths; which numbers a path may round is stated at [`crate::backend`].

mod clear;
mod pack;

use super::{Buffer, Isa};
use crate::ids::TokenId;
pub use pack::Matrix;

/// Memory that linear layers reuse from call to call.
#[derive(Default)]
pub struct Scratch {}

/// Whether a linear layer replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    Replace,
    Add,
}

/// `out[r] = table[tokens[r]]`, widened to f32.
pub fn embed(out: &mut Buffer, table: &Matrix, tokens: &[TokenId]) {
    assert_eq!((out.rows, out.width), (tokens.len(), table.cols), "embed: shape of the output");
    for (row, token) in out.data.chunks_exact_mut(table.cols).zip(tokens) {
        table.copy_row(token.ix(), row);
    }
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
    let _ = (isa, scratch);
    clear::linear(out, x, w, bias.map(Vec::as_slice), into);
}
