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
use super::fold::{self, AlignedRows, up_to_four};
use super::lanes::MOST_ROWS;
use super::one_row;
use super::path::{Geometry, KernelPath, LANES, Prefetch, RowStates, TileView, VisibleLanes, packing};
use super::tiles::PAGES;
use crate::amx::numbered::{add_product, store, zero};
use crate::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};
use crate::kv::SLOTS;
use crate::memory::CacheLevel;
use offshoot_backend::MOST_HEAD_DIM;

/// bf16 pages, by products of tiles.
pub struct AmxBf16;

/// Whether the kernel folds keys or values of this width. Others use dot products, which round the same operands.
pub fn takes(width: usize) -> bool {
    width.is_multiple_of(SLOTS)
}

/// Words of a page's values in one lane, or of the last 16 elements of a key.
pub const HALF: usize = TILE_ROWS / 2;

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

    unsafe fn around(task: &mut dyn FnMut()) {
        // SAFETY: the caller promises the instruction set; a task is no part of another.
        let _tiles = unsafe { ShapedTiles::new(&SHAPES) };
        task();
    }

    unsafe fn fold(
        geometry: &Geometry,
        tile: &TileView<u32>,
        rows: &RowStates<u32>,
        visible: &VisibleLanes,
        prefetch: &[Prefetch],
    ) {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            match rows.count {
                1 => one_row::fold_row::<Self>(geometry, tile, rows, visible, prefetch),
                _ => fold_tiles(geometry, tile, rows, visible, prefetch),
            }
        }
    }

    packing!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c");
}

/// [`fold::fold`] for up to 16 rows.
///
/// # Safety
/// As there; queries of 16 rows are readable, and the tile registers are shaped.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]
unsafe fn fold_tiles(
    geometry: &Geometry,
    tile: &TileView<u32>,
    rows: &RowStates<u32>,
    visible: &VisibleLanes,
    prefetch: &[Prefetch],
) {
    let pages = visible.lanes.start / SLOTS..visible.lanes.end.div_ceil(SLOTS);
    let mut scores = AlignedRows::<f32, LANES, TILE_ROWS>::uninit();
    let mut numerators = AlignedRows::<u32, LANES, TILE_ROWS>::uninit();
    let mut padded = PaddedValues::new();
    // SAFETY: as in `fold::fold`.
    unsafe {
        let (keys, to) = (&tile.keys[pages.clone()], scores.at(0, pages.start * SLOTS));
        up_to_four!(keys.len(), score(geometry, rows.q, keys, prefetch, to));
        let hides = visible.rows[..rows.count].iter().any(|&seen| seen != u64::MAX);
        let seen = hides.then_some(&visible.rows);
        let mut softmax = Softmax { geometry, rows, pages: &pages, seen, shrinks: [0.0; MOST_ROWS] };
        let mut row = 0;
        while row < rows.count {
            row += up_to_four!(rows.count - row, softmax.update(row, &mut scores, &mut numerators));
        }
        let values = padded.of(geometry, tile, visible);
        let (values, numerators) = (&values[pages.clone()], numerators.at(0, pages.start * HALF));
        Sums { geometry, rows, shrinks: &softmax.shrinks, values, numerators, prefetch }.add_all();
    }
}

/// Stores the scores of 16 rows of queries and `N` pages of keys. Some keys are prefetched after each product: all at
/// once would fill the core's fill buffers.
///
/// # Safety
/// As `fold_tiles` says.
#[inline(always)]
pub unsafe fn score<const N: usize>(
    geometry: &Geometry,
    q: *const u32,
    keys: &[*const u32],
    prefetch: &[Prefetch],
    to: *mut f32,
) {
    let q_stride = geometry.query_width * size_of::<u16>();
    let whole = geometry.key_words / TILE_ROWS * TILE_ROWS;
    // SAFETY: promised by the caller of `fold_tiles`.
    unsafe {
        (0..N).for_each(|n| zero(n));
        for i in (0..whole).step_by(TILE_ROWS) {
            amx::load::<4>(q.add(i).cast(), q_stride);
            for (n, keys) in keys[..N].iter().enumerate() {
                amx::load::<6>(keys.add(i * SLOTS).cast(), SLOTS * size_of::<u32>());
                add_product(n, 4, 6);
                prefetch_keys(n, N, prefetch, i..i + TILE_ROWS);
            }
        }
        if whole < geometry.key_words {
            amx::load::<5>(q.add(whole).cast(), q_stride);
            for (n, keys) in keys[..N].iter().enumerate() {
                amx::load::<7>(keys.add(whole * SLOTS).cast(), SLOTS * size_of::<u32>());
                add_product(n, 5, 7);
                prefetch_keys(n, N, prefetch, whole..geometry.key_words);
            }
        }
        (0..N).for_each(|n| store(n, to.add(n * SLOTS).cast(), ROW_BYTES));
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
    rows: &'a RowStates<u32>,
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
    unsafe fn of(&mut self, geometry: &Geometry, tile: &TileView<u32>, visible: &VisibleLanes) -> [*const u32; PAGES] {
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
pub struct Sums<'a> {
    pub geometry: &'a Geometry,
    pub rows: &'a RowStates<u32>,
    pub shrinks: &'a [f32; MOST_ROWS],
    /// The values of each page.
    pub values: &'a [*const u32],
    /// The numerators of the first page.
    pub numerators: *const u32,
    pub prefetch: &'a [Prefetch],
}

impl Sums<'_> {
    /// Does `add` for all dimensions.
    ///
    /// # Safety
    /// As `fold_tiles` says.
    #[inline(always)]
    pub unsafe fn add_all(&self) {
        let panels = self.geometry.width / SLOTS;
        for panel in (0..panels).step_by(4) {
            // SAFETY: promised by the caller of `fold_tiles`.
            unsafe { up_to_four!(panels - panel, self.add(panel)) }
        }
    }

    /// Multiplies dimensions `16 panel .. 16 (panel + N)` of the rows' sums by `shrinks` and adds numerators times
    /// values.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, panel: usize) {
        let Sums { geometry, rows, .. } = self;
        let panels = geometry.width / SLOTS;
        let mut sums = AlignedRows::<f32, LANES, TILE_ROWS>::uninit();
        // SAFETY: promised by the caller of `fold_tiles`.
        unsafe {
            (0..N).for_each(|n| zero(n));
            for (page, values) in self.values.iter().enumerate() {
                amx::load::<5>(self.numerators.add(page * HALF).cast(), ROW_BYTES);
                for n in panel..panel + N {
                    amx::load::<7>(values.add(n * SLOTS).cast(), geometry.width * size_of::<u32>());
                    add_product(n - panel, 5, 7);
                    for ahead in self.prefetch.iter().skip(page).step_by(self.values.len()) {
                        (n * LANES / 2 / panels..(n + 1) * LANES / 2 / panels)
                            .for_each(|word| ahead.values(word, CacheLevel::Second));
                    }
                }
            }
            (0..N).for_each(|n| store(n, sums.at(0, n * SLOTS).cast(), ROW_BYTES));
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
