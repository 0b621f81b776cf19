//! Counters of what the engine did and of what sharing saved. All are sums since the engine began, except where a field
//! says otherwise.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Steps submitted.
    pub steps: u64,
    /// Of these, the ones that were scheduled and planned; the others were the step before, every row one token
    /// further.
    pub steps_replanned: u64,
    /// Query tokens computed: prompt chunks, given tokens and decodes.
    pub rows: u64,
    /// Prompt and given tokens asked for: what `prompt_tokens_computed` would be if branches shared nothing. Counted
    /// once for every branch when it first samples or scores a token after them.
    pub prompt_tokens_logical: u64,
    /// Prompt and given tokens computed.
    pub prompt_tokens_computed: u64,
    /// Tokens sampled, stop tokens included.
    pub tokens_sampled: u64,
    /// Samples that nobody wanted any more when they came: their branches had stopped or been cancelled while they were
    /// in flight. No part of `tokens_sampled`.
    pub tokens_discarded: u64,
    /// Tokens computed once more because pages ran out or a cached segment was evicted.
    pub tokens_recomputed: u64,
    /// Bytes of keys and values that the plans read, all layers.
    pub kv_bytes_read: u64,
    /// Bytes that a plan without sharing would have read for the same rows.
    pub kv_bytes_read_flat: u64,
    /// Bytes of the pages that branches hold now (what is only cached is not counted).
    pub kv_bytes_held: u64,
    /// Bytes of the pages that nothing but the cache holds now.
    pub kv_bytes_cached: u64,
    /// The largest `kv_bytes_held` of any step.
    pub kv_bytes_peak: u64,
    /// At that peak: distinct tokens of the branches that hold pages, each counted once however many of them share it.
    /// What `kv_bytes_peak` is beyond their bytes, pages cost that are not full.
    #[serde(default)]
    pub kv_tokens_peak: u64,
    /// At that peak: what the same branches would have held, each with pages of its own.
    pub kv_bytes_peak_unshared: u64,
    /// Branches that had to yield their pages to older ones.
    pub preemptions: u64,
    /// Of these, the ones whose keys and values went to host memory, and their bytes.
    pub swapped_out: u64,
    pub swapped_out_bytes: u64,
    /// How many of them came back from there.
    pub swapped_in: u64,
    pub swapped_in_bytes: u64,
    /// Choosing rows and slots, and noting what was submitted.
    pub seconds_scheduling: f64,
    /// Forests, plans, and the integers of steps.
    pub seconds_planning: f64,
    /// Submitting steps: loading their integers and enqueueing their work; where nothing can be enqueued (on the CPU),
    /// doing it.
    pub seconds_forward: f64,
    /// Waiting for the samples of submitted steps.
    pub seconds_waiting: f64,
    /// Telling branches what they sampled: texts, stops, events.
    pub seconds_committing: f64,
}
