//! The attention kernels: fold one tile into the running softmax states of a few rows. The operations on a row's
//! scores, numerators and sums do not depend on how many rows a call folds or how much of the tile other rows see,
//! because hidden lanes add exact zeros. So results are batch-invariant.
// Loops index several arrays of registers and pointers at once.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lanes::FloatLanes;
use super::path::{
    Geometry, KernelPath, LANES, Prefetch, RowStates, Softcap, StatesMut, StatesRef, TileView, VisibleLanes,
    WideOperand, WideningPath,
};
use crate::kv::SLOTS;
use crate::memory::{CacheLevel, CacheLine};
use crate::rows::sum_lanes;
use crate::sums::tanh;

/// Rows up to which a kernel call prefetches several pages beside its products.
const SPREADING_ROWS: usize = 4;

/// The pages that `R` rows prefetch beside their products: all, or only the first. Kernels call it again on its result,
/// so that the compiler sees a loop of one round at most.
#[inline(always)]
fn beside_products<const R: usize>(prefetch: &[Prefetch]) -> &[Prefetch] {
    if R <= SPREADING_ROWS { prefetch } else { prefetch.first().map_or(&[], std::slice::from_ref) }
}

/// `N` uninitialised numbers for each of `R` rows, aligned to a cache line. The row stride is a compile-time constant:
/// address arithmetic in the kernels' loops would push accumulators out of registers.
#[repr(align(64))]
pub struct AlignedRows<T, const N: usize, const R: usize>([[MaybeUninit<T>; N]; R]);

impl<T: Copy, const N: usize, const R: usize> AlignedRows<T, N, R> {
    /// Rows that hold nothing yet.
    #[inline(always)]
    pub fn uninit() -> Self {
        Self([[MaybeUninit::uninit(); N]; R])
    }

    /// A pointer to number `i` of row `r`, from which all rows can be reached.
    #[inline(always)]
    pub fn at(&mut self, r: usize, i: usize) -> *mut T {
        self.0.as_mut_ptr().cast::<T>().wrapping_add(r * N + i)
    }

    /// `Q` rows from row `first` on, each as long as some cache lines.
    #[inline(always)]
    pub fn part<const Q: usize>(&mut self, first: usize) -> &mut AlignedRows<T, N, Q> {
        const { assert!((N * size_of::<T>()).is_multiple_of(size_of::<CacheLine>()), "rows begin with a cache line") };
        let rows: &mut [_; Q] = (&mut self.0[first..first + Q]).try_into().expect("a slice of `Q` rows");
        // SAFETY: the type has the layout of its rows, and the first one begins with a cache line.
        unsafe { &mut *std::ptr::from_mut(rows).cast() }
    }
}

/// Calls a function of `P` and `R` for as many vectors of each row as are left, but not more than the path has
/// registers for. Calls for more are not even compiled.
macro_rules! widest {
    ($left:expr, $call:ident($($argument:expr),+)) => {
        match ($left).min(P::ROW_VECTORS) {
            4 if const { P::ROW_VECTORS >= 4 } => $call::<P, R, 4>($($argument),+),
            3 if const { P::ROW_VECTORS >= 3 } => $call::<P, R, 3>($($argument),+),
            2 if const { P::ROW_VECTORS >= 2 } => $call::<P, R, 2>($($argument),+),
            _ => $call::<P, R, 1>($($argument),+),
        }
    };
}
pub(super) use widest;

/// Calls a function for as many pages or panels as are left, of which there is one at least and which it takes four of
/// at most.
macro_rules! up_to_four {
    ($left:expr, $($call:ident).+($($argument:expr),+)) => {
        match $left {
            1 => $($call).+::<1>($($argument),+),
            2 => $($call).+::<2>($($argument),+),
            3 => $($call).+::<3>($($argument),+),
            _ => $($call).+::<4>($($argument),+),
        }
    };
}
pub(super) use up_to_four;

