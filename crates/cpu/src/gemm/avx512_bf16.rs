//! The kernel for AVX-512 BF16: dot products of bf16 pairs, accumulated in f32. f32 and f16 weights use the kernels of
//! `avx512`.

use std::arch::x86_64::*;

use super::avx512::{self, Avx512Kernel};
use super::kernel::{GemmKernels, GemmTile};
use super::operand::{OperandFormat, ROW_STRIDE};
use super::pack::PANEL;
use crate::memory::CacheLevel;
use offshoot_backend::Dtype;

pub static KERNELS: GemmKernels = GemmKernels {
    rows: 14,
    soon_rows: 14,
    // On Zen 4 layers of 32 rows take 2 to 4 % less time with the first-level cache, layers of 1 and 8 rows 24 and 44 %
    // more (benches/cpu/NOTES.md).
    strip_cache: |dtype, groups| {
        if dtype == Dtype::Bf16 && groups > 1 { CacheLevel::First } else { CacheLevel::Second }
    },
    operand: |dtype| if dtype == Dtype::Bf16 { OperandFormat::Bf16Pairs } else { (avx512::KERNELS.operand)(dtype) },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::Bf16 => avx512::kernel::<Bf16PairDot>(rows, panels),
        _ => (avx512::KERNELS.kernel)(dtype, rows, panels),
    },
    ..avx512::KERNELS
};

/// Multiplies bf16 pairs by the dot-product instruction.
struct Bf16PairDot;

impl Avx512Kernel for Bf16PairDot {
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile) {
        let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
        if let Some(sums) = tile.sums {
            for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: the tile has `ROWS * PANELS` registers of sums.
                *acc = unsafe { _mm512_loadu_ps(sums.add(i * PANEL)) };
            }
        }
        let (mut a, mut w) = (tile.a.cast::<i32>(), tile.w);
        let mut prefetch = tile.prefetch;
        let mut left = tile.words;
        while left > 0 {
            let steps = left.min(tile.prefetch_every);
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
            prefetch.prefetch::<PANELS>(tile.panel_bytes);
            left -= steps;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, acc) in acc.iter().enumerate() {
                // SAFETY: there is room for `PANELS` registers in each of `ROWS` rows.
                unsafe {
                    let to = tile.to.add(r * tile.to_stride + p * PANEL);
                    let sums = if tile.adds { _mm512_add_ps(_mm512_loadu_ps(to), *acc) } else { *acc };
                    _mm512_storeu_ps(to, sums);
                }
            }
        }
    }
}

/// Sixteen words as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both types are 512 bits without invalid values.
    unsafe { std::mem::transmute(x) }
}
