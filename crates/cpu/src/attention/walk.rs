//! Runs tree attention: a task goes through the tiles in the order of the plan's items and folds each into all of its
//! rows, so that the keys and values of a shared tile are read from memory once per task and stay in cache meanwhile.
//! `head_tasks` divides the work among threads.

use std::ops::Range;

use bytemuck::Zeroable;

use super::gather;
use super::groups::{GroupScratch, GroupedRows, TaskRows};
use super::head_tasks::{HeadTask, HeadTasks};
use super::in_keys::InKeys;
use super::path::{Geometry, PathKernels, Prefetch, StatesRef, TileView, VisibleLanes, WidenBytes};
use super::prefetcher::Prefetcher;
use super::splits::SECTION;
use super::states::SoftmaxStates;
use super::tiles::{PAGES, PageSlots, PlanTile, PlanTiles, TilePage};
use crate::columns::OutputColumns;
use crate::kv::{CpuPageLayout, SLOTS, StoredAs};
use crate::memory::CacheLine;
use crate::rows::sum_lanes;
use crate::team::Team;
use crate::{CpuBuffer, KvStore};
use offshoot_backend::{HeadLayout, Scoring};
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::AttentionPlan;

/// A tile with at least this many kernel calls is widened to f32 once for all of them.
const WIDEN_FROM: usize = 3;

/// Calls with fewer products (rows x positions x width) run on the calling thread: a worker would come too late.
const PARALLEL_PRODUCTS: usize = 50_000;

/// Merges with fewer sums than these for each thread run on fewer threads.
const PARALLEL_SUMS: usize = 16 * 1024;

/// The states of a task's rows and its other buffers; reused between calls. A group is the task's query heads.
#[derive(Default)]
struct TaskScratch {
    /// Packed queries, `[rows][group][query_width / WORD_ELEMENTS]` factors.
    q: Vec<CacheLine>,
    /// `[rows][group]`, of the section that each row is in; `[sections][rows][group]` if tasks share the sections.
    states: SoftmaxStates,
    /// Number of the section that each row is in.
    entered: Vec<u32>,
    /// What the states of the sections before merged to, `[rows][group]`; kept by tasks with all of several sections.
    merged: SoftmaxStates,
    /// Whether any state has been merged.
    has_merged: bool,
    /// Gathered pages of the current tile, or all of its pages, if they hold fp8, as numbers.
    gathered: Vec<CacheLine>,
    /// Widened pages of the current tile.
    wide: Vec<CacheLine>,
    /// The values of the current tile, if they lie in keys and are made at once.
    values: Vec<CacheLine>,
    /// The groups of the current tile's rows, if its values lie in keys and are made by panels.
    groups: Vec<TaskRows>,
    of_groups: GroupScratch,
}

/// Memory reused between calls.
#[derive(Default)]
pub struct WalkScratch {
    tasks: Vec<TaskScratch>,
    /// The state that each share of the merges works on.
    merged: Vec<SoftmaxStates>,
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

/// Computes tree attention on the threads of `team`, with the log-sum-exps if there is room for them.
///
/// # Safety
/// The processor has the path's instruction set.
pub unsafe fn run(
    team: &Team,
    call: &AttentionCall<'_>,
    kernels: &PathKernels,
    scratch: &mut WalkScratch,
    out: &mut CpuBuffer,
    lse: Option<&mut CpuBuffer>,
) {
    let heads = call.kv.heads(call.layer);
    let tasks = HeadTasks::new(team.threads(), heads, out.rows, call.tiles.sections(), kernels.rows);
    let WalkScratch { tasks: scratch, merged } = scratch;
    scratch.resize_with(scratch.len().max(tasks.count()), Default::default);
    let scratch = &mut scratch[..tasks.count()];
    let (out, lse) = (OutputColumns::of(out), lse.map(OutputColumns::of));
    let output = AttentionOutput { out: &out, lse: lse.as_ref(), heads, geometry: call.geometry(kernels), kernels };
    let run = |i: usize, scratch: &mut TaskScratch| {
        // SAFETY: promised by the caller.
        unsafe { (kernels.around)(&mut || run_task(call, tasks.get(i), scratch, &output)) }
    };
    let pairs: usize = call.tiles.tiles.iter().map(|tile| tile.rows.len() * tile.lanes.len()).sum();
    let products = pairs * (heads.q_width() + heads.out_width()) / 2;
    if products < PARALLEL_PRODUCTS {
        scratch.iter_mut().enumerate().for_each(|(i, scratch)| run(i, scratch));
    } else {
        team.for_each(scratch, run);
    }
    if tasks.parts > 1 {
        // SAFETY: as above.
        unsafe { merge_parts(team, &tasks, scratch, merged, &output) };
    }
}

impl AttentionCall<'_> {
    fn geometry(&self, kernels: &PathKernels) -> Geometry {
        let layout = self.kv.layout(self.layer);
        Geometry::new(layout.head_dim, layout.width, kernels.word_elements, &self.scoring)
    }
}

