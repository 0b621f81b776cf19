//! The tasks of tree attention, which threads share out: one key head over a chunk of rows and, where heads and chunks
//! are too few for all threads, a part of the context's sections. Where values lie in keys, a task may have some of the
//! key head's query heads only. `walk` runs them.

use std::ops::Range;

use offshoot_backend::HeadLayout;

/// Sums of values in the states of all sections, 64 MiB without padding, above which tasks do not share sections:
/// chunks of so many rows are enough tasks for dozens of threads.
const MOST_SHARED_SUMS: usize = 16 << 20;

/// Sums of values in the states of a task where these lie in keys, which are wide: half a MiB, so that they stay in a
/// core's second-level cache beside the keys of a tile.
const MOST_TASK_SUMS: usize = 128 << 10;

/// One key head over a chunk of rows, and some sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadTask {
    pub kv_head: usize,
    /// The query heads that it computes: all that read the key head, or some.
    pub heads: Range<usize>,
    pub rows: Range<usize>,
    pub sections: Range<u32>,
    /// Whether other tasks have the other sections.
    pub shares: bool,
}

/// The tasks of a call: each chunk of rows with each share of the query heads and each part of the sections.
pub struct HeadTasks {
    pub rows: usize,
    /// Chunks of rows, of nearly equal size.
    chunks: usize,
    heads: HeadLayout,
    /// Shares of the query heads of a key head.
    of_group: usize,
    pub sections: Range<u32>,
    pub parts: usize,
}

impl HeadTasks {
    /// About three tasks per thread, so that threads finish together; one where values lie in keys, as each task makes
    /// those of a tile anew. More chunks would read shared tiles more often, more parts keep more states. Query heads
    /// are divided as a last resort.
    pub fn new(threads: usize, heads: HeadLayout, rows: usize, sections: Range<u32>, rows_per_call: usize) -> Self {
        let of_thread = if heads.values_in_keys() { 1 } else { 3 };
        let wanted = (of_thread * threads).div_ceil(heads.kv_heads);
        let max_chunks = (rows * heads.group()).div_ceil(4 * rows_per_call);
        let chunks = wanted.min(max_chunks).max(1);
        let states = rows * heads.out_width() * sections.len();
        let parts = match threads > 1 && states <= MOST_SHARED_SUMS {
            // The nearest number: chunks that are almost enough need no parts.
            true => ((wanted + chunks / 2) / chunks).min(sections.len()),
            false => 1,
        };
        let tasks = Self { rows, chunks: chunks.min(rows), heads, of_group: 1, sections, parts };
        if heads.values_in_keys() { tasks.with_wide_values(threads, rows_per_call) } else { tasks }
    }

    /// Limits the states of a task, and divides query heads where threads have too few tasks.
    fn with_wide_values(self, threads: usize, rows_per_call: usize) -> Self {
        let Self { heads, rows, chunks, .. } = self;
        let group = heads.group();
        let most = (MOST_TASK_SUMS / heads.value_dim()).max(rows_per_call);
        let for_threads = threads.div_ceil(self.count().max(1)).min(group / (2 * rows_per_call));
        let of_group = for_threads.max(group.div_ceil(most)).max(1);
        let chunk = (most / group.div_ceil(of_group)).max(1);
        Self { chunks: chunks.max(rows.div_ceil(chunk)), of_group, ..self }
    }

    /// Shares of the query heads: those of each key head.
    pub fn head_shares(&self) -> usize {
        self.heads.kv_heads * self.of_group
    }

    /// The query heads of share `share`.
    pub fn heads(&self, share: usize) -> Range<usize> {
        let (first, part) = (share / self.of_group * self.heads.group(), share % self.of_group);
        let head = |part: usize| first + part * self.heads.group() / self.of_group;
        head(part)..head(part + 1)
    }

    /// The number of tasks.
    pub fn count(&self) -> usize {
        self.chunks * self.parts * self.head_shares()
    }

    /// The last rows come first: those of a prompt have the most positions, so the shortest tasks end a call. So do the
    /// last sections, which may be short.
    pub fn get(&self, task: usize) -> HeadTask {
        let shares = self.head_shares();
        let (chunk, part, share) = (task / shares / self.parts, task / shares % self.parts, task % shares);
        let first_row = |chunk: usize| chunk * self.rows / self.chunks;
        let chunk = self.chunks - 1 - chunk;
        let section = |part: usize| self.sections.start + (part * self.sections.len() / self.parts) as u32;
        HeadTask {
            kv_head: share / self.of_group,
            heads: self.heads(share),
            rows: first_row(chunk)..first_row(chunk + 1),
            sections: section(part)..section(part + 1),
            shares: self.parts > 1,
        }
    }

    /// The tasks that share the sections of `row` with a share of the query heads, in rising order of sections.
    pub fn of_row(&self, row: usize, share: usize) -> impl Iterator<Item = usize> {
        // The last chunk whose first row is not behind it.
        let chunk = self.chunks - 1 - ((row + 1) * self.chunks - 1) / self.rows;
        (0..self.parts).map(move |part| (chunk * self.parts + part) * self.head_shares() + share)
    }
}
