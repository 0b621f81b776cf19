//! Who folds what: a task is one key head over a chunk of rows. It walks all tiles in the order of the plan's items,
//! each tile over all of its rows beneath it, so that a shared tile's keys and values come from memory once a chunk and
//! stay in cache meanwhile.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::super::kv::{PageLayout, SLOTS};
use super::super::{Buffer, KvStore};
use super::fold::{Coming, Geometry, Rows, Sight, TileView};
use super::gather;
use super::lanes::{MAX_ROWS, Path};
use super::tiles::{PAGES, Read, Tile, TilePage, Tiles};
use crate::backend::HeadLayout;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Kernel calls over one tile from which on it pays to widen it once for all.
const WIDEN_FROM: usize = 3;

/// How far ahead of the walk pages are fetched: well below the second-level cache of a core (1 MiB on Zen 4, 2 MiB on
/// Sapphire Rapids), which also holds the states of the rows.
const AHEAD_BYTES: usize = 512 << 10;

/// Steps of fewer products (rows x positions x width) run on the calling thread: waking the others takes as long.
const PARALLEL_PRODUCTS: usize = 50_000;

/// A cache line of memory, so that no vector load crosses one.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; SLOTS]);

/// The running states of a task's rows, and its other memory; kept between calls.
#[derive(Default)]
pub struct TaskMemory {
    /// Packed queries, `[rows][group][width / PAIR]` factors.
    q: Vec<Line>,
    m: Vec<f32>,
    l: Vec<Line>,
    o: Vec<Line>,
    /// Gathered pages of the tile at hand.
    pages: Vec<Line>,
    /// Widened pages of the tile at hand.
    wide: Vec<Line>,
}

/// What all tasks of a call read.
pub struct Step<'a> {
    pub qkv: &'a Buffer,
    pub kv: &'a KvStore,
    pub layer: LayerIx,
    pub plan: &'a AttentionPlan,
    pub tiles: &'a Tiles,
    pub scale: f32,
}

/// One key head over a chunk of rows.
struct Task<'a> {
    kv_head: usize,
    rows: Range<usize>,
    /// Where the results of each row and head of the group go.
    out: Vec<&'a mut [f32]>,
}

/// Runs the whole step on rayon's current pool.
///
/// # Safety
/// The processor has the path's instruction set.
pub unsafe fn run<P: Path>(step: &Step<'_>, memory: &mut Vec<TaskMemory>, out: &mut Buffer) {
    let heads = step.kv.heads(step.layer);
    let tasks = divide(heads, out);
    memory.resize_with(memory.len().max(tasks.len()), Default::default);
    // SAFETY: promised by the caller.
    let run = |(task, memory): (Task<'_>, &mut TaskMemory)| unsafe { run_task::<P>(step, task, memory) };
    let pairs: usize = step.tiles.tiles.iter().map(|tile| tile.rows.len() * tile.lanes.len()).sum();
    if pairs * heads.q_width() < PARALLEL_PRODUCTS {
        tasks.into_iter().zip(memory).for_each(run);
    } else {
        tasks.into_par_iter().zip(memory.par_iter_mut()).with_max_len(1).for_each(run);
    }
}

/// A few tasks a thread, so that they end together; more chunks than that would read shared tiles more often.
fn divide(heads: HeadLayout, out: &mut Buffer) -> Vec<Task<'_>> {
    let (rows, width, group) = (out.rows, out.width, heads.group());
    let wanted = (3 * rayon::current_num_threads()).div_ceil(heads.kv_heads);
    let most = (rows * group).div_ceil(4 * MAX_ROWS);
    let chunk = rows.div_ceil(wanted.min(most).max(1)).max(1);
    let mut tasks = Vec::with_capacity(rows.div_ceil(chunk) * heads.kv_heads);
    for (c, out) in out.data.chunks_mut(chunk * width).enumerate() {
        let rows = c * chunk..c * chunk + out.len() / width;
        let from = tasks.len();
        tasks.extend((0..heads.kv_heads).map(|kv_head| Task {
            kv_head,
            rows: rows.clone(),
            out: Vec::with_capacity(rows.len() * group),
        }));
        for row in out.chunks_exact_mut(width) {
            for (head, part) in row.chunks_exact_mut(heads.head_dim).enumerate() {
                tasks[from + head / group].out.push(part);
            }
        }
    }
    tasks
}