/// Where results go, and the kernels that they come from. Threads write different rows or heads.
struct AttentionOutput<'a> {
    out: &'a OutputColumns,
    lse: Option<&'a OutputColumns>,
    heads: HeadLayout,
    geometry: Geometry,
    kernels: &'a PathKernels,
}

impl AttentionOutput<'_> {
    /// Writes the results of `rows` and some query heads from their states.
    ///
    /// # Safety
    /// The processor has the path's instruction set. No other thread writes these rows and heads.
    unsafe fn write(&self, rows: Range<usize>, heads: Range<usize>, states: &SoftmaxStates) {
        let value_dim = self.heads.value_dim();
        let places = rows.flat_map(|row| heads.clone().map(move |head| (row, head)));
        for (at, (row, head)) in places.enumerate() {
            let StatesRef { m, l, o } = states.get(at..at + 1);
            let sum = sum_lanes(l[0].0);
            if let Some(lse) = self.lse {
                // SAFETY: promised by the caller.
                unsafe { lse.of_row(row, head, 1)[0] = self.geometry.scaled(m[0]) + sum.ln() };
            }
            // SAFETY: promised by the caller.
            let out = unsafe { self.out.of_row(row, head * value_dim, value_dim) };
            match sum > 0.0 || self.lse.is_none() {
                // SAFETY: promised by the caller.
                true => unsafe { (self.kernels.finish)(bytemuck::cast_slice(o), &l[0].0, out) },
                // A row that sees nothing of a member's positions.
                false => out.fill(0.0),
            }
        }
    }
}

/// Merges the states of the tasks that share sections, in rising order, and writes the results.
///
/// # Safety
/// The processor has the path's instruction set.
unsafe fn merge_parts(
    team: &Team,
    tasks: &HeadTasks,
    scratch: &[TaskScratch],
    merged: &mut Vec<SoftmaxStates>,
    output: &AttentionOutput<'_>,
) {
    let AttentionOutput { heads, geometry, kernels, .. } = output;
    let head_shares = tasks.head_shares();
    let all = tasks.rows * head_shares;
    let sums = tasks.rows * heads.q_heads * tasks.sections.len() * geometry.width;
    let shares = (sums / PARALLEL_SUMS).clamp(1, 2 * team.threads()).min(all);
    merged.resize_with(merged.len().max(shares), Default::default);
    team.for_each(&mut merged[..shares], |share, merged| {
        for at in share * all / shares..(share + 1) * all / shares {
            let (row, head_share) = (at / head_shares, at % head_shares);
            let heads = tasks.heads(head_share);
            let group = heads.len();
            merged.clear(group, geometry.width);
            for number in tasks.of_row(row, head_share) {
                let task = tasks.get(number);
                let of_section = task.rows.len() * group;
                for section in 0..task.sections.len() {
                    let first = section * of_section + (row - task.rows.start) * group;
                    let states = scratch[number].states.get(first..first + group);
                    // SAFETY: the instruction set is promised by the caller.
                    unsafe { merged.merge(0, states, geometry, kernels) };
                }
            }
            // SAFETY: as above; each row and query head is in one share.
            unsafe { output.write(row..row + 1, heads, merged) };
        }
    });
}

