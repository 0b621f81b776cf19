//! AVX-512 BF16 in software: sixteen lanes in an array, bf16 multiplied by the twin of the dot-product instructions.
//! The operations are those of `avx512`, in its order, and so are the bits.

use super::fold::{self, Coming, Geometry, Rows, Sight, TileView};
use super::lanes::{Lanes, MAX_ROWS, Path, kernels};
use crate::backend::cpu::bf16_dot;

#[derive(Clone, Copy)]
pub struct Sixteen([f32; 16]);

impl Sixteen {
    #[inline(always)]
    fn with(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Sixteen(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

// SAFETY of all methods: pointers are good for sixteen f32, as the caller promises; every processor can do the rest.
impl Lanes for Sixteen {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Sixteen([x; 16])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Sixteen(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Sixteen(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        Sixteen(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], -c.0[i])))
    }

    /// The second where one is not a number, as the instruction has it.
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x))
    }

    #[inline(always)]
    unsafe fn keep(self, bits: u16) -> Self {
        Sixteen(std::array::from_fn(|i| if bits >> i & 1 == 1 { self.0[i] } else { f32::NEG_INFINITY }))
    }

    #[inline(always)]
    unsafe fn times_power(self, shifted: Self, x: Self, lowest: Self) -> Self {
        Sixteen(std::array::from_fn(|i| match x.0[i] < lowest.0[i] {
            true => 0.0,
            false => f32::from_bits(self.0[i].to_bits().wrapping_add(shifted.0[i].to_bits() << 23)),
        }))
    }
}

/// bf16 by dot products of pairs.
pub struct Bf16Dot;

impl Path for Bf16Dot {
    type Lanes = Sixteen;
    type Word = u32;
    type Operand = [u32; 16];
    /// Two bf16.
    type Factor = u32;
    type Wide = Self;
    const WIDENS: bool = false;
    const PAIR: usize = 2;
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> [u32; 16] {
        // SAFETY: sixteen words, as the caller promises.
        unsafe { words.cast::<[u32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn madd(acc: Sixteen, factor: *const u32, words: [u32; 16]) -> Sixteen {
        // SAFETY: one factor, as the caller promises.
        let factor = unsafe { *factor };
        Sixteen(std::array::from_fn(|i| bf16_dot::dot(acc.0[i], factor, words[i])))
    }

    #[inline(always)]
    unsafe fn store_factors(x: Sixteen, to: *mut u32) {
        let pair = |i: usize| u32::from(bf16_dot::round(x.0[2 * i])) | u32::from(bf16_dot::round(x.0[2 * i + 1])) << 16;
        // SAFETY: room for eight factors, as the caller promises.
        unsafe { to.cast::<[u32; 8]>().write_unaligned(std::array::from_fn(pair)) }
    }

    #[inline(always)]
    unsafe fn store_wide(_words: [u32; 16], _to: *mut f32, _stride: usize) {
        unreachable!("the dot products read what is stored")
    }

    kernels!();
}
