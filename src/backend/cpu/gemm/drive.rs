//! The loops of a linear layer. Threads take contiguous shares of the panels. Within a share a few panels at a time are
//! multiplied by all rows, strip of inputs by strip, group of rows by group. So weights are read from memory once and
//! prefetched a strip ahead; a strip of weights stays in the first-level cache, the activations in the second. Kernels
//! only multiply; bias and residual are added here.

use std::ops::Range;

use rayon::prelude::*;

use super::operand::{OperandFormat, ROW_STRIDE, Strip, pack_activations, strips};
use super::pack::PANEL;
use super::{CpuMatrix, OutputMode};
use crate::backend::Dtype;
use crate::backend::cpu::memory::CacheLine;
use crate::backend::cpu::rows::for_each_isa;
use crate::backend::cpu::{CpuBuffer, Isa};

/// Words of activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_WORDS: usize = 256 * 1024;

/// Shares of the panels per thread if there is more than one group of rows.
const SHARES: usize = 4;

/// The kernels of an instruction set.
pub struct GemmKernels {
    /// Most rows of a group.
    pub rows: usize,
    /// Panels per kernel call, for groups of at most `rows` rows.
    pub panels: fn(rows: usize) -> usize,
    /// The format of activations, for weights of this dtype.
    pub operand: fn(Dtype) -> OperandFormat,
    /// The kernel for weights of this dtype and exactly this many rows and panels.
    pub kernel: fn(Dtype, rows: usize, panels: usize) -> GemmKernel,
}

/// Adds the products of a tile to its sums.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
pub type GemmKernel = unsafe fn(&GemmTile);

/// The operands of a kernel call: one strip of a group of rows, times some panels.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "the software twin prefetches nothing"))]
pub struct GemmTile {
    /// Activations; rows are [`ROW_STRIDE`] words apart.
    pub a: *const u32,
    /// The strip in the first panel. The next panel's begins `panel_bytes` later.
    pub w: *const u8,
    pub panel_bytes: usize,
    /// Words per row of the strip.
    pub words: usize,
    /// `[rows][panels * 16]`
    pub sums: *mut f32,
    /// Whether to add to `sums`; if not, they are uninitialised.
    pub resume: bool,
    /// Where to prefetch: the next strip in the first panel. After every `prefetch_every` words a kernel prefetches one
    /// cache line of each panel into the second-level cache. May lie past the end of the weights.
    pub prefetch: *const u8,
    pub prefetch_every: usize,
}

/// Rows `first .. first + rows` of a pass, multiplied by one kernel call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowGroup {
    first: usize,
    rows: usize,
}

/// Divides `rows` rows into the fewest groups of at most `most` rows, of nearly equal size.
fn groups(rows: usize, most: usize) -> impl ExactSizeIterator<Item = RowGroup> {
    let count = rows.div_ceil(most);
    (0..count).map(move |g| RowGroup { first: g * rows / count, rows: (g + 1) * rows / count - g * rows / count })
}

/// Memory reused between linear layers.
#[derive(Default)]
pub struct GemmScratch {
    /// Packed activations.
    operands: Vec<u32>,
    /// The sums of each share of the panels.
    sums: Vec<Vec<f32>>,
    /// Packed activations of each part of a grouped layer, and its inputs in order.
    parts: Vec<Vec<u32>>,
    pub(super) inputs: CpuBuffer,
    /// The output of one piece of several.
    pub(super) piece: CpuBuffer,
}

/// Neighbouring rows that one matrix of a grouped layer multiplies.
pub struct GroupedPart<'a> {
    pub w: &'a CpuMatrix,
    pub bias: Option<&'a [f32]>,
    pub rows: Range<usize>,
}

