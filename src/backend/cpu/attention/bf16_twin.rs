//! AVX-512 BF16 emulated in software: sixteen lanes in an array, and the emulated dot products of `bf16_dot`. Performs
//! the operations of `avx512` in the same order and computes the same bits.

use super::fold::{self, Geometry, Prefetch, RowStates, StatesMut, StatesRef, TileView, VisibleLanes};
use super::lanes::{FloatLanes, KernelPath, VECTOR_ROWS, kernels, state_kernels};
use crate::backend::cpu::bf16_dot;

/// Sixteen lanes as an array.
#[derive(Clone, Copy)]
pub struct SoftwareLanes([f32; 16]);

impl SoftwareLanes {
    #[inline(always)]
    fn zip_with(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        SoftwareLanes(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

// SAFETY of all methods: pointers are valid for sixteen f32, as the caller promises; the rest runs on any processor.
impl FloatLanes for SoftwareLanes {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        SoftwareLanes([x; 16])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        SoftwareLanes(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip_with(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip_with(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip_with(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        SoftwareLanes(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        SoftwareLanes(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], -c.0[i])))
    }

    /// Returns the second operand if either is NaN, as the instruction does.
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip_with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x))
    }

    #[inline(always)]
    unsafe fn hide_unset(self, bits: u16) -> Self {
        SoftwareLanes(std::array::from_fn(|i| if bits >> i & 1 == 1 { self.0[i] } else { f32::NEG_INFINITY }))
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, shifted: Self, x: Self, lowest: Self) -> Self {
        SoftwareLanes(std::array::from_fn(|i| match x.0[i] < lowest.0[i] {
            true => 0.0,
            false => f32::from_bits(self.0[i].to_bits().wrapping_add(shifted.0[i].to_bits() << 23)),
        }))
    }
}

/// bf16 pages, by emulated dot products of pairs.
pub struct SoftwareBf16Dot;

impl KernelPath for SoftwareBf16Dot {
    type Lanes = SoftwareLanes;
    type Word = u32;
    type Operand = [u32; 16];
    /// Two bf16.
    type Factor = u32;
    type Wide = Self;
    const WIDENS: bool = false;
    const WORD_ELEMENTS: usize = 2;
    const ROW_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> [u32; 16] {
        // SAFETY: sixteen words, as the caller promises.
        unsafe { words.cast::<[u32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn madd(acc: SoftwareLanes, factor: *const u32, words: [u32; 16]) -> SoftwareLanes {
        // SAFETY: one factor, as the caller promises.
        let factor = unsafe { *factor };
        SoftwareLanes(std::array::from_fn(|i| bf16_dot::dot(acc.0[i], factor, words[i])))
    }

    #[inline(always)]
    unsafe fn store_factors(x: SoftwareLanes, to: *mut u32) {
        let pair = |i: usize| u32::from(bf16_dot::round(x.0[2 * i])) | u32::from(bf16_dot::round(x.0[2 * i + 1])) << 16;
        // SAFETY: room for eight factors, as the caller promises.
        unsafe { to.cast::<[u32; 8]>().write_unaligned(std::array::from_fn(pair)) }
    }

    #[inline(always)]
    unsafe fn store_wide(_words: [u32; 16], _to: *mut f32, _stride: usize) {
        unreachable!("dot products read bf16 pages, which are never widened")
    }

    kernels!();
}
