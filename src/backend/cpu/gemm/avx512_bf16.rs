//! The kernel of AVX-512 BF16: dot products of bf16 pairs into f32. Other weights go the way of AVX-512 F.

use std::arch::x86_64::*;

use super::avx512;
use super::drive::{Kernel, Kernels, Tile};
use super::operand::{Operand, ROW_STRIDE};
use super::pack::PANEL;
use crate::backend::Dtype;

pub static KERNELS: Kernels = Kernels {
    operand: |dtype| if dtype == Dtype::Bf16 { Operand::Bf16Pairs } else { (avx512::KERNELS.operand)(dtype) },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::Bf16 => kernel(rows, panels),
        _ => (avx512::KERNELS.kernel)(dtype, rows, panels),
    },
    ..avx512::KERNELS
};

fn kernel(rows: usize, panels: usize) -> Kernel {
    macro_rules! one_of {
        ($($rows:literal x $($panels:literal)+;)+) => {
            match (rows, panels) {
                $($(($rows, $panels) => tile::<$rows, $panels>,)+)+
                _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
            }
        };
    }
    one_of! {
        1 x 1 8;
        2 x 1 8;
        3 x 1 6;
        4 x 1 6;
        5 x 1 4;
        6 x 1 3;
        7 x 1 3;
        8 x 1 2 3;
        9 x 1 2;
        10 x 1 2;
        11 x 1 2;
        12 x 1 2;
        13 x 1 2;
        14 x 1 2;
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
    if tile.resume {
        for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: the tile has `ROWS * PANELS` registers of sums.
            *acc = unsafe { _mm512_loadu_ps(tile.sums.add(i * PANEL)) };
        }
    }
    let (mut a, mut w) = (tile.a.cast::<i32>(), tile.w);
    let mut ahead = tile.ahead;
    let mut left = tile.words;
    while left > 0 {
        let steps = left.min(tile.ahead_every);
        for _ in 0..steps {
            let mut weights = [_mm512_setzero_si512(); PANELS];
            for (p, weights) in weights.iter_mut().enumerate() {
                // SAFETY: the tile holds `words` pairs of `PANELS` panels.
                *weights = unsafe { _mm512_loadu_si512(w.add(p * tile.panel_bytes).cast()) };
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the tile holds `words` pairs of `ROWS` rows.
                let x = _mm512_set1_epi32(unsafe { *a.add(r * ROW_STRIDE) });
                for (acc, weights) in acc.iter_mut().zip(weights) {
                    *acc = _mm512_dpbf16_ps(*acc, pairs(x), pairs(weights));
                }
            }
            // SAFETY: at most one past the end of the strips.
            (a, w) = unsafe { (a.add(1), w.add(64)) };
        }
        for p in 0..PANELS {
            _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(p * tile.panel_bytes).cast());
        }
        ahead = ahead.wrapping_add(64);
        left -= steps;
    }
    for (i, acc) in acc.as_flattened().iter().enumerate() {
        // SAFETY: the tile has `ROWS * PANELS` registers of sums.
        unsafe { _mm512_storeu_ps(tile.sums.add(i * PANEL), *acc) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits without meaning of their own; 16 words hold 16 pairs of bf16.
    unsafe { std::mem::transmute(x) }
}
