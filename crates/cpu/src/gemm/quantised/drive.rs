//! How a linear layer with quantised weights is multiplied: a few panels by all rows, group of rows by group, over all
//! inputs in one kernel call. Kernels return the sums of groups times their scales; scales of activations, bias and
//! residual are applied here. `coded` has the loops around it.

use super::operand::{OperandForm, OperandRows};
use super::panels::QuantPanels;
use super::scales::ScalePointers;
use super::wide::{self, WideKernels, WideScratch};
use crate::gemm::coded::{self, CodedCall, CodedLayer, CodedPass, CodedScratch};
use crate::gemm::pack::PANEL;
use crate::gemm::row_groups::RowGroup;
use offshoot_backend::OutputMode;

/// The kernels for one format of weights on one instruction set.
#[derive(Clone, Copy)]
pub struct QuantKernels {
    pub form: OperandForm,
    /// For more rows than `rows`, where there are kernels of their own.
    pub wide: Option<WideKernels>,
    /// Most rows of a call.
    pub rows: usize,
    /// Panels per call, for this many rows.
    pub panels: fn(rows: usize) -> usize,
    /// The kernel for exactly this many rows and panels: those that `panels` returns, and one for a remainder.
    pub kernel: fn(rows: usize, panels: usize) -> QuantKernel,
}

/// Writes the sums of a tile.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
pub type QuantKernel = unsafe fn(&QuantTile);

/// The operands of a kernel call: a group of rows times some panels, over all inputs.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels are for x86"))]
pub struct QuantTile {
    /// Activations; rows are `stride` words apart.
    pub x: *const u32,
    pub stride: usize,
    /// Codes of the first panel; the next one's begin `panel_bytes` later.
    pub codes: *const u8,
    pub panel_bytes: usize,
    pub scales: ScalePointers,
    /// `[panels][groups][16]`, or null where the format has none.
    pub zeros: *const u8,
    pub groups: usize,
    /// Inputs of a group, and of all groups, padded to whole words of codes.
    pub group: usize,
    pub inputs: usize,
    /// `[rows][panels * 16]`: f32, or i32 where products are those of integers.
    pub sums: *mut f32,
}

/// Memory for a share of the panels.
#[derive(Default)]
pub struct QuantShare {
    sums: Vec<f32>,
    wide: WideScratch,
}

/// Memory reused between layers.
pub type QuantScratch = CodedScratch<OperandRows, QuantShare>;

type Pass<'a> = CodedPass<'a, QuantPanels, OperandRows>;

/// [`coded::multiply`] by `kernels`, which are for the format of the matrices.
pub fn multiply(call: CodedCall<'_, '_, QuantPanels>, kernels: &QuantKernels, scratch: &mut QuantScratch) {
    let CodedCall { cores, input, like, mode, .. } = call;
    let QuantKernels { form, wide, rows, panels, .. } = *kernels;
    let row_bytes = form.words(like.cols) * size_of::<u32>();
    let layer = CodedLayer { rows, panels, row_bytes, outputs: like.rows };
    let pack = |operand: &mut OperandRows, w: &QuantPanels, rows: RowGroup| {
        operand.pack(cores, w, rows.rows, form, |r| input(rows.first + r));
    };
    let product = |pass: &Pass<'_>, panel: usize, count: usize, share: &mut QuantShare| {
        let (QuantShare { sums, wide: scratch }, all) = (share, pass.rows.rows);
        if let Some(wide) = wide.filter(|_| all > rows) {
            wide::multiply(&wide, rows, pass.w, pass.operand, panel, count, all, scratch, sums);
            return store(form, mode, pass, panel, count, RowGroup { first: 0, rows: all }, sums);
        }
        for group in pass.groups() {
            tile(kernels, pass, panel, count, group, sums);
            store(form, mode, pass, panel, count, group, sums);
        }
    };
    coded::multiply(call, layer, scratch, pack, product);
}

/// Sums of a group of rows and panels `panel .. panel + count`.
fn tile(kernels: &QuantKernels, pass: &Pass<'_>, panel: usize, count: usize, group: RowGroup, sums: &mut Vec<f32>) {
    let (w, RowGroup { first, rows }) = (pass.w, group);
    sums.resize(rows * count * PANEL, 0.0);
    let (x, stride) = pass.operand.rows_from(first);
    let (codes, panel_bytes) = w.codes_from(panel);
    let (zeros, groups) = (w.zeros_from(panel), w.groups());
    let words = kernels.form.words(w.cols);
    assert!(
        x.len() >= (rows - 1) * stride + words
            && codes.len() >= count * panel_bytes
            && (!w.format.zeros || zeros.len() >= count * groups * PANEL),
        "shapes of the panels and their rows"
    );
    let tile = QuantTile {
        x: x.as_ptr(),
        stride,
        codes: codes.as_ptr(),
        panel_bytes,
        scales: w.scales.pointers(panel, count),
        zeros: if w.format.zeros { zeros.as_ptr() } else { std::ptr::null() },
        groups,
        group: w.format.group_inputs(w.cols),
        inputs: w.padded_inputs(),
        sums: sums.as_mut_ptr(),
    };
    // SAFETY: by the assertion above `x` holds `rows` rows, and the panels their codes and zero points; `pointers` has
    // all their scales, and `sums` holds the tile's.
    unsafe { (kernels.kernel)(rows, count)(&tile) };
}

/// Writes the sums of a group of rows and panels `panel .. panel + count` to the output, with scales, bias and
/// residual.
fn store(
    form: OperandForm,
    mode: OutputMode,
    pass: &Pass<'_>,
    panel: usize,
    count: usize,
    group: RowGroup,
    sums: &[f32],
) {
    pass.store(group, panel, count, sums, |row, out, sums, bias| {
        let bias = |i: usize| bias.map_or(0.0, |bias| bias[i]);
        if form == OperandForm::Numbers {
            out.iter_mut().enumerate().for_each(|(i, out)| mode.put(out, sums[i] + bias(i)));
            return;
        }
        let sums: &[i32] = bytemuck::cast_slice(sums);
        let scales = pass.w.scales.numbers_from(panel).expect("scales of integers are f32");
        let offsets = pass.w.offsets_from(panel);
        for (i, out) in out.iter_mut().enumerate() {
            let offset = if form == OperandForm::Offset { offsets[i] } else { 0 };
            mode.put(out, sums[i].wrapping_sub(offset) as f32 * (pass.operand.scales[row] * scales[i]) + bias(i));
        }
    });
}
