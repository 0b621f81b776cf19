//! The kernels: one tile folded into the running states of a few rows. Scores, numerators and sums of a row come from
//! chains of operations that are the same however many rows a call folds and however much more of the tile the others
//! see: hidden lanes add exact zeros.
// Loops run over rows and panels by index: several arrays of registers and pointers are indexed at once.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lanes::{Lanes, MAX_ROWS, Path};
use super::tiles::PAGES;
use crate::backend::MOST_HEAD_DIM;
use crate::backend::cpu::kv::SLOTS;

const LANES: usize = PAGES * SLOTS;

/// What all calls of a step share.
#[derive(Clone, Copy)]
pub struct Geometry {
    /// Words of a key: `head_dim / PAIR`.
    pub key_words: usize,
    /// `head_dim` rounded up to whole vectors.
    pub width: usize,
    /// Score to exponent of two: `scale * log2(e)`.
    pub exponent: f32,
    /// Scores this far below the maximum have no normal numerator: taken as zero.
    pub lowest: f32,
}

impl Geometry {
    pub fn new(head_dim: usize, width: usize, pair: usize, scale: f32) -> Self {
        let exponent = scale * std::f32::consts::LOG2_E;
        assert!(head_dim <= MOST_HEAD_DIM, "head_dim {head_dim} is above {MOST_HEAD_DIM}");
        assert!(exponent > 0.0 && exponent.is_finite(), "attention scale {scale}");
        Self { key_words: head_dim / pair, width, exponent, lowest: -126.0 / exponent }
    }
}

/// Keys (`[key_words][16]`) and values (`[16 / PAIR][width]`) of a tile's pages; null where [`Sight`] reaches no lane.
pub struct TileView<P: Path> {
    pub keys: [*const P::Word; PAGES],
    pub values: [*const P::Word; PAGES],
}

/// A page to be brought into the second-level cache while this call multiplies: line after line of its keys and values.
/// The addresses need not be good for anything.
#[derive(Clone, Copy)]
pub struct Coming {
    pub keys: *const u8,
    pub values: *const u8,
    /// Bytes of keys and of values for every word of a key.
    pub strides: (usize, usize),
}

impl Coming {
    #[inline(always)]
    fn fetch(&self, i: usize) {
        let (keys, values) = (self.keys.wrapping_add(i * self.strides.0), self.values.wrapping_add(i * self.strides.1));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(keys.cast());
            _mm_prefetch::<_MM_HINT_T1>(values.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (keys, values);
    }
}

/// Queries and running states of `count` neighbouring rows.
pub struct Rows<P: Path> {
    pub count: usize,
    /// `[count][width / PAIR]`
    pub q: *const P::Factor,
    /// Largest score so far, unscaled. `[count]`
    pub m: *mut f32,
    /// Lane-wise sums of numerators. `[count][16]`
    pub l: *mut f32,
    /// Sums of numerators times values. `[count][width]`
    pub o: *mut f32,
}

impl<P: Path> Rows<P> {
    /// The same rows for the wide path.
    pub fn widened(&self) -> Rows<P::Wide> {
        Rows { count: self.count, q: self.q.cast(), m: self.m, l: self.l, o: self.o }
    }
}

/// Which lanes the rows see.
pub struct Sight {
    /// Of all rows together.
    pub lanes: Range<usize>,
    /// Of each, as a bit a lane.
    pub rows: [u64; MAX_ROWS],
}

impl Sight {
    pub const WHOLE: Sight = Sight { lanes: 0..LANES, rows: [u64::MAX; MAX_ROWS] };

    /// Rows that see these lanes, at most `MAX_ROWS`.
    pub fn of(rows: impl Iterator<Item = Range<usize>>) -> Self {
        let (mut start, mut end, mut bits) = (LANES, 0, [0; MAX_ROWS]);
        for (bits, lanes) in bits.iter_mut().zip(rows).filter(|(_, lanes)| !lanes.is_empty()) {
            *bits = (u64::MAX << lanes.start) & (u64::MAX >> (LANES - lanes.end));
            (start, end) = (start.min(lanes.start), end.max(lanes.end));
        }
        Sight { lanes: start.min(end)..end, rows: bits }
    }
}

/// Up to `N` numbers for each of `R` rows, on a cache line's border and not yet written. The distance between rows is
/// known when the kernels are compiled: with addresses to be worked out in their loops, not all sums stay in registers.
#[repr(align(64))]
struct Tile<T, const N: usize, const R: usize>([[MaybeUninit<T>; N]; R]);

impl<T: Copy, const N: usize, const R: usize> Tile<T, N, R> {
    #[inline(always)]
    fn new() -> Self {
        Self([[MaybeUninit::uninit(); N]; R])
    }

