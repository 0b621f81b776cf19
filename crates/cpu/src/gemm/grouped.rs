//! Linear layers of experts: each expert multiplies the rows that chose it. The products are those of `linear`, so what
//! a row gets depends on that row and its expert only.

use std::ops::Range;

use super::dense;
use super::drive;
use super::kernel::GemmKernels;
use super::output::OutputMode;
use super::pack::CpuMatrix;
use super::quantised::{self, QuantPanels};
use super::stack::{CpuWeights, GemmScratch, Piece, linear_stack};
use crate::{Cores, CpuBuffer, CpuExperts, CpuRoutes, Isa};
use offshoot_backend::ExpertInput;

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
    let chosen = || routes.groups().map(|(expert, _)| &experts.matrices[expert]);
    if let Some(kernels) = common_kernels(cores.isa, chosen()) {
        let weights = |expert: usize| {
            let w = dense_of(&experts.matrices[expert]).expect("matrices with common kernels are dense");
            (w, experts.bias(expert))
        };
        return drive::grouped(cores, kernels, &mut scratch.dense, out, routes.groups(), input, weights);
    }
    if let Some(kernels) = common_quantised_kernels(cores.isa, chosen()) {
        let weights = |expert: usize| {
            let w = panels_of(&experts.matrices[expert]).expect("matrices with common kernels are quantised");
            (w, experts.bias(expert))
        };
        return quantised::grouped(cores, &kernels, &mut scratch.quantised, out, routes.groups(), input, weights);
    }
    routes.groups().for_each(|(expert, rows)| alone(cores, scratch, out, experts, expert, rows, input));
}

/// The matrix, if it is one dense piece.
fn dense_of(weights: &CpuWeights) -> Option<&CpuMatrix> {
    match weights.pieces() {
        [Piece::Dense(matrix)] => Some(matrix),
        _ => None,
    }
}

/// The matrix, if it is one quantised piece.
fn panels_of(weights: &CpuWeights) -> Option<&QuantPanels> {
    match weights.pieces() {
        [Piece::Quantised(panels)] => Some(panels),
        _ => None,
    }
}

/// The kernels of all `matrices`, if each is one dense piece, all have one dtype, and there are kernels for it.
fn common_kernels<'w>(isa: Isa, mut matrices: impl Iterator<Item = &'w CpuWeights>) -> Option<&'static GemmKernels> {
    let dtype = dense_of(matrices.next()?)?.dtype();
    matrices.all(|w| dense_of(w).is_some_and(|w| w.dtype() == dtype)).then(|| dense::kernels(isa, dtype))?
}

/// The kernels of all `matrices`, if each is one quantised piece, all have one format, and there are kernels for it.
fn common_quantised_kernels<'w>(
    isa: Isa,
    mut matrices: impl Iterator<Item = &'w CpuWeights>,
) -> Option<quantised::QuantKernels> {
    let first = panels_of(matrices.next()?)?;
    matrices.all(|w| panels_of(w).is_some_and(|w| w.format == first.format)).then(|| quantised::kernels(isa, first))?
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