/// # Safety
/// The processor has the path's instruction set.
unsafe fn run_task<P: Path>(step: &Step<'_>, task: Task<'_>, memory: &mut TaskMemory) {
    let heads = step.kv.heads(step.layer);
    let layout = step.kv.layout(step.layer);
    let group = heads.group();
    let geometry = Geometry::new(heads.head_dim, layout.width, P::PAIR, step.scale);
    memory.start(task.out.len(), layout);
    // SAFETY: promised by the caller.
    unsafe { pack_queries::<P>(step, &task, layout.width, &mut memory.q) };
    let stored = step.kv.head::<P::Word>(step.layer, task.kv_head);
    let window = step.plan.window;
    let mut ahead = Ahead::new(&step.tiles.reads, &task.rows, layout, bytemuck::cast_slice(stored));
    for tile in &step.tiles.tiles {
        let rows = tile.rows.start.max(task.rows.start)..tile.rows.end.min(task.rows.end);
        if rows.is_empty() {
            continue;
        }
        let view = view::<P>(tile, step.tiles, layout, stored, bytemuck::cast_slice_mut(&mut memory.pages));
        let whole = tile.is_whole(window);
        let first = (rows.start - task.rows.start) * group;
        let parts = even_parts(rows.len() * group);
        // SAFETY: the processor has the path's instructions; `view` covers the tile's pages, and `wide` has room for
        // them.
        let wide = (P::WIDENS && parts.len() >= WIDEN_FROM)
            .then(|| unsafe { widen(&geometry, &view, bytemuck::cast_slice_mut(&mut memory.wide)) });
        for part in parts {
            let sight = match whole {
                true => Sight::WHOLE,
                false => Sight::of(part.clone().map(|i| {
                    let position = step.plan.row_positions[rows.start + i / group];
                    tile.visible(position, window)
                })),
            };
            if sight.lanes.is_empty() {
                continue;
            }
            let states = memory.rows::<P>(first + part.start, part.len(), layout.width);
            // SAFETY: the processor has the path's instructions; `memory` holds all rows of the task, of which `states`
            // are some; `view` and `wide` cover the pages of the tile's lanes, of which the rows see some.
            match &wide {
                Some((geometry, view)) => unsafe {
                    let coming = ahead.next(tile.reads, geometry.key_words);
                    P::Wide::fold(geometry, view, &states.widened(), &sight, &coming);
                },
                None => unsafe {
                    let coming = ahead.next(tile.reads, geometry.key_words);
                    P::fold(&geometry, &view, &states, &sight, &coming);
                },
            }
        }
    }
    let o = bytemuck::cast_slice::<Line, f32>(&memory.o).chunks_exact(layout.width);
    for ((out, l), o) in task.out.into_iter().zip(&memory.l).zip(o) {
        // SAFETY: the processor has the path's instructions.
        unsafe { P::finish(o, &l.0, out) };
    }
}

impl TaskMemory {
    /// Empty states for `count` rows.
    fn start(&mut self, count: usize, layout: PageLayout) {
        let line = size_of::<Line>();
        self.m.clear();
        self.m.resize(count, f32::NEG_INFINITY);
        self.l.clear();
        self.l.resize(count, Line::zeroed());
        self.o.clear();
        self.o.resize(count * layout.width / SLOTS, Line::zeroed());
        self.pages.resize(PAGES * layout.bytes() / line, Line::zeroed());
        self.wide.resize(PAGES * layout.elements() * size_of::<f32>() / line, Line::zeroed());
    }

    /// The `count` rows from `at` on.
    fn rows<P: Path>(&mut self, at: usize, count: usize, width: usize) -> Rows<P> {
        let end = at + count;
        let queries = bytemuck::cast_slice::<Line, P::Factor>(&self.q);
        Rows {
            count,
            q: queries[at * width / P::PAIR..end * width / P::PAIR].as_ptr(),
            m: self.m[at..end].as_mut_ptr(),
            l: self.l[at..end].as_mut_ptr().cast(),
            o: self.o[at * width / SLOTS..end * width / SLOTS].as_mut_ptr().cast(),
        }
    }
}

/// Walks over the pages that a task will read, some way ahead of it.
struct Ahead<'a> {
    reads: &'a [Read],
    rows: &'a Range<usize>,
    layout: PageLayout,
    stored: &'a [u8],
    /// The next read.
    at: usize,
}

