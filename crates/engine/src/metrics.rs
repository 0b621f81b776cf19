//! Counters of the engine's work and of what sharing saved: sums since the engine started, unless a field says
//! otherwise.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The engine's counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Steps submitted.
    pub steps: u64,
    /// Of these, the ones scheduled and planned anew; the others repeated the step before, every row one token further.
    pub steps_replanned: u64,
    /// Query tokens computed: prompt chunks, given tokens and decodes.
    pub rows: u64,
    /// Prompt and given tokens as if nothing were shared: counted for each branch when it first samples or scores a
    /// token after them.
    pub prompt_tokens_logical: u64,
    /// Prompt and given tokens computed.
    pub prompt_tokens_computed: u64,
    /// Given tokens whose log-probabilities were found with the keys and values cached for them.
    #[serde(default)]
    pub scores_reused: u64,
    /// Prompt and given tokens whose keys and values were read from the prefix store. Not part of
    /// `prompt_tokens_computed`.
    #[serde(default)]
    pub prompt_tokens_stored: u64,
    /// Prompt and given tokens whose keys and values another engine had computed and were copied from it. Not part of
    /// `prompt_tokens_computed`.
    #[serde(default)]
    pub prompt_tokens_copied: u64,
    /// Chunks of prefixes handed over to be written to the prefix store.
    #[serde(default)]
    pub chunks_written: u64,
    /// Tokens sampled, stop tokens included.
    pub tokens_sampled: u64,
    /// Tokens sampled after their branch stopped or was cancelled, discarded. Not part of `tokens_sampled`.
    pub tokens_discarded: u64,
    /// Tokens recomputed after preemption or eviction.
    pub tokens_recomputed: u64,
    /// Bytes of keys and values that the plans read, all layers.
    pub kv_bytes_read: u64,
    /// Bytes that a plan without sharing would have read for the same rows.
    pub kv_bytes_read_flat: u64,
    /// Bytes of the pages that branches hold now, without pages that are only cached.
    pub kv_bytes_held: u64,
    /// Bytes of the pages that are only cached now.
    pub kv_bytes_cached: u64,
    /// The largest `kv_bytes_held` of any step.
    pub kv_bytes_peak: u64,
    /// At that peak: distinct tokens of the branches that hold pages. The rest of `kv_bytes_peak` is the free slots of
    /// pages that are not full.
    #[serde(default)]
    pub kv_tokens_peak: u64,
    /// At that peak: bytes that the same branches would have held without sharing, and with none freed behind windows
    /// of layers.
    pub kv_bytes_peak_unshared: u64,
    /// States of delta-rule layers that branches hold now, without those that are only cached; and the most of any
    /// step.
    #[serde(default)]
    pub states_held: u64,
    #[serde(default)]
    pub states_peak: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Preemptions that swapped keys and values to host memory, and their bytes.
    pub swapped_out: u64,
    pub swapped_out_bytes: u64,
    /// Swapped branches that were restored.
    pub swapped_in: u64,
    pub swapped_in_bytes: u64,
    /// Scheduling: rows, slots, and recording submitted steps.
    pub seconds_scheduling: f64,
    /// Building forests, plans and step arrays.
    pub seconds_planning: f64,
    /// Submitting steps: loading their arrays and enqueueing their work; on the CPU, computing them.
    pub seconds_forward: f64,
    /// Of these seconds, those in which the CPU's threads had no work while ops ran, in the mean of all threads: they
    /// waited for each other, or for what one of them does alone. `None` where it is not counted.
    #[serde(default)]
    pub seconds_idle: Option<f64>,
    /// Waiting for the samples of submitted steps.
    pub seconds_waiting: f64,
    /// Committing samples: text, stop conditions, events.
    pub seconds_committing: f64,
}

/// Several engines together: sums, also of what each of them held at its own peak.
impl AddAssign<&Metrics> for Metrics {
    fn add_assign(&mut self, other: &Metrics) {
        let Metrics {
            steps,
            steps_replanned,
            rows,
            prompt_tokens_logical,
            prompt_tokens_computed,
            scores_reused,
            prompt_tokens_stored,
            prompt_tokens_copied,
            chunks_written,
            tokens_sampled,
            tokens_discarded,
            tokens_recomputed,
            kv_bytes_read,
            kv_bytes_read_flat,
            kv_bytes_held,
            kv_bytes_cached,
            kv_bytes_peak,
            kv_tokens_peak,
            kv_bytes_peak_unshared,
            states_held,
            states_peak,
            preemptions,
            swapped_out,
            swapped_out_bytes,
            swapped_in,
            swapped_in_bytes,
            seconds_scheduling,
            seconds_planning,
            seconds_forward,
            seconds_idle,
            seconds_waiting,
            seconds_committing,
        } = other;
        self.steps += steps;
        self.steps_replanned += steps_replanned;
        self.rows += rows;
        self.prompt_tokens_logical += prompt_tokens_logical;
        self.prompt_tokens_computed += prompt_tokens_computed;
        self.scores_reused += scores_reused;
        self.prompt_tokens_stored += prompt_tokens_stored;
        self.prompt_tokens_copied += prompt_tokens_copied;
        self.chunks_written += chunks_written;
        self.tokens_sampled += tokens_sampled;
        self.tokens_discarded += tokens_discarded;
        self.tokens_recomputed += tokens_recomputed;
        self.kv_bytes_read += kv_bytes_read;
        self.kv_bytes_read_flat += kv_bytes_read_flat;
        self.kv_bytes_held += kv_bytes_held;
        self.kv_bytes_cached += kv_bytes_cached;
        self.kv_bytes_peak += kv_bytes_peak;
        self.kv_tokens_peak += kv_tokens_peak;
        self.kv_bytes_peak_unshared += kv_bytes_peak_unshared;
        self.states_held += states_held;
        self.states_peak += states_peak;
        self.preemptions += preemptions;
        self.swapped_out += swapped_out;
        self.swapped_out_bytes += swapped_out_bytes;
        self.swapped_in += swapped_in;
        self.swapped_in_bytes += swapped_in_bytes;
        self.seconds_scheduling += seconds_scheduling;
        self.seconds_planning += seconds_planning;
        self.seconds_forward += seconds_forward;
        self.seconds_idle = match (self.seconds_idle, seconds_idle) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(*b),
        };
        self.seconds_waiting += seconds_waiting;
        self.seconds_committing += seconds_committing;
    }
}
