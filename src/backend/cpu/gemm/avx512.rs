//! Kernels of AVX-512 F: f32 multiply-adds; f16 and bf16 weights widen in registers (doing so beforehand, once
//! for all rows, was measured to gain nothing).

use std::arch::x86_64::*;

use super::drive::{Kernel, Kernels, Tile};
use super::operand::{Operand, ROW_STRIDE};
use super::pack::PANEL;
use crate::backend::Dtype;

pub static KERNELS: Kernels = Kernels {
    rows: 14,
    panels,
    operand: |dtype| if dtype == Dtype::Bf16 { Operand::RoundedF32 } else { Operand::F32 },
    kernel: |dtype, rows, panels| match dtype {
        Dtype::F32 => kernel::<F32>(rows, panels),
        Dtype::F16 => kernel::<F16>(rows, panels),
        Dtype::Bf16 => kernel::<Bf16>(rows, panels),
    },
};

/// 32 registers: `rows * panels` sums, `panels` weights and one activation. Few rows: many panels, so that several
/// streams of weights are under way.
pub fn panels(rows: usize) -> usize {
    match rows {
        0..=2 => 8,
        3..=4 => 6,
        5 => 4,
        6..=8 => 3,
        _ => 2,
    }
}

/// How weights lie in a panel.
trait Weights {
    /// Words of an operand's row, each one input, that one step takes.
    const WORDS: usize;
    /// Bytes of a panel that one step takes.
    const BYTES: usize;

    /// Word `i` of one step, widened.
    ///
    /// # Safety
    /// `w` is good for `BYTES` bytes; the processor has AVX-512 F.
    unsafe fn load(w: *const u8, i: usize) -> __m512;
}

struct F32;
struct F16;
struct Bf16;

impl Weights for F32 {
    const WORDS: usize = 1;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, _: usize) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { _mm512_loadu_ps(w.cast()) }
    }
}

impl Weights for F16 {
    const WORDS: usize = 1;
    const BYTES: usize = 32;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, _: usize) -> __m512 {
        // SAFETY: by the caller's promise.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(w.cast()) })
    }
}

impl Weights for Bf16 {
    const WORDS: usize = 2;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(w: *const u8, i: usize) -> __m512 {
        // SAFETY: by the caller's promise.
        let pairs = unsafe { _mm512_loadu_si512(w.cast()) };
        _mm512_castsi512_ps(if i == 0 {
            _mm512_slli_epi32::<16>(pairs)
        } else {
            _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
        })
    }
}

fn kernel<W: Weights>(rows: usize, panels: usize) -> Kernel {
    macro_rules! one_of {
        ($($rows:literal x $($panels:literal)+;)+) => {
            match (rows, panels) {
                $($(($rows, $panels) => tile::<W, $rows, $panels>,)+)+
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

#[target_feature(enable = "avx512f")]
unsafe fn tile<W: Weights, const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
    if tile.resume {
        for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: the tile has `ROWS * PANELS` registers of sums.
            *acc = unsafe { _mm512_loadu_ps(tile.sums.add(i * PANEL)) };
        }
    }
    let (mut a, mut w) = (tile.a.cast::<f32>(), tile.w);
    let mut ahead = tile.ahead;
    let mut left = tile.words / W::WORDS;
    while left > 0 {
        let steps = left.min(tile.ahead_every / W::WORDS);
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
