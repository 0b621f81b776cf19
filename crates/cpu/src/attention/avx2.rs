//! AVX2 with FMA and F16C: two registers hold sixteen lanes. bf16 is widened to f32; queries and numerators stay f32.

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

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub struct Avx2Lanes(__m256, __m256);

/// Methods that one instruction computes.
macro_rules! by_instructions {
    ($($method:ident($($arg:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $method(self, $($arg: Self),*) -> Self {
            // SAFETY: the processor has the instructions, as the caller promises.
            unsafe { Avx2Lanes($instruction(self.0, $($arg.0),*), $instruction(self.1, $($arg.1),*)) }
        }
    )*};
}

impl FloatLanes for Avx2Lanes {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe { Avx2Lanes(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe { Avx2Lanes(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    by_instructions! {
        add(other) = _mm256_add_ps;
        sub(other) = _mm256_sub_ps;
        mul(other) = _mm256_mul_ps;
        mul_add(b, c) = _mm256_fmadd_ps;
        mul_sub(b, c) = _mm256_fmsub_ps;
        max(other) = _mm256_max_ps;
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn hide_unset(self, bits: u16) -> Self {
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe {
            let hidden = _mm256_set1_ps(f32::NEG_INFINITY);
            let bits = _mm256_set1_epi32(i32::from(bits));
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            let low = _mm256_cmpeq_epi32(_mm256_and_si256(bits, low), low);
            let high = _mm256_cmpeq_epi32(_mm256_and_si256(bits, high), high);
            Avx2Lanes(
                _mm256_blendv_ps(hidden, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(hidden, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, shifted: Self, x: Self, lowest: Self) -> Self {
        #[inline(always)]
        unsafe fn eight(y: __m256, shifted: __m256, x: __m256, lowest: __m256) -> __m256 {
            // SAFETY: the processor has the instructions, as the caller promises.
            unsafe {
                let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
                let y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
                _mm256_and_ps(y, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, lowest))
            }
        }
        // SAFETY: the processor has the instructions, as the caller promises.
        unsafe { Avx2Lanes(eight(self.0, shifted.0, x.0, lowest.0), eight(self.1, shifted.1, x.1, lowest.1)) }
    }
}

impl StateKernels for Avx2Lanes {
    state_kernels!("avx2,fma,f16c");
}

widening_paths! {
    Avx2Lanes, "avx2,fma,f16c";
    Avx2F32, 1, load_f32;
    Avx2F16, 1, load_f16;
    Avx2Bf16, 1, load_bf16_pairs;
}

#[inline(always)]
unsafe fn load_f32(words: *const u32) -> Avx2Lanes {
    // SAFETY: as the caller promises, of the processor and of what the pointers point to.
    unsafe { Avx2Lanes::load(words.cast()) }
}

#[inline(always)]
unsafe fn load_f16(words: *const u16) -> Avx2Lanes {
    // SAFETY: as the caller promises, of the processor and of what the pointers point to.
    unsafe {
        let low = _mm_loadu_si128(words.cast());
        let high = _mm_loadu_si128(words.add(8).cast());
        Avx2Lanes(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
    }
}

/// The first and the second elements of sixteen pairs.
#[inline(always)]
unsafe fn load_bf16_pairs(words: *const u32) -> (Avx2Lanes, Avx2Lanes) {
    #[inline(always)]
    unsafe fn eight(words: *const u32) -> (__m256, __m256) {
        // SAFETY: as the caller promises, of the processor and of what the pointers point to.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            let first = _mm256_slli_epi32::<16>(words);
            let second = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (_mm256_castsi256_ps(first), _mm256_castsi256_ps(second))
        }
    }
    // SAFETY: the processor has the instructions, as the caller promises.
    unsafe {
        let (low, high) = (eight(words), eight(words.add(8)));
        (Avx2Lanes(low.0, high.0), Avx2Lanes(low.1, high.1))
    }
}
