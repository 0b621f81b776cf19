//! AVX2 with FMA and F16C: two registers hold sixteen lanes. bf16 is widened, and nothing
//! else rounded to it.

use std::arch::x86_64::*;

use super::fold::{self, Coming, Geometry, Rows, Sight, TileView};
use super::lanes::{Lanes, MAX_ROWS, Path, kernels};

#[derive(Clone, Copy)]
pub struct Two(__m256, __m256);

// SAFETY of all methods: each is one or a few instructions of the set that the caller promises, on pointers that the
// caller promises to be good for sixteen elements.
impl Lanes for Two {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Two(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Two(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Two(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Two(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Two(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { Two(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }

    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        unsafe { Two(_mm256_fmsub_ps(self.0, b.0, c.0), _mm256_fmsub_ps(self.1, b.1, c.1)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Two(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn keep(self, bits: u16) -> Self {
        unsafe {
            let hidden = _mm256_set1_ps(f32::NEG_INFINITY);
            let bits = _mm256_set1_epi32(i32::from(bits));
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            let low = _mm256_cmpeq_epi32(_mm256_and_si256(bits, low), low);
            let high = _mm256_cmpeq_epi32(_mm256_and_si256(bits, high), high);
            Two(
                _mm256_blendv_ps(hidden, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(hidden, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn times_power(self, shifted: Self, x: Self, lowest: Self) -> Self {
        #[inline(always)]
        unsafe fn eight(y: __m256, shifted: __m256, x: __m256, lowest: __m256) -> __m256 {
            unsafe {
                let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
                let y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
                _mm256_and_ps(y, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, lowest))
            }
        }
        unsafe { Two(eight(self.0, shifted.0, x.0, lowest.0), eight(self.1, shifted.1, x.1, lowest.1)) }
    }
}

/// `acc + factor * x`.
#[inline(always)]
unsafe fn madd(acc: Two, factor: f32, x: Two) -> Two {
    unsafe {
        let factor = _mm256_set1_ps(factor);
        Two(_mm256_fmadd_ps(factor, x.0, acc.0), _mm256_fmadd_ps(factor, x.1, acc.1))
    }
}

pub struct F32;

impl Path for F32 {
    type Lanes = Two;
    type Word = u32;
    type Operand = Two;
    type Factor = f32;
    type Wide = Self;
    const WIDENS: bool = false;
    const PAIR: usize = 1;
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> Two {
        unsafe { Two::load(words.cast()) }
    }

    #[inline(always)]
    unsafe fn madd(acc: Two, factor: *const f32, words: Two) -> Two {
        unsafe { madd(acc, *factor, words) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: Two, to: *mut f32) {
        unsafe { x.store(to) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: Two, to: *mut f32, _stride: usize) {
        unsafe { words.store(to) }
    }

    kernels!("avx2,fma,f16c");
}

pub struct F16;

impl Path for F16 {
    type Lanes = Two;
    type Word = u16;
    type Operand = Two;
    type Factor = f32;
    type Wide = F32;
    const WIDENS: bool = true;
    const PAIR: usize = 1;
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn operand(words: *const u16) -> Two {
        unsafe {
            let low = _mm_loadu_si128(words.cast());
            let high = _mm_loadu_si128(words.add(8).cast());
            Two(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn madd(acc: Two, factor: *const f32, words: Two) -> Two {
        unsafe { madd(acc, *factor, words) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: Two, to: *mut f32) {
        unsafe { x.store(to) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: Two, to: *mut f32, _stride: usize) {
        unsafe { words.store(to) }
    }

    kernels!("avx2,fma,f16c");
}

/// bf16 by widening.
pub struct Bf16;

impl Path for Bf16 {
    type Lanes = Two;
    type Word = u32;
    /// The earlier and the later elements.
    type Operand = (Two, Two);
    type Factor = [f32; 2];
    type Wide = F32;
    const WIDENS: bool = true;
    const PAIR: usize = 2;
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> (Two, Two) {
        #[inline(always)]
        unsafe fn eight(words: *const u32) -> (__m256, __m256) {
            unsafe {
                let words = _mm256_loadu_si256(words.cast());
                let earlier = _mm256_slli_epi32::<16>(words);
                let later = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                (_mm256_castsi256_ps(earlier), _mm256_castsi256_ps(later))
            }
        }
        unsafe {
            let (low, high) = (eight(words), eight(words.add(8)));
            (Two(low.0, high.0), Two(low.1, high.1))
        }
    }

    #[inline(always)]
    unsafe fn madd(acc: Two, factor: *const [f32; 2], words: (Two, Two)) -> Two {
        unsafe { madd(madd(acc, (*factor)[0], words.0), (*factor)[1], words.1) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: Two, to: *mut [f32; 2]) {
        unsafe { x.store(to.cast()) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: (Two, Two), to: *mut f32, stride: usize) {
        unsafe {
            words.0.store(to);
            words.1.store(to.add(stride));
        }
    }

    kernels!("avx2,fma,f16c");
}
