//! Kernels for AVX-512 F, by f32 multiply-adds. f16 and bf16 weights are widened in registers; widening them once
//! before all rows was measured to be no faster.

use std::arch::x86_64::*;

use super::kernel::{GemmKernel, GemmKernels, GemmTile, tile_of};
use super::operand::{OperandFormat, ROW_STRIDE};
use super::pack::PANEL;
use super::widening::{Bf16Weights, F16Weights, F32Weights, PanelWeights, Widened};
use crate::memory::CacheLevel;
use offshoot_backend::Dtype;

pub static KERNELS: GemmKernels = GemmKernels {
    rows: 13,
    panels: |rows, _| panels(rows),
    operand: |dtype| if dtype == Dtype::Bf16 { OperandFormat::RoundedF32 } else { OperandFormat::F32 },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::F32 => kernel::<Widened<F32Weights>>(rows, panels),
        Dtype::F16 => kernel::<Widened<F16Weights>>(rows, panels),
        Dtype::Bf16 => kernel::<Widened<Bf16Weights>>(rows, panels),
    },
    fewer_panels: &[1],
    soon_rows: 13,
    strip_cache: |_, _| CacheLevel::Second,
    around: |_, shares| shares(),
};

/// 32 registers: `rows * panels` accumulators, `panels` weights and one activation. Few rows take many panels, so that
/// several streams of weights are read at once.
fn panels(rows: usize) -> usize {
    match rows {
        0..=2 => 8,
        3..=4 => 6,
        5 => 4,
        6..=8 => 3,
        _ => 2,
    }
}

/// What a tile multiplies, `WORDS` words of a row at a time.
pub trait Avx512Kernel {
    const WORDS: usize;
    /// Bytes of so many words of a panel.
    const BYTES: usize;

    /// The 16 weights of word `i`, in a register.
    ///
    /// # Safety
    /// `w` is valid for `BYTES` bytes; the processor has the kernel's instruction set.
    unsafe fn load(w: *const u8, i: usize) -> __m512;

    /// `acc` and the products of these weights with a word of activations.
    ///
    /// # Safety
    /// The processor has the kernel's instruction set.
    unsafe fn add(acc: __m512, x: u32, weights: __m512) -> __m512;

    /// See [`GemmKernel`]. By [`tile`], for the instruction set.
    ///
    /// # Safety
    /// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile);
}

/// [`Avx512Kernel::tile`], compiled for `$features`.
macro_rules! tile {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile) {
            // SAFETY: the tile holds `words` words of `ROWS` rows and of `PANELS` panels, and has `ROWS * PANELS`
            // registers of sums; there is room for `PANELS` registers in each of `ROWS` rows; the processor has the
            // instructions.
            unsafe {
                let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
                if let Some(sums) = tile.sums {
                    for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                        *acc = _mm512_loadu_ps(sums.add(i * PANEL));
                    }
                }
                let (mut a, mut w) = (tile.a, tile.w);
                let mut prefetch = tile.prefetch;
                let mut left = tile.words / Self::WORDS;
                while left > 0 {
                    let steps = left.min(tile.prefetch_every / Self::WORDS);
                    for _ in 0..steps {
                        for i in 0..Self::WORDS {
                            let mut weights = [_mm512_setzero_ps(); PANELS];
                            for (p, weights) in weights.iter_mut().enumerate() {
                                *weights = Self::load(w.add(p * tile.panel_bytes), i);
                            }
                            for (r, acc) in acc.iter_mut().enumerate() {
                                let x = *a.add(r * ROW_STRIDE + i);
                                for (acc, weights) in acc.iter_mut().zip(&weights) {
                                    *acc = Self::add(*acc, x, *weights);
                                }
                            }
                        }
                        // At most one past the end of the strips.
                        (a, w) = (a.add(Self::WORDS), w.add(Self::BYTES));
                    }
                    prefetch.prefetch::<PANELS>(tile.panel_bytes);
                    left -= steps;
                }
                for (r, acc) in acc.iter().enumerate() {
                    for (p, acc) in acc.iter().enumerate() {
                        let to = tile.to.add(r * tile.to_stride + p * PANEL);
                        let sums = if tile.adds { _mm512_add_ps(_mm512_loadu_ps(to), *acc) } else { *acc };
                        _mm512_storeu_ps(to, sums);
                    }
                }
            }
        }
    };
}
pub(super) use tile;

impl<W: PanelWeights> Avx512Kernel for Widened<W> {
    const WORDS: usize = W::WORDS;
    const BYTES: usize = W::BYTES;

    /// Widens them to f32.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, i: usize) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            match W::DTYPE {
                Dtype::F32 => _mm512_loadu_ps(w.cast()),
                Dtype::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(w.cast())),
                Dtype::Bf16 => {
                    let pairs = _mm512_loadu_si512(w.cast());
                    _mm512_castsi512_ps(if i == 0 {
                        _mm512_slli_epi32::<16>(pairs)
                    } else {
                        _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
                    })
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add(acc: __m512, x: u32, weights: __m512) -> __m512 {
        _mm512_fmadd_ps(_mm512_set1_ps(f32::from_bits(x)), weights, acc)
    }

    tile!("avx512f");
}

/// The kernel of `K` for this many rows and panels: those that [`panels`] returns, and one panel for a remainder.
pub fn kernel<K: Avx512Kernel>(rows: usize, panels: usize) -> GemmKernel {
    tile_of! {
        K, rows, panels;
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