/// Multiplies the rows of each part by its matrix. All matrices have one shape and dtype. Threads take shares of all
/// parts' panels at once: most experts have few rows, too few to share out one by one.
pub fn grouped(
    isa: Isa,
    kernels: &GemmKernels,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    parts: &[GroupedPart<'_>],
) {
    let Some(w) = parts.first().map(|part| part.w).filter(|w| w.rows > 0) else { return };
    let operand = (kernels.operand)(w.dtype());
    let most = (RESIDENT_WORDS / operand.words(w.cols).max(1)).max(kernels.rows);
    let pieces: Vec<(&GroupedPart<'_>, RowGroup)> =
        parts.iter().flat_map(|part| groups(part.rows.len(), most).map(move |rows| (part, rows))).collect();
    scratch.parts.resize_with(scratch.parts.len().max(pieces.len()), Vec::new);
    pieces.par_iter().zip(&mut scratch.parts).for_each(|((part, rows), packed)| {
        pack_activations(isa, packed, x, part.rows.start + rows.first, rows.rows, operand);
    });
    let passes = pieces.iter().zip(&scratch.parts).map(|((part, rows), operands)| WeightPass {
        isa,
        kernels,
        w: part.w,
        operand,
        operands,
        first_row: part.rows.start + rows.first,
        rows: rows.rows,
        groups: groups(rows.rows, kernels.rows).collect(),
        bias: part.bias,
        mode: OutputMode::Replace,
    });
    let passes: Vec<WeightPass<'_>> = passes.collect();
    let panels: usize = passes.iter().map(|pass| pass.w.panels()).sum();
    let share = panels.div_ceil(SHARES * rayon::current_num_threads());
    let shares: Vec<(&WeightPass<'_>, Range<usize>)> = passes.iter().flat_map(|pass| pass.shares(share)).collect();
    let out = OutputColumns::of(out);
    shares.into_par_iter().for_each_init(Vec::new, |sums, (pass, panels)| pass.share(panels, sums, &out));
}

/// See `gemm::linear`.
#[allow(clippy::too_many_arguments)]
pub fn linear(
    isa: Isa,
    kernels: &GemmKernels,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &CpuMatrix,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    if w.rows == 0 || x.rows == 0 {
        return;
    }
    let operand = (kernels.operand)(w.dtype());
    let most = (RESIDENT_WORDS / operand.words(w.cols).max(1)).max(kernels.rows);
    for rows in groups(x.rows, most) {
        pack_activations(isa, &mut scratch.operands, x, rows.first, rows.rows, operand);
        let pass = WeightPass {
            isa,
            kernels,
            w,
            operand,
            operands: &scratch.operands,
            first_row: rows.first,
            rows: rows.rows,
            groups: groups(rows.rows, kernels.rows).collect(),
            bias,
            mode,
        };
        pass.run(&mut scratch.sums, out);
    }
}

/// One pass over all panels, for rows whose activations fit the second-level cache.
struct WeightPass<'a> {
    isa: Isa,
    kernels: &'a GemmKernels,
    w: &'a CpuMatrix,
    operand: OperandFormat,
    operands: &'a [u32],
    first_row: usize,
    rows: usize,
    groups: Vec<RowGroup>,
    bias: Option<&'a [f32]>,
    mode: OutputMode,
}

impl WeightPass<'_> {
    fn run(&self, sums: &mut Vec<Vec<f32>>, out: &mut CpuBuffer) {
        // Few rows: one share per thread, so that prefetching is not interrupted. Many rows: more shares, so that other
        // threads can take over from one that was delayed.
        let shares = rayon::current_num_threads() * if self.groups.len() == 1 { 1 } else { SHARES };
        let shares: Vec<Range<usize>> =
            self.shares(self.w.panels().div_ceil(shares)).map(|(_, panels)| panels).collect();
        sums.resize_with(shares.len(), Vec::new);
        let out = OutputColumns::of(out);
        shares.into_par_iter().zip(sums).for_each(|(panels, sums)| self.share(panels, sums, &out));
    }

    /// Panels of one kernel call.
    fn panels_per_call(&self) -> usize {
        (self.kernels.panels)(self.rows.div_ceil(self.groups.len()))
    }

    /// The panels in shares of about `panels`: multiples of those of a call, so that only the last one has a remainder.
    fn shares(&self, panels: usize) -> impl Iterator<Item = (&Self, Range<usize>)> {
        let (per_call, all) = (self.panels_per_call(), self.w.panels());
        let share = panels.div_ceil(per_call).max(1) * per_call;
        (0..all.div_ceil(share)).map(move |i| (self, i * share..((i + 1) * share).min(all)))
    }

    /// Multiplies a share of the panels by all rows.
    fn share(&self, panels: Range<usize>, sums: &mut Vec<f32>, out: &OutputColumns) {
        let (per_call, mut panel) = (self.panels_per_call(), panels.start);
        while panel < panels.end {
            let count = if panel + per_call <= panels.end { per_call } else { 1 };
            self.panels(panel, count, sums, out);
            panel += count;
        }
    }

    /// Multiplies panels `first .. first + count` by all rows and stores the outputs.
    fn panels(&self, first: usize, count: usize, sums: &mut Vec<f32>, out: &OutputColumns) {
        sums.resize(self.rows * count * PANEL, 0.0);
        for strip in strips(self.operand.words(self.w.cols)) {
            self.strip(strip, first, count, sums);
        }
        for (r, sums) in sums.chunks_exact(count * PANEL).enumerate() {
            self.store(sums, self.first_row + r, first, out);
        }
    }

    /// Adds the products of one strip of panels `first .. first + count` to the sums of all rows.
    fn strip(&self, strip: Strip, first: usize, count: usize, sums: &mut [f32]) {
        let panel_bytes = self.w.panel_lines() * size_of::<CacheLine>();
        let weights: &[u8] = bytemuck::cast_slice(&self.w.lines()[first * self.w.panel_lines()..]);
        assert!(
            weights.len() >= count * panel_bytes && sums.len() == self.rows * count * PANEL,
            "shapes of the panels and their sums"
        );
        let word_bytes = self.word_bytes();
        let end = strip.first + strip.words;
        let next = if end < self.operand.words(self.w.cols) { end * word_bytes } else { count * panel_bytes };
        let operands = &self.operands[strip.index * self.rows * ROW_STRIDE..];
        for group in &self.groups {
            let kernel = (self.kernels.kernel)(self.w.dtype(), group.rows, count);
            // Each group prefetches its share of the next strip.
            let fetched =
                group.first * strip.words / self.rows * word_bytes / size_of::<CacheLine>() * size_of::<CacheLine>();
            let tile = GemmTile {
                a: operands[group.first * ROW_STRIDE..][..group.rows * ROW_STRIDE].as_ptr(),
                w: weights[strip.first * word_bytes..].as_ptr(),
                panel_bytes,
                words: strip.words,
                sums: sums[group.first * count * PANEL..][..group.rows * count * PANEL].as_mut_ptr(),
                resume: strip.index > 0,
                prefetch: weights.as_ptr().wrapping_add(next + fetched),
                prefetch_every: self.groups.len() * size_of::<CacheLine>() / word_bytes,
            };
            // SAFETY: `a` holds the group's rows of the strip, `w` the strip of `count` panels, `sums` the group's
            // sums.
            unsafe { kernel(&tile) };
        }
    }

    /// Bytes of a panel that are multiplied by one word of each row.
    fn word_bytes(&self) -> usize {
        match (self.w.dtype(), self.operand) {
            (Dtype::F16, _) | (_, OperandFormat::RoundedF32) => 2 * PANEL,
            (Dtype::F32 | Dtype::Bf16, _) => 4 * PANEL,
        }
    }

    /// Writes a row's sums of panels `panel ..` to the output, with bias and residual.
    fn store(&self, sums: &[f32], row: usize, panel: usize, out: &OutputColumns) {
        let from = panel * PANEL;
        let width = sums.len().min(self.w.rows - from);
        let bias = self.bias.map(|bias| &bias[from..][..width]);
        // SAFETY: threads have different panels, so no two of them hold the same columns.
        let out = unsafe { out.of_row(row, from, width) };
        finish(self.isa, out, &sums[..width], bias, self.mode);
    }
}

for_each_isa! {
    /// `out = sums (+ bias)` or `out += sums (+ bias)`.
    fn finish(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, mode: OutputMode) = finish_loop;
}

#[inline(always)]
fn finish_loop(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, mode: OutputMode) {
    match (bias, mode) {
        (None, OutputMode::Replace) => out.copy_from_slice(sums),
        (None, OutputMode::Add) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        (Some(bias), OutputMode::Replace) => {
            out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out = sum + b)
        }
        (Some(bias), OutputMode::Add) => out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out += sum + b),
    }
}

/// The output. Threads write different columns of it.
struct OutputColumns {
    data: *mut f32,
    width: usize,
    len: usize,
}

// SAFETY: threads access the output through `of_row` only, and its callers take different columns.
unsafe impl Sync for OutputColumns {}

impl OutputColumns {
    fn of(out: &mut CpuBuffer) -> Self {
        Self { data: out.data.as_mut_ptr(), width: out.width, len: out.data.len() }
    }

    /// Columns `from .. from + width` of `row`.
    ///
    /// # Safety
    /// The buffer is alive, and nothing else refers to these columns of this row.
    #[allow(clippy::mut_from_ref)]
    unsafe fn of_row(&self, row: usize, from: usize, width: usize) -> &mut [f32] {
        let at = row * self.width + from;
        assert!(from + width <= self.width && at + width <= self.len, "columns lie in the output");
        // SAFETY: inside the buffer by the assertion above; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_all_rows_and_differ_by_one_row_at_most() {
        for rows in 0..100 {
            let mut next = 0;
            for group in groups(rows, 14) {
                assert_eq!(group.first, next);
                assert!(group.rows <= 14 && group.rows >= rows / rows.div_ceil(14));
                next += group.rows;
            }
            assert_eq!(next, rows);
        }
    }
}
