//! Attention by tile registers (AMX) over bf16 pages: products of 16 rows with a page's keys or values, of 32 or 16
//! elements by one instruction. A page has the layout of the tiles that it is read as. Queries and numerators are
//! rounded to bf16; the softmax is that of the vector kernels. A call with one row of one head is folded by `one_row`.
//!
//! A row's scores and sums do not depend on the other rows of its tiles, whose number is always 16: those beyond the
//! call's rows are computed from whatever is there, and dropped.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::avx512::Avx512Bf16Dot;
use super::fold::{
    self, AlignedRows, Geometry, LANES, Prefetch, RowStates, StatesMut, StatesRef, TileView, VisibleLanes,
};
use super::lanes::{KernelPath, MOST_ROWS, state_kernels};
use super::one_row;
use super::tiles::PAGES;
use crate::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};
use crate::kv::SLOTS;
use crate::memory::CacheLevel;
use offshoot_backend::MOST_HEAD_DIM;

/// bf16 pages, by products of tiles.
pub struct AmxBf16;

/// Whether the kernel folds heads of this size. Others use dot products, which round the same operands.
pub fn takes(head_dim: usize) -> bool {
    head_dim.is_multiple_of(SLOTS)
}

/// Words of a page's values in one lane, or of the last 16 elements of a key.
const HALF: usize = TILE_ROWS / 2;

/// 0 to 3: scores or sums. 4 and 6: queries and keys. 5 and 7: numerators and values of a page, or the last 16 elements
/// of queries and keys.
static SHAPES: TileShapes = TileShapes::new([
    [TILE_ROWS, TILE_ROWS],
    [TILE_ROWS, TILE_ROWS],
    [TILE_ROWS, TILE_ROWS],
    [TILE_ROWS, TILE_ROWS],
    [TILE_ROWS, TILE_ROWS],
    [TILE_ROWS, HALF],
    [TILE_ROWS, TILE_ROWS],
    [HALF, TILE_ROWS],
]);

const _: () = assert!(MOST_ROWS == TILE_ROWS && SLOTS == TILE_ROWS && PAGES == 4);

/// Bytes from one row to the next of scores, numerators, and sums.
const ROW_BYTES: usize = LANES * size_of::<u32>();

impl KernelPath for AmxBf16 {
    type Lanes = __m512;
    type Word = u32;
    type Operand = __m512bh;
    type Factor = u32;
    type Wide = Self;
    const WIDENS: bool = false;
    const WORD_ELEMENTS: usize = 2;
    const ROW_VECTORS: usize = Avx512Bf16Dot::ROW_VECTORS;
    const ROWS: usize = TILE_ROWS;
    const ROWS_READ_AHEAD: usize = TILE_ROWS - 1;

    #[inline(always)]
    unsafe fn operand(words: *const u32) -> __m512bh {
        // SAFETY: the caller's promises are passed on.
        unsafe { Avx512Bf16Dot::operand(words) }
    }

    #[inline(always)]
    unsafe fn madd(acc: __m512, factor: *const u32, words: __m512bh) -> __m512 {
        // SAFETY: the caller's promises are passed on.
        unsafe { Avx512Bf16Dot::madd(acc, factor, words) }
    }

    #[inline(always)]
    unsafe fn store_factors(x: __m512, to: *mut u32) {
        // SAFETY: the caller's promises are passed on.
        unsafe { Avx512Bf16Dot::store_factors(x, to) }
    }

    #[inline(always)]
    unsafe fn store_wide(_words: __m512bh, _to: *mut f32, _stride: usize) {
        unreachable!("products of tiles read bf16 pages, which are never widened")
    }

    unsafe fn around(task: impl FnOnce()) {
        // SAFETY: the caller promises the instruction set; a task is no part of another.
        let _tiles = unsafe { ShapedTiles::new(&SHAPES) };
        task();
    }

    unsafe fn fold(
        geometry: &Geometry,
        tile: &TileView<Self>,
        rows: &RowStates<Self>,
        visible: &VisibleLanes,
        prefetch: &[Prefetch],
    ) {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            match rows.count {
                1 => one_row::fold_row(geometry, tile, rows, visible, prefetch),
                _ => fold_tiles(geometry, tile, rows, visible, prefetch),
            }
        }
    }

    state_kernels!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c");
}

