//! Linear layers of experts: each expert multiplies the rows that chose it. The products are those of `linear`, so what a
//! row gets depends on that row and its expert only.

use super::drive::{self, GemmScratch, GroupedPart};
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

/// `x`: a row for each place.
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
    let part = |(expert, rows)| GroupedPart { w: &experts.matrices[expert], bias: experts.bias(expert), rows };
    let parts: Vec<GroupedPart<'_>> = routes.groups().map(part).collect();
    match kernels(isa, first.dtype()) {
        Some(kernels) => drive::grouped(isa, kernels, scratch, out, x, &parts),
        None => parts.iter().for_each(|part| clear_part(out, x, part)),
    }
}

/// The clear loops over the rows of one expert.
fn clear_part(out: &mut CpuBuffer, x: &CpuBuffer, part: &GroupedPart<'_>) {
    let rows = |buffer: &CpuBuffer| CpuBuffer {
        rows: part.rows.len(),
        width: buffer.width,
        data: buffer.data[part.rows.start * buffer.width..part.rows.end * buffer.width].to_vec(),
    };
    let mut own = rows(out);
    clear::linear(&mut own, &rows(x), part.w, part.bias, OutputMode::Replace);
    out.data[part.rows.start * out.width..part.rows.end * out.width].copy_from_slice(&own.data);
}
