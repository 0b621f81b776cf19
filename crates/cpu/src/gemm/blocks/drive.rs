//! How a linear layer with weights in blocks is multiplied: the scales of a few panels become numbers once, then all
//! rows are multiplied, group of rows by group. Bias and residual are added here. `coded` has the loops around it.

use std::ops::Range;

use super::kernel::{BlockKernels, BlockTile};
use super::numbers;
use super::operand::RoundedRows;
use super::panels::{BlockPanels, PanelScales};
use crate::Isa;
use crate::gemm::coded::{self, CodedCall, CodedLayer, CodedPass, CodedScratch};
use crate::gemm::output::finish;
use crate::gemm::pack::PANEL;
use crate::gemm::row_groups::RowGroup;
use crate::rows::for_each_isa;

/// Memory for a share of the panels.
#[derive(Default)]
pub struct BlockShare {
    scales: PanelScales,
    sums: Vec<f32>,
}

/// Memory reused between layers.
pub type BlockScratch = CodedScratch<RoundedRows, BlockShare>;

/// `coded::multiply` by `kernels`, which are for the format of the matrices.
pub fn multiply(call: CodedCall<'_, '_, BlockPanels>, kernels: &BlockKernels, scratch: &mut BlockScratch) {
    let CodedCall { cores, input, like, mode, .. } = call;
    let (isa, exact, BlockKernels { rows, panels, kernel }) = (cores.isa, like.exact, *kernels);
    let layer = CodedLayer { rows, panels, row_bytes: like.cols, outputs: like.rows };
    let pack = |operand: &mut RoundedRows, w: &BlockPanels, rows: RowGroup| {
        if !exact {
            operand.round(cores, w, rows.rows, |r| input(rows.first + r));
        }
    };
    let product =
        |pass: &CodedPass<'_, BlockPanels, RoundedRows>, panel: usize, count: usize, share: &mut BlockShare| {
            let (w, BlockShare { scales, sums }) = (pass.w, share);
            scales.scales.clear();
            scales.least.clear();
            read_scales(isa, w, panel..panel + count, scales);
            for group in pass.groups() {
                sums.resize(group.rows * count * PANEL, 0.0);
                if exact {
                    let row = |r: usize| input(pass.rows.first + group.first + r);
                    numbers::multiply(isa, w, panel, scales, group.rows, &row, sums);
                } else {
                    let tile = BlockTile { w, panel, scales, x: pass.operand, first: group.first };
                    // SAFETY: kernels are chosen by the instruction sets of the processor.
                    unsafe { kernel(group.rows, count)(&tile, sums) };
                }
                pass.store(group, panel, count, sums, |_, out, sums, bias| finish(isa, out, sums, bias, mode));
            }
        };
    coded::multiply(call, layer, scratch, pack, product);
}

for_each_isa! {
    /// The scales of some panels, as numbers.
    fn read_scales(w: &BlockPanels, panels: Range<usize>, out: &mut PanelScales) {
        // Not `for_each`, which stays a call without the instruction set.
        for p in panels {
            w.read_scales(p, out);
        }
    }
}