/// [`fold::fold`] for up to 16 rows.
///
/// # Safety
/// As there; queries of 16 rows are readable, and the tile registers are shaped.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]
unsafe fn fold_tiles(
    geometry: &Geometry,
    tile: &TileView<AmxBf16>,
    rows: &RowStates<AmxBf16>,
    visible: &VisibleLanes,
    prefetch: &[Prefetch],
) {
    let pages = visible.lanes.start / SLOTS..visible.lanes.end.div_ceil(SLOTS);
    let mut scores = AlignedRows::<f32, LANES, TILE_ROWS>::new();
    let mut numerators = AlignedRows::<u32, LANES, TILE_ROWS>::new();
    let mut padded = PaddedValues::new();
    // SAFETY: as in `fold::fold`.
    unsafe {
        let (keys, to) = (&tile.keys[pages.clone()], scores.at(0, pages.start * SLOTS));
        match keys.len() {
            1 => score::<1>(geometry, rows.q, keys, prefetch, to),
            2 => score::<2>(geometry, rows.q, keys, prefetch, to),
            3 => score::<3>(geometry, rows.q, keys, prefetch, to),
            _ => score::<4>(geometry, rows.q, keys, prefetch, to),
        }
        let hides = visible.rows[..rows.count].iter().any(|&seen| seen != u64::MAX);
        let seen = hides.then_some(&visible.rows);
        let mut softmax = Softmax { geometry, rows, pages: &pages, seen, shrinks: [0.0; MOST_ROWS] };
        let mut row = 0;
        while row < rows.count {
            row += match rows.count - row {
                1 => softmax.update::<1>(row, &mut scores, &mut numerators),
                2 => softmax.update::<2>(row, &mut scores, &mut numerators),
                3 => softmax.update::<3>(row, &mut scores, &mut numerators),
                _ => softmax.update::<4>(row, &mut scores, &mut numerators),
            };
        }
        let values = padded.of(geometry, tile, visible);
        let (values, numerators) = (&values[pages.clone()], numerators.at(0, pages.start * HALF));
        Sums { geometry, rows, shrinks: &softmax.shrinks, values, numerators, prefetch }.add_all();
    }
}

/// Stores the scores of 16 rows of queries and `N` pages of keys. Some keys are prefetched after each product: all at
/// once would fill the core's fill buffers.
#[inline(always)]
unsafe fn score<const N: usize>(
    geometry: &Geometry,
    q: *const u32,
    keys: &[*const u32],
    prefetch: &[Prefetch],
    to: *mut f32,
) {
    let q_stride = geometry.width * size_of::<u16>();
    let whole = geometry.key_words / TILE_ROWS * TILE_ROWS;
    // SAFETY: promised by the caller of `fold_tiles`.
    unsafe {
        (0..N).for_each(|n| zero(n));
        for i in (0..whole).step_by(TILE_ROWS) {
            amx::load::<4>(q.add(i).cast(), q_stride);
            for (n, keys) in keys[..N].iter().enumerate() {
                amx::load::<6>(keys.add(i * SLOTS).cast(), SLOTS * size_of::<u32>());
                add_keys(n);
                prefetch_keys(n, N, prefetch, i..i + TILE_ROWS);
            }
        }
        if whole < geometry.key_words {
            amx::load::<5>(q.add(whole).cast(), q_stride);
            for (n, keys) in keys[..N].iter().enumerate() {
                amx::load::<7>(keys.add(whole * SLOTS).cast(), SLOTS * size_of::<u32>());
                add_halves(n);
                prefetch_keys(n, N, prefetch, whole..geometry.key_words);
            }
        }
        (0..N).for_each(|n| store(n, to.add(n * SLOTS).cast()));
    }
}

/// Prefetches words of the keys of every `of`-th page, from page `first` on.
#[inline(always)]
fn prefetch_keys(first: usize, of: usize, prefetch: &[Prefetch], words: Range<usize>) {
    for page in prefetch.iter().skip(first).step_by(of) {
        words.clone().for_each(|word| page.keys(word, CacheLevel::Second));
    }
}

/// The softmax of a call's rows, by a few of them at a time.
struct Softmax<'a> {
    geometry: &'a Geometry,
    rows: &'a RowStates<AmxBf16>,
    pages: &'a Range<usize>,
    /// For each row a bit per lane, unless all see all.
    seen: Option<&'a [u64; MOST_ROWS]>,
    shrinks: [f32; MOST_ROWS],
}