/// Folds the visible lanes of `tile` into the states of `R` rows.
///
/// # Safety
/// The processor has the path's instruction set. The pointers of `rows` are valid for `R` rows of `geometry`, those of
/// `tile` for all pages with visible lanes. No other thread uses the states.
#[inline(always)]
pub unsafe fn fold<P: KernelPath, const R: usize>(
    geometry: &Geometry,
    tile: &TileView<P::Word>,
    rows: &RowStates<P::Factor>,
    visible: &VisibleLanes,
    prefetch: &[Prefetch],
) {
    let pages = visible.lanes.start / SLOTS..visible.lanes.end.div_ceil(SLOTS);
    let mut scores = AlignedRows::<f32, LANES, R>::uninit();
    let mut numerators = AlignedRows::<P::Factor, LANES, R>::uninit();
    // What a loop over pages costs in the loops below is more than it brings, unless the rows are few.
    let beside = beside_products::<R>(prefetch);
    prefetch[beside.len()..].iter().for_each(|page| page.whole(geometry.key_words, LANES / P::WORD_ELEMENTS));
    // SAFETY: `scores` and `numerators` have room for a tile of each row and are written before they are read, the
    // latter for every row and page by `update_softmax`; the rest is promised by the caller.
    unsafe {
        let factors = geometry.query_width / P::WORD_ELEMENTS;
        let queries: [*const P::Factor; R] = std::array::from_fn(|r| rows.q.add(r * factors));
        let (mut page, mut unfetched) = (pages.start, beside);
        while page < pages.end {
            page +=
                widest!(pages.end - page, score(geometry, &queries, &tile.keys[page..], page, unfetched, &mut scores));
            unfetched = &[];
        }
        let hidden = (visible.rows[..R] != [u64::MAX; R]).then_some(&visible.rows[..R]);
        let shrinks = update_softmax::<P, R>(geometry, rows, pages, hidden, &mut scores, &mut numerators);
        let (panels, lanes) = (geometry.width / SLOTS, &visible.lanes);
        let (mut panel, mut unfetched) = (0, beside);
        while panel < panels {
            let left = panels - panel;
            panel +=
                widest!(left, add_values(geometry, rows, &shrinks, tile, panel, lanes, unfetched, &mut numerators));
            unfetched = &[];
        }
    }
}

/// Stores the unscaled scores `q . k` of `R` rows and the keys of `N` pages, at the lanes of pages `first ..`. Returns
/// `N`.
#[inline(always)]
unsafe fn score<P: KernelPath, const R: usize, const N: usize>(
    geometry: &Geometry,
    queries: &[*const P::Factor; R],
    keys: &[*const P::Word],
    first: usize,
    prefetch: &[Prefetch],
    scores: &mut AlignedRows<f32, LANES, R>,
) -> usize {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        for i in 0..geometry.key_words {
            for page in beside_products::<R>(prefetch) {
                page.keys(i, if R <= SPREADING_ROWS { CacheLevel::Second } else { P::PAGE_CACHE });
            }
            let mut k = [P::operand(keys[0].add(i * SLOTS)); N];
            for n in 1..N {
                k[n] = P::operand(keys[n].add(i * SLOTS));
            }
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = P::madd(acc[r][n], queries[r].add(i), k[n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                acc[r][n].store(scores.at(r, (first + n) * SLOTS));
            }
        }
    }
    N
}

/// Updates the maxima `m` and the sums `l` of `R` rows by their `scores`, and stores the softmax `numerators`: zero in
/// lanes whose bit of the row in `seen` is not set. Returns the factors by which the sums `o` shrink, exactly 1 for a
/// row whose maximum stays: without branches, as a processor guesses wrong which rows' maxima rise.
///
/// # Safety
/// As for [`fold`]; the scores of all `pages` are there.
#[inline(always)]
pub unsafe fn update_softmax<P: KernelPath, const R: usize>(
    geometry: &Geometry,
    rows: &RowStates<P::Factor>,
    pages: Range<usize>,
    seen: Option<&[u64]>,
    scores: &mut AlignedRows<f32, LANES, R>,
    numerators: &mut AlignedRows<P::Factor, LANES, R>,
) -> [f32; SLOTS] {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        if let Some(Softcap { inner, cap }) = geometry.softcap {
            let lanes = pages.start * SLOTS..pages.end * SLOTS;
            for r in 0..R {
                for score in std::slice::from_raw_parts_mut(scores.at(r, lanes.start), lanes.len()) {
                    *score = cap * tanh(*score * inner);
                }
            }
        }
        if let Some(seen) = seen {
            for (r, page) in (0..R).flat_map(|r| pages.clone().map(move |page| (r, page))) {
                let at = scores.at(r, page * SLOTS);
                P::Lanes::load(at).hide_unset((seen[r] >> (page * SLOTS)) as u16).store(at);
            }
        }
        let mut largest = [P::Lanes::splat(f32::NEG_INFINITY); R];
        for page in pages.clone() {
            for r in 0..R {
                largest[r] = largest[r].max(P::Lanes::load(scores.at(r, page * SLOTS)));
            }
        }
        let before = P::Lanes::load_first::<R>(rows.m);
        let after = P::Lanes::largest_each(largest).max(before);
        after.store_first::<R>(rows.m);
        let (mut maxima, mut shrinks) = ([0.0; SLOTS], [0.0; SLOTS]);
        after.store(maxima.as_mut_ptr());
        power(geometry, before.sub(after)).store(shrinks.as_mut_ptr());
        let mut sums = [P::Lanes::splat(0.0); R];
        for r in 0..R {
            sums[r] = P::Lanes::load(rows.l.add(r * SLOTS)).mul(P::Lanes::splat(shrinks[r]));
        }
        for page in pages {
            for r in 0..R {
                let score = P::Lanes::load(scores.at(r, page * SLOTS));
                let p = power(geometry, score.sub(P::Lanes::splat(maxima[r])));
                sums[r] = sums[r].add(p);
                P::store_factors(p, numerators.at(r, page * SLOTS / P::WORD_ELEMENTS));
            }
        }
        for r in 0..R {
            sums[r].store(rows.l.add(r * SLOTS));
        }
        shrinks
    }
}

