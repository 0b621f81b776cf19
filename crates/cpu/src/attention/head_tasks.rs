//! The tasks of tree attention, which threads share out: one key head over a chunk of rows and, where heads and chunks are
//! too few for all threads, a part of the context's sections. `walk` runs them.

use std::ops::Range;

use offshoot_backend::HeadLayout;

/// Sums of values in the states of all sections, 64 MiB without padding, above which tasks do not share sections: chunks of so many
/// rows are enough tasks for dozens of threads.
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
        let states = rows * heads.q_width() * sections.len();
        let parts = match threads > 1 && states <= MOST_SHARED_SUMS {
            // The nearest number: chunks that are almost enough need no parts.
            true => ((wanted + chunks / 2) / chunks).min(sections.len()),
            false => 1,
        };
        Self { rows, chunk: rows.div_ceil(chunks).max(1), kv_heads: heads.kv_heads, sections, parts }
    }

    pub fn len(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::super::lanes::{MOST_ROWS, VECTOR_ROWS};
    use super::*;

    #[test]
    fn every_row_and_section_has_one_task_and_few_rows_of_few_heads_have_a_task_for_each_thread() {
        let cases = [
            (1, 1, 1, 1, 0..1),
            (8, 1, 8, 1, 2..11),
            (2, 3, 1, 1, 0..3),
            (2, 12, 1, 32, 0..3),
            (8, 2, 4, 900, 1..6),
            (8, 1, 8, 20, 0..4),
        ];
        let cases =
            [VECTOR_ROWS, MOST_ROWS].into_iter().flat_map(|rows_per_call| cases.clone().map(|c| (c, rows_per_call)));
        for ((threads, kv_heads, group, rows, sections), rows_per_call) in cases {
            let heads = HeadLayout { q_heads: kv_heads * group, kv_heads, head_dim: 64 };
            let tasks = HeadTasks::new(threads, heads, rows, sections.clone(), rows_per_call);
            let mut counts = vec![0; rows * kv_heads * sections.len()];
            for task in (0..tasks.len()).map(|task| tasks.get(task)) {
                assert_eq!(task.shares, task.sections != sections, "{task:?}");
                for (row, section) in task.rows.clone().flat_map(|row| task.sections.clone().map(move |s| (row, s))) {
                    counts[(row * kv_heads + task.kv_head) * sections.len() + (section - sections.start) as usize] += 1;
                }
            }
            assert!(counts.iter().all(|&count| count == 1), "{threads} threads, {heads:?}, {rows} rows, {sections:?}");
            assert!(tasks.len() >= threads.min(kv_heads * sections.len()), "{} tasks", tasks.len());
            for row in 0..rows {
                let of_row: Vec<HeadTask> = tasks.of_row(row, kv_heads - 1).map(|task| tasks.get(task)).collect();
                assert!(of_row.iter().all(|task| task.rows.contains(&row) && task.kv_head == kv_heads - 1));
                assert!(of_row.is_sorted_by_key(|task| task.sections.start), "{of_row:?}");
            }
        }
    }
}
