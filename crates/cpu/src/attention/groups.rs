//! Attention to values that lie in keys, as latents do. Such keys are wide and read by many rows, so a tile's do not
//! fit the first-level cache beside anything else. They are read in blocks of words, and values in panels, each by all
//! rows of the task before the next one. Rows are taken in groups, whose sums fill the registers; scores and sums wait
//! in memory between blocks. So a row's products are added in the order of `fold`, whatever other rows there are.
// Loops index several arrays of registers and pointers at once.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use bytemuck::Zeroable;

use super::fold::{AlignedRows, update_softmax, widest};
use super::in_keys::{InKeys, PANEL};
use super::lanes::FloatLanes;
use super::path::{Geometry, GroupPath, KernelPath, LANES, Prefetch, RowStates, TileView, VisibleLanes};
use super::tiles::PAGES;
use crate::kv::SLOTS;
use crate::memory::{CacheLevel, CacheLine};

/// Words of a key in a block: those of a tile's keys take 24 KiB.
const BLOCK: usize = 96;

/// Rows that are multiplied at once.
pub struct TaskRows {
    /// At most `VECTOR_ROWS`, counted from the first of [`GroupedRows`].
    pub rows: Range<usize>,
    /// Not none.
    pub visible: VisibleLanes,
}

/// The rows that read a tile.
#[repr(C)]
pub struct GroupedRows<'a, F> {
    /// The states of all rows of the task.
    pub states: RowStates<F>,
    pub groups: &'a [TaskRows],
    /// The tile's lanes.
    pub lanes: Range<usize>,
}

/// Memory reused between tiles.
#[derive(Default)]
pub struct GroupScratch {
    /// Scores of each row, `[LANES]`.
    scores: Vec<CacheLine>,
    /// Softmax numerators of each row: room for `[LANES]` factors.
    numerators: Vec<CacheLine>,
    /// The factors by which the sums of each group's rows shrink.
    shrinks: Vec<[f32; SLOTS]>,
    /// A panel of values.
    panel: Vec<CacheLine>,
}

impl GroupScratch {
    fn start(&mut self, rows: usize) {
        let lines = |count: usize| count * size_of::<f32>() / size_of::<CacheLine>();
        let lines_of_rows = lines(rows * LANES).max(self.scores.len());
        self.scores.resize(lines_of_rows, CacheLine::zeroed());
        self.numerators.resize(lines_of_rows, CacheLine::zeroed());
        self.panel.resize(lines(LANES * PANEL), CacheLine::zeroed());
        self.shrinks.clear();
    }
}

/// Folds a tile into the states of all groups. `prefetch` has `PAGES` pages at most, which come while scores are
/// computed.
///
/// # Safety
/// The processor has the path's instruction set. The pointers of `rows` are valid for the rows of all groups, and the
/// keys of `tile` for all pages of its lanes. No other thread uses the states.
pub unsafe fn fold_groups<P: GroupPath>(
    geometry: &Geometry,
    values: &InKeys,
    tile: &TileView<P::Word>,
    rows: &GroupedRows<'_, P::Factor>,
    scratch: &mut GroupScratch,
    prefetch: &[Prefetch],
) {
    const { assert!(size_of::<P::Factor>() == size_of::<f32>() && size_of::<P::Word>() == size_of::<u32>()) };
    let GroupedRows { states, groups, lanes } = rows;
    scratch.start(states.count);
    let GroupScratch { scores, numerators, shrinks, panel } = scratch;
    let (scores, numerators) = (scores.as_mut_ptr().cast::<f32>(), numerators.as_mut_ptr().cast::<P::Factor>());
    let factors = geometry.query_width / P::WORD_ELEMENTS;
    // SAFETY: scores and numerators have room for all rows and are written before they are read, for the pages that a
    // group sees; the rest is promised by the caller.
    unsafe {
        for first in (0..geometry.key_words).step_by(BLOCK) {
            let words = first..geometry.key_words.min(first + BLOCK);
            for (number, TaskRows { rows, visible }) in groups.iter().enumerate() {
                let share = |of: usize| words.start + of * words.len() / groups.len();
                for page in prefetch {
                    (share(number)..share(number + 1)).for_each(|word| page.keys(word, CacheLevel::Second));
                }
                let q = states.q.add(rows.start * factors);
                let scores = scores.add(rows.start * LANES);
                P::score_group(rows.len(), geometry, q, &tile.keys, &words, &visible.pages(), scores);
            }
        }
        for TaskRows { rows, visible } in *groups {
            let (m, l) = (states.m.add(rows.start), states.l.add(rows.start * SLOTS));
            let own = RowStates { count: rows.len(), m, l, ..*states };
            let at = rows.start * LANES;
            shrinks.push(P::soften_group(rows.len(), geometry, &own, visible, scores.add(at), numerators.add(at)));
        }
        let panel: &mut [u32] = bytemuck::cast_slice_mut(panel);
        let panel: &mut [u32; LANES * PANEL] = panel.try_into().expect("a panel's words");
        for number in 0..values.panels() {
            values.fill_panel(number, &tile.keys.map(|keys| keys.cast()), lanes, panel);
            let first = number * PANEL;
            let width = PANEL.min(geometry.width - first);
            for (TaskRows { rows, visible }, shrinks) in groups.iter().zip(&*shrinks) {
                let o = states.o.add(rows.start * geometry.width + first);
                let sums = PanelSums { geometry, o, shrinks, lanes: &visible.lanes, vectors: width / SLOTS };
                let numerators = numerators.add(rows.start * LANES);
                P::add_panel(rows.len(), &sums, panel.as_ptr().cast(), numerators);
            }
        }
    }
}

