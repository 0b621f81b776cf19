//! The vector operations that the kernels in `fold` are written over: sixteen f32 lanes of an instruction set
//! ([`FloatLanes`]), and products with keys and values stored in one dtype ([`KernelPath`]).
#![expect(clippy::missing_safety_doc, reason = "a trait says it once for all of its functions")]

use bytemuck::Pod;

use super::fold::{Geometry, Prefetch, RowStates, StatesMut, StatesRef, TileView, VisibleLanes};
use super::gather::MaskWord;
use crate::memory::CacheLevel;

/// Rows (times heads of a group) that a kernel call folds at most, if their scores are in vector registers: those for a
/// tile fill 24 of AVX-512's 32.
pub const VECTOR_ROWS: usize = 6;

/// Rows that any kernel call folds at most.
pub const MOST_ROWS: usize = 16;

/// Sixteen f32 in registers.
///
/// # Safety
/// The processor has the instruction set of the type. Pointers are valid for sixteen f32, without alignment.
pub trait FloatLanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self * b - c`, rounded once.
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// The first `R` lanes from memory for `R` f32. The others are finite.
    #[inline(always)]
    unsafe fn load_first<const R: usize>(from: *const f32) -> Self {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises `R` f32, and the array has sixteen.
        unsafe {
            lanes[..R].copy_from_slice(std::slice::from_raw_parts(from, R));
            Self::load(lanes.as_ptr())
        }
    }
    /// Stores the first `R` lanes, in memory for as many.
    #[inline(always)]
    unsafe fn store_first<const R: usize>(self, to: *mut f32) {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises `R` f32, and the array has sixteen.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::slice::from_raw_parts_mut(to, R).copy_from_slice(&lanes[..R]);
        }
    }
    /// The largest lane.
    unsafe fn largest(self) -> f32;
    /// In lane `r` the largest lane of `rows[r]`, of at most [`VECTOR_ROWS`].
    #[inline(always)]
    unsafe fn largest_each<const R: usize>(rows: [Self; R]) -> Self {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises the instruction set; the array has sixteen lanes.
        unsafe {
            for (lane, row) in lanes.iter_mut().zip(rows) {
                *lane = row.largest();
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// Sets lanes whose bit in `bits` is not set to -inf.
    unsafe fn hide_unset(self, bits: u16) -> Self;
    /// `self * 2^n` with `n` in the low bits of `shifted` (whose other set bits are at 22 and above); zero in lanes
    /// with `x < lowest`.
    unsafe fn times_power_of_two(self, shifted: Self, x: Self, lowest: Self) -> Self;
}

/// An instruction set applied to keys and values of one dtype.
///
/// # Safety
/// The processor has the path's instruction set. Pointers are valid for the vectors that a method reads or writes.
pub trait KernelPath {
    type Lanes: FloatLanes;
    /// What a page stores per lane: one element, or two neighbours along the summed dimension.
    type Word: MaskWord;
    /// Sixteen words in registers.
    type Operand: Copy;
    /// The multiplier of a word: one element of a query or one softmax numerator, or two neighbours of these.
    type Factor: Pod;
    /// Elements per word.
    const WORD_ELEMENTS: usize;
    /// Rows (times heads of a group) that one kernel call folds at most.
    const ROWS: usize = VECTOR_ROWS;
    /// Rows of queries that a kernel call may read behind its last one.
    const ROWS_READ_AHEAD: usize = 0;
    /// The cache that calls of many rows, which prefetch one page each, prefetch it to: all lines to the first; to the
    /// second all of the keys, but of a word's values the first alone.
    const PAGE_CACHE: CacheLevel = CacheLevel::Second;
    /// Accumulators of sixteen lanes that a kernel keeps in registers for each row.
    const ROW_VECTORS: usize;
    /// The path over f32 pages that is used, with the same results, after a tile was widened once for several calls.
    /// Packed queries have the same layout on both paths.
    type Wide: KernelPath;
    /// Whether this path widens. If not, `Wide` is `Self`.
    const WIDENS: bool;

    /// Loads sixteen words.
    unsafe fn operand(words: *const Self::Word) -> Self::Operand;
    /// `acc + factor * words` in each lane.
    unsafe fn madd(acc: Self::Lanes, factor: *const Self::Factor, words: Self::Operand) -> Self::Lanes;
    /// Stores sixteen elements as `16 / WORD_ELEMENTS` factors.
    unsafe fn store_factors(x: Self::Lanes, to: *mut Self::Factor);
    /// Stores the elements of sixteen words as `WORD_ELEMENTS` f32 vectors, `stride` elements apart.
    unsafe fn store_wide(words: Self::Operand, to: *mut f32, stride: usize);

    /// Runs a task, between what its kernels need before and after their calls.
    unsafe fn around(task: impl FnOnce()) {
        task();
    }

    /// [`super::fold::fold`] for `rows.count` rows, at most `ROWS`; called inside [`Self::around`], with queries of
    /// `ROWS_READ_AHEAD` more rows readable. `prefetch` has `PAGES` pages at most.
    unsafe fn fold(
        geometry: &Geometry,
        tile: &TileView<Self>,
        rows: &RowStates<Self>,
        visible: &VisibleLanes,
        prefetch: &[Prefetch],
    ) where
        Self: Sized;
    /// [`super::fold::widen`].
    unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32);
    /// [`super::fold::pack`].
    unsafe fn pack(x: &[f32], to: *mut Self::Factor);
    /// [`super::fold::merge`].
    unsafe fn merge(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>);
    /// [`super::fold::finish`].
    unsafe fn finish(o: &[f32], l: &[f32; 16], out: &mut [f32]);
}

/// The members of a [`KernelPath`] over pages of one element per word, loaded by `$load` as f32 lanes (f32 and f16).
#[cfg(target_arch = "x86_64")]
macro_rules! single_elements {
    ($word:ty, $load:expr) => {
        type Word = $word;
        type Operand = Self::Lanes;
        type Factor = f32;
        const WORD_ELEMENTS: usize = 1;

        #[inline(always)]
        unsafe fn operand(words: *const $word) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe { $load(words) }
        }

        #[inline(always)]
        unsafe fn madd(acc: Self::Lanes, factor: *const f32, words: Self::Lanes) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe { <Self::Lanes as FloatLanes>::splat(*factor).mul_add(words, acc) }
        }

        #[inline(always)]
        unsafe fn store_factors(x: Self::Lanes, to: *mut f32) {
            // SAFETY: the caller's promises are passed on.
            unsafe { x.store(to) }
        }

        #[inline(always)]
        unsafe fn store_wide(words: Self::Lanes, to: *mut f32, _stride: usize) {
            // SAFETY: the caller's promises are passed on.
            unsafe { words.store(to) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use single_elements;

/// The members of a [`KernelPath`] over bf16 pages that widens: `$load` returns the first and the second elements of
/// sixteen pairs as f32 lanes.
#[cfg(target_arch = "x86_64")]
macro_rules! widened_pairs {
    ($load:expr) => {
        type Word = u32;
        /// The first and the second elements.
        type Operand = (Self::Lanes, Self::Lanes);
        type Factor = [f32; 2];
        const WORD_ELEMENTS: usize = 2;

        #[inline(always)]
        unsafe fn operand(words: *const u32) -> (Self::Lanes, Self::Lanes) {
            // SAFETY: the caller's promises are passed on.
            unsafe { $load(words) }
        }

        #[inline(always)]
        unsafe fn madd(acc: Self::Lanes, factor: *const [f32; 2], words: (Self::Lanes, Self::Lanes)) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe {
                let acc = <Self::Lanes as FloatLanes>::splat((*factor)[0]).mul_add(words.0, acc);
                <Self::Lanes as FloatLanes>::splat((*factor)[1]).mul_add(words.1, acc)
            }
        }

        #[inline(always)]
        unsafe fn store_factors(x: Self::Lanes, to: *mut [f32; 2]) {
            // SAFETY: the caller's promises are passed on.
            unsafe { x.store(to.cast()) }
        }

        #[inline(always)]
        unsafe fn store_wide(words: (Self::Lanes, Self::Lanes), to: *mut f32, stride: usize) {
            // SAFETY: the caller's promises are passed on.
            unsafe {
                words.0.store(to);
                words.1.store(to.add(stride));
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use widened_pairs;

/// Implements the kernels of a [`KernelPath`] as functions compiled for `$features`, or for any processor without them.
macro_rules! kernels {
    ($($features:literal)?) => {
        state_kernels!($($features)?);

        unsafe fn fold(
            geometry: &Geometry,
            tile: &TileView<Self>,
            rows: &RowStates<Self>,
            visible: &VisibleLanes,
            prefetch: &[Prefetch],
        ) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: KernelPath, const R: usize>(
                geometry: &Geometry,
                tile: &TileView<P>,
                rows: &RowStates<P>,
                visible: &VisibleLanes,
                prefetch: &[Prefetch],
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::fold::<P, R>(geometry, tile, rows, visible, prefetch) }
            }
            // SAFETY: the caller promises the instruction set and valid pointers.
            unsafe {
                match rows.count {
                    1 => kernel::<Self, 1>(geometry, tile, rows, visible, prefetch),
                    2 => kernel::<Self, 2>(geometry, tile, rows, visible, prefetch),
                    3 => kernel::<Self, 3>(geometry, tile, rows, visible, prefetch),
                    4 => kernel::<Self, 4>(geometry, tile, rows, visible, prefetch),
                    5 => kernel::<Self, 5>(geometry, tile, rows, visible, prefetch),
                    6 => kernel::<Self, 6>(geometry, tile, rows, visible, prefetch),
                    n => unreachable!("{n} rows in a group of at most {VECTOR_ROWS}"),
                }
            }
        }
    };
}
pub(super) use kernels;

/// The same but for `fold`.
macro_rules! state_kernels {
    ($($features:literal)?) => {
        unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: KernelPath>(
                geometry: &Geometry,
                keys: *const P::Word,
                values: *const P::Word,
                to: *mut f32,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::widen::<P>(geometry, keys, values, to) }
            }
            // SAFETY: the caller promises the instruction set and valid pointers.
            unsafe { kernel::<Self>(geometry, keys, values, to) }
        }

        unsafe fn pack(x: &[f32], to: *mut Self::Factor) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: KernelPath>(x: &[f32], to: *mut P::Factor) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::pack::<P>(x, to) }
            }
            // SAFETY: the caller promises the instruction set and room for the factors.
            unsafe { kernel::<Self>(x, to) }
        }

        unsafe fn merge(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: KernelPath>(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::merge::<P>(geometry, states, next) }
            }
            // SAFETY: the caller promises the instruction set.
            unsafe { kernel::<Self>(geometry, states, next) }
        }

        unsafe fn finish(o: &[f32], l: &[f32; 16], out: &mut [f32]) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel(o: &[f32], l: &[f32; 16], out: &mut [f32]) {
                fold::finish(o, l, out)
            }
            // SAFETY: the caller promises the instruction set.
            unsafe { kernel(o, l, out) }
        }
    };
}
pub(super) use state_kernels;
