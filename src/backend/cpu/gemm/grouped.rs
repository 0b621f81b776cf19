//! Linear layers of experts: each expert multiplies the rows that chose it. The products are those of `linear`, so what a
//! row gets depends on that row and its expert only.

use std::ops::Range;

use super::drive::{self, GemmScratch, GroupedPart};
use super::stack::{Piece, linear_stack};
use super::{OutputMode, clear, kernels};
use crate::backend::ExpertInput;
use crate::backend::cpu::rows::for_rows;
use crate::backend::cpu::{CpuBuffer, CpuExperts, CpuRoutes, Isa};

/// See `Backend::expert_linear`.
pub fn expert_linear(
    isa: Isa,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    experts: &CpuExperts,
    routes: &CpuRoutes,
    input: ExpertInput,
) {
    assert_eq!(out.rows, routes.places(), "expert_linear: rows of the output");
    match input {
        ExpertInput::Places => multiply(isa, scratch, out, x, experts, routes),
        ExpertInput::Rows => {
            let mut places = std::mem::take(&mut scratch.inputs);
            (places.rows, places.width) = (routes.places(), x.width);
            places.data.resize(places.rows * places.width, 0.0);
            for_rows(&mut places, |place, to| to.copy_from_slice(x.row(routes.row(place))));
            multiply(isa, scratch, out, &places, experts, routes);
            scratch.inputs = places;
        }
    }
}

/// `x`: a row for each place. Experts whose matrices have several pieces, or quantised ones, are multiplied one by one.
fn multiply(
    isa: Isa,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    experts: &CpuExperts,
    routes: &CpuRoutes,
) {
    let first = &experts.matrices[0];
    assert_eq!((x.width, out.width, x.rows), (first.cols, first.rows, out.rows), "expert_linear: shapes");
    let dense = |expert: usize| match experts.matrices[expert].pieces() {
        [Piece::Dense(matrix)] => Some(matrix),
        _ => None,
    };
    let part = |(expert, rows)| Some(GroupedPart { w: dense(expert)?, bias: experts.bias(expert), rows });
    match routes.groups().map(part).collect::<Option<Vec<GroupedPart<'_>>>>() {
        Some(parts) => match parts.first().and_then(|part| kernels(isa, part.w.dtype())) {
            Some(kernels) => drive::grouped(isa, kernels, scratch, out, x, &parts),
            None => parts.iter().for_each(|part| {
                of_rows(out, x, &part.rows, |out, x| clear::linear(out, x, part.w, part.bias, OutputMode::Replace));
            }),
        },
        None => routes.groups().for_each(|(expert, rows)| {
            let (w, bias) = (&experts.matrices[expert], experts.bias(expert));
            of_rows(out, x, &rows, |out, x| linear_stack(isa, scratch, out, x, w, bias, OutputMode::Replace));
        }),
    }
}

/// Calls `multiply` with copies of these rows of both buffers, and keeps the output.
fn of_rows(out: &mut CpuBuffer, x: &CpuBuffer, rows: &Range<usize>, multiply: impl FnOnce(&mut CpuBuffer, &CpuBuffer)) {
    let own = |buffer: &CpuBuffer| CpuBuffer {
        rows: rows.len(),
        width: buffer.width,
        data: buffer.data[rows.start * buffer.width..rows.end * buffer.width].to_vec(),
    };
    let mut product = own(out);
    multiply(&mut product, &own(x));
    out.data[rows.start * out.width..rows.end * out.width].copy_from_slice(&product.data);
}
