//! What a kernel of weights in blocks is: its operands, and the table of those of an instruction set. `drive` calls
//! them.

use super::operand::RoundedRows;
use super::panels::{BlockPanels, PanelScales};
use crate::gemm::pack::PANEL;

/// The kernels for one type of blocks on one instruction set.
#[derive(Clone, Copy)]
pub struct BlockKernels {
    /// Most rows of a call.
    pub rows: usize,
    /// Panels per call, for this many rows.
    pub panels: fn(rows: usize) -> usize,
    /// The kernel for exactly this many rows and panels: those that `panels` returns, and one for a remainder.
    pub kernel: fn(rows: usize, panels: usize) -> BlockKernel,
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

    /// The smallest values, likewise.
    #[inline(always)]
    pub fn least_at(&self, p: usize, g: usize, half: usize) -> &[f32; PANEL] {
        &self.scales.least[(p * self.w.groups() + g) * self.w.splits() + half]
    }
}
