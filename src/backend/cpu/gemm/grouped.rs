//! Linear layers of experts: each expert multiplies the rows that chose it. The products are those of `linear`, so what a
//! row gets depends on that row and its expert only.

use std::ops::Range;

use super::drive::{self, GemmScratch};
use super::{OutputMode, clear, kernels};
use crate::backend::ExpertInput;
use crate::backend::cpu::{Cores, CpuBuffer, CpuExperts, CpuRoutes};

/// See `Backend::expert_linear`.
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
    match kernels(cores.isa, first.dtype()) {
        Some(kernels) => {
            let weights = |expert: usize| (&experts.matrices[expert], experts.bias(expert));
            drive::grouped(cores, kernels, scratch, out, routes.groups(), input, weights);
        }
        None => routes.groups().for_each(|(expert, rows)| clear_group(cores, out, experts, expert, rows, input)),
    }
}

/// The clear loops over the rows of one expert.
fn clear_group<'x>(
    cores: &Cores,
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
    clear::linear(&cores.team, &mut own, &x, w, experts.bias(expert), OutputMode::Replace);
    out.data[rows.start * out.width..rows.end * out.width].copy_from_slice(&own.data);
}
