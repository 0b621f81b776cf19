//! The loops of a linear layer. Threads take contiguous shares of the panels, which become smaller towards the end.
//! Within a share a few panels at a time are multiplied by all rows, strip of inputs by strip, group of rows by group.
//! So weights are read from memory once and prefetched a strip ahead, or sooner; a strip of weights stays in the
//! first-level cache, the activations in the second. Kernels only multiply; bias and residual are added here.

use std::ops::Range;

use super::kernel::{GemmKernels, GemmTile};
use super::lines_ahead::LinesAhead;
use super::operand::{ActivationPacking, OperandFormat, Strip};
use super::output::finish;
use super::pack::{CpuMatrix, PANEL};
use super::row_groups::{RowGroup, groups, unit_groups};
use super::shares::{PanelShares, ShareClaims};
use crate::columns::OutputColumns;
use crate::isa::soon_prefetches_pay;
use crate::memory::CacheLine;
use crate::{Cores, CpuBuffer};
use offshoot_backend::{Dtype, OutputMode};

/// Words of activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_WORDS: usize = 256 * 1024;

/// Shares of the panels per thread in a grouped layer.
const SHARES: usize = 4;

/// Memory reused between layers.
#[derive(Default)]
pub struct DenseScratch {
    /// Packed activations.
    operands: Vec<CacheLine>,
    /// The sums of each thread, or in a grouped layer of each share of the panels.
    sums: Vec<Vec<f32>>,
    /// The passes of a grouped layer, their packed activations, and the shares of their panels.
    passes: Vec<ExpertPass>,
    packed: Vec<Vec<CacheLine>>,
    shares: Vec<PassShare>,
}

/// Rows of a grouped layer that one expert multiplies in one pass.
#[derive(Clone, Copy)]
struct ExpertPass {
    expert: usize,
    rows: RowGroup,
}

/// Some panels of a pass's matrix.
struct PassShare {
    pass: usize,
    panels: Range<usize>,
}

/// Multiplies neighbouring rows by the matrix of their expert: `expert_rows` has experts and their rows of `out`,
/// `input` the activations of a row, `weights` the matrix and the bias of an expert. All matrices have one shape and
/// dtype. Threads take shares of all experts' panels at once: most experts have few rows, too few to share out one by
/// one.
pub fn grouped<'x>(
    cores: &Cores,
    kernels: &GemmKernels,
    scratch: &mut DenseScratch,
    out: &mut CpuBuffer,
    expert_rows: impl Iterator<Item = (usize, Range<usize>)>,
    input: impl Fn(usize) -> &'x [f32] + Sync,
    weights: impl Fn(usize) -> (&'x CpuMatrix, Option<&'x [f32]>) + Sync,
) {
    let mut expert_rows = expert_rows.peekable();
    let Some(&(first, _)) = expert_rows.peek() else {
        return;
    };
    let (w, _) = weights(first);
    if w.rows == 0 {
        return;
    }
    let operand = (kernels.operand)(w.dtype());
    let most = (RESIDENT_WORDS / operand.words(w.cols).max(1)).max(kernels.rows);
    let DenseScratch { sums, passes, packed, shares, .. } = scratch;
    passes.clear();
    passes.extend(expert_rows.flat_map(|(expert, rows)| {
        let of_expert = groups(rows.len(), most);
        of_expert.map(move |group| ExpertPass { expert, rows: RowGroup { first: rows.start + group.first, ..group } })
    }));
    packed.resize_with(packed.len().max(passes.len()), Vec::new);
    let packed = &mut packed[..passes.len()];
    let pass = |pass: usize| {
        let ExpertPass { expert, rows } = passes[pass];
        let (w, bias) = weights(expert);
        WeightPass::new(cores, kernels, w, rows, bias, OutputMode::Replace)
    };
    if let [packed] = packed {
        return pass(0).run(input, packed, sums, out);
    }
    let pack = |i: usize, packed: &mut [Vec<CacheLine>]| {
        let RowGroup { first, rows } = passes[i].rows;
        ActivationPacking { operand, inputs: w.cols, rows }.pack(cores.isa, &mut packed[0], |r| input(first + r));
    };
    let share = (passes.len() * w.panels()).div_ceil(SHARES * cores.team.threads());
    shares.clear();
    shares.extend((0..passes.len()).flat_map(|number| {
        let of_pass = pass(number).shares(share);
        (0..of_pass.count()).map(move |i| PassShare { pass: number, panels: of_pass.get(i) })
    }));
    sums.resize_with(sums.len().max(shares.len()), Vec::new);
    let out = OutputColumns::of(out);
    cores.team.for_chunks_then(packed, 1, pack, &mut sums[..shares.len()], |i, sums, packed| {
        let PassShare { pass: number, panels } = &shares[i];
        let (mut only, pass) = (Some(panels.clone()), pass(*number));
        // Which share this thread takes next is not known: often the one that follows.
        let follows = (panels.end < w.panels()).then_some(panels.end);
        pass.run_shares(bytemuck::cast_slice(&packed[*number]), || only.take(), follows, sums, &out);
    });
}

