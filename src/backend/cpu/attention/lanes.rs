//! What the fast paths need of an instruction set: sixteen f32 lanes ([`Lanes`]), and products with keys and values as
//! one dtype stores them ([`Path`]). The kernels in `fold` are written once over these.

use bytemuck::Pod;

use super::fold::{Coming, Geometry, Rows, Sight, TileView};
use super::gather::Bits;

/// Rows (times heads of a group) that one kernel call folds: their scores for a whole tile fill 24 of AVX-512's 32
/// registers.
pub const MAX_ROWS: usize = 6;

/// Sixteen f32 in registers.
///
/// # Safety
/// Every method needs a processor with the instruction set of the type; pointers must be good for sixteen f32.
pub trait Lanes: Copy {
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
    /// The largest lane.
    unsafe fn largest(self) -> f32;
    /// Lanes whose bit is not set become minus infinity.
    unsafe fn keep(self, bits: u16) -> Self;
    /// `self * 2^n` with `n` in the low bits of `shifted`, whose other bits lie above bit 22; zero in lanes where `x <
    /// lowest`.
    unsafe fn times_power(self, shifted: Self, x: Self, lowest: Self) -> Self;
}

/// One instruction set over keys and values of one dtype.
///
/// # Safety
/// Every unsafe method needs a processor with the path's instruction set.
pub trait Path {
    type Lanes: Lanes;
    /// What one lane of a page stores: an element, or two neighbours along the summed dimension.
    type Word: Bits;
    /// Sixteen words, ready to be multiplied.
    type Operand: Copy;
    /// What is multiplied with a word of each lane: an element of a query or a softmax numerator, or two neighbours.
    type Factor: Pod;
    /// Elements of a word.
    const PAIR: usize;
    /// Vectors of sixteen lanes that a kernel holds for each row.
    const PANELS: usize;
    /// The path over f32 pages that takes over, with the same results, when a tile is widened once for several calls.
    /// Its queries lie in memory as this path's do.
    type Wide: Path;
    /// Whether this path widens at all; else `Wide` is `Self`.
    const WIDENS: bool;

    /// Loads sixteen words.
    unsafe fn operand(words: *const Self::Word) -> Self::Operand;
    /// `acc + factor * words`, lane by lane.
    unsafe fn madd(acc: Self::Lanes, factor: *const Self::Factor, words: Self::Operand) -> Self::Lanes;
    /// Stores sixteen elements as `16 / PAIR` factors.
    unsafe fn store_factors(x: Self::Lanes, to: *mut Self::Factor);
    /// Stores the `PAIR` f32 vectors that sixteen words hold, `stride` apart.
    unsafe fn store_wide(words: Self::Operand, to: *mut f32, stride: usize);

    /// [`super::fold::fold`] for `rows.count` rows.
    unsafe fn fold(geometry: &Geometry, tile: &TileView<Self>, rows: &Rows<Self>, sight: &Sight, coming: &Coming)
    where
        Self: Sized;
    /// [`super::fold::widen`].
    unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32);
    /// [`super::fold::pack`].
    unsafe fn pack(x: &[f32], to: *mut Self::Factor);
    /// [`super::fold::finish`].
    unsafe fn finish(o: &[f32], l: &[f32; 16], out: &mut [f32]);
}

/// Implements the kernels of a [`Path`] as functions compiled for `$features`, or for any processor.
macro_rules! kernels {
    ($($features:literal)?) => {
        unsafe fn fold(geometry: &Geometry, tile: &TileView<Self>, rows: &Rows<Self>, sight: &Sight, coming: &Coming) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: Path, const R: usize>(
                geometry: &Geometry,
                tile: &TileView<P>,
                rows: &Rows<P>,
                sight: &Sight,
                coming: &Coming,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::fold::<P, R>(geometry, tile, rows, sight, coming) }
            }
            // SAFETY: the caller promises the instruction set and good pointers.
            unsafe {
                match rows.count {
                    1 => kernel::<Self, 1>(geometry, tile, rows, sight, coming),
                    2 => kernel::<Self, 2>(geometry, tile, rows, sight, coming),
                    3 => kernel::<Self, 3>(geometry, tile, rows, sight, coming),
                    4 => kernel::<Self, 4>(geometry, tile, rows, sight, coming),
                    5 => kernel::<Self, 5>(geometry, tile, rows, sight, coming),
                    6 => kernel::<Self, 6>(geometry, tile, rows, sight, coming),
                    n => unreachable!("{n} rows in a group of at most {MAX_ROWS}"),
                }
            }
        }

        unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: Path>(geometry: &Geometry, keys: *const P::Word, values: *const P::Word, to: *mut f32) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::widen::<P>(geometry, keys, values, to) }
            }
            // SAFETY: the caller promises the instruction set and good pointers.
            unsafe { kernel::<Self>(geometry, keys, values, to) }
        }

        unsafe fn pack(x: &[f32], to: *mut Self::Factor) {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<P: Path>(x: &[f32], to: *mut P::Factor) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::pack::<P>(x, to) }
            }
            // SAFETY: the caller promises the instruction set and room for the factors.
            unsafe { kernel::<Self>(x, to) }
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
pub(super) use kernels;
