//! The loops of a linear layer with weights in blocks. Threads take shares of the panels; the scales of a few panels become
//! numbers once, then all rows are multiplied, group of rows by group. Bias and residual are added here.

use std::ops::Range;

use super::super::OutputMode;
use super::super::drive::{finish, groups};
use super::super::pack::PANEL;
use super::numbers;
use super::operand::RoundedRows;
use super::panels::{BlockPanels, PanelScales};
use crate::columns::OutputColumns;
use crate::rows::for_each_isa;
use crate::{Cores, CpuBuffer, Isa};

/// Bytes of activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_BYTES: usize = 1 << 20;
/// Shares of the panels per thread if there is more than one group of rows.
const SHARES: usize = 4;

/// The kernels for codes that lie in one way, on one instruction set.
#[derive(Clone, Copy)]
pub struct BlockKernels {
    /// Most rows of a call.
    pub rows: usize,
    /// Panels per call, for this many rows.
    pub panels: fn(rows: usize) -> usize,
    /// The kernel for exactly this many rows and panels: those that `panels` returns, and one for a remainder.
    pub kernel: fn(rows: usize, panels: usize, form: BlockForm) -> BlockKernel,
}

/// What a kernel adds up besides one product of scales for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockForm {
    Plain,
    /// A smallest value for each group.
    Least,
    /// Scales for both halves of a group.
    Halves,
}

/// Writes the sums of a tile.
///
/// # Safety
/// The processor has the kernel's instruction set.
pub type BlockKernel = unsafe fn(&BlockTile<'_>, &mut [f32]);

/// The operands of a kernel call: rows `first ..` times panels `panel ..`, over all inputs. The sums are
/// `[rows][panels][16]`.
pub struct BlockTile<'a> {
    pub w: &'a BlockPanels,
    pub panel: usize,
    pub scales: &'a PanelScales,
    pub x: &'a RoundedRows,
    pub first: usize,
}

impl BlockTile<'_> {
    /// The scales of group `g` of the tile's panel `p` (its first half's, or its second one's), and of row `r`.
    #[inline(always)]
    pub fn scales_at(&self, p: usize, g: usize, half: usize) -> &[f32; PANEL] {
        let splits = self.w.splits();
        &self.scales.scales[(p * self.w.groups() + g) * splits + half]
    }

    #[inline(always)]
    pub fn least_at(&self, p: usize, g: usize) -> &[f32; PANEL] {
        &self.scales.least[p * self.w.groups() + g]
    }
}

/// Memory reused between layers.
#[derive(Default)]
pub struct BlockScratch {
    rounded: RoundedRows,
    shares: Vec<ShareScratch>,
}

#[derive(Default)]
struct ShareScratch {
    scales: PanelScales,
    sums: Vec<f32>,
}

/// Panels of a share: about `panels / shares`, as multiples of those of a call.
fn share_of(panels: usize, shares: usize, per_call: usize) -> usize {
    panels.div_ceil(shares).div_ceil(per_call).max(1) * per_call
}

/// See `blocks::linear`.
#[expect(clippy::too_many_arguments, reason = "one for each operand of the product")]
pub fn multiply(
    cores: &Cores,
    kernels: &BlockKernels,
    scratch: &mut BlockScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &BlockPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    let columns = OutputColumns::of(out);
    let most = (RESIDENT_BYTES / w.cols.max(1)).max(kernels.rows);
    for pass in groups(x.rows, most) {
        let (first, rows) = (pass.first, pass.rows);
        if !w.exact {
            scratch.rounded.round(cores, w, rows, |r| x.row(first + r));
        }
        let BlockScratch { rounded, shares } = scratch;
        let of_rows = groups(rows, kernels.rows);
        let per_call = (kernels.panels)(rows.div_ceil(of_rows.len()));
        let parts = cores.team.threads() * if of_rows.len() == 1 { 1 } else { SHARES };
        let share = share_of(w.panels(), parts, per_call);
        shares.resize_with(w.panels().div_ceil(share).max(shares.len()), Default::default);
        cores.team.for_each(&mut shares[..w.panels().div_ceil(share)], |i, own| {
            let end = w.panels().min((i + 1) * share);
            let mut panel = i * share;
            while panel < end {
                let count = if panel + per_call <= end { per_call } else { 1 };
                own.scales.scales.clear();
                own.scales.least.clear();
                read_scales(cores.isa, w, panel..panel + count, &mut own.scales);
                for group in groups(rows, kernels.rows) {
                    own.sums.resize(group.rows * count * PANEL, 0.0);
                    if w.exact {
                        let row = |r: usize| x.row(first + group.first + r);
                        numbers::multiply(cores.isa, w, panel, &own.scales, group.rows, &row, &mut own.sums);
                    } else {
                        let tile = BlockTile { w, panel, scales: &own.scales, x: rounded, first: group.first };
                        let kernel = (kernels.kernel)(group.rows, count, form(w));
                        // SAFETY: kernels are chosen by the instruction sets of the processor.
                        unsafe { kernel(&tile, &mut own.sums) };
                    }
                    for (r, sums) in own.sums.chunks_exact(count * PANEL).enumerate() {
                        let from = panel * PANEL;
                        let width = sums.len().min(w.rows - from);
                        // SAFETY: threads have different panels, so no two of them hold the same columns of a row.
                        let out = unsafe { columns.of_row(first + group.first + r, from, width) };
                        finish(cores.isa, out, &sums[..width], bias.map(|bias| &bias[from..][..width]), mode);
                    }
                }
                panel += count;
            }
        });
    }
}

fn form(w: &BlockPanels) -> BlockForm {
    match (w.splits(), w.kind.has_least()) {
        (1, false) => BlockForm::Plain,
        (1, true) => BlockForm::Least,
        _ => BlockForm::Halves,
    }
}

for_each_isa! {
    /// The scales of some panels, as numbers.
    fn read_scales(w: &BlockPanels, panels: Range<usize>, out: &mut PanelScales) = read_scales_loop;
}

#[inline(always)]
fn read_scales_loop(w: &BlockPanels, panels: Range<usize>, out: &mut PanelScales) {
    // Not `for_each`, which stays a call without the instruction set.
    for p in panels {
        w.read_scales(p, out);
    }
}
