//! The kernel of AVX-512 BF16 in software, one row and one panel at a time: the same chain of dot products for each
//! output, and so the same bits.

use super::drive::{Kernels, Tile};
use super::operand::Operand;
use super::pack::PANEL;
use crate::backend::cpu::bf16_dot;

/// For bf16 weights alone.
pub static KERNELS: Kernels =
    Kernels { rows: 1, panels: |_| 1, operand: |_| Operand::Bf16Pairs, kernel: |_, _, _| tile };

unsafe fn tile(tile: &Tile) {
    let mut sums = [0.0; PANEL];
    // SAFETY: the tile holds `words` pairs of one row and of one panel, whose 16 outputs lie side by side, and 16 sums.
    let (a, w) = unsafe {
        if tile.resume {
            sums = tile.sums.cast::<[f32; PANEL]>().read_unaligned();
        }
        let panel = tile.w.cast::<[u32; PANEL]>();
        (std::slice::from_raw_parts(tile.a, tile.words), std::slice::from_raw_parts(panel, tile.words))
    };
    for (x, weights) in a.iter().zip(w) {
        for (sum, w) in sums.iter_mut().zip(weights) {
            *sum = bf16_dot::dot(*sum, *x, *w);
        }
    }
    // SAFETY: as above.
    unsafe { tile.sums.cast::<[f32; PANEL]>().write_unaligned(sums) };
}
