//! The loops of a linear layer with quantised weights. Threads take shares of the panels; a few panels at a time are
//! multiplied by all rows, group of rows by group, over all inputs in one kernel call. Kernels return the sums of
//! groups times their scales; scales of activations, bias and residual are applied here.

use std::ops::Range;

use super::operand::{OperandForm, OperandRows};
use super::panels::QuantPanels;
use super::wide::{self, WideKernels, WideScratch};
use crate::columns::OutputColumns;
use crate::gemm::output::OutputMode;
use crate::gemm::pack::PANEL;
use crate::gemm::row_groups::{RowGroup, groups};
use crate::{Cores, CpuBuffer};

/// Words of activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_WORDS: usize = 256 * 1024;
/// Shares of the panels per thread if there is more than one group of rows.
const SHARES: usize = 4;

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
    /// `[panels][groups][16]`
    pub scales: *const f32,
    /// `[panels][groups][16]`, or null where the format has none.
    pub zeros: *const u8,
    pub groups: usize,
    /// Inputs of a group, and of all groups, padded to whole words of codes.
    pub group: usize,
    pub inputs: usize,
    /// `[rows][panels * 16]`: f32, or i32 where products are those of integers.
    pub sums: *mut f32,
}

/// Memory reused between layers: packed rows of each pass, and the sums of each share of the panels.
#[derive(Default)]
pub struct QuantScratch {
    operands: Vec<OperandRows>,
    shares: Vec<ShareScratch>,
}

/// The memory of one share.
#[derive(Default)]
struct ShareScratch {
    sums: Vec<f32>,
    wide: WideScratch,
}

/// Rows of one matrix whose activations fit the second-level cache.
struct Pass<'a> {
    kernels: &'a QuantKernels,
    w: &'a QuantPanels,
    bias: Option<&'a [f32]>,
    operand: &'a OperandRows,
    rows: RowGroup,
    mode: OutputMode,
}

/// Multiplies neighbouring rows by the matrix of their part: `parts` has numbers of parts and their rows of `out`,
/// `input` the activations of a row, `weights` the matrix and the bias of a part. All matrices have one shape and
/// format.
#[expect(clippy::too_many_arguments, reason = "one for each operand of the product")]
pub fn multiply<'x>(
    cores: &Cores,
    kernels: &QuantKernels,
    scratch: &mut QuantScratch,
    out: &mut CpuBuffer,
    parts: impl Iterator<Item = (usize, Range<usize>)>,
    input: impl Fn(usize) -> &'x [f32] + Sync,
    weights: impl Fn(usize) -> (&'x QuantPanels, Option<&'x [f32]>) + Sync,
    mode: OutputMode,
) {
    let most = |w: &QuantPanels| (RESIDENT_WORDS / kernels.form.words(w.cols).max(1)).max(kernels.rows);
    let passes: Vec<(&QuantPanels, Option<&[f32]>, RowGroup)> = parts
        .flat_map(|(part, rows)| {
            let (w, bias) = weights(part);
            let of_part = groups(rows.len(), most(w));
            of_part.map(move |group| (w, bias, RowGroup { first: rows.start + group.first, ..group }))
        })
        .filter(|(w, ..)| w.rows > 0)
        .collect();
    if passes.is_empty() {
        return;
    }
    let QuantScratch { operands, shares: scratch } = scratch;
    operands.resize_with(operands.len().max(passes.len()), OperandRows::default);
    let operands = &mut operands[..passes.len()];
    cores.team.for_each(operands, |i, operand| {
        let (w, _, RowGroup { first, rows }) = passes[i];
        operand.pack(cores, w, rows, kernels.form, |r| input(first + r));
    });
    let pass = |((w, bias, rows), operand): (_, _)| Pass { kernels, w, bias, operand, rows, mode };
    let passes: Vec<Pass<'_>> = passes.into_iter().zip(&*operands).map(pass).collect();
    let panels: usize = passes.iter().map(|pass| pass.w.panels()).sum();
    let several = passes.len() > 1 || passes[0].rows.rows > kernels.rows;
    let shares = cores.team.threads() * if several { SHARES } else { 1 };
    let shares: Vec<_> = passes.iter().flat_map(|pass| pass.shares(panels.div_ceil(shares))).collect();
    scratch.resize_with(scratch.len().max(shares.len()), Default::default);
    let out = OutputColumns::of(out);
    cores.team.for_each(&mut scratch[..shares.len()], |i, scratch| {
        let (pass, panels) = &shares[i];
        pass.share(panels.clone(), scratch, &out);
    });
}