/// Computes the output of one task, or its states if it shares the sections with others.
///
/// # Safety
/// The processor has the path's instruction set.
unsafe fn run_task(call: &AttentionCall<'_>, task: HeadTask, scratch: &mut TaskScratch, output: &AttentionOutput<'_>) {
    let AttentionOutput { heads, geometry, kernels, .. } = output;
    let layout = call.kv.layout(call.layer);
    let (group, query_bytes) = (task.heads.len(), geometry.query_width / kernels.word_elements * kernels.factor_bytes);
    let stored = call.kv.head::<u8>(call.layer, task.kv_head);
    let mut prefetcher = Prefetcher::new(&call.tiles.reads, &task, layout, stored);
    // The pages of the first tile come while the task begins.
    let first_read = call.tiles.first_read(&task.sections);
    (0..PAGES).for_each(|_| prefetcher.whole_page(first_read));
    scratch.start(call, &task, group, layout);
    if let Some(sinks) = call.scoring.sinks {
        scratch.add_sinks(call, &task, &sinks[task.heads.clone()], geometry);
    }
    // SAFETY: promised by the caller.
    unsafe { pack_queries(call, &task, kernels, query_bytes, &mut scratch.q) };
    for tile in call.tiles.tiles.iter().filter(|tile| task.sections.contains(&tile.section())) {
        let rows = tile.rows.start.max(task.rows.start)..tile.rows.end.min(task.rows.end);
        if rows.is_empty() {
            continue;
        }
        let view = tile_view(tile, call.tiles, layout, stored, bytemuck::cast_slice_mut(&mut scratch.gathered));
        let whole = tile.is_whole();
        let of_task = rows.start - task.rows.start..rows.end - task.rows.start;
        let (first_query, mut first) = (of_task.start * group, of_task.start * group);
        if task.shares {
            first += (tile.section() - task.sections.start) as usize * task.rows.len() * group;
        } else if task.sections.len() > 1 {
            // SAFETY: the instruction set is promised by the caller.
            unsafe { scratch.enter(of_task, tile.section(), group, output) };
        }
        let row_groups = even_groups(rows.len() * group, kernels.rows);
        let in_keys = heads.values_in_keys();
        let wide = kernels.wide.filter(|_| row_groups.len() >= WIDEN_FROM || in_keys);
        let (geometry, mut view, pair, fold) = match wide {
            Some((own, fold)) => {
                // Values in keys are made of the widened ones.
                let width = if in_keys { 0 } else { geometry.width };
                let of_page = Geometry { width, ..*geometry };
                let to = bytemuck::cast_slice_mut(&mut scratch.wide);
                // SAFETY: the processor has the path's instructions; `view` covers the tile's pages, and `wide` has
                // room for them.
                let (wide, view) = unsafe { widen(own, kernels.word_elements, &of_page, &view, to) };
                (Geometry { width: geometry.width, ..wide }, view, 1, fold)
            }
            None => (*geometry, view, kernels.word_elements, kernels.fold),
        };
        let visible_to = |row_group: &Range<usize>| match whole {
            true => VisibleLanes::WHOLE,
            false => {
                let seen = |i: usize| call.plan.seen(rows.start + i / group);
                VisibleLanes::of(row_group.clone().map(|i| tile.visible(&seen(i))))
            }
        };
        let pages = tile.lanes.end.div_ceil(SLOTS) - tile.lanes.start / SLOTS;
        let mut prefetch = [Prefetch::none(); PAGES];
        let queries = &bytemuck::cast_slice::<CacheLine, u8>(&scratch.q)[first_query * query_bytes..];
        match (InKeys::of(layout, pair), kernels.groups) {
            (Some(values), Some(fold_groups)) => {
                let of_rows = |rows: Range<usize>| TaskRows { visible: visible_to(&rows), rows };
                scratch.groups.clear();
                scratch.groups.extend(row_groups.map(of_rows).filter(|group| !group.visible.lanes.is_empty()));
                let count = rows.len() * group;
                assert!(queries.len() >= count * query_bytes, "queries of all rows");
                let states = scratch.states.rows(first, count, queries.as_ptr());
                let rows = GroupedRows { states, groups: &scratch.groups, lanes: tile.lanes.clone() };
                let prefetch = prefetcher.next(tile.reads, geometry.key_words, pair, &mut prefetch[..pages]);
                // SAFETY: the processor has the path's instructions; `scratch` holds all rows of the task, of which
                // `states` are some; `view` covers the pages of the tile's lanes.
                unsafe { fold_groups(&geometry, &values, &view, &rows, &mut scratch.of_groups, prefetch) };
                continue;
            }
            (Some(values), None) => {
                // SAFETY: every path's processor has AVX2; words of keys are pairs of bf16.
                unsafe { values.fill(&mut view, &tile.lanes, bytemuck::cast_slice_mut(&mut scratch.values)) };
            }
            (None, _) => {}
        }
        // Each kernel call prefetches as many pages as the tile has for each of its calls.
        let per_call = pages.div_ceil(row_groups.len());
        for row_group in row_groups {
            let visible = visible_to(&row_group);
            if visible.lanes.is_empty() {
                continue;
            }
            let queries = &queries[row_group.start * query_bytes..];
            let readable = row_group.len() + kernels.rows_read_ahead;
            assert!(queries.len() >= readable * query_bytes, "queries of all rows");
            let states = scratch.states.rows(first + row_group.start, row_group.len(), queries.as_ptr());
            let prefetch = prefetcher.next(tile.reads, geometry.key_words, pair, &mut prefetch[..per_call]);
            // SAFETY: the processor has the path's instructions; `scratch` holds all rows of the task, of which
            // `states` are some; `view` covers the pages of the tile's lanes, of which the rows see some.
            unsafe { fold(&geometry, &view, &states, &visible, prefetch) };
        }
    }
    if task.shares {
        return;
    }
    if task.sections.len() > 1 {
        // SAFETY: the instruction set is promised by the caller.
        unsafe { scratch.enter(0..task.rows.len(), u32::MAX, group, output) };
    }
    let states = if task.sections.len() > 1 { &scratch.merged } else { &scratch.states };
    // SAFETY: the instruction set is promised by the caller; tasks have different rows or heads.
    unsafe { output.write(task.rows, task.heads, states) };
}

