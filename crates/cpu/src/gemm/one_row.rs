//! The kernel for one row and bf16 weights on processors with tile registers: vector products in the order of tiles
//! (see `tile_order`), over the operands of the kernel for more rows in `amx`.

use std::arch::x86_64::*;

use super::kernel::{GemmKernel, GemmTile};
use super::pack::PANEL;
use crate::memory::CacheLine;
use crate::tile_order::{CHAIN, PairChains, SplitPair};

/// Panels of a kernel call: so many streams of weights are read at once.
pub const PANELS: usize = 8;

/// The kernel for [`PANELS`], or for those of a remainder.
pub fn kernel(panels: usize) -> GemmKernel {
    match panels {
        1 => tile::<1>,
        2 => tile::<2>,
        4 => tile::<4>,
        PANELS => tile::<PANELS>,
        _ => unreachable!("no kernel for one row and {panels} panels"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn tile<const N: usize>(tile: &GemmTile) {
    let mut sums = [_mm512_setzero_ps(); N];
    let mut prefetch = tile.prefetch;
    // SAFETY: the processor has the instructions; the tile's pointers are valid for one row and `N` panels.
    unsafe {
        if let Some(from) = tile.sums {
            for (p, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(from.add(p * PANEL));
            }
        }
        for first in (0..tile.words).step_by(CHAIN) {
            let mut chains = PairChains::<N>::zero();
            for word in first..tile.words.min(first + CHAIN) {
                let x = SplitPair::load(tile.a.add(word));
                let ahead = prefetch.next_line();
                for p in 0..N {
                    let w = tile.w.add(p * tile.panel_bytes + word * size_of::<CacheLine>());
                    chains.add(p, x, w.cast());
                    // Only Intel's processors have tiles, and there lines are prefetched soon before they are read.
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(p * tile.panel_bytes).cast());
                }
            }
            chains.add_to(&mut sums);
        }
        for (p, sum) in sums.iter().enumerate() {
            let to = tile.to.add(p * PANEL);
            _mm512_storeu_ps(to, if tile.adds { _mm512_add_ps(_mm512_loadu_ps(to), *sum) } else { *sum });
        }
    }
}