    /// Number `i` of row `r` and those after it.
    #[inline(always)]
    fn at(&mut self, r: usize, i: usize) -> *mut T {
        self.0[r].as_mut_ptr().wrapping_add(i).cast()
    }
}

/// Folds the visible lanes of `tile` into the states of `R` rows.
///
/// # Safety
/// The processor has the path's instruction set; the pointers of `rows` are good for `R` rows of `geometry`, those of
/// `tile` for all pages that hold visible lanes; nobody else uses the states.
#[inline(always)]
pub unsafe fn fold<P: Path, const R: usize>(
    geometry: &Geometry,
    tile: &TileView<P>,
    rows: &Rows<P>,
    sight: &Sight,
    coming: &Coming,
) {
    let pages = sight.lanes.start / SLOTS..sight.lanes.end.div_ceil(SLOTS);
    let mut queries = Tile::<P::Factor, MOST_HEAD_DIM, R>::new();
    let mut scores = Tile::<f32, LANES, R>::new();
    let mut numerators = Tile::<P::Factor, LANES, R>::new();
    // SAFETY: `scores` and `numerators` hold a tile for each row and are written before they are read, the latter for
    // every row and page by `soften`; the rest is promised by the caller.
    unsafe {
        let factors = geometry.width / P::PAIR;
        for r in 0..R {
            std::ptr::copy_nonoverlapping(rows.q.add(r * factors), queries.at(r, 0), factors);
        }
        let mut page = pages.start;
        let mut coming = *coming;
        while page < pages.end {
            page += match (pages.end - page).min(P::PANELS) {
                1 => score::<P, R, 1>(geometry, &mut queries, &tile.keys[page..], page, &coming, &mut scores),
                2 => score::<P, R, 2>(geometry, &mut queries, &tile.keys[page..], page, &coming, &mut scores),
                3 => score::<P, R, 3>(geometry, &mut queries, &tile.keys[page..], page, &coming, &mut scores),
                _ => score::<P, R, 4>(geometry, &mut queries, &tile.keys[page..], page, &coming, &mut scores),
            };
            coming.strides = (0, 0);
        }
        for r in 0..R {
            soften::<P>(geometry, rows, r, pages.clone(), sight.rows[r], scores.at(r, 0), numerators.at(r, 0));
        }
        let panels = geometry.width / SLOTS;
        let mut panel = 0;
        while panel < panels {
            panel += match (panels - panel).min(P::PANELS) {
                1 => weigh::<P, R, 1>(geometry, rows, tile, panel, &sight.lanes, &mut numerators),
                2 => weigh::<P, R, 2>(geometry, rows, tile, panel, &sight.lanes, &mut numerators),
                3 => weigh::<P, R, 3>(geometry, rows, tile, panel, &sight.lanes, &mut numerators),
                _ => weigh::<P, R, 4>(geometry, rows, tile, panel, &sight.lanes, &mut numerators),
            };
        }
    }
}

/// `q . k` of `R` rows and the keys of `N` pages, unscaled, into lanes from page `first` on. Returns `N`.
#[inline(always)]
unsafe fn score<P: Path, const R: usize, const N: usize>(
    geometry: &Geometry,
    queries: &mut Tile<P::Factor, MOST_HEAD_DIM, R>,
    keys: &[*const P::Word],
    first: usize,
    coming: &Coming,
    scores: &mut Tile<f32, LANES, R>,
) -> usize {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        for i in 0..geometry.key_words {
            coming.fetch(i);
            let mut k = [P::operand(keys[0].add(i * SLOTS)); N];
            for n in 1..N {
                k[n] = P::operand(keys[n].add(i * SLOTS));
            }
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = P::madd(acc[r][n], queries.at(r, i), k[n]);
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

/// Takes up the maximum of the `scores` of row `r` and turns them into `numerators`: zeros, where `visible` has no bit.
#[inline(always)]
unsafe fn soften<P: Path>(
    geometry: &Geometry,
    rows: &Rows<P>,
    r: usize,
    pages: Range<usize>,
    visible: u64,
    scores: *mut f32,
    numerators: *mut P::Factor,
) {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        if visible == 0 {
            for page in pages {
                P::store_factors(P::Lanes::splat(0.0), numerators.add(page * SLOTS / P::PAIR));
            }
            return;
        }
        let mut largest = P::Lanes::splat(f32::NEG_INFINITY);
        for page in pages.clone() {
            let at = scores.add(page * SLOTS);
            let mut s = P::Lanes::load(at);
            if visible != u64::MAX {
                s = s.keep((visible >> (page * SLOTS)) as u16);
                s.store(at);
            }
            largest = largest.max(s);
        }
        let m = &mut *rows.m.add(r);
        let l = rows.l.add(r * SLOTS);
        let mut sum = P::Lanes::load(l);
        let largest = largest.largest();
        if largest > *m {
            let shrink = power::<P>(geometry, P::Lanes::splat(*m - largest));
            sum = sum.mul(shrink);
            for panel in 0..geometry.width / SLOTS {
                let o = rows.o.add(r * geometry.width + panel * SLOTS);
                P::Lanes::load(o).mul(shrink).store(o);
            }
            *m = largest;
        }
        let m = P::Lanes::splat(*m);
        for page in pages {
            let p = power::<P>(geometry, P::Lanes::load(scores.add(page * SLOTS)).sub(m));
            sum = sum.add(p);
            P::store_factors(p, numerators.add(page * SLOTS / P::PAIR));
        }
        sum.store(l);
    }
}

/// `2^(x * exponent)` for `x <= 0`; exactly 1 at 0, 0 below `geometry.lowest`. Not `cpu::exp`: with the scale folded
/// into the range reduction and no upper range, softmax saves a third of its instructions.
#[inline(always)]
unsafe fn power<P: Path>(geometry: &Geometry, x: P::Lanes) -> P::Lanes {
    /// Adding 1.5 * 2^23 rounds to a whole number, which the low bits then hold.
    const ROUND: f32 = 12_582_912.0;
    /// 2^f = 1 + f * (...) on [-1/2, 1/2], highest power first; minimax, relative error 1.2e-7.
    #[allow(clippy::approx_constant)] // the last is near ln 2 but not it
    const C: [f32; 5] = [1.326_472_7e-3, 9.671_513e-3, 5.550_733_7e-2, 2.402_224_2e-1, 6.931_47e-1];
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let exponent = P::Lanes::splat(geometry.exponent);
        let shifted = x.mul_add(exponent, P::Lanes::splat(ROUND));
        let n = shifted.sub(P::Lanes::splat(ROUND));
        let f = x.mul_sub(exponent, n);
        let mut y = P::Lanes::splat(C[0]);
        for c in &C[1..] {
            y = y.mul_add(f, P::Lanes::splat(*c));
        }
        y.mul_add(f, P::Lanes::splat(1.0)).times_power(shifted, x, P::Lanes::splat(geometry.lowest))
    }
}

/// Adds numerators times values of `R` rows to dimensions `[16 panel, 16 (panel + N))` of their sums. Returns `N`.
#[inline(always)]
unsafe fn weigh<P: Path, const R: usize, const N: usize>(
    geometry: &Geometry,
    rows: &Rows<P>,
    tile: &TileView<P>,
    panel: usize,
    lanes: &Range<usize>,
    numerators: &mut Tile<P::Factor, LANES, R>,
) -> usize {
    // SAFETY: promised by the caller of `fold`.
    unsafe {
        let o = rows.o.add(panel * SLOTS);
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        for r in 0..R {
            for n in 0..N {
                acc[r][n] = P::Lanes::load(o.add(r * geometry.width + n * SLOTS));
            }
        }
        for page in lanes.start / SLOTS..lanes.end.div_ceil(SLOTS) {
            let from = lanes.start.max(page * SLOTS) / P::PAIR;
            let upto = lanes.end.min((page + 1) * SLOTS).div_ceil(P::PAIR);
            let values = tile.values[page].add(panel * SLOTS);
            for j in from..upto {
                let row = values.add((j - page * SLOTS / P::PAIR) * geometry.width);
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

/// Writes a page's keys (`[head_dim][16]`), then its values (`[16][width]`) in f32: the layout that `P::Wide` reads.
///
/// # Safety
/// The processor has the path's instruction set; the pointers are good for a page.
#[inline(always)]
pub unsafe fn widen<P: Path>(geometry: &Geometry, keys: *const P::Word, values: *const P::Word, to: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe {
        for i in 0..geometry.key_words {
            P::store_wide(P::operand(keys.add(i * SLOTS)), to.add(i * P::PAIR * SLOTS), SLOTS);
        }
        let to = to.add(geometry.key_words * P::PAIR * SLOTS);
        for row in 0..SLOTS / P::PAIR {
            for panel in (0..geometry.width).step_by(SLOTS) {
                let words = P::operand(values.add(row * geometry.width + panel));
                P::store_wide(words, to.add(row * P::PAIR * geometry.width + panel), geometry.width);
            }
        }
    }
}

/// Stores `x`, filled up with zeros to whole vectors, as factors.
///
/// # Safety
/// The processor has the path's instruction set, and `to` has room.
#[inline(always)]
pub unsafe fn pack<P: Path>(x: &[f32], to: *mut P::Factor) {
    let (whole, rest) = x.as_chunks::<SLOTS>();
    // SAFETY: promised by the caller.
    unsafe {
        for (i, x) in whole.iter().enumerate() {
            P::store_factors(P::Lanes::load(x.as_ptr()), to.add(i * SLOTS / P::PAIR));
        }
        if !rest.is_empty() {
            let mut last = [0.0; SLOTS];
            last[..rest.len()].copy_from_slice(rest);
            P::store_factors(P::Lanes::load(last.as_ptr()), to.add(whole.len() * SLOTS / P::PAIR));
        }
    }
}

/// `out = o / l`. Adding zero turns a negative zero, which hidden lanes may or may not have left, into a positive one.
#[inline(always)]
pub fn finish(o: &[f32], l: &[f32; SLOTS], out: &mut [f32]) {
    let mut sums = *l;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    let share = 1.0 / sums[0];
    for (y, o) in out.iter_mut().zip(o) {
        *y = o * share + 0.0;
    }
}
