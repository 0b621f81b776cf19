//! Chooses the pages that a task's kernel calls prefetch. The kernels decide when in a call each line is asked for.

use super::head_tasks::HeadTask;
use super::path::{LANES, Prefetch};
use super::tiles::PageRead;
use crate::kv::CpuPageLayout;
use crate::memory::{CacheLevel, CacheLine, prefetch_line};

/// How far ahead pages are prefetched: well below a core's second-level cache (1 MiB on Zen 4, 2 MiB on Sapphire
/// Rapids), which also holds the states of the rows.
const PREFETCH_BYTES: usize = 512 << 10;

/// Chooses which page each kernel call prefetches: those that the task reads next.
pub struct Prefetcher<'a> {
    reads: &'a [PageRead],
    task: &'a HeadTask,
    layout: CpuPageLayout,
    /// All pages of the task's key head.
    stored: &'a [u8],
    /// Index of the next read.
    at: usize,
}

impl<'a> Prefetcher<'a> {
    pub fn new(reads: &'a [PageRead], task: &'a HeadTask, layout: CpuPageLayout, stored: &'a [u8]) -> Self {
        Self { reads, task, layout, stored, at: 0 }
    }

    /// Fills `pages` with those to prefetch during a kernel call, and returns as many as were found. The call folds a
    /// tile whose own reads end at `reads`, with `key_words` words per key and `pair` elements per word.
    pub fn next<'p>(
        &mut self,
        reads: usize,
        key_words: usize,
        pair: usize,
        pages: &'p mut [Prefetch],
    ) -> &'p [Prefetch] {
        let mut found = 0;
        while found < pages.len() {
            let Some((keys, values)) = self.next_page(reads) else {
                break;
            };
            // Divisions by constants.
            let of_values = match pair {
                1 => values.len().div_ceil(LANES),
                _ => values.len().div_ceil(LANES / 2),
            };
            let strides = (keys.len() / key_words, of_values);
            pages[found] = Prefetch { keys: keys.as_ptr(), values: values.as_ptr(), strides };
            found += 1;
        }
        &pages[..found]
    }

    /// Prefetches a page at once.
    pub fn whole_page(&mut self, reads: usize) {
        if let Some((keys, values)) = self.next_page(reads) {
            let lines = keys.chunks(size_of::<CacheLine>()).chain(values.chunks(size_of::<CacheLine>()));
            lines.for_each(|line| prefetch_line(line.as_ptr(), CacheLevel::Second));
        }
    }

    /// The keys, and the values that are read, of the next page that the task reads; unless that is far off.
    fn next_page(&mut self, reads: usize) -> Option<(&'a [u8], &'a [u8])> {
        let (width, element_bytes) = (self.layout.width, self.layout.element_bytes());
        let limit = (reads + PREFETCH_BYTES / self.layout.bytes()).min(self.reads.len());
        let HeadTask { rows, sections, .. } = self.task;
        let ours = |read: &PageRead| {
            read.rows.start < rows.end && rows.start < read.rows.end && sections.contains(&read.section)
        };
        self.at = self.at.max(reads);
        while self.at < limit && !ours(&self.reads[self.at]) {
            self.at += 1;
        }
        let PageRead { page, slots, .. } = self.reads[..limit].get(self.at)?;
        self.at += 1;
        let page = &self.stored[page.ix() * self.layout.bytes()..][..self.layout.bytes()];
        let (keys, values) = page.split_at(self.layout.key_elements() * element_bytes);
        Some((keys, &values[..values.len().min(slots * width * element_bytes)]))
    }
}
