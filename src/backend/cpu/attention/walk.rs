//! Divides tree attention among threads. A task is one key head over a chunk of rows. It goes through the tiles in the
//! order of the plan's items and folds each into all of its rows, so that the keys and values of a shared tile are read
//! from memory once per chunk and stay in cache meanwhile.

use std::ops::Range;

use bytemuck::Zeroable;

use super::super::columns::OutputColumns;
use super::super::kv::{CpuPageLayout, SLOTS};
use super::super::memory::{CacheLine, prefetch_line};
use super::super::rows::sum_lanes;
use super::super::team::Team;
use super::super::{CpuBuffer, KvStore};
use super::fold::{Geometry, Prefetch, RowStates, TileView, VisibleLanes};
use super::gather;
use super::lanes::{KernelPath, MAX_ROWS};
use super::tiles::{PAGES, PageRead, PageSlots, PlanTile, PlanTiles, TilePage};
use crate::backend::{HeadLayout, Scoring};
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// A tile with at least this many kernel calls is widened to f32 once for all of them.
const WIDEN_FROM: usize = 3;

/// How far ahead pages are prefetched: well below a core's second-level cache (1 MiB on Zen 4, 2 MiB on Sapphire
/// Rapids), which also holds the states of the rows.
const PREFETCH_BYTES: usize = 512 << 10;

/// Calls with fewer products (rows x positions x width) run on the calling thread: a worker would come too late.
const PARALLEL_PRODUCTS: usize = 50_000;

/// The running states of a task's rows and its other buffers; reused between calls.
#[derive(Default)]
pub struct TaskScratch {
    /// Packed queries, `[rows][group][width / WORD_ELEMENTS]` factors.
    q: Vec<CacheLine>,
    /// See [`RowStates`] for `m`, `l` and `o`.
    m: Vec<f32>,
    l: Vec<CacheLine>,
    o: Vec<CacheLine>,
    /// Gathered pages of the current tile.
    gathered: Vec<CacheLine>,
    /// Widened pages of the current tile.
    wide: Vec<CacheLine>,
}

/// The operands of one call of tree attention.
pub struct AttentionCall<'a> {
    pub qkv: &'a CpuBuffer,
    pub kv: &'a KvStore,
    pub layer: LayerIx,
    pub plan: &'a AttentionPlan,
    pub tiles: &'a PlanTiles,
    pub scoring: Scoring<'a, Vec<f32>>,
}

/// One key head over a chunk of rows.
struct HeadTask {
    kv_head: usize,
    rows: Range<usize>,
}

/// Computes tree attention on the threads of `team`, with the log-sum-exps if there is room for them.
///
/// # Safety
/// The processor has the path's instruction set.
pub unsafe fn run<P: KernelPath>(
    team: &Team,
    call: &AttentionCall<'_>,
    scratch: &mut Vec<TaskScratch>,
    out: &mut CpuBuffer,
    lse: Option<&mut CpuBuffer>,
) {
    let heads = call.kv.heads(call.layer);
    let tasks = HeadTasks::new(team, heads, out.rows);
    scratch.resize_with(scratch.len().max(tasks.len()), Default::default);
    let scratch = &mut scratch[..tasks.len()];
    let (out, lse) = (OutputColumns::of(out), lse.map(OutputColumns::of));
    let run = |i: usize, scratch: &mut TaskScratch| {
        // SAFETY: promised by the caller.
        unsafe { run_task::<P>(call, tasks.get(i), scratch, &out, lse.as_ref()) }
    };
    let pairs: usize = call.tiles.tiles.iter().map(|tile| tile.rows.len() * tile.lanes.len()).sum();
    if pairs * heads.q_width() < PARALLEL_PRODUCTS {
        scratch.iter_mut().enumerate().for_each(|(i, scratch)| run(i, scratch));
    } else {
        team.for_each(scratch, run);
    }
}

/// The tasks of a call: each chunk of rows with each key head.
struct HeadTasks {
    rows: usize,
    chunk: usize,
    kv_heads: usize,
}

impl HeadTasks {
    /// About three tasks per thread, so that threads finish together. More chunks would read shared tiles more often.
    fn new(team: &Team, heads: HeadLayout, rows: usize) -> Self {
        let chunks = (3 * team.threads()).div_ceil(heads.kv_heads);
        let max_chunks = (rows * heads.group()).div_ceil(4 * MAX_ROWS);
        Self { rows, chunk: rows.div_ceil(chunks.min(max_chunks).max(1)).max(1), kv_heads: heads.kv_heads }
    }

