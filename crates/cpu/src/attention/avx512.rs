//! AVX-512: one register holds sixteen lanes. bf16 is either widened to f32, with queries and numerators in f32, or
//! multiplied by the dot-product instructions, with queries and numerators rounded to bf16.

use std::arch::x86_64::*;
use std::ops::Range;

use super::groups::PanelSums;
use super::lanes::{FloatLanes, VECTOR_ROWS};
use super::path::{
    Factor, Geometry, GroupPath, KernelPath, Prefetch, RowStates, StateKernels, StatesMut, StatesRef, TileView,
    VisibleLanes, WideningPath, Word, by_rows, group_kernels, kernels, packing, row_kernels, single_elements,
    state_kernels, widened_pairs, widening, widening_paths,
};
use super::tiles::PAGES;
use super::{fold, groups};
use crate::kv::SLOTS;
use crate::memory::CacheLevel;

/// Methods that one instruction computes.
macro_rules! by_instructions {
    ($($method:ident($($arg:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $method(self, $($arg: Self),*) -> Self {
            // SAFETY: the processor has the instructions, as the caller promises.
            unsafe { $instruction(self, $($arg),*) }
        }
    )*};
}

impl FloatLanes for __m512 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    by_instructions! {
        add(other) = _mm512_add_ps;
        sub(other) = _mm512_sub_ps;
        mul(other) = _mm512_mul_ps;
        mul_add(b, c) = _mm512_fmadd_ps;
        mul_sub(b, c) = _mm512_fmsub_ps;
        max(other) = _mm512_max_ps;
    }

    #[inline(always)]
    unsafe fn load_first<const R: usize>(from: *const f32) -> Self {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { _mm512_maskz_loadu_ps((1 << R) - 1, from) }
    }

    #[inline(always)]
    unsafe fn store_first<const R: usize>(self, to: *mut f32) {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { _mm512_mask_storeu_ps(to, (1 << R) - 1, self) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe { _mm512_reduce_max_ps(self) }
    }

    /// Transposes while it reduces: a maximum of two shuffles halves two vectors to one.
    #[inline(always)]
    unsafe fn largest_each<const R: usize>(rows: [Self; R]) -> Self {
        const { assert!(R <= 8, "eight rows are reduced at most") };
        /// In each quarter the largest of the quarters of `a`, of `b`, of `a`, of `b`, each of two elements.
        #[inline(always)]
        unsafe fn pair(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the processor has the instructions, as the caller promises.
            unsafe { _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)) }
        }
        /// In each quarter the largest elements of the quarters of four vectors, from two pairs.
        #[inline(always)]
        unsafe fn four(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the processor has the instructions, as the caller promises.
            unsafe {
                let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
                let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                _mm512_max_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
            }
        }
        let row = |r: usize| rows[r.min(R - 1)];
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe {
            let low = four(pair(row(0), row(1)), pair(row(2), row(3)));
            let high = four(pair(row(4), row(5)), pair(row(6), row(7)));
            // Quarters 0 and 2, and 1 and 3, of each: then the halves of each.
            let halves = _mm512_max_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
            );
            let all = _mm512_max_ps(halves, _mm512_shuffle_f32x4::<0b10_11_00_01>(halves, halves));
            _mm512_shuffle_f32x4::<0b10_10_10_00>(all, all)
        }
    }

    #[inline(always)]
    unsafe fn hide_unset(self, bits: u16) -> Self {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe { _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), bits, self) }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, shifted: Self, x: Self, lowest: Self) -> Self {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe {
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, lowest);
            let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(self), power))
        }
    }
}

impl StateKernels for __m512 {
    state_kernels!("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c");
}

widening_paths! {
    __m512, "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c";
    Avx512F32, 4, load_f32;
    Avx512F16, 4, load_f16;
    Avx512Bf16, 3, load_bf16_pairs;
}

#[inline(always)]
unsafe fn load_f32(words: *const u32) -> __m512 {
    // SAFETY: as the caller promises, of the processor and of what the pointers point to.
    unsafe { _mm512_loadu_ps(words.cast()) }
}

#[inline(always)]
unsafe fn load_f16(words: *const u16) -> __m512 {
    // SAFETY: as the caller promises, of the processor and of what the pointers point to.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(words.cast())) }
}

/// The first and the second elements of sixteen pairs.
#[inline(always)]
unsafe fn load_bf16_pairs(words: *const u32) -> (__m512, __m512) {
    // SAFETY: as the caller promises, of the processor and of what the pointers point to.
    unsafe {
        let words = _mm512_loadu_si512(words.cast());
        let first = _mm512_slli_epi32::<16>(words);
        let second = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(first), _mm512_castsi512_ps(second))
    }
}

/// bf16 pages, by dot products of pairs.
pub struct Avx512Bf16Dot;

impl KernelPath for Avx512Bf16Dot {
    type Lanes = __m512;
    type Word = u32;
    type Operand = __m512bh;
    /// Two bf16.
    type Factor = u32;
    const WORD_ELEMENTS: usize = 2;
    const ROW_VECTORS: usize = 4;
    /// A page has moved to the second-level cache when it is read. Still calls of five and six rows take 1 to 7 % less
    /// time so on Zen 4 (benches/cpu/NOTES.md).
    const PAGE_CACHE: CacheLevel = CacheLevel::First;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> __m512bh {
        // SAFETY: both types are 512 bits without meaning of their own.
        unsafe { std::mem::transmute(_mm512_loadu_si512(words.cast())) }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const u32, words: __m512bh) -> __m512 {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe {
            _mm512_dpbf16_ps(acc, std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*factor as i32)), words)
        }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut u32) {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { _mm256_storeu_si256(to.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))) }
    }

    kernels!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c");
}

group_kernels!(Avx512Bf16Dot, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c");