impl<'a> Ahead<'a> {
    fn new(reads: &'a [Read], rows: &'a Range<usize>, layout: PageLayout, stored: &'a [u8]) -> Self {
        Self { reads, rows, layout, stored, at: 0 }
    }

    /// What to fetch in a kernel call of `key_words` rounds for a tile that needs the pages before `reads`.
    fn next(&mut self, reads: usize, key_words: usize) -> Coming {
        let PageLayout { dtype, width, .. } = self.layout;
        let limit = (reads + AHEAD_BYTES / self.layout.bytes()).min(self.reads.len());
        let ours = |read: &Read| read.rows.start < self.rows.end && self.rows.start < read.rows.end;
        self.at = self.at.max(reads);
        while self.at < limit && !ours(&self.reads[self.at]) {
            self.at += 1;
        }
        if self.at >= limit {
            return Coming { keys: self.stored.as_ptr(), values: self.stored.as_ptr(), strides: (0, 0) };
        }
        let Read { page, slots, .. } = &self.reads[self.at];
        self.at += 1;
        let page = &self.stored[page.ix() * self.layout.bytes()..][..self.layout.bytes()];
        let key_bytes = self.layout.key_elements() * dtype.bytes();
        let value_bytes = slots * width * dtype.bytes();
        let strides = (key_bytes / key_words, value_bytes.div_ceil(key_words));
        Coming { keys: page.as_ptr(), values: page[key_bytes..].as_ptr(), strides }
    }
}

/// The tile in f32, and the geometry that goes with it.
///
/// # Safety
/// The processor has the path's instruction set, the pages of `view` are whole, and `to` has room for four of them.
unsafe fn widen<P: Path>(geometry: &Geometry, view: &TileView<P>, to: &mut [f32]) -> (Geometry, TileView<P::Wide>) {
    let head_dim = geometry.key_words * P::PAIR;
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

/// # Safety
/// The processor has the path's instruction set.
unsafe fn pack_queries<P: Path>(step: &Step<'_>, task: &Task<'_>, width: usize, q: &mut Vec<Line>) {
    let heads = step.kv.heads(step.layer);
    let group = heads.group();
    let factors = width / P::PAIR;
    q.resize((task.out.len() * factors * size_of::<P::Factor>()).div_ceil(size_of::<Line>()), Line::zeroed());
    let packed = bytemuck::cast_slice_mut::<Line, P::Factor>(q);
    let sources = task.rows.clone().flat_map(|row| {
        let heads_of_row = &step.qkv.row(row)[task.kv_head * group * heads.head_dim..][..group * heads.head_dim];
        heads_of_row.chunks_exact(heads.head_dim)
    });
    for (to, from) in packed.chunks_exact_mut(factors).zip(sources) {
        // SAFETY: `to` holds a whole packed row; the instruction set is promised by the caller.
        unsafe { P::pack(from, to.as_mut_ptr()) };
    }
}

/// Where the kernels find the pages of `tile`: in `stored`, all pages of the head, or gathered into `scratch`.
fn view<P: Path>(
    tile: &Tile,
    tiles: &Tiles,
    layout: PageLayout,
    stored: &[P::Word],
    scratch: &mut [P::Word],
) -> TileView<P> {
    let page_words = layout.elements() / P::PAIR;
    let key_words = layout.key_elements() / P::PAIR;
    let mut view = TileView { keys: [std::ptr::null(); PAGES], values: [std::ptr::null(); PAGES] };
    for (i, (place, scratch)) in tile.pages.iter().zip(scratch.chunks_exact_mut(page_words)).enumerate() {
        let page = |id: crate::ids::PageId| &stored[id.ix() * page_words..][..page_words];
        let words = match place {
            TilePage::Absent => continue,
            TilePage::Stored(id) => page(*id),
            TilePage::Pieces(pieces) => {
                scratch.fill(Zeroable::zeroed());
                for piece in &tiles.pieces[pieces.clone()] {
                    gather::copy_slots(layout, scratch, page(piece.page), &piece.slots);
                }
                &*scratch
            }
        };
        view.keys[i] = words.as_ptr();
        view.values[i] = words[key_words..].as_ptr();
    }
    view
}

/// Divides `0..n` into the fewest parts of at most `MAX_ROWS`, all nearly equal.
fn even_parts(n: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let parts = n.div_ceil(MAX_ROWS);
    (0..parts).map(move |i| i * n / parts..(i + 1) * n / parts)
}
