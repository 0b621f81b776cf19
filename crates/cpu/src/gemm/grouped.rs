//! Linear layers of experts: each expert multiplies the rows that chose it. The products are those of `linear`, so what
//! a row gets depends on that row and its expert only.

use std::ops::Range;

use super::blocks::{self, BlockPanels};
use super::coded::CodedCall;
use super::dense;
use super::drive;
use super::pack::CpuMatrix;
use super::quantised::{self, QuantPanels};
use super::stack::{CpuWeights, GemmScratch, Piece, linear_stack};
use crate::{Cores, CpuBuffer, CpuExperts, CpuRoutes};
use offshoot_backend::{ExpertInput, OutputMode};

/// See `Backend::expert_linear`. Experts whose matrices have several pieces or different formats, or for whose format
/// this path has no kernels, are multiplied one by one.
pub fn expert_linear(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    experts: &CpuExperts,
    routes: &CpuRoutes,
    input: ExpertInput,
) {
    let first = &experts.matrices[0];
    assert_eq!(out.rows, routes.places(), "expert_linear: rows of the output");
    assert_eq!((x.width, out.width), (first.cols, first.rows), "expert_linear: widths");
    let input = |place: usize| match input {
        ExpertInput::Places => x.row(place),
        ExpertInput::Rows => x.row(routes.row(place)),
    };
    let (isa, groups) = (cores.isa, || routes.groups());
    let chosen = || groups().map(|(expert, _)| &experts.matrices[expert]);
    let bias = |expert: usize| experts.bias(expert);
    let common_piece = "matrices with common kernels have pieces of one kind";
    let dense = common(chosen().map(dense_of), |a, b| a.dtype() == b.dtype());
    if let Some(kernels) = dense.and_then(|first| dense::kernels(isa, first.dtype())) {
        let weights = |expert: usize| (dense_of(&experts.matrices[expert]).expect(common_piece), bias(expert));
        return drive::grouped(cores, kernels, &mut scratch.dense, out, groups(), input, weights);
    }
    let (parts, mode) = (&mut groups(), OutputMode::Replace);
    if let Some(like) = common(chosen().map(panels_of), |a, b| a.format == b.format)
        && let Some(kernels) = quantised::kernels(isa, like)
    {
        let weights = |expert: usize| (panels_of(&experts.matrices[expert]).expect(common_piece), bias(expert));
        let call = CodedCall { cores, out, parts, input: &input, like, weights: &weights, mode };
        return quantised::multiply(call, &kernels, &mut scratch.quantised);
    }
    if let Some(like) = common(chosen().map(blocks_of), |a, b| (a.kind, a.exact) == (b.kind, b.exact)) {
        let weights = |expert: usize| (blocks_of(&experts.matrices[expert]).expect(common_piece), bias(expert));
        let call = CodedCall { cores, out, parts, input: &input, like, weights: &weights, mode };
        return blocks::multiply(call, &blocks::kernels(isa, like), &mut scratch.blocks);
    }
    groups().for_each(|(expert, rows)| alone(cores, scratch, out, experts, expert, rows, input));
}

/// `out[r] = w x[r]`, of a dense matrix.
pub fn linear_dense(cores: &Cores, scratch: &mut GemmScratch, out: &mut CpuBuffer, x: &CpuBuffer, w: &CpuMatrix) {
    dense::linear(cores, &mut scratch.dense, out, x, w, None, OutputMode::Replace);
}

/// Multiplies neighbouring rows by dense matrices of one shape and dtype, as `expert_linear` does by those of experts:
/// `groups` has the numbers of matrices and their rows of `out`, `input` the activations of a row.
pub fn grouped_dense<'x>(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    groups: impl Iterator<Item = (usize, Range<usize>)>,
    input: impl Fn(usize) -> &'x [f32] + Sync,
    matrix: impl Fn(usize) -> &'x CpuMatrix + Sync,
) {
    let mut groups = groups.peekable();
    let Some(&(first, _)) = groups.peek() else { return };
    let dtype = matrix(first).dtype();
    if let Some(kernels) = dense::kernels(cores.isa, dtype) {
        return drive::grouped(cores, kernels, &mut scratch.dense, out, groups, input, |number| (matrix(number), None));
    }
    for (number, rows) in groups {
        let w = matrix(number);
        let x = CpuBuffer { rows: rows.len(), width: w.cols, data: rows.clone().flat_map(&input).copied().collect() };
        let mut own = CpuBuffer::new(rows.len(), out.width);
        dense::linear(cores, &mut scratch.dense, &mut own, &x, w, None, OutputMode::Replace);
        out.data[rows.start * out.width..rows.end * out.width].copy_from_slice(&own.data);
    }
}

/// The first of the pieces, if all are there and like it.
fn common<'w, T>(mut pieces: impl Iterator<Item = Option<&'w T>>, alike: impl Fn(&T, &T) -> bool) -> Option<&'w T> {
    let first = pieces.next()??;
    pieces.all(|piece| piece.is_some_and(|piece| alike(first, piece))).then_some(first)
}

/// Functions that return the matrix, if it is one piece of that kind.
macro_rules! one_piece {
    ($(fn $name:ident = $kind:ident -> $of:ty;)*) => {$(
        fn $name(weights: &CpuWeights) -> Option<&$of> {
            if let [Piece::$kind(piece)] = weights.pieces() { Some(piece) } else { None }
        }
    )*};
}

one_piece! {
    fn dense_of = Dense -> CpuMatrix;
    fn panels_of = Quantised -> QuantPanels;
    fn blocks_of = Blocks -> BlockPanels;
}

/// Multiplies the rows of one expert.
fn alone<'x>(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    experts: &CpuExperts,
    expert: usize,
    rows: Range<usize>,
    input: impl Fn(usize) -> &'x [f32],
) {
    let w = &experts.matrices[expert];
    let data = rows.clone().flat_map(input).copied().collect();
    let x = CpuBuffer { rows: rows.len(), width: w.cols, data };
    let mut own = CpuBuffer::new(rows.len(), out.width);
    linear_stack(cores, scratch, &mut own, &x, w, experts.bias(expert), OutputMode::Replace);
    out.data[rows.start * out.width..rows.end * out.width].copy_from_slice(&own.data);
}