/// See `gemm::linear`.
#[allow(clippy::too_many_arguments)]
pub fn linear(
    cores: &Cores,
    kernels: &GemmKernels,
    scratch: &mut DenseScratch,
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
        let pass = WeightPass::new(cores, kernels, w, rows, bias, mode);
        pass.run(|r| x.row(r), &mut scratch.operands, &mut scratch.sums, out);
    }
}

/// Panels `first .. first + count`, of one call of the kernel for each strip and group of rows.
#[derive(Clone, Copy)]
struct PanelCall {
    first: usize,
    count: usize,
    /// The panel to prefetch, of a later call: behind these.
    next: Option<usize>,
}

/// Where the sums of a strip go: the sums themselves, or the output.
#[derive(Clone, Copy)]
struct SumsPlace {
    to: *mut f32,
    /// Elements from one row to the next.
    stride: usize,
    /// Whether they are added to what is there.
    adds: bool,
}

/// One pass over all panels, for rows whose activations fit the second-level cache.
struct WeightPass<'a> {
    cores: &'a Cores,
    kernels: &'a GemmKernels,
    w: &'a CpuMatrix,
    operand: OperandFormat,
    first_row: usize,
    rows: usize,
    /// How many groups the rows are divided into.
    group_count: usize,
    /// Whether weights are prefetched soon before they are read, not a strip ahead.
    prefetches_soon: bool,
    bias: Option<&'a [f32]>,
    mode: OutputMode,
}

impl<'a> WeightPass<'a> {
    fn new(
        cores: &'a Cores,
        kernels: &'a GemmKernels,
        w: &'a CpuMatrix,
        rows: RowGroup,
        bias: Option<&'a [f32]>,
        mode: OutputMode,
    ) -> Self {
        let RowGroup { first: first_row, rows } = rows;
        let (operand, group_count) = ((kernels.operand)(w.dtype()), rows.div_ceil(kernels.rows));
        let prefetches_soon = group_count == 1 && rows <= kernels.soon_rows && soon_prefetches_pay();
        Self { cores, kernels, w, operand, first_row, rows, group_count, prefetches_soon, bias, mode }
    }

