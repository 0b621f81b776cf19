//! The loops of a linear layer with weights in blocks. Threads take shares of the panels; the scales of a few panels
//! become numbers once, then all rows are multiplied, group of rows by group. Bias and residual are added here.

use std::ops::Range;

use super::kernel::{BlockKernels, BlockTile};
use super::numbers;
use super::operand::RoundedRows;
use super::panels::{BlockPanels, PanelScales};
use crate::columns::OutputColumns;
use crate::gemm::output::{OutputMode, finish};
use crate::gemm::pack::PANEL;
use crate::gemm::row_groups::groups;
use crate::rows::for_each_isa;
use crate::{Cores, CpuBuffer, Isa};

/// Bytes of activations multiplied in one pass over the weights: half of a second-level cache of 2 MB.
const RESIDENT_BYTES: usize = 1 << 20;
/// Shares of the panels per thread if there is more than one group of rows.
const SHARES: usize = 4;

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
                        let kernel = (kernels.kernel)(group.rows, count);
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
