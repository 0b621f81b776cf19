//! Counters of what the engine did and of what sharing saved. All are sums since the engine began, except where a field says
//! otherwise.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub steps: u64,
    /// Query tokens computed: prompt chunks, given tokens and decodes.
    pub rows: u64,
    /// Prompt and given tokens asked for: what `prompt_tokens_computed` would be if branches shared nothing. Counted once for
    /// every branch when it first draws or scores a token after them.
    pub prompt_tokens_logical: u64,
    /// Prompt and given tokens computed.
    pub prompt_tokens_computed: u64,
    /// Tokens drawn, stop tokens included.
    pub tokens_sampled: u64,
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
    /// At that peak: what the same branches would have held, each with pages of its own.
    pub kv_bytes_peak_unshared: u64,
    /// Branches that had to give their pages back and were computed again later.
    pub preemptions: u64,
    pub seconds_scheduling: f64,
    pub seconds_planning: f64,
    pub seconds_forward: f64,
    pub seconds_sampling: f64,
}