impl TaskScratch {
    /// Empties the states of the task and makes room for the pages of a tile.
    fn start(&mut self, call: &AttentionCall<'_>, task: &HeadTask, group: usize, layout: CpuPageLayout) {
        let (line, rows, sections) = (size_of::<CacheLine>(), task.rows.len() * group, task.sections.len());
        self.states.clear(if task.shares { sections * rows } else { rows }, layout.width);
        if sections > 1 && !task.shares {
            self.merged.clear(rows, layout.width);
            self.has_merged = false;
            self.entered.clear();
            self.entered.extend(task.rows.clone().map(|row| first_section(call.plan, row)));
        }
        self.gathered.resize(PAGES * layout.widened().bytes() / line, CacheLine::zeroed());
        self.wide.resize(PAGES * layout.elements() * size_of::<f32>() / line, CacheLine::zeroed());
        let values = InKeys::of(layout, 1).map_or(0, |values| values.words());
        self.values.resize(PAGES * values * size_of::<u32>() / line, CacheLine::zeroed());
    }

    /// Begins the state of the first section that each row sees with the sink of its head. `sinks`: those of the task's
    /// heads.
    fn add_sinks(&mut self, call: &AttentionCall<'_>, task: &HeadTask, sinks: &[f32], geometry: &Geometry) {
        let (states, sections) = (task.rows.len() * sinks.len(), call.tiles.sections());
        for (i, row) in task.rows.clone().enumerate() {
            let section = section_of_sink(first_section(call.plan, row), &sections);
            let slot = match task.shares {
                false => 0,
                true if task.sections.contains(&section) => (section - task.sections.start) as usize,
                true => continue,
            };
            for (head, &sink) in sinks.iter().enumerate() {
                self.states.add_sink(slot * states + i * sinks.len() + head, sink, geometry);
            }
        }
    }

    /// Merges the states of `rows`, counted from the task's first, that leave a section for `section`.
    ///
    /// # Safety
    /// The processor has the path's instruction set.
    unsafe fn enter(&mut self, rows: Range<usize>, section: u32, group: usize, output: &AttentionOutput<'_>) {
        let AttentionOutput { geometry, kernels, .. } = output;
        // A row is not in the sections before its window, which others of its items may see.
        let mut first = rows.start;
        while first < rows.end {
            let leaves = self.entered[first] < section;
            let same = self.entered[first..rows.end].iter().take_while(|&&of_row| (of_row < section) == leaves);
            let end = first + same.count();
            if leaves && !self.has_merged && end - first == self.entered.len() {
                // Merged with empty states they stay as they are, but for the sign of zeros, which results do not keep.
                std::mem::swap(&mut self.merged, &mut self.states);
                self.entered.fill(section);
                self.has_merged = true;
            } else if leaves {
                self.has_merged = true;
                let states = first * group..end * group;
                // SAFETY: promised by the caller.
                unsafe { self.merged.merge(states.start, self.states.get(states.clone()), geometry, kernels) };
                self.states.reset(states);
                self.entered[first..end].fill(section);
            }
            first = end;
        }
    }
}

/// The first section that `row` sees.
fn first_section(plan: &AttentionPlan, row: usize) -> u32 {
    plan.seen(row).start / SECTION
}