impl Softmax<'_> {
    /// [`fold::update_softmax`] for rows `first .. first + R`. Returns `R`.
    #[inline(always)]
    unsafe fn update<const R: usize>(
        &mut self,
        first: usize,
        scores: &mut AlignedRows<f32, LANES, TILE_ROWS>,
        numerators: &mut AlignedRows<u32, LANES, TILE_ROWS>,
    ) -> usize {
        let seen = self.seen.map(|seen| &seen[first..first + R]);
        // SAFETY: promised by the caller of `fold_tiles`.
        let shrinks = unsafe {
            let rows = RowStates { m: self.rows.m.add(first), l: self.rows.l.add(first * SLOTS), ..*self.rows };
            let (scores, numerators) = (scores.part::<R>(first), numerators.part::<R>(first));
            fold::update_softmax::<AmxBf16, R>(self.geometry, &rows, self.pages.clone(), seen, scores, numerators)
        };
        self.shrinks[first..first + R].copy_from_slice(&shrinks[..R]);
        R
    }
}

/// Copies of the values of pages of which not all slots are visible: what others hold may be no numbers.
struct PaddedValues([[MaybeUninit<u32>; HALF * MOST_HEAD_DIM]; 2]);

impl PaddedValues {
    #[inline(always)]
    fn new() -> Self {
        Self([[MaybeUninit::uninit(); HALF * MOST_HEAD_DIM]; 2])
    }

    /// The values of the tile's pages, with zeros for the pairs of slots that are not visible. Only the first and the
    /// last page can have such.
    #[inline(always)]
    unsafe fn of(
        &mut self,
        geometry: &Geometry,
        tile: &TileView<AmxBf16>,
        visible: &VisibleLanes,
    ) -> [*const u32; PAGES] {
        let mut values = tile.values;
        let Range { start, end } = visible.lanes;
        let (first, last) = (start / SLOTS, (end - 1) / SLOTS);
        for (page, copy) in [first, last].into_iter().zip(&mut self.0) {
            let pairs =
                start.max(page * SLOTS) / 2 - page * HALF..end.min((page + 1) * SLOTS).div_ceil(2) - page * HALF;
            if pairs.len() == HALF || values[page] != tile.values[page] {
                continue; // Whole, or copied already: the first page is the last.
            }
            let words = pairs.start * geometry.width..pairs.end * geometry.width;
            let copy = &mut copy[..HALF * geometry.width];
            // SAFETY: the caller promises that the page is valid.
            let from = unsafe { std::slice::from_raw_parts(tile.values[page].cast(), copy.len()) };
            copy[..words.start].fill(MaybeUninit::new(0));
            copy[words.clone()].copy_from_slice(&from[words.clone()]);
            copy[words.end..].fill(MaybeUninit::new(0));
            values[page] = copy.as_ptr().cast();
        }
        values
    }
}

/// What a tile's values add to the rows' sums.
struct Sums<'a> {
    geometry: &'a Geometry,
    rows: &'a RowStates<AmxBf16>,
    shrinks: &'a [f32; MOST_ROWS],
    /// Of each page.
    values: &'a [*const u32],
    /// Of the first page.
    numerators: *const u32,
    prefetch: &'a [Prefetch],
}

impl Sums<'_> {
    /// [`Self::add`] for all dimensions.
    #[inline(always)]
    unsafe fn add_all(&self) {
        let panels = self.geometry.width / SLOTS;
        for panel in (0..panels).step_by(4) {
            // SAFETY: promised by the caller of `fold_tiles`.
            unsafe {
                match panels - panel {
                    1 => self.add::<1>(panel),
                    2 => self.add::<2>(panel),
                    3 => self.add::<3>(panel),
                    _ => self.add::<4>(panel),
                }
            }
        }
    }

    /// Multiplies dimensions `16 panel .. 16 (panel + N)` of the rows' sums by `shrinks` and adds numerators times
    /// values.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, panel: usize) {
        let Sums { geometry, rows, .. } = self;
        let panels = geometry.width / SLOTS;
        let mut sums = AlignedRows::<f32, LANES, TILE_ROWS>::new();
        // SAFETY: promised by the caller of `fold_tiles`.
        unsafe {
            (0..N).for_each(|n| zero(n));
            for (page, values) in self.values.iter().enumerate() {
                amx::load::<5>(self.numerators.add(page * HALF).cast(), ROW_BYTES);
                for n in panel..panel + N {
                    amx::load::<7>(values.add(n * SLOTS).cast(), geometry.width * size_of::<u32>());
                    add_halves(n - panel);
                    for ahead in self.prefetch.iter().skip(page).step_by(self.values.len()) {
                        (n * LANES / 2 / panels..(n + 1) * LANES / 2 / panels)
                            .for_each(|word| ahead.values(word, CacheLevel::Second));
                    }
                }
            }
            (0..N).for_each(|n| store(n, sums.at(0, n * SLOTS).cast()));
            for (r, shrink) in self.shrinks[..rows.count].iter().enumerate() {
                let shrink = _mm512_set1_ps(*shrink);
                for n in 0..N {
                    let o = rows.o.add(r * geometry.width + (panel + n) * SLOTS);
                    let sum = _mm512_loadu_ps(sums.at(r, n * SLOTS));
                    _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_loadu_ps(o), shrink, sum));
                }
            }
        }
    }
}

