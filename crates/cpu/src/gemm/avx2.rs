//! Kernels for AVX2, FMA and F16C. A panel is two registers wide; f16 and bf16 weights are widened in registers.

use std::arch::x86_64::*;

use super::kernel::{GemmKernel, GemmKernels, GemmTile, tile_of};
use super::operand::{OperandFormat, ROW_STRIDE};
use super::pack::PANEL;
use super::widening::{Bf16Weights, F16Weights, F32Weights, PanelWeights, Widened};
use crate::memory::CacheLevel;
use offshoot_backend::Dtype;

pub static KERNELS: GemmKernels = GemmKernels {
    rows: 6,
    panels: |rows, _| panels(rows),
    operand: |dtype| if dtype == Dtype::Bf16 { OperandFormat::RoundedF32 } else { OperandFormat::F32 },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::F32 => kernel::<F32Weights>(rows, panels),
        Dtype::F16 => kernel::<F16Weights>(rows, panels),
        Dtype::Bf16 => kernel::<Bf16Weights>(rows, panels),
    },
    fewer_panels: &[1],
    soon_rows: 1,
    strip_cache: |_, _| CacheLevel::Second,
    around: |_, shares| shares(),
};

/// 16 registers: two accumulators per row and panel, the weights of one panel, and an activation.
fn panels(rows: usize) -> usize {
    match rows {
        0..=1 => 4,
        2..=3 => 2,
        _ => 1,
    }
}

/// The weights of word `i` of an iteration, widened to f32: outputs 0 to 7 and 8 to 15.
///
/// # Safety
/// `w` is valid for `BYTES` bytes; the processor has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<W: PanelWeights>(w: *const u8, i: usize) -> [__m256; 2] {
    let mut wide = [_mm256_setzero_ps(); 2];
    for (half, wide) in wide.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *wide = unsafe {
            let w = w.add(half * W::BYTES / 2);
            match W::DTYPE {
                Dtype::F32 => _mm256_loadu_ps(w.cast()),
                Dtype::F16 => _mm256_cvtph_ps(_mm_loadu_si128(w.cast())),
                Dtype::Bf16 => {
                    let pairs = _mm256_loadu_si256(w.cast());
                    _mm256_castsi256_ps(if i == 0 {
                        _mm256_slli_epi32::<16>(pairs)
                    } else {
                        _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()))
                    })
                }
            }
        };
    }
    wide
}

fn kernel<W: PanelWeights>(rows: usize, panels: usize) -> GemmKernel {
    tile_of! {
        Widened<W>, rows, panels;
        1 x 1 4;
        2 x 1 2;
        3 x 1 2;
        4 x 1;
        5 x 1;
        6 x 1;
    }
}

impl<W: PanelWeights> Widened<W> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile) {
        let mut acc = [[[_mm256_setzero_ps(); 2]; PANELS]; ROWS];
        if let Some(sums) = tile.sums {
            for (i, acc) in acc.as_flattened_mut().as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: the tile has `ROWS * PANELS` panels of sums.
                *acc = unsafe { _mm256_loadu_ps(sums.add(i * PANEL / 2)) };
            }
        }
        let (mut a, mut w) = (tile.a.cast::<f32>(), tile.w);
        let mut prefetch = tile.prefetch;
        let mut left = tile.words / W::WORDS;
        while left > 0 {
            let steps = left.min(tile.prefetch_every / W::WORDS);
            for _ in 0..steps {
                for i in 0..W::WORDS {
                    for p in 0..PANELS {
                        // SAFETY: the tile holds `words` words of `PANELS` panels.
                        let weights = unsafe { load::<W>(w.add(p * tile.panel_bytes), i) };
                        for (r, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: the tile holds `words` words of `ROWS` rows.
                            let x = _mm256_set1_ps(unsafe { *a.add(r * ROW_STRIDE + i) });
                            acc[p][0] = _mm256_fmadd_ps(x, weights[0], acc[p][0]);
                            acc[p][1] = _mm256_fmadd_ps(x, weights[1], acc[p][1]);
                        }
                    }
                }
                // SAFETY: at most one past the end of the strips.
                (a, w) = unsafe { (a.add(W::WORDS), w.add(W::BYTES)) };
            }
            prefetch.prefetch::<PANELS>(tile.panel_bytes);
            left -= steps;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (half, acc) in acc.as_flattened().iter().enumerate() {
                // SAFETY: there is room for `PANELS` panels in each of `ROWS` rows.
                unsafe {
                    let to = tile.to.add(r * tile.to_stride + half * PANEL / 2);
                    let sums = if tile.adds { _mm256_add_ps(_mm256_loadu_ps(to), *acc) } else { *acc };
                    _mm256_storeu_ps(to, sums);
                }
            }
        }
    }
}