/// Widens a tile to f32 in `to` by a path's `own` kernel. Returns the geometry and view of the widened tile.
///
/// # Safety
/// The processor has the path's instruction set, the pages of `view` are whole, and `to` has room for four of them.
unsafe fn widen(
    own: WidenBytes,
    word_elements: usize,
    geometry: &Geometry,
    view: &TileView<u8>,
    to: &mut [f32],
) -> (Geometry, TileView<u8>) {
    let head_dim = geometry.key_words * word_elements;
    let page = (head_dim + geometry.width) * SLOTS;
    let mut wide = TileView { keys: [std::ptr::null(); PAGES], values: [std::ptr::null(); PAGES] };
    for (i, to) in to.chunks_exact_mut(page).enumerate() {
        if !view.keys[i].is_null() {
            // SAFETY: promised by the caller.
            unsafe { own(geometry, view.keys[i], view.values[i], to.as_mut_ptr()) };
            wide.keys[i] = to.as_ptr().cast();
            wide.values[i] = to[head_dim * SLOTS..].as_ptr().cast();
        }
    }
    (Geometry { key_words: head_dim, ..*geometry }, wide)
}

/// Packs the task's queries as factors, `[rows][group][query_width / WORD_ELEMENTS]`, of `query_bytes` each.
///
/// # Safety
/// The processor has the path's instruction set.
unsafe fn pack_queries(
    call: &AttentionCall<'_>,
    task: &HeadTask,
    kernels: &PathKernels,
    query_bytes: usize,
    q: &mut Vec<CacheLine>,
) {
    let heads = call.kv.heads(call.layer);
    let group = task.heads.len();
    let room = (task.rows.len() * group + kernels.rows_read_ahead) * query_bytes;
    q.resize(room.div_ceil(size_of::<CacheLine>()), CacheLine::zeroed());
    let packed = bytemuck::cast_slice_mut::<CacheLine, u8>(q);
    let sources = task.rows.clone().flat_map(|row| {
        let heads_of_row = &call.qkv.row(row)[task.heads.start * heads.head_dim..][..group * heads.head_dim];
        heads_of_row.chunks_exact(heads.head_dim)
    });
    for (to, from) in packed.chunks_exact_mut(query_bytes).zip(sources) {
        // SAFETY: `to` holds a whole packed row; the instruction set is promised by the caller.
        unsafe { (kernels.pack)(from, to.as_mut_ptr()) };
    }
}

/// Pointers to the pages of `tile`, of numbers: in `stored` (all pages of the head), or gathered or widened in
/// `scratch`.
fn tile_view(
    tile: &PlanTile,
    tiles: &PlanTiles,
    layout: CpuPageLayout,
    stored: &[u8],
    scratch: &mut [u8],
) -> TileView<u8> {
    let (page_bytes, widened) = (layout.bytes(), layout.widened());
    let key_bytes = widened.key_elements() * widened.element_bytes();
    let mut view = TileView { keys: [std::ptr::null(); PAGES], values: [std::ptr::null(); PAGES] };
    for (i, (tile_page, scratch)) in tile.pages.iter().zip(scratch.chunks_exact_mut(widened.bytes())).enumerate() {
        let page = |id: offshoot_core::ids::PageId| &stored[id.ix() * page_bytes..][..page_bytes];
        let bytes = match (tile_page, layout.stored) {
            (TilePage::Absent, _) => continue,
            (TilePage::Stored(id), StoredAs::Dtype) => page(*id),
            (TilePage::Stored(id), StoredAs::Fp8) => {
                gather::copy_slots(layout, scratch, page(*id), &(0..SLOTS));
                &*scratch
            }
            (TilePage::Gathered(range), _) => {
                scratch.fill(0);
                for PageSlots { page: id, slots } in &tiles.gathered[range.clone()] {
                    gather::copy_slots(layout, scratch, page(*id), slots);
                }
                &*scratch
            }
        };
        view.keys[i] = bytes.as_ptr();
        view.values[i] = bytes[key_bytes..].as_ptr();
    }
    view
}

/// Where a row whose first section is `first` has its sink: of a row that sees nothing of a member's positions, that
/// may lie before or behind the sections of all tiles.
pub fn section_of_sink(first: u32, sections: &Range<u32>) -> u32 {
    first.clamp(sections.start, sections.end - 1)
}

/// Divides `0..n` into the fewest groups of at most `most`, of nearly equal size.
fn even_groups(n: usize, most: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let groups = n.div_ceil(most);
    (0..groups).map(move |i| i * n / groups..(i + 1) * n / groups)
}
