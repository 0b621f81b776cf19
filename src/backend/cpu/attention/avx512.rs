//! AVX-512: one register holds sixteen lanes. bf16 is either widened, and then nothing else rounded to it, or
//! multiplied by the dot-product instructions.

use std::arch::x86_64::*;

use super::fold::{self, Coming, Geometry, Rows, Sight, TileView};
use super::lanes::{Lanes, MAX_ROWS, Path, kernels};

// SAFETY of all methods: each is one or a few instructions of the set that the caller promises, on pointers that the
// caller promises to be good for sixteen elements.
impl Lanes for __m512 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm512_sub_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        unsafe { _mm512_fmsub_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { _mm512_max_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self) }
    }

    #[inline(always)]
    unsafe fn keep(self, bits: u16) -> Self {
        unsafe { _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), bits, self) }
    }

    #[inline(always)]
    unsafe fn times_power(self, shifted: Self, x: Self, lowest: Self) -> Self {
        unsafe {
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, lowest);
            let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(self), power))
        }
    }
}

pub struct F32;

impl Path for F32 {
    type Lanes = __m512;
    type Word = u32;
    type Operand = __m512;
    type Factor = f32;
    type Wide = Self;
    const WIDENS: bool = false;
    const PAIR: usize = 1;
    const PANELS: usize = 4;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> __m512 {
        unsafe { _mm512_loadu_ps(words.cast()) }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const f32, words: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(_mm512_set1_ps(*factor), words, acc) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: __m512, to: *mut f32, _stride: usize) {
        unsafe { _mm512_storeu_ps(to, words) }
    }

    kernels!("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c");
}

pub struct F16;

impl Path for F16 {
    type Lanes = __m512;
    type Word = u16;
    type Operand = __m512;
    type Factor = f32;
    type Wide = F32;
    const WIDENS: bool = true;
    const PAIR: usize = 1;
    const PANELS: usize = 4;

    #[inline(always)]
    unsafe fn operand(words: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(words.cast())) }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const f32, words: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(_mm512_set1_ps(*factor), words, acc) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: __m512, to: *mut f32, _stride: usize) {
        unsafe { _mm512_storeu_ps(to, words) }
    }

    kernels!("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c");
}

/// bf16 by widening.
pub struct Bf16;

impl Path for Bf16 {
    type Lanes = __m512;
    type Word = u32;
    /// The earlier and the later elements.
    type Operand = (__m512, __m512);
    type Factor = [f32; 2];
    type Wide = F32;
    const WIDENS: bool = true;
    const PAIR: usize = 2;
    const PANELS: usize = 3;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> (__m512, __m512) {
        unsafe {
            let words = _mm512_loadu_si512(words.cast());
            let earlier = _mm512_slli_epi32::<16>(words);
            let later = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(earlier), _mm512_castsi512_ps(later))
        }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const [f32; 2], words: (__m512, __m512)) -> __m512 {
        unsafe {
            let acc = _mm512_fmadd_ps(_mm512_set1_ps((*factor)[0]), words.0, acc);
            _mm512_fmadd_ps(_mm512_set1_ps((*factor)[1]), words.1, acc)
        }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut [f32; 2]) {
        unsafe { _mm512_storeu_ps(to.cast(), x) }
    }

    #[inline(always)]
    unsafe fn store_wide(words: (__m512, __m512), to: *mut f32, stride: usize) {
        unsafe {
            _mm512_storeu_ps(to, words.0);
            _mm512_storeu_ps(to.add(stride), words.1);
        }
    }

    kernels!("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c");
}

/// bf16 by dot products of pairs.
pub struct Bf16Dot;

impl Path for Bf16Dot {
    type Lanes = __m512;
    type Word = u32;
    type Operand = __m512bh;
    /// Two bf16.
    type Factor = u32;
    type Wide = Self;
    const WIDENS: bool = false;
    const PAIR: usize = 2;
    const PANELS: usize = 4;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> __m512bh {
        // SAFETY: both types are 512 bits without meaning of their own.
        unsafe { std::mem::transmute(_mm512_loadu_si512(words.cast())) }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const u32, words: __m512bh) -> __m512 {
        unsafe {
            _mm512_dpbf16_ps(acc, std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*factor as i32)), words)
        }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut u32) {
        unsafe { _mm256_storeu_si256(to.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))) }
    }

    #[inline(always)]
    unsafe fn store_wide(_words: __m512bh, _to: *mut f32, _stride: usize) {
        unreachable!("the dot products read what is stored")
    }

    kernels!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c");
}
