//! The AVX-512 BF16 kernel emulated in software, one row and one panel at a time. Every output is the same chain of dot
//! products as in `avx512_bf16`, so the bits are the same.

use super::drive::{GemmKernels, GemmTile};
use super::operand::OperandFormat;
use super::pack::PANEL;
use crate::backend::cpu::bf16_dot;
use crate::backend::cpu::memory::CacheLevel;

/// For bf16 weights only.
pub static KERNELS: GemmKernels = GemmKernels {
    rows: 1,
    panels: |_, _| 1,
    operand: |_| OperandFormat::Bf16Pairs,
    kernel: |_, _, _| tile,
    fewer_panels: &[1],
    soon_rows: 0,
    strip_cache: |_, _| CacheLevel::Second,
    around: |_, shares| shares(),
};

unsafe fn tile(tile: &GemmTile) {
    let mut sums = [0.0; PANEL];
    // SAFETY: the tile holds `words` pairs of one row and of one panel, whose 16 outputs lie side by side, and 16 sums.
    let (a, w) = unsafe {
        if let Some(before) = tile.sums {
            sums = before.cast::<[f32; PANEL]>().read_unaligned();
        }
        let panel = tile.w.cast::<[u32; PANEL]>();
        (std::slice::from_raw_parts(tile.a, tile.words), std::slice::from_raw_parts(panel, tile.words))
    };
    for (x, weights) in a.iter().zip(w) {
        for (sum, w) in sums.iter_mut().zip(weights) {
            *sum = bf16_dot::dot(*sum, *x, *w);
        }
    }
    let to = tile.to.cast::<[f32; PANEL]>();
    // SAFETY: as above.
    unsafe {
        if tile.adds {
            sums.iter_mut().zip(to.read_unaligned()).for_each(|(sum, before)| *sum += before);
        }
        to.write_unaligned(sums);
    }
}
