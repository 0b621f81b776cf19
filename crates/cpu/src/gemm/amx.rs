//! The kernel for tile registers (AMX) and bf16 weights: products of 16 rows, 32 inputs and 16 outputs by one
//! instruction. A panel's 16 lines of pairs are a tile as they are stored. Other weights use the kernels of `avx512`.
//!
//! An output is the sum of what each 32 inputs give, in rising order (see [`amx::add_product`]); the last ones of a
//! strip are padded with zeros. A product takes as long for one row as for 16, so a pass of one row takes the kernel of
//! `one_row`. In passes of more rows than 16 all tiles have 16, of which those of the padding are computed and not
//! stored.

use std::arch::x86_64::*;
use std::ops::Range;

use super::kernel::{GemmKernel, GemmKernels, GemmTile};
use super::lines_ahead::LinesAhead;
use super::one_row;
use super::operand::{OperandFormat, TILE_STRIDE};
use super::pack::PANEL;
use crate::amx::numbered::{add_product, load, store, zero};
use crate::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};
use crate::memory::{CacheLevel, CacheLine};
use offshoot_backend::Dtype;

/// For bf16 weights only.
pub static KERNELS: GemmKernels = GemmKernels {
    rows: 2 * TILE_ROWS,
    panels: |rows, groups| match (rows, groups) {
        (1, 1) => one_row::PANELS,
        (_, 1) => STREAMS,
        _ => RESIDENT,
    },
    operand: |_| OperandFormat::Tiles,
    kernel,
    fewer_panels: &[4, 2, 1],
    soon_rows: TILE_ROWS,
    strip_cache: |_, _| CacheLevel::Second,
    around,
};

/// Shapes the tiles: those of sums and activations have the rows of the pass, if these are fewer than 16, and 16 else.
/// So few rows are loaded without padding, which would be a fifth of what the first-level cache is filled with.
fn around(rows: usize, shares: &mut dyn FnMut()) {
    if rows == 1 {
        return shares();
    }
    let (of_rows, of_weights) = ([rows.min(TILE_ROWS), TILE_ROWS], [TILE_ROWS, TILE_ROWS]);
    let mut shapes = [of_weights; 8];
    shapes[..5].fill(of_rows);
    // SAFETY: an `Isa` is only ever one that the processor has; a thread's shares are no part of others.
    let _tiles = unsafe { ShapedTiles::new(&TileShapes::new(shapes)) };
    shares();
}