    /// Packs its rows, whose activations `input` returns, into `operands`, and multiplies them.
    fn run<'x>(
        &self,
        input: impl Fn(usize) -> &'x [f32] + Sync,
        operands: &mut Vec<CacheLine>,
        sums: &mut Vec<Vec<f32>>,
        out: &mut CpuBuffer,
    ) {
        let packing = self.packing();
        let operands = packing.room(operands);
        let (threads, all) = (self.cores.team.threads(), self.w.panels());
        let shares = PanelShares::Shrinking { per_call: self.panels_per_call(), threads, all };
        let claims = ShareClaims::new(shares);
        sums.resize_with(threads.max(sums.len()), Vec::new);
        let out = OutputColumns::of(out);
        let row = |r: usize| input(self.first_row + r);
        self.cores.team.for_chunks_then(
            operands,
            packing.chunk(),
            |chunk, out| packing.pack_chunk(self.cores.isa, chunk, out, row),
            &mut sums[..threads.min(shares.count())],
            |_, sums, operands| self.run_shares(operands, || claims.next(), None, sums, &out),
        );
    }

    fn packing(&self) -> ActivationPacking {
        ActivationPacking { operand: self.operand, inputs: self.w.cols, rows: self.rows }
    }

    /// Panels of one kernel call.
    fn panels_per_call(&self) -> usize {
        (self.kernels.panels)(self.rows.div_ceil(self.group_count), self.group_count)
    }

    /// The panels in shares of about `panels`: multiples of those of a call, or of the call for the largest remainder,
    /// so that no share but the last ends with single panels.
    fn shares(&self, panels: usize) -> PanelShares {
        let unit = match self.kernels.fewer_panels {
            &[largest, ..] if largest > 1 => self.panels_per_call().min(largest),
            _ => self.panels_per_call(),
        };
        PanelShares::Even { each: panels.div_ceil(unit).max(1) * unit, all: self.w.panels() }
    }

    /// Multiplies shares of the panels by all rows, until `claim` has none. Each is claimed before the last call of the
    /// one before, which prefetches it; the very last call prefetches panel `follows`. `operands`: the packed rows.
    fn run_shares(
        &self,
        operands: &[u32],
        mut claim: impl FnMut() -> Option<Range<usize>>,
        follows: Option<usize>,
        sums: &mut Vec<f32>,
        out: &OutputColumns,
    ) {
        let Some(mut share) = claim() else { return };
        let per_call = self.panels_per_call();
        (self.kernels.around)(self.rows, &mut || {
            loop {
                let fits = |count: &&usize| share.start + **count <= share.end;
                let fewer = || *self.kernels.fewer_panels.iter().find(fits).expect("one panel is left");
                let count = if fits(&&per_call) { per_call } else { fewer() };
                let rest = share.start + count..share.end;
                let next = if rest.is_empty() { claim() } else { Some(rest) };
                let call = PanelCall {
                    first: share.start,
                    count,
                    next: next.as_ref().map_or(follows, |next| Some(next.start)),
                };
                self.panels(operands, call, sums, out);
                match next {
                    Some(next) => share = next,
                    None => return,
                }
            }
        });
    }

    /// Multiplies some panels by all rows and stores the outputs.
    fn panels(&self, operands: &[u32], call: PanelCall, sums: &mut Vec<f32>, out: &OutputColumns) {
        let PanelCall { first, count, .. } = call;
        let (words, width) = (self.operand.words(self.w.cols), count * PANEL);
        sums.resize(self.rows.next_multiple_of(self.operand.row_unit()) * width, 0.0);
        let rows = self.first_row..self.first_row + self.rows;
        let whole = (first + count) * PANEL <= self.w.rows;
        // Nothing is left to do with the sums of the last strip: they are the output, or added to it.
        let output =
            (whole && self.bias.is_none() && words > 0).then(|| (out.rows_at(rows, first * PANEL, width), out.width()));
        if words == 0 {
            // No strip stores any.
            sums.fill(0.0);
        }
        for strip in self.operand.strips(words) {
            let last = strip.first + strip.words == words;
            let to = match output.filter(|_| last) {
                Some((to, stride)) => SumsPlace { to, stride, adds: self.mode == OutputMode::Add },
                None => SumsPlace { to: sums.as_mut_ptr(), stride: width, adds: false },
            };
            self.strip(operands, strip, call, sums, to);
        }
        if output.is_none() {
            for (r, sums) in sums.chunks_exact(width).take(self.rows).enumerate() {
                self.store(sums, self.first_row + r, first, out);
            }
        }
    }

    /// Adds the products of one strip of some panels to the sums of all rows, and stores them at `to`.
    fn strip(&self, operands: &[u32], strip: Strip, call: PanelCall, sums: &[f32], to: SumsPlace) {
        let PanelCall { first, count, next } = call;
        let panel_bytes = self.w.panel_lines() * size_of::<CacheLine>();
        let weights: &[u8] = bytemuck::cast_slice(&self.w.lines()[first * self.w.panel_lines()..]);
        assert!(
            weights.len() >= count * panel_bytes
                && sums.len() >= self.rows.next_multiple_of(self.operand.row_unit()) * count * PANEL,
            "shapes of the panels and their sums"
        );
        let word_bytes = self.word_bytes();
        let end = strip.first + strip.words;
        let next = match next {
            _ if end < self.operand.words(self.w.cols) => end * word_bytes,
            Some(next) => (next - first) * panel_bytes,
            // Nothing is left: the cache has these.
            None => strip.first * word_bytes,
        };
        let next = weights.as_ptr().wrapping_add(next);
        let (stride, strip_len) = (self.operand.row_stride(), self.packing().strip_len());
        let next_strip = if end < self.operand.words(self.w.cols) { strip.index + 1 } else { 0 };
        let next_operands = operands[next_strip * strip_len..].as_ptr();
        let operands = &operands[strip.index * strip_len..][..strip_len];
        // Each group prefetches its share of the next strip in whole lines, rounded up: the last groups of many repeat
        // its last line.
        let prefetch_every = self.group_count * size_of::<CacheLine>() / word_bytes;
        let fetched = strip.words.div_ceil(prefetch_every) * size_of::<CacheLine>();
        let last_line = (strip.words * word_bytes).saturating_sub(size_of::<CacheLine>());
        let strip_cache = (self.kernels.strip_cache)(self.w.dtype(), self.group_count);
        let (w, unit) = (weights[strip.first * word_bytes..].as_ptr(), self.operand.row_unit());
        for (number, group) in unit_groups(self.rows, self.kernels.rows, unit).enumerate() {
            let kernel = (self.kernels.kernel)(self.w.dtype(), group.rows, count);
            let next_row = group.first + group.rows;
            let next_a = if next_row < self.rows { operands[next_row * stride..].as_ptr() } else { next_operands };
            let tile = GemmTile {
                a: operands[group.first * stride..][..group.rows.next_multiple_of(unit) * stride].as_ptr(),
                next_a,
                rows: group.rows,
                w,
                panel_bytes,
                words: strip.words,
                sums: (strip.index > 0).then(|| sums[group.first * count * PANEL..].as_ptr()),
                to: to.to.wrapping_add(group.first * to.stride),
                to_stride: to.stride,
                adds: to.adds,
                prefetch: match self.prefetches_soon {
                    true => LinesAhead::soon(w, (strip.words * word_bytes).div_ceil(size_of::<CacheLine>()), next),
                    false => LinesAhead::all_from(next.wrapping_add((number * fetched).min(last_line)), strip_cache),
                },
                prefetch_every,
            };
            // SAFETY: `a` holds the group's rows of the strip and their padding, `w` the strip of `count` panels,
            // `sums` the group's sums and their padding, and `to` is one of them or the group's columns of the output,
            // which this thread alone writes.
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
        finish(self.cores.isa, out, &sums[..width], bias, self.mode);
    }
}
