//! Updates the metrics of submitted steps (rows, reads, memory), and says what the engine holds.

use crate::engine::Engine;
use crate::live::{LiveMetrics, PoolPages};
use crate::metrics::Metrics;
use crate::schedule::ScheduledRow;
use offshoot_kv::MappedSegment;
use offshoot_kv::plan::PlanStats;

/// What an engine holds between two turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Number of running branches, and of those that wait for pages or rows, or for the end of a pause.
    pub running: usize,
    pub waiting: usize,
    /// Pages held by branches, each counted once; pages that are only cached are not counted.
    pub pages: usize,
    /// Tokens of these branches, shared ones counted once.
    pub tokens: usize,
}

impl Engine {
    /// The counters after the last turn.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn occupancy(&self) -> Occupancy {
        let leased = self.cache.prefix.leased();
        let (running, waiting) = (self.scheduler.running(), self.scheduler.waiting() + self.scheduler.held());
        Occupancy { running, waiting, pages: leased.pages, tokens: leased.tokens }
    }

    /// Counts the tokens that `rows` compute, before they are marked as computed. Not called for an advanced step,
    /// which computes sampled tokens only, each for the first time.
    pub(super) fn count_rows(&mut self, rows: &[ScheduledRow]) {
        for row in rows {
            let branch = self.branches.get_mut(&row.branch).expect("it was scheduled just now");
            let position = row.at.position as usize;
            let again = self.cache.prefix.computed(row.at.segment) > row.at.position;
            if again {
                continue; // A last row asked for once more.
            }
            self.metrics.tokens_recomputed += u64::from(position < branch.computed_once);
            self.metrics.prompt_tokens_computed += u64::from(branch.is_given(position));
            branch.computed_once = branch.computed_once.max(position + 1);
        }
    }

    /// `stats`: of the step's plans, one for each kind of attention.
    pub(super) fn count_reads(&mut self, stats: &[PlanStats]) {
        for (&layers, stats) in self.model_facts.layers_by_plan.iter().zip(stats) {
            self.metrics.kv_bytes_read += layers as u64 * stats.kv_bytes_read;
            self.metrics.kv_bytes_read_flat += layers as u64 * stats.flat_kv_bytes;
        }
    }

    /// Updates the memory figures.
    pub(super) fn count_memory(&mut self) {
        let (page_bytes, prefix) = (self.facts.page_bytes as u64, &self.cache.prefix);
        let leased = prefix.leased();
        let held = leased.pages;
        self.metrics.kv_bytes_held = held as u64 * page_bytes;
        self.metrics.kv_bytes_cached = (prefix.stats().pages - held) as u64 * page_bytes;
        let copies = &self.cache.copies;
        self.metrics.latent_tokens_expanded = copies.slots_expanded;
        self.metrics.latent_tokens_expanded_again = copies.slots_expanded_again;
        self.metrics.latent_copies_evicted = copies.evicted;
        self.metrics.latent_copies_held = copies.held() as u64;
        self.metrics.states_held = prefix.states_held() as u64;
        self.metrics.states_peak = self.metrics.states_peak.max(self.metrics.states_held);
        if self.metrics.kv_bytes_held > self.metrics.kv_bytes_peak {
            self.metrics.kv_bytes_peak = self.metrics.kv_bytes_held;
            self.metrics.kv_tokens_peak = leased.tokens as u64;
            self.metrics.kv_bytes_peak_unshared = self.cache.unshared_pages as u64 * page_bytes;
        }
    }

    /// Publishes what the engine is now: some hundred bytes.
    pub(super) fn publish(&mut self) {
        self.count_memory();
        self.count_masks();
        self.count_pins();
        let held = self.cache.prefix.leased().pages;
        let (total, free) = (self.cache.pages.capacity(), self.cache.pages.free());
        let pinned = self.cache.pinned_pages;
        self.live.publish(LiveMetrics {
            metrics: self.metrics.clone(),
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting() + self.scheduler.held(),
            branches: self.branches.len(),
            pages: PoolPages { total, held, pinned, cached: total - free - held, free },
        });
    }

    pub(super) fn cache_map(&self, most: usize) -> Vec<MappedSegment> {
        let pins = self.scheduler.pins().filter_map(|id| self.branches.get(&id)?.kept());
        self.cache.prefix.map(most, self.facts.page_bytes, pins)
    }
}