/// `2^(x * geometry.exponent)` for `x <= 0`: exactly 1 at 0, and 0 below `geometry.lowest`. Used instead of `cpu::exp`
/// because it folds the scale into the range reduction and needs no upper clamp: a third fewer instructions.
#[inline(always)]
unsafe fn power<L: FloatLanes>(geometry: &Geometry, x: L) -> L {
    /// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// 2^f = 1 + f * (...) on [-1/2, 1/2], highest power first; minimax, relative error 1.2e-7.
    #[allow(clippy::approx_constant)] // the last one is close to ln 2, but not equal
    const C: [f32; 5] = [1.326_472_7e-3, 9.671_513e-3, 5.550_733_7e-2, 2.402_224_2e-1, 6.931_47e-1];
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let exponent = L::splat(geometry.exponent);
        let shifted = x.mul_add(exponent, L::splat(ROUND));
        let n = shifted.sub(L::splat(ROUND));
        let f = x.mul_sub(exponent, n);
        let mut y = L::splat(C[0]);
        for c in &C[1..] {
            y = y.mul_add(f, L::splat(*c));
        }
        y.mul_add(f, L::splat(1.0)).times_power_of_two(shifted, x, L::splat(geometry.lowest))
    }
}

/// Multiplies dimensions `16 panel .. 16 (panel + N)` of the sums `o` of `R` rows by `shrinks` and adds numerators
/// times values. Returns `N`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn add_values<P: KernelPath, const R: usize, const N: usize>(
    geometry: &Geometry,
    rows: &RowStates<P::Factor>,
    shrinks: &[f32; SLOTS],
    tile: &TileView<P::Word>,
    panel: usize,
    lanes: &Range<usize>,
    prefetch: &[Prefetch],
    numerators: &mut AlignedRows<P::Factor, LANES, R>,
) -> usize {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        let o = rows.o.add(panel * SLOTS);
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        for r in 0..R {
            let shrink = P::Lanes::splat(shrinks[r]);
            for n in 0..N {
                acc[r][n] = P::Lanes::load(o.add(r * geometry.width + n * SLOTS)).mul(shrink);
            }
        }
        for page in lanes.start / SLOTS..lanes.end.div_ceil(SLOTS) {
            let from = lanes.start.max(page * SLOTS) / P::WORD_ELEMENTS;
            let upto = lanes.end.min((page + 1) * SLOTS).div_ceil(P::WORD_ELEMENTS);
            let values = tile.values[page].add(panel * SLOTS);
            for j in from..upto {
                for page in beside_products::<R>(prefetch) {
                    match P::PAGE_CACHE {
                        _ if R <= SPREADING_ROWS => page.values(j, CacheLevel::Second),
                        CacheLevel::First => page.values(j, CacheLevel::First),
                        CacheLevel::Second => page.first_line(j),
                    }
                }
                let row = values.add((j - page * SLOTS / P::WORD_ELEMENTS) * geometry.width);
                let mut v = [P::operand(row); N];
                for n in 1..N {
                    v[n] = P::operand(row.add(n * SLOTS));
                }
                for r in 0..R {
                    for n in 0..N {
                        acc[r][n] = P::madd(acc[r][n], numerators.at(r, 0).add(j), v[n]);
                    }
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                acc[r][n].store(o.add(r * geometry.width + n * SLOTS));
            }
        }
    }
    N
}

