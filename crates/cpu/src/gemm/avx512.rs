//! Kernels for AVX-512 F, by f32 multiply-adds. f16 and bf16 weights are widened in registers; widening them once
//! before all rows was measured to be no faster.

use std::arch::x86_64::*;

use super::kernel::{GemmKernel, GemmKernels, GemmTile};
use super::operand::{OperandFormat, ROW_STRIDE};
use super::pack::PANEL;
use super::widening::{Bf16Weights, F16Weights, F32Weights, PanelWeights};
use crate::memory::CacheLevel;
use offshoot_backend::Dtype;

pub static KERNELS: GemmKernels = GemmKernels {
    rows: 13,
    panels: |rows, _| panels(rows),
    operand: |dtype| if dtype == Dtype::Bf16 { OperandFormat::RoundedF32 } else { OperandFormat::F32 },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::F32 => kernel::<F32Weights>(rows, panels),
        Dtype::F16 => kernel::<F16Weights>(rows, panels),
        Dtype::Bf16 => kernel::<Bf16Weights>(rows, panels),
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

/// A family of kernels, one for each shape that [`kernel`] lists.
pub trait Avx512Kernel {
    /// See [`GemmKernel`].
    ///
    /// # Safety
    /// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile);
}

/// Loads weights and widens them to f32.
trait Avx512Load: PanelWeights {
    /// The weights of word `i` of an iteration.
    ///
    /// # Safety
    /// `w` is valid for `BYTES` bytes; the processor has AVX-512 F.
    unsafe fn load(w: *const u8, i: usize) -> __m512;
}

impl Avx512Load for F32Weights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, _: usize) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(w.cast()) }
    }
}

impl Avx512Load for F16Weights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, _: usize) -> __m512 {
        // SAFETY: promised by the caller.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(w.cast()) })
    }
}

impl Avx512Load for Bf16Weights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, i: usize) -> __m512 {
        // SAFETY: promised by the caller.
        let pairs = unsafe { _mm512_loadu_si512(w.cast()) };
        _mm512_castsi512_ps(if i == 0 {
            _mm512_slli_epi32::<16>(pairs)
        } else {
            _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
        })
    }
}

/// The kernel of `K` for this many rows and panels: those that [`panels`] returns, and one panel for a remainder.
pub fn kernel<K: Avx512Kernel>(rows: usize, panels: usize) -> GemmKernel {
    macro_rules! one_of {
        ($($rows:literal x $($panels:literal)+;)+) => {
            match (rows, panels) {
                $($(($rows, $panels) => K::tile::<$rows, $panels>,)+)+
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

impl<W: Avx512Load> Avx512Kernel for W {
    #[target_feature(enable = "avx512f")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &GemmTile) {
        let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
        if let Some(sums) = tile.sums {
            for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: the tile has `ROWS * PANELS` registers of sums.
                *acc = unsafe { _mm512_loadu_ps(sums.add(i * PANEL)) };
            }
        }
        let (mut a, mut w) = (tile.a.cast::<f32>(), tile.w);
        let mut prefetch = tile.prefetch;
        let mut left = tile.words / W::WORDS;
        while left > 0 {
            let steps = left.min(tile.prefetch_every / W::WORDS);
            for _ in 0..steps {
                for i in 0..W::WORDS {
                    let mut weights = [_mm512_setzero_ps(); PANELS];
                    for (p, weights) in weights.iter_mut().enumerate() {
                        // SAFETY: the tile holds `words` words of `PANELS` panels.
                        *weights = unsafe { W::load(w.add(p * tile.panel_bytes), i) };
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: the tile holds `words` words of `ROWS` rows.
                        let x = _mm512_set1_ps(unsafe { *a.add(r * ROW_STRIDE + i) });
                        for (acc, weights) in acc.iter_mut().zip(&weights) {
                            *acc = _mm512_fmadd_ps(x, *weights, *acc);
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
