//! Who folds what: a task is one key head over a chunk of rows. It walks all tiles in the order of the plan's items, each tile
//! over all of its rows beneath it, so that a shared tile's keys and values come from memory once a chunk and stay in cache
//! meanwhile.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::super::kv::{PageLayout, SLOTS};
use super::super::{Buffer, KvStore};
use super::fold::{Geometry, Rows, Sight, TileView};
use super::gather;
use super::lanes::{MAX_ROWS, Path};
use super::tiles::{PAGES, Tile, TilePage, Tiles};
use crate::backend::HeadLayout;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

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
    let heads = step.kv.shape().heads;
    let tasks = divide(heads, out);
    memory.resize_with(memory.len().max(tasks.len()), Default::default);
    tasks.into_par_iter().zip(memory.par_iter_mut()).with_max_len(1).for_each(|(task, memory)| {
        // SAFETY: promised by the caller.
        unsafe { run_task::<P>(step, task, memory) }
    });
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
    let heads = step.kv.shape().heads;
    let layout = step.kv.layout();
    let group = heads.group();
    let geometry = Geometry::new(heads.head_dim, layout.width, P::PAIR, step.scale);
    let TaskMemory { q, m, l, o, pages } = memory;
    start(task.out.len(), layout.width, m, l, o);
    // SAFETY: promised by the caller.
    unsafe { pack_queries::<P>(step, &task, layout.width, q) };
    pages.resize(PAGES * layout.bytes() / size_of::<Line>(), Line::zeroed());
    let stored = step.kv.head::<P::Word>(step.layer, task.kv_head);
    let window = step.plan.window;
    for tile in &step.tiles.tiles {
        let rows = tile.rows.start.max(task.rows.start)..tile.rows.end.min(task.rows.end);
        if rows.is_empty() {
            continue;
        }
        let view = view::<P>(tile, step.tiles, layout, stored, bytemuck::cast_slice_mut(pages));
        let whole = tile.is_whole(window);
        let first = (rows.start - task.rows.start) * group;
        for part in even_parts(rows.len() * group) {
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
            let at = first + part.start;
            let rows = Rows::<P> {
                count: part.len(),
                q: bytemuck::cast_slice::<Line, P::Factor>(q)[at * layout.width / P::PAIR..].as_ptr(),
                m: m[at..].as_mut_ptr(),
                l: l[at..].as_mut_ptr().cast(),
                o: o[at * layout.width / SLOTS..].as_mut_ptr().cast(),
            };
            // SAFETY: the processor has the path's instructions; `start` and `pack_queries` made room for all rows of the task, of
            // which `at .. at + count` are a part; `view` covers the pages of the tile's lanes, of which the rows see some.
            unsafe { P::fold(&geometry, &view, &rows, &sight) };
        }
    }
    let o = bytemuck::cast_slice::<Line, f32>(o).chunks_exact(layout.width);
    for ((out, l), o) in task.out.into_iter().zip(l.iter()).zip(o) {
        // SAFETY: the processor has the path's instructions.
        unsafe { P::finish(o, &l.0, out) };
    }
}

/// Empty states for `count` rows.
fn start(count: usize, width: usize, m: &mut Vec<f32>, l: &mut Vec<Line>, o: &mut Vec<Line>) {
    m.clear();
    m.resize(count, f32::NEG_INFINITY);
    l.clear();
    l.resize(count, Line::zeroed());
    o.clear();
    o.resize(count * width / SLOTS, Line::zeroed());
}

/// # Safety
/// The processor has the path's instruction set.
unsafe fn pack_queries<P: Path>(step: &Step<'_>, task: &Task<'_>, width: usize, q: &mut Vec<Line>) {
    let heads = step.kv.shape().heads;
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
fn even_parts(n: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = n.div_ceil(MAX_ROWS);
    (0..parts).map(move |i| i * n / parts..(i + 1) * n / parts)
}
