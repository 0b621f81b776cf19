//! The tasks of tree attention, which threads share out: one key head over a chunk of rows and, where heads and chunks
//! are too few for all threads, a part of the context's sections. `walk` runs them.

use std::ops::Range;

use offshoot_backend::HeadLayout;

/// Sums of values in the states of all sections, 64 MiB without padding, above which tasks do not share sections:
/// chunks of so many rows are enough tasks for dozens of threads.
const MOST_SHARED_SUMS: usize = 16 << 20;

/// One key head over a chunk of rows, and some sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadTask {
    pub kv_head: usize,
    pub rows: Range<usize>,
    pub sections: Range<u32>,
    /// Whether other tasks have the other sections.
    pub shares: bool,
}

/// The tasks of a call: each chunk of rows with each key head and each part of the sections.
pub struct HeadTasks {
    pub rows: usize,
    chunk: usize,
    kv_heads: usize,
    pub sections: Range<u32>,
    pub parts: usize,
}

impl HeadTasks {
    /// About three tasks per thread, so that threads finish together. More chunks would read shared tiles more often,
    /// more parts keep more states.
    pub fn new(threads: usize, heads: HeadLayout, rows: usize, sections: Range<u32>, rows_per_call: usize) -> Self {
        let wanted = (3 * threads).div_ceil(heads.kv_heads);
        let max_chunks = (rows * heads.group()).div_ceil(4 * rows_per_call);
        let chunks = wanted.min(max_chunks).max(1);
        let states = rows * heads.out_width() * sections.len();
        let parts = match threads > 1 && states <= MOST_SHARED_SUMS {
            // The nearest number: chunks that are almost enough need no parts.
            true => ((wanted + chunks / 2) / chunks).min(sections.len()),
            false => 1,
        };
        Self { rows, chunk: rows.div_ceil(chunks).max(1), kv_heads: heads.kv_heads, sections, parts }
    }

    /// The number of tasks.
    pub fn count(&self) -> usize {
        self.rows.div_ceil(self.chunk) * self.parts * self.kv_heads
    }

    /// The last rows come first: those of a prompt have the most positions, so the shortest tasks end a call. So do the
    /// last sections, which may be short.
    pub fn get(&self, task: usize) -> HeadTask {
        let (chunk, part, kv_head) =
            (task / self.kv_heads / self.parts, task / self.kv_heads % self.parts, task % self.kv_heads);
        let first = (self.rows.div_ceil(self.chunk) - 1 - chunk) * self.chunk;
        let section = |part: usize| self.sections.start + (part * self.sections.len() / self.parts) as u32;
        HeadTask {
            kv_head,
            rows: first..self.rows.min(first + self.chunk),
            sections: section(part)..section(part + 1),
            shares: self.parts > 1,
        }
    }

    /// The tasks that share the sections of `row` with a key head, in rising order of sections.
    pub fn of_row(&self, row: usize, kv_head: usize) -> impl Iterator<Item = usize> {
        let chunk = self.rows.div_ceil(self.chunk) - 1 - row / self.chunk;
        (0..self.parts).map(move |part| (chunk * self.parts + part) * self.kv_heads + kv_head)
    }
}