    fn len(&self) -> usize {
        self.rows.div_ceil(self.chunk) * self.kv_heads
    }

    /// The last rows come first: those of a prompt have the most positions, so the shortest tasks end a call.
    fn get(&self, task: usize) -> HeadTask {
        let first = (self.len() - 1 - task) / self.kv_heads * self.chunk;
        HeadTask { kv_head: task % self.kv_heads, rows: first..self.rows.min(first + self.chunk) }
    }
}

/// Computes the output of one task.
///
/// # Safety
/// The processor has the path's instruction set.
unsafe fn run_task<P: KernelPath>(
    call: &AttentionCall<'_>,
    task: HeadTask,
    scratch: &mut TaskScratch,
    out: &OutputColumns,
    lse: Option<&OutputColumns>,
) {
    let heads = call.kv.heads(call.layer);
    let layout = call.kv.layout(call.layer);
    let group = heads.group();
    let geometry = Geometry::new(heads.head_dim, layout.width, P::WORD_ELEMENTS, &call.scoring);
    let stored = call.kv.head::<P::Word>(call.layer, task.kv_head);
    let mut prefetcher = Prefetcher::new(&call.tiles.reads, &task.rows, layout, bytemuck::cast_slice(stored));
    // The pages of the first tile come while the task begins.
    (0..PAGES).for_each(|_| prefetcher.whole_page(0));
    scratch.start(task.rows.len() * group, layout);
    if let Some(sinks) = call.scoring.sinks {
        scratch.add_sinks(&sinks[task.kv_head * group..][..group], &geometry);
    }
    // SAFETY: promised by the caller.
    unsafe { pack_queries::<P>(call, &task, layout.width, &mut scratch.q) };
    for tile in &call.tiles.tiles {
        let rows = tile.rows.start.max(task.rows.start)..tile.rows.end.min(task.rows.end);
        if rows.is_empty() {
            continue;
        }
        let view = tile_view::<P>(tile, call.tiles, layout, stored, bytemuck::cast_slice_mut(&mut scratch.gathered));
        let whole = tile.is_whole();
        let first = (rows.start - task.rows.start) * group;
        let row_groups = even_groups(rows.len() * group);
        // SAFETY: the processor has the path's instructions; `view` covers the tile's pages, and `wide` has room for
        // them.
        let wide = (P::WIDENS && row_groups.len() >= WIDEN_FROM)
            .then(|| unsafe { widen(&geometry, &view, bytemuck::cast_slice_mut(&mut scratch.wide)) });
        // Each kernel call prefetches one page. A tile of fewer calls than pages is bound by memory anyway: it asks for
        // the others at once.
        let pages = tile.lanes.end.div_ceil(SLOTS) - tile.lanes.start / SLOTS;
        for _ in row_groups.len()..pages {
            prefetcher.whole_page(tile.reads);
        }
        for row_group in row_groups {
            let visible = match whole {
                true => VisibleLanes::WHOLE,
                false => {
                    let seen = |i: usize| call.plan.seen(rows.start + i / group);
                    VisibleLanes::of(row_group.clone().map(|i| tile.visible(&seen(i))))
                }
            };
            if visible.lanes.is_empty() {
                continue;
            }
            let states = scratch.rows::<P>(first + row_group.start, row_group.len(), layout.width);
            let prefetch = match &wide {
                Some((geometry, _)) => prefetcher.next(tile.reads, geometry.key_words, P::Wide::WORD_ELEMENTS),
                None => prefetcher.next(tile.reads, geometry.key_words, P::WORD_ELEMENTS),
            };
            // SAFETY: the processor has the path's instructions; `scratch` holds all rows of the task, of which
            // `states` are some; `view` and `wide` cover the pages of the tile's lanes, of which the rows see some.
            match &wide {
                Some((geometry, view)) => unsafe {
                    P::Wide::fold(geometry, view, &states.widened(), &visible, &prefetch);
                },
                None => unsafe { P::fold(&geometry, &view, &states, &visible, &prefetch) },
            }
        }
    }
    let o = bytemuck::cast_slice::<CacheLine, f32>(&scratch.o).chunks_exact(layout.width);
    let places = task.rows.flat_map(|row| (0..group).map(move |head| (row, task.kv_head * group + head)));
    for ((((row, head), m), l), o) in places.zip(&scratch.m).zip(&scratch.l).zip(o) {
        let sum = sum_lanes(l.0);
        if let Some(lse) = lse {
            // SAFETY: tasks have different rows or heads, and each writes only theirs.
            unsafe { lse.of_row(row, head, 1)[0] = geometry.scaled(*m) + sum.ln() };
        }
        // SAFETY: tasks have different rows or heads, and each writes only theirs.
        let out = unsafe { out.of_row(row, head * heads.head_dim, heads.head_dim) };
        match sum > 0.0 || lse.is_none() {
            // SAFETY: the processor has the path's instructions.
            true => unsafe { P::finish(o, &l.0, out) },
            // A row that sees nothing of a member's positions.
            false => out.fill(0.0),
        }
    }
}

