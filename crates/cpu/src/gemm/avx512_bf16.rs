//! The kernel for AVX-512 BF16: dot products of bf16 pairs, accumulated in f32. f32 and f16 weights use the kernels of
//! `avx512`.

use std::arch::x86_64::*;

use super::avx512::{self, Avx512Kernel, tile};
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
    const WORDS: usize = 1;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn load(w: *const u8, _: usize) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(w.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn add(acc: __m512, x: u32, weights: __m512) -> __m512 {
        let x = _mm512_set1_epi32(x.cast_signed());
        _mm512_dpbf16_ps(acc, pairs(x), pairs(_mm512_castps_si512(weights)))
    }

    tile!("avx512f,avx512bf16");
}

/// Sixteen words as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both types are 512 bits without invalid values.
    unsafe { std::mem::transmute(x) }
}
