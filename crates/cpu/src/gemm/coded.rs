//! The loops of a linear layer whose weights are codes, which `quantised` and `blocks` have in common: rows are divided
//! into passes, and threads share out the panels of all passes at once. How rows are packed and multiplied they say.

use std::ops::Range;

use super::pack::PANEL;
use super::row_groups::{RowGroup, groups};
use crate::columns::OutputColumns;
use crate::{Cores, CpuBuffer};
use offshoot_backend::OutputMode;

/// Bytes of packed activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_BYTES: usize = 1 << 20;
/// Shares of the panels per thread if there is more than one group of rows.
const SHARES: usize = 4;

/// A linear layer of neighbouring rows, each multiplied by the matrix of its part. All matrices have one shape and
/// format.
pub struct CodedCall<'a, 'x, W> {
    pub cores: &'a Cores,
    pub out: &'a mut CpuBuffer,
    /// Numbers of parts, and their rows of `out`.
    pub parts: &'a mut dyn Iterator<Item = (usize, Range<usize>)>,
    /// The activations of a row.
    pub input: &'a (dyn Fn(usize) -> &'x [f32] + Sync),
    /// One of the matrices.
    pub like: &'a W,
    /// The matrix and the bias of a part.
    pub weights: &'a dyn Fn(usize) -> (&'x W, Option<&'x [f32]>),
    pub mode: OutputMode,
}

/// What the loops know of a layer.
#[derive(Clone, Copy)]
pub struct CodedLayer {
    /// Most rows of a kernel call.
    pub rows: usize,
    /// Panels of a kernel call, for this many rows. For a remainder there are calls of one.
    pub panels: fn(rows: usize) -> usize,
    /// Bytes of a packed row.
    pub row_bytes: usize,
    /// Outputs of a matrix.
    pub outputs: usize,
}

/// Memory reused between layers: the packed rows of each pass, and what each share of the panels needs.
#[derive(Default)]
pub struct CodedScratch<O, S> {
    operands: Vec<O>,
    shares: Vec<S>,
}

/// Rows of one matrix whose activations fit the second-level cache, packed as `operand`.
pub struct CodedPass<'a, W, O> {
    pub w: &'a W,
    pub operand: &'a O,
    pub rows: RowGroup,
    bias: Option<&'a [f32]>,
    layer: CodedLayer,
    out: &'a OutputColumns,
}

/// Multiplies the rows of `call`. `pack` packs some rows; `product` multiplies all rows of a pass by so many panels
/// from a panel on, and stores the outputs.
pub fn multiply<W: Sync, O: Default + Send + Sync, S: Default + Send>(
    call: CodedCall<'_, '_, W>,
    layer: CodedLayer,
    scratch: &mut CodedScratch<O, S>,
    pack: impl Fn(&mut O, &W, RowGroup) + Sync,
    product: impl Fn(&CodedPass<'_, W, O>, usize, usize, &mut S) + Sync,
) {
    let CodedCall { cores, out, parts, weights, .. } = call;
    let most = (RESIDENT_BYTES / layer.row_bytes.max(1)).max(layer.rows);
    let passes: Vec<(&W, Option<&[f32]>, RowGroup)> = parts
        .flat_map(|(part, rows)| {
            let (w, bias) = weights(part);
            let of_part = groups(rows.len(), most);
            of_part.map(move |group| (w, bias, RowGroup { first: rows.start + group.first, ..group }))
        })
        .collect();
    if passes.is_empty() || layer.outputs == 0 {
        return;
    }
    let CodedScratch { operands, shares: scratch } = scratch;
    operands.resize_with(operands.len().max(passes.len()), Default::default);
    let operands = &mut operands[..passes.len()];
    cores.team.for_each(operands, |i, operand| pack(operand, passes[i].0, passes[i].2));
    let out = OutputColumns::of(out);
    let pass = |((w, bias, rows), operand)| CodedPass { w, operand, rows, bias, layer, out: &out };
    let passes: Vec<CodedPass<'_, W, O>> = passes.into_iter().zip(&*operands).map(pass).collect();
    let several = passes.len() > 1 || passes[0].rows.rows > layer.rows;
    let shares = cores.team.threads() * if several { SHARES } else { 1 };
    let share = (passes.len() * layer.outputs.div_ceil(PANEL)).div_ceil(shares);
    let shares: Vec<_> = passes.iter().flat_map(|pass| pass.shares(share)).collect();
    scratch.resize_with(scratch.len().max(shares.len()), Default::default);
    cores.team.for_each(&mut scratch[..shares.len()], |i, scratch| {
        let (pass, panels) = &shares[i];
        let (per_call, mut panel) = (pass.per_call(), panels.start);
        while panel < panels.end {
            let count = if panel + per_call <= panels.end { per_call } else { 1 };
            product(pass, panel, count, scratch);
            panel += count;
        }
    });
}

impl<W, O> CodedPass<'_, W, O> {
    /// Panels of one kernel call.
    fn per_call(&self) -> usize {
        (self.layer.panels)(self.rows.rows.div_ceil(self.rows.rows.div_ceil(self.layer.rows)))
    }

    /// The panels in shares of about `panels`: multiples of those of a call, so that only the last one has a remainder.
    fn shares(&self, panels: usize) -> impl Iterator<Item = (&Self, Range<usize>)> {
        let (per_call, all) = (self.per_call(), self.layer.outputs.div_ceil(PANEL));
        let share = panels.div_ceil(per_call).max(1) * per_call;
        (0..all.div_ceil(share)).map(move |i| (self, i * share..((i + 1) * share).min(all)))
    }

    /// The groups of rows for kernel calls, counted from the pass's first row.
    pub fn groups(&self) -> impl Iterator<Item = RowGroup> {
        groups(self.rows.rows, self.layer.rows)
    }

    /// Has `put` write the outputs of a group's rows and `count` panels from `panel` on: it is called with each row,
    /// counted from the pass's first, its outputs, their `sums`, which are `[rows][count * 16]`, and their bias.
    pub fn store(
        &self,
        group: RowGroup,
        panel: usize,
        count: usize,
        sums: &[f32],
        put: impl Fn(usize, &mut [f32], &[f32], Option<&[f32]>),
    ) {
        let from = panel * PANEL;
        let width = (count * PANEL).min(self.layer.outputs - from);
        let bias = self.bias.map(|bias| &bias[from..][..width]);
        for (r, sums) in sums.chunks_exact(count * PANEL).take(group.rows).enumerate() {
            let row = group.first + r;
            // SAFETY: threads have different panels of a matrix, and matrices have different rows, so no two of them
            // hold the same columns of a row.
            let out = unsafe { self.out.of_row(self.rows.first + row, from, width) };
            put(row, out, &sums[..width], bias);
        }
    }
}
