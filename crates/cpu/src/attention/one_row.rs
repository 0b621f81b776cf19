//! Attention of one row of one head over bf16 pages on processors with tile registers: vector products in the order of
//! tiles, so that scores and sums are those that `amx` computes (`tile_order` says how exactly).

use std::arch::x86_64::*;
use std::ops::Range;

use super::fold::{self, AlignedRows, up_to_four};
use super::path::{Geometry, KernelPath, LANES, Prefetch, RowStates, TileView, VisibleLanes};
use crate::kv::SLOTS;
use crate::memory::CacheLevel;
use crate::tile_order::{CHAIN, PairChains, SplitPair};

/// [`fold::fold`] for one row, on a path that folds several rows by tiles.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]
pub unsafe fn fold_row<P: KernelPath<Word = u32, Factor = u32>>(
    geometry: &Geometry,
    tile: &TileView<u32>,
    row: &RowStates<u32>,
    visible: &VisibleLanes,
    prefetch: &[Prefetch],
) {
    let pages = visible.lanes.start / SLOTS..visible.lanes.end.div_ceil(SLOTS);
    let mut scores = AlignedRows::<f32, LANES, 1>::uninit();
    let mut numerators = AlignedRows::<u32, LANES, 1>::uninit();
    // SAFETY: as in `fold::fold`.
    unsafe {
        let (keys, to) = (&tile.keys[pages.clone()], scores.at(0, pages.start * SLOTS));
        up_to_four!(keys.len(), score(geometry, row.q, keys, prefetch, to));
        let seen = (visible.rows[0] != u64::MAX).then_some(&visible.rows[..1]);
        let [shrink, ..] = fold::update_softmax::<P, 1>(geometry, row, pages, seen, &mut scores, &mut numerators);
        let numerators = numerators.at(0, 0);
        let sums = RowSums { geometry, o: row.o, shrink, tile, lanes: &visible.lanes, numerators, prefetch };
        let panels = geometry.width / SLOTS;
        for panel in (0..panels).step_by(4) {
            up_to_four!(panels - panel, sums.add(panel));
        }
    }
}

/// Stores the scores of the row and `N` pages of keys.
#[inline(always)]
unsafe fn score<const N: usize>(
    geometry: &Geometry,
    q: *const u32,
    keys: &[*const u32],
    prefetch: &[Prefetch],
    to: *mut f32,
) {
    // SAFETY: promised by the caller of `fold_row`.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); N];
        for first in (0..geometry.key_words).step_by(CHAIN) {
            let mut chains = PairChains::<N>::zero();
            for word in first..geometry.key_words.min(first + CHAIN) {
                for ahead in prefetch {
                    ahead.keys(word, CacheLevel::Second);
                }
                let q = SplitPair::load(q.add(word));
                for (n, keys) in keys[..N].iter().enumerate() {
                    chains.add(n, q, keys.add(word * SLOTS));
                }
            }
            chains.add_to(&mut sums);
        }
        for (n, sum) in sums.iter().enumerate() {
            _mm512_storeu_ps(to.add(n * SLOTS), *sum);
        }
    }
}

/// What a tile's values add to the row's sums.
struct RowSums<'a> {
    geometry: &'a Geometry,
    o: *mut f32,
    shrink: f32,
    tile: &'a TileView<u32>,
    lanes: &'a Range<usize>,
    numerators: *const u32,
    prefetch: &'a [Prefetch],
}

impl RowSums<'_> {
    /// Multiplies dimensions `16 panel .. 16 (panel + N)` of the row's sums by `shrink` and adds numerators times
    /// values.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, panel: usize) {
        let RowSums { geometry, lanes, .. } = self;
        let prefetch = if panel == 0 { self.prefetch } else { &[] };
        // SAFETY: promised by the caller of `fold_row`.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); N];
            for page in lanes.start / SLOTS..lanes.end.div_ceil(SLOTS) {
                let mut chains = PairChains::<N>::zero();
                let values = self.tile.values[page].add(panel * SLOTS);
                for pair in lanes.start.max(page * SLOTS) / 2..lanes.end.min((page + 1) * SLOTS).div_ceil(2) {
                    for ahead in prefetch {
                        ahead.values(pair, CacheLevel::Second);
                    }
                    let numerators = SplitPair::load(self.numerators.add(pair));
                    let values = values.add((pair - page * SLOTS / 2) * geometry.width);
                    for n in 0..N {
                        chains.add(n, numerators, values.add(n * SLOTS));
                    }
                }
                chains.add_to(&mut sums);
            }
            let shrink = _mm512_set1_ps(self.shrink);
            for (n, sum) in sums.iter().enumerate() {
                let o = self.o.add((panel + n) * SLOTS);
                _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_loadu_ps(o), shrink, *sum));
            }
        }
    }
}