/// Does `$call` with tile `$n`, a constant once the loops above are unrolled.
macro_rules! of_sums {
    ($n:expr, $tile:ident => $call:expr) => {
        match $n {
            0 => {
                const $tile: u8 = 0;
                $call
            }
            1 => {
                const $tile: u8 = 1;
                $call
            }
            2 => {
                const $tile: u8 = 2;
                $call
            }
            _ => {
                const $tile: u8 = 3;
                $call
            }
        }
    };
}

/// Empties a tile of sums.
#[inline(always)]
unsafe fn zero(n: usize) {
    // SAFETY: promised by the caller.
    unsafe { of_sums!(n, N => amx::zero::<N>()) }
}

/// Stores a tile of sums.
#[inline(always)]
unsafe fn store(n: usize, to: *mut u8) {
    // SAFETY: promised by the caller.
    unsafe { of_sums!(n, N => amx::store::<N>(to, ROW_BYTES)) }
}

/// Adds the product of queries and keys.
#[inline(always)]
unsafe fn add_keys(n: usize) {
    // SAFETY: promised by the caller.
    unsafe { of_sums!(n, N => amx::add_product::<N, 4, 6>()) }
}

/// Adds the product of numerators and values, or of the last elements of queries and keys.
#[inline(always)]
unsafe fn add_halves(n: usize) {
    // SAFETY: promised by the caller.
    unsafe { of_sums!(n, N => amx::add_product::<N, 5, 7>()) }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{Isa, bf16_dot};
    use offshoot_backend::Scoring;

    /// Words of two bf16 numbers near 1, of either sign.
    fn words(count: usize, seed: u64) -> Vec<u32> {
        let mut state = seed;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::from(bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0).to_bits())
        };
        (0..count).map(|_| number() | number() << 16).collect()
    }

    /// Scores are chains of [`bf16_dot::tile_dot`]s over 32 elements, the last over 16 where they are no multiple; sums
    /// of values shrink and grow by those over the 16 lanes of each page; for all numbers of pages and of panels.
    #[test]
    fn scores_and_sums_are_those_of_the_instruction_s_definition() {
        if !Isa::available().contains(&Isa::Amx) {
            return crate::skip::skipped("this processor has no AMX");
        }
        for head_dim in [16, 32, 48, 80, 128] {
            let scoring = Scoring::<'_, Vec<f32>> { scale: 0.1, softcap: None, sinks: None };
            let geometry = Geometry::new(head_dim, head_dim, 2, &scoring);
            let (key_words, page_words) = (head_dim / 2, head_dim / 2 * SLOTS);
            let q = words(TILE_ROWS * key_words, 1);
            let (keys, values) = (words(PAGES * page_words, 2), words(PAGES * page_words, 3));
            let pages = |of: &[u32]| -> Vec<*const u32> { of.chunks(page_words).map(<[u32]>::as_ptr).collect() };
            let mut numerators = AlignedRows::<u32, LANES, TILE_ROWS>::new();
            let numerator_words = words(TILE_ROWS * LANES, 4);
            let mut scores = AlignedRows::<f32, LANES, TILE_ROWS>::new();
            let (before, shrinks) = (1.5f32, [0.75; MOST_ROWS]);
            let mut o = vec![before; TILE_ROWS * head_dim];
            let states = RowStates {
                count: TILE_ROWS,
                q: q.as_ptr(),
                m: std::ptr::null_mut(),
                l: std::ptr::null_mut(),
                o: o.as_mut_ptr(),
            };
            // SAFETY: the processor has AMX; all operands are as large as the kernel's shapes say.
            unsafe {
                numerator_words.as_ptr().copy_to_nonoverlapping(numerators.at(0, 0), numerator_words.len());
                AmxBf16::around(|| {
                    score::<3>(&geometry, q.as_ptr(), &pages(&keys)[..3], &[], scores.at(0, 0));
                    let sums = Sums {
                        geometry: &geometry,
                        rows: &states,
                        shrinks: &shrinks,
                        values: &pages(&values),
                        numerators: numerators.at(0, 0),
                        prefetch: &[],
                    };
                    sums.add_all();
                });
            }
            for (r, lane) in (0..TILE_ROWS).flat_map(|r| (0..3 * SLOTS).map(move |lane| (r, lane))) {
                let key = |word: usize| keys[lane / SLOTS * page_words + word * SLOTS + lane % SLOTS];
                let own = (0..key_words).step_by(TILE_ROWS).fold(0.0, |sum, first| {
                    let part = first..key_words.min(first + TILE_ROWS);
                    bf16_dot::tile_dot(sum, q[r * key_words..][part.clone()].iter().copied(), part.map(key))
                });
                // SAFETY: the score was stored.
                let found = unsafe { scores.at(r, lane).read() };
                assert_eq!(found.to_bits(), own.to_bits(), "{head_dim}: score of row {r}, lane {lane}");
            }
            for (r, i) in (0..TILE_ROWS).flat_map(|r| (0..head_dim).map(move |i| (r, i))) {
                let own = (0..PAGES).fold(0.0, |sum, page| {
                    let pairs = &numerator_words[r * LANES + page * HALF..][..HALF];
                    let value = |pair: usize| values[page * page_words + pair * head_dim + i];
                    bf16_dot::tile_dot(sum, pairs.iter().copied(), (0..HALF).map(value))
                });
                let own = before.mul_add(shrinks[r], own);
                assert_eq!(o[r * head_dim + i].to_bits(), own.to_bits(), "{head_dim}: sum {i} of row {r}");
            }
        }
    }

    /// The states of some rows after two tiles.
    struct Folded {
        m: Vec<f32>,
        l: Vec<f32>,
        o: Vec<f32>,
    }

    /// One row has the bits that it has among 16, whatever a tile hides from it; but for the sign of zeros, see
    /// `tile_order`.
    #[test]
    fn one_row_is_folded_as_it_is_among_others() {
        if !Isa::available().contains(&Isa::Amx) {
            return crate::skip::skipped("this processor has no AMX");
        }
        for head_dim in [16, 32, 48, 64, 80, 96, 128, 256] {
            let scoring = Scoring::<'_, Vec<f32>> { scale: 0.3, softcap: None, sinks: None };
            let geometry = Geometry::new(head_dim, head_dim, 2, &scoring);
            let (key_words, page_words) = (head_dim / 2, head_dim / 2 * SLOTS);
            let q = words(2 * TILE_ROWS * key_words, 1);
            let (keys, values) = (words(2 * PAGES * page_words, 2), words(2 * PAGES * page_words, 3));
            let page = |of: &[u32], tile: usize| -> [*const u32; PAGES] {
                std::array::from_fn(|page| of[(tile * PAGES + page) * page_words..].as_ptr())
            };
            let fold = |row: usize, count: usize, visible: &VisibleLanes| {
                let mut states =
                    Folded { m: vec![f32::MIN; count], l: vec![0.0; count * SLOTS], o: vec![0.0; count * head_dim] };
                for tile in 0..2 {
                    let view = TileView { keys: page(&keys, tile), values: page(&values, tile) };
                    let rows = RowStates {
                        count,
                        q: q[row * key_words..].as_ptr(),
                        m: states.m.as_mut_ptr(),
                        l: states.l.as_mut_ptr(),
                        o: states.o.as_mut_ptr(),
                    };
                    // SAFETY: the processor has AMX; all operands are as large as the kernel's shapes say, and 15 more
                    // rows of queries can be read.
                    unsafe {
                        AmxBf16::around(|| AmxBf16::fold(&geometry, &view, &rows, visible, &[Prefetch::none(); 3]));
                    }
                }
                states
            };
            for lanes in [0..LANES, 0..1, 5..6, 3..40, 17..LANES, 20..29] {
                // The other rows see all, or less.
                for others in [0..LANES, lanes.start..lanes.start + 1] {
                    let of = |row: usize| if row == 3 { lanes.clone() } else { others.clone() };
                    let among = fold(0, TILE_ROWS, &VisibleLanes::of((0..TILE_ROWS).map(of)));
                    let alone = fold(3, 1, &VisibleLanes::of(std::iter::once(lanes.clone())));
                    let bits = |of: &[f32]| of.iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&alone.m), bits(&among.m[3..4]), "{head_dim}, {lanes:?}: maximum");
                    assert_eq!(bits(&alone.l), bits(&among.l[3 * SLOTS..4 * SLOTS]), "{head_dim}, {lanes:?}: sums");
                    let own = &among.o[3 * head_dim..4 * head_dim];
                    assert_eq!(bits(&alone.o), bits(own), "{head_dim}, {lanes:?}: values");
                }
            }
        }
    }
}