/// Writes a page in f32, in the layout that `P::Wide` reads: keys (`[head_dim][16]`), then values (`[16][width]`).
///
/// # Safety
/// The processor has the path's instruction set. The pointers are valid for a page.
#[inline(always)]
pub unsafe fn widen<P: WideningPath>(geometry: &Geometry, keys: *const P::Word, values: *const P::Word, to: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe {
        for i in 0..geometry.key_words {
            P::operand(keys.add(i * SLOTS)).store_wide(to.add(i * P::WORD_ELEMENTS * SLOTS), SLOTS);
        }
        let to = to.add(geometry.key_words * P::WORD_ELEMENTS * SLOTS);
        for row in 0..SLOTS / P::WORD_ELEMENTS {
            for panel in (0..geometry.width).step_by(SLOTS) {
                let words = P::operand(values.add(row * geometry.width + panel));
                words.store_wide(to.add(row * P::WORD_ELEMENTS * geometry.width + panel), geometry.width);
            }
        }
    }
}

/// Stores `x`, padded with zeros to whole vectors, as factors.
///
/// # Safety
/// The processor has the path's instruction set, and `to` has room.
#[inline(always)]
pub unsafe fn pack<P: KernelPath>(x: &[f32], to: *mut P::Factor) {
    let (whole, rest) = x.as_chunks::<SLOTS>();
    // SAFETY: promised by the caller.
    unsafe {
        for (i, x) in whole.iter().enumerate() {
            P::store_factors(P::Lanes::load(x.as_ptr()), to.add(i * SLOTS / P::WORD_ELEMENTS));
        }
        if !rest.is_empty() {
            let mut last = [0.0; SLOTS];
            last[..rest.len()].copy_from_slice(rest);
            P::store_factors(P::Lanes::load(last.as_ptr()), to.add(whole.len() * SLOTS / P::WORD_ELEMENTS));
        }
    }
}

/// Merges each of the states `next`, of later positions, into that of `states`. An empty one changes nothing.
///
/// # Safety
/// The processor has the path's instruction set.
#[inline(always)]
pub unsafe fn merge<L: FloatLanes>(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>) {
    let (count, lines) = (states.m.len(), geometry.width / SLOTS);
    assert_eq!((next.m.len(), next.l.len(), states.l.len()), (count, count, count), "as many states");
    assert_eq!((next.o.len(), states.o.len()), (count * lines, count * lines), "states of the layer's width");
    // SAFETY: the instruction set is promised by the caller; all pointers are those of sixteen numbers.
    unsafe {
        for first in (0..count).step_by(SLOTS) {
            let n = SLOTS.min(count - first);
            let (mut m, mut shrinks, mut factors) = ([0.0; SLOTS], [0.0; SLOTS], [0.0; SLOTS]);
            shrinks[..n].copy_from_slice(&states.m[first..first + n]);
            factors[..n].copy_from_slice(&next.m[first..first + n]);
            let (before, after) = (L::load(shrinks.as_ptr()), L::load(factors.as_ptr()));
            let most = before.max(after);
            most.store(m.as_mut_ptr());
            power(geometry, before.sub(most)).store(shrinks.as_mut_ptr());
            power(geometry, after.sub(most)).store(factors.as_mut_ptr());
            states.m[first..first + n].copy_from_slice(&m[..n]);
            for i in 0..n {
                let (shrink, factor) = (L::splat(shrinks[i]), L::splat(factors[i]));
                let at = first + i;
                add(&mut states.l[at], shrink, &next.l[at], factor);
                for line in at * lines..(at + 1) * lines {
                    add(&mut states.o[line], shrink, &next.o[line], factor);
                }
            }
        }
    }
}

/// `to = to * shrink + from * factor`.
///
/// # Safety
/// The processor has the path's instruction set.
#[inline(always)]
unsafe fn add<L: FloatLanes>(to: &mut CacheLine, shrink: L, from: &CacheLine, factor: L) {
    // SAFETY: a line is sixteen numbers; the instruction set is promised by the caller.
    unsafe {
        let sum = L::load(to.0.as_ptr()).mul(shrink);
        L::load(from.0.as_ptr()).mul_add(factor, sum).store(to.0.as_mut_ptr());
    }
}

/// `out = o / sum(l)`. Adding zero turns -0 into +0: hidden lanes may or may not leave a negative zero.
#[inline(always)]
pub fn finish(o: &[f32], l: &[f32; SLOTS], out: &mut [f32]) {
    let inverse = 1.0 / sum_lanes(*l);
    for (y, o) in out.iter_mut().zip(o) {
        *y = o * inverse + 0.0;
    }
}