fn kernel(_: Dtype, rows: usize, panels: usize) -> GemmKernel {
    if rows == 1 {
        return one_row::kernel(panels);
    }
    match (rows.div_ceil(TILE_ROWS), panels) {
        (1, 1) => tile::<1, 1, 1>,
        (1, RESIDENT) => tile::<1, RESIDENT, RESIDENT>,
        (1, STREAMS) => tile::<1, STREAMS, STREAMS>,
        (2, 1) => tile::<2, 1, 1>,
        (2, RESIDENT) => tile::<2, RESIDENT, RESIDENT>,
        (2, STREAMS) => tile::<2, STREAMS, RESIDENT>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// Panels of a kernel call in a pass of one group: weights of all of them are prefetched at once.
const STREAMS: usize = 4;

/// Panels of a kernel call in a pass of more groups: a strip of them stays in the first-level cache beside the rows of
/// one group after another.
const RESIDENT: usize = 2;

/// Multiplies `PANELS` panels, `N` at a time: as many as the registers hold sums of.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROW_TILES: usize, const PANELS: usize, const N: usize>(tile: &GemmTile) {
    const { assert!(PANELS.is_multiple_of(N) && TILE_ROWS.is_multiple_of(ROW_TILES * PANELS)) };
    let mut prefetch = WeightPrefetcher::<ROW_TILES, PANELS> { tile, due: 0, ahead: tile.prefetch };
    for panel in (0..PANELS).step_by(N) {
        let next_a = if panel + N < PANELS { tile.a } else { tile.next_a };
        // SAFETY: the caller's promises are passed on.
        unsafe { multiply::<ROW_TILES, PANELS, N>(tile, panel, next_a, &mut prefetch) };
    }
}

/// Multiplies panels `panel .. panel + N` of the tile. Sums are in tile registers 0 to 3, activations in 4 and, with
/// two tiles of rows, 5; weights take turns in the others. `next_a`: the activations that are multiplied after these.
#[inline(always)]
unsafe fn multiply<const ROW_TILES: usize, const PANELS: usize, const N: usize>(
    tile: &GemmTile,
    panel: usize,
    next_a: *const u32,
    prefetch: &mut WeightPrefetcher<ROW_TILES, PANELS>,
) {
    const { assert!(ROW_TILES * N <= 4 && ROW_TILES <= 2, "eight tile registers") };
    let width = PANELS * PANEL;
    let sums_of = |t: usize, p: usize| t * N + p;
    let weights_of = |p: usize| 4 + ROW_TILES + p % (4 - ROW_TILES);
    let a_stride = TILE_STRIDE * size_of::<u32>();
    let w = tile.w.wrapping_add(panel * tile.panel_bytes);
    if ROW_TILES > 1 {
        prefetch_outputs::<N>(tile, panel);
    }
    // SAFETY: `a` has whole tiles of rows, the sums too; panels hold the strip; `around` has shaped the tiles.
    unsafe {
        for t in 0..ROW_TILES {
            for p in 0..N {
                match tile.sums {
                    Some(sums) => {
                        let sums = sums.add(t * TILE_ROWS * width + (panel + p) * PANEL);
                        load(sums_of(t, p), sums.cast(), width * size_of::<f32>());
                    }
                    None => zero(sums_of(t, p)),
                }
            }
        }
        let whole = tile.words / TILE_ROWS * TILE_ROWS;
        for first in (0..whole).step_by(TILE_ROWS) {
            for t in 0..ROW_TILES {
                load(4 + t, tile.a.add(t * TILE_ROWS * TILE_STRIDE + first).cast(), a_stride);
            }
            let soon = match first + TILE_ROWS {
                next if next < tile.words => tile.a.wrapping_add(next),
                _ => next_a,
            };
            for p in 0..N {
                load(weights_of(p), w.add(p * tile.panel_bytes + first * size_of::<CacheLine>()), 64);
                if ROW_TILES > 1 {
                    prefetch_rows(soon, p * ROW_TILES * TILE_ROWS / N..(p + 1) * ROW_TILES * TILE_ROWS / N);
                }
                for t in 0..ROW_TILES {
                    add_product(sums_of(t, p), 4 + t, weights_of(p));
                    prefetch.after_product();
                }
            }
        }
        if whole < tile.words {
            let rest = tile.words - whole;
            for t in 0..ROW_TILES {
                let mut a = [CacheLine([0.0; 16]); TILE_ROWS];
                for (r, a) in a.iter_mut().enumerate() {
                    let from = tile.a.add((t * TILE_ROWS + r) * TILE_STRIDE + whole);
                    from.copy_to_nonoverlapping(a.0.as_mut_ptr().cast(), rest);
                }
                load(4 + t, a.as_ptr().cast(), size_of::<CacheLine>());
            }
            for p in 0..N {
                let mut lines = [CacheLine([0.0; 16]); TILE_ROWS];
                let from = w.add(p * tile.panel_bytes + whole * size_of::<CacheLine>());
                from.copy_to_nonoverlapping(lines.as_mut_ptr().cast(), rest * size_of::<CacheLine>());
                load(weights_of(p), lines.as_ptr().cast(), size_of::<CacheLine>());
                (0..ROW_TILES).for_each(|t| add_product(sums_of(t, p), 4 + t, weights_of(p)));
            }
        }
        for t in 0..ROW_TILES {
            let rows = (tile.rows - t * TILE_ROWS).min(TILE_ROWS);
            // A group of fewer than 16 rows is a whole pass, for which `around` gave the tiles as many rows.
            let is_whole = rows == TILE_ROWS || tile.rows < TILE_ROWS;
            for p in 0..N {
                let to = tile.to.add(t * TILE_ROWS * tile.to_stride + (panel + p) * PANEL);
                if is_whole && !tile.adds {
                    store(sums_of(t, p), to.cast(), tile.to_stride * size_of::<f32>());
                    continue;
                }
                let mut sums = [CacheLine([0.0; 16]); TILE_ROWS];
                store(sums_of(t, p), sums.as_mut_ptr().cast(), size_of::<CacheLine>());
                for (r, sums) in sums[..rows].iter().enumerate() {
                    let to = to.add(r * tile.to_stride);
                    let sums = _mm512_loadu_ps(sums.0.as_ptr());
                    let sums = if tile.adds { _mm512_add_ps(_mm512_loadu_ps(to), sums) } else { sums };
                    _mm512_storeu_ps(to, sums);
                }
            }
        }
    }
}

/// Brings the weights of later products into a cache, some lines of all panels after each product: two threads read
/// faster so than with all lines of a step after its last product (benches/cpu/NOTES.md).
struct WeightPrefetcher<'a, const ROW_TILES: usize, const PANELS: usize> {
    tile: &'a GemmTile,
    /// Lines of each panel that are due, times `prefetch_every`.
    due: usize,
    ahead: LinesAhead,
}

impl<const ROW_TILES: usize, const PANELS: usize> WeightPrefetcher<'_, ROW_TILES, PANELS> {
    /// Lines of each panel for one product, if all are prefetched by one group of rows.
    const LINES: usize = TILE_ROWS / (ROW_TILES * PANELS);

    /// Called after each product. In a pass of one tile of rows, weights go to the first-level cache soon before they
    /// are read. With more rows that cache holds a strip of weights beside the rows, so each group brings its share of
    /// the next strip into the second-level cache.
    #[inline(always)]
    fn after_product(&mut self) {
        self.due += Self::LINES;
        while self.due >= self.tile.prefetch_every {
            // Two tiles of rows never prefetch soon. With a constant cache their loop has no branch.
            match ROW_TILES == 1 {
                true => self.ahead.prefetch::<PANELS>(self.tile.panel_bytes),
                false => self.ahead.prefetch_into::<PANELS>(self.tile.panel_bytes, CacheLevel::Second),
            }
            self.due -= self.tile.prefetch_every;
        }
    }
}

/// Brings 16 words of some rows of activations into the first-level cache, one step before they are loaded: a group's
/// rows come from the second-level cache for every few panels. Where a strip is no multiple of 16 words, its rest
/// stands for the step before the next call, and prefetches nothing.
#[inline(always)]
fn prefetch_rows(a: *const u32, rows: Range<usize>) {
    for r in rows {
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(r * TILE_STRIDE).cast()) };
    }
}

/// Brings the lines where the sums of `N` panels will be stored into the first-level cache, for writing.
#[inline(always)]
fn prefetch_outputs<const N: usize>(tile: &GemmTile, panel: usize) {
    for (r, p) in (0..tile.rows).flat_map(|r| (panel..panel + N).map(move |p| (r, p))) {
        amx::prefetch_for_writing(tile.to.wrapping_add(r * tile.to_stride + p * PANEL).cast());
    }
}