impl TaskScratch {
    /// Resets the states of `count` rows and makes room for the pages of a tile.
    fn start(&mut self, count: usize, layout: CpuPageLayout) {
        let line = size_of::<CacheLine>();
        self.m.clear();
        self.m.resize(count, f32::MIN);
        self.l.clear();
        self.l.resize(count, CacheLine::zeroed());
        self.o.clear();
        self.o.resize(count * layout.width / SLOTS, CacheLine::zeroed());
        self.gathered.resize(PAGES * layout.bytes() / line, CacheLine::zeroed());
        self.wide.resize(PAGES * layout.elements() * size_of::<f32>() / line, CacheLine::zeroed());
    }

    /// Begins each state with the sink of its head: a score that is in the sum and adds no value. `sinks`: those of the
    /// task's heads.
    fn add_sinks(&mut self, sinks: &[f32], geometry: &Geometry) {
        for ((m, l), sink) in self.m.iter_mut().zip(&mut self.l).zip(sinks.iter().cycle()) {
            *m = geometry.unscaled(*sink);
            l.0[0] = 1.0;
        }
    }

    /// The states of rows `at .. at + count`.
    fn rows<P: KernelPath>(&mut self, at: usize, count: usize, width: usize) -> RowStates<P> {
        let end = at + count;
        let queries = bytemuck::cast_slice::<CacheLine, P::Factor>(&self.q);
        RowStates {
            count,
            q: queries[at * width / P::WORD_ELEMENTS..end * width / P::WORD_ELEMENTS].as_ptr(),
            m: self.m[at..end].as_mut_ptr(),
            l: self.l[at..end].as_mut_ptr().cast(),
            o: self.o[at * width / SLOTS..end * width / SLOTS].as_mut_ptr().cast(),
        }
    }
}

/// Chooses which page each kernel call prefetches: those that the task reads next.
struct Prefetcher<'a> {
    reads: &'a [PageRead],
    /// The task's rows.
    rows: &'a Range<usize>,
    layout: CpuPageLayout,
    /// All pages of the task's key head.
    stored: &'a [u8],
    /// Index of the next read.
    at: usize,
}

impl<'a> Prefetcher<'a> {
    fn new(reads: &'a [PageRead], rows: &'a Range<usize>, layout: CpuPageLayout, stored: &'a [u8]) -> Self {
        Self { reads, rows, layout, stored, at: 0 }
    }

    /// What a kernel call with `key_words` words per key and `pair` elements per word prefetches while it folds the tile
    /// whose own reads end at `reads`.
    fn next(&mut self, reads: usize, key_words: usize, pair: usize) -> Prefetch {
        let Some((keys, values)) = self.next_page(reads) else {
            return Prefetch { keys: self.stored.as_ptr(), values: self.stored.as_ptr(), strides: (0, 0) };
        };
        let strides = (keys.len() / key_words, values.len().div_ceil(PAGES * SLOTS / pair));
        Prefetch { keys: keys.as_ptr(), values: values.as_ptr(), strides }
    }

    /// Prefetches a page at once.
    fn whole_page(&mut self, reads: usize) {
        if let Some((keys, values)) = self.next_page(reads) {
            let lines = keys.chunks(size_of::<CacheLine>()).chain(values.chunks(size_of::<CacheLine>()));
            lines.for_each(|line| prefetch_line(line.as_ptr()));
        }
    }