impl VisibleLanes {
    /// The pages that have some of them.
    pub fn pages(&self) -> Range<usize> {
        self.lanes.start / SLOTS..self.lanes.end.div_ceil(SLOTS)
    }
}

/// Adds the products of `words` to the scores of `R` rows with the keys of `pages`; the first words begin them.
///
/// # Safety
/// As for [`fold_groups`]; `q` and `scores` are those of the first row.
#[inline(always)]
pub unsafe fn score_group<P: KernelPath, const R: usize>(
    geometry: &Geometry,
    q: *const P::Factor,
    keys: &[*const P::Word; PAGES],
    words: &Range<usize>,
    pages: &Range<usize>,
    scores: *mut f32,
) {
    let factors = geometry.query_width / P::WORD_ELEMENTS;
    // SAFETY: promised by the caller.
    unsafe {
        let queries: [*const P::Factor; R] = std::array::from_fn(|r| q.add(r * factors));
        let mut page = pages.start;
        while page < pages.end {
            let scores = scores.add(page * SLOTS);
            page += widest!(pages.end - page, score_words(&queries, &keys[page..], words, scores));
        }
    }
}

/// [`score_group`] for `N` pages. Returns `N`.
#[inline(always)]
unsafe fn score_words<P: KernelPath, const R: usize, const N: usize>(
    queries: &[*const P::Factor; R],
    keys: &[*const P::Word],
    words: &Range<usize>,
    scores: *mut f32,
) -> usize {
    // SAFETY: promised by the caller of `score_group`.
    unsafe {
        let mut pages = [keys[0]; N];
        pages.copy_from_slice(&keys[..N]);
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        if words.start > 0 {
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = P::Lanes::load(scores.add(r * LANES + n * SLOTS));
                }
            }
        }
        for i in words.clone() {
            let mut k = [P::operand(pages[0].add(i * SLOTS)); N];
            for n in 1..N {
                k[n] = P::operand(pages[n].add(i * SLOTS));
            }
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = P::madd(acc[r][n], queries[r].add(i), k[n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                acc[r][n].store(scores.add(r * LANES + n * SLOTS));
            }
        }
    }
    N
}

/// [`update_softmax`] for a group of `R` rows.
///
/// # Safety
/// As for [`update_softmax`]; `rows`, `scores` and `numerators` begin with the group's first row, and `scores` has been
/// written for every page that a row of the group sees.
#[inline(always)]
pub unsafe fn soften_group<P: KernelPath, const R: usize>(
    geometry: &Geometry,
    rows: &RowStates<P::Factor>,
    visible: &VisibleLanes,
    scores: *mut f32,
    numerators: *mut P::Factor,
) -> [f32; SLOTS] {
    let hidden = (visible.rows[..R] != [u64::MAX; R]).then_some(&visible.rows[..R]);
    // SAFETY: promised by the caller; rows of either begin with a cache line.
    unsafe {
        let scores = &mut *scores.cast::<AlignedRows<f32, LANES, R>>();
        let numerators = &mut *numerators.cast::<AlignedRows<P::Factor, LANES, R>>();
        update_softmax::<P, R>(geometry, rows, visible.pages(), hidden, scores, numerators)
    }
}

/// What a panel of values adds to the sums of a group.
pub struct PanelSums<'a> {
    pub geometry: &'a Geometry,
    /// The sums of the first row, from the panel's first element on.
    pub o: *mut f32,
    pub shrinks: &'a [f32; SLOTS],
    /// The lanes that some row sees.
    pub lanes: &'a Range<usize>,
    /// Vectors of the panel.
    pub vectors: usize,
}

/// Multiplies a panel of the sums of `R` rows by the factors by which they shrink, and adds numerators times values.
///
/// # Safety
/// As for [`fold_groups`]; `values` are those of the panel, `numerators` those of the group.
#[inline(always)]
pub unsafe fn add_panel<P: KernelPath, const R: usize>(
    sums: &PanelSums<'_>,
    values: *const P::Word,
    numerators: *const P::Factor,
) {
    let mut vector = 0;
    while vector < sums.vectors {
        // SAFETY: promised by the caller.
        vector += unsafe { widest!(sums.vectors - vector, add_vectors(sums, vector, values, numerators)) };
    }
}

/// [`add_panel`] for `N` vectors from `vector` on. Returns `N`.
#[inline(always)]
unsafe fn add_vectors<P: KernelPath, const R: usize, const N: usize>(
    sums: &PanelSums<'_>,
    vector: usize,
    values: *const P::Word,
    numerators: *const P::Factor,
) -> usize {
    let PanelSums { geometry, o, shrinks, lanes, .. } = sums;
    // SAFETY: promised by the caller of `add_panel`.
    unsafe {
        let (o, values) = (o.add(vector * SLOTS), values.add(vector * SLOTS));
        let mut acc = [[P::Lanes::splat(0.0); N]; R];
        for r in 0..R {
            let shrink = P::Lanes::splat(shrinks[r]);
            for n in 0..N {
                acc[r][n] = P::Lanes::load(o.add(r * geometry.width + n * SLOTS)).mul(shrink);
            }
        }
        for j in lanes.start / P::WORD_ELEMENTS..lanes.end.div_ceil(P::WORD_ELEMENTS) {
            let row = values.add(j * PANEL);
            let mut v = [P::operand(row); N];
            for n in 1..N {
                v[n] = P::operand(row.add(n * SLOTS));
            }
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = P::madd(acc[r][n], numerators.add(r * LANES + j), v[n]);
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