impl Pass<'_> {
    /// Panels of one kernel call.
    fn per_call(&self) -> usize {
        (self.kernels.panels)(self.rows.rows.div_ceil(self.rows.rows.div_ceil(self.kernels.rows)))
    }

    /// The panels in shares of about `panels`: multiples of those of a call, so that only the last one has a remainder.
    fn shares(&self, panels: usize) -> impl Iterator<Item = (&Self, Range<usize>)> {
        let (per_call, all) = (self.per_call(), self.w.panels());
        let share = panels.div_ceil(per_call).max(1) * per_call;
        (0..all.div_ceil(share)).map(move |i| (self, i * share..((i + 1) * share).min(all)))
    }

    /// Multiplies a share of the panels by all rows.
    fn share(&self, panels: Range<usize>, scratch: &mut ShareScratch, out: &OutputColumns) {
        let rows = self.rows.rows;
        let (per_call, mut panel) = (self.per_call(), panels.start);
        while panel < panels.end {
            let count = if panel + per_call <= panels.end { per_call } else { 1 };
            let ShareScratch { sums, wide } = scratch;
            if let Some(kernels) = self.kernels.wide.as_ref().filter(|_| rows > self.kernels.rows) {
                let most = self.kernels.rows;
                wide::multiply(kernels, most, self.w, self.operand, panel, count, rows, wide, sums);
                for r in 0..rows {
                    self.store(&sums[r * count * PANEL..][..count * PANEL], r, panel, out);
                }
                panel += count;
                continue;
            }
            for group in groups(rows, self.kernels.rows) {
                self.tile(panel, count, group.first, group.rows, sums);
                for r in 0..group.rows {
                    self.store(&sums[r * count * PANEL..][..count * PANEL], group.first + r, panel, out);
                }
            }
            panel += count;
        }
    }

    /// Sums of rows `first .. first + rows` and panels `panel .. panel + count`.
    fn tile(&self, panel: usize, count: usize, first: usize, rows: usize, sums: &mut Vec<f32>) {
        let w = self.w;
        sums.resize(rows * count * PANEL, 0.0);
        let (x, stride) = self.operand.rows_from(first);
        let (codes, panel_bytes) = w.codes_from(panel);
        let (scales, zeros, groups) = (w.scales_from(panel), w.zeros_from(panel), w.groups());
        let words = self.kernels.form.words(w.cols);
        assert!(
            x.len() >= (rows - 1) * stride + words
                && codes.len() >= count * panel_bytes
                && scales.len() >= count * groups * PANEL
                && (!w.format.zeros || zeros.len() >= count * groups * PANEL),
            "shapes of the panels and their rows"
        );
        let tile = QuantTile {
            x: x.as_ptr(),
            stride,
            codes: codes.as_ptr(),
            panel_bytes,
            scales: scales.as_ptr(),
            zeros: if w.format.zeros { zeros.as_ptr() } else { std::ptr::null() },
            groups,
            group: w.format.group_inputs(w.cols),
            inputs: w.padded_inputs(),
            sums: sums.as_mut_ptr(),
        };
        // SAFETY: by the assertion above `x` holds `rows` rows, and the panels their codes, scales and zero points;
        // `sums` holds the tile's.
        unsafe { (self.kernels.kernel)(rows, count)(&tile) };
    }

    /// Writes a row's sums of panels `panel ..` to the output, with scales, bias and residual.
    fn store(&self, sums: &[f32], row: usize, panel: usize, out: &OutputColumns) {
        let w = self.w;
        let from = panel * PANEL;
        let width = sums.len().min(w.rows - from);
        // SAFETY: threads have different panels of a matrix, and matrices have different rows, so no two of them hold
        // the same columns of a row.
        let out = unsafe { out.of_row(self.rows.first + row, from, width) };
        let bias = self.bias.map(|bias| &bias[from..]);
        let bias = |i: usize| bias.map_or(0.0, |bias| bias[i]);
        if self.kernels.form == OperandForm::Numbers {
            out.iter_mut().enumerate().for_each(|(i, out)| self.mode.put(out, sums[i] + bias(i)));
            return;
        }
        let sums: &[i32] = bytemuck::cast_slice(sums);
        let (scale, scales, offsets) = (self.operand.scales[row], w.scales_from(panel), w.offsets_from(panel));
        for (i, out) in out.iter_mut().enumerate() {
            let offset = if self.kernels.form == OperandForm::Offset { offsets[i] } else { 0 };
            self.mode.put(out, sums[i].wrapping_sub(offset) as f32 * (scale * scales[i]) + bias(i));
        }
    }
}