    /// The keys, and the values that are read, of the next page that the task reads; unless that is far off.
    fn next_page(&mut self, reads: usize) -> Option<(&'a [u8], &'a [u8])> {
        let CpuPageLayout { dtype, width, .. } = self.layout;
        let limit = (reads + PREFETCH_BYTES / self.layout.bytes()).min(self.reads.len());
        let ours = |read: &PageRead| read.rows.start < self.rows.end && self.rows.start < read.rows.end;
        self.at = self.at.max(reads);
        while self.at < limit && !ours(&self.reads[self.at]) {
            self.at += 1;
        }
        let PageRead { page, slots, .. } = self.reads[..limit].get(self.at)?;
        self.at += 1;
        let page = &self.stored[page.ix() * self.layout.bytes()..][..self.layout.bytes()];
        let (keys, values) = page.split_at(self.layout.key_elements() * dtype.bytes());
        Some((keys, &values[..slots * width * dtype.bytes()]))
    }
}

/// Widens a tile to f32 in `to`. Returns the geometry and view of the widened tile.
///
/// # Safety
/// The processor has the path's instruction set, the pages of `view` are whole, and `to` has room for four of them.
unsafe fn widen<P: KernelPath>(
    geometry: &Geometry,
    view: &TileView<P>,
    to: &mut [f32],
) -> (Geometry, TileView<P::Wide>) {
    let head_dim = geometry.key_words * P::WORD_ELEMENTS;
    let page = (head_dim + geometry.width) * SLOTS;
    let mut wide = TileView { keys: [std::ptr::null(); PAGES], values: [std::ptr::null(); PAGES] };
    for (i, to) in to.chunks_exact_mut(page).enumerate() {
        if !view.keys[i].is_null() {
            // SAFETY: promised by the caller.
            unsafe { P::widen(geometry, view.keys[i], view.values[i], to.as_mut_ptr()) };
            wide.keys[i] = to.as_ptr().cast();
            wide.values[i] = to[head_dim * SLOTS..].as_ptr().cast();
        }
    }
    (Geometry { key_words: head_dim, ..*geometry }, wide)
}

/// Packs the task's queries as factors, `[rows][group][width / WORD_ELEMENTS]`.
///
/// # Safety
/// The processor has the path's instruction set.
unsafe fn pack_queries<P: KernelPath>(call: &AttentionCall<'_>, task: &HeadTask, width: usize, q: &mut Vec<CacheLine>) {
    let heads = call.kv.heads(call.layer);
    let group = heads.group();
    let factors = width / P::WORD_ELEMENTS;
    q.resize(
        (task.rows.len() * group * factors * size_of::<P::Factor>()).div_ceil(size_of::<CacheLine>()),
        CacheLine::zeroed(),
    );
    let packed = bytemuck::cast_slice_mut::<CacheLine, P::Factor>(q);
    let sources = task.rows.clone().flat_map(|row| {
        let heads_of_row = &call.qkv.row(row)[task.kv_head * group * heads.head_dim..][..group * heads.head_dim];
        heads_of_row.chunks_exact(heads.head_dim)
    });
    for (to, from) in packed.chunks_exact_mut(factors).zip(sources) {
        // SAFETY: `to` holds a whole packed row; the instruction set is promised by the caller.
        unsafe { P::pack(from, to.as_mut_ptr()) };
    }
}

/// Pointers to the pages of `tile`: in `stored` (all pages of the head), or gathered in `scratch`.
fn tile_view<P: KernelPath>(
    tile: &PlanTile,
    tiles: &PlanTiles,
    layout: CpuPageLayout,
    stored: &[P::Word],
    scratch: &mut [P::Word],
) -> TileView<P> {
    let page_words = layout.elements() / P::WORD_ELEMENTS;
    let key_words = layout.key_elements() / P::WORD_ELEMENTS;
    let mut view = TileView { keys: [std::ptr::null(); PAGES], values: [std::ptr::null(); PAGES] };
    for (i, (tile_page, scratch)) in tile.pages.iter().zip(scratch.chunks_exact_mut(page_words)).enumerate() {
        let page = |id: crate::ids::PageId| &stored[id.ix() * page_words..][..page_words];
        let words = match tile_page {
            TilePage::Absent => continue,
            TilePage::Stored(id) => page(*id),
            TilePage::Gathered(range) => {
                scratch.fill(Zeroable::zeroed());
                for PageSlots { page: id, slots } in &tiles.gathered[range.clone()] {
                    gather::copy_slots(layout, scratch, page(*id), slots);
                }
                &*scratch
            }
        };
        view.keys[i] = words.as_ptr();
        view.values[i] = words[key_words..].as_ptr();
    }
    view
}

/// Divides `0..n` into the fewest groups of at most `MAX_ROWS`, of nearly equal size.
fn even_groups(n: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let groups = n.div_ceil(MAX_ROWS);
    (0..groups).map(move |i| i * n / groups..(i + 1) * n / groups)
}
