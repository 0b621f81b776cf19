//! Counters of the engine's work and of what sharing saved: sums since the engine started, unless a field says
//! otherwise. Those of several engines add up.
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

/// A number, or several, that those of several engines add up to.
pub(crate) trait Sum {
    fn add(&mut self, other: &Self);
}

/// Defines a struct all of whose fields are sums, and how two of it add up.
macro_rules! sums {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$field_about:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        pub struct $name { $($(#[$field_about])* pub $field: $kind,)* }

        impl $crate::metrics::Sum for $name {
            fn add(&mut self, other: &Self) {
                $($crate::metrics::Sum::add(&mut self.$field, &other.$field);)*
            }
        }
    };
}
pub(crate) use sums;

macro_rules! sums_of_numbers {
    ($($number:ty)*) => {
        $(impl Sum for $number {
            fn add(&mut self, other: &Self) {
                *self += other;
            }
        })*
    };
}
sums_of_numbers!(u64 usize f64);

/// What is not counted adds nothing.
impl Sum for Option<f64> {
    fn add(&mut self, other: &Self) {
        *self = match (*self, *other) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

sums! {
    /// The engine's counters. Of several engines together: also of what each of them held at its own peak.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct Metrics {
        /// Steps submitted.
        pub steps: u64,
        /// Steps of `steps` that were scheduled and planned anew; the others repeated the step before, every row one
        /// token further.
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
        /// Positions whose values a scorer has computed for a branch.
        #[serde(default)]
        pub values_read: u64,
        /// Positions whose values were found with the keys and values cached for them. Not part of `values_read`.
        #[serde(default)]
        pub values_reused: u64,
        /// Prompt and given tokens whose keys and values were read from the prefix store. Not part of
        /// `prompt_tokens_computed`.
        #[serde(default)]
        pub prompt_tokens_stored: u64,
        /// Prompt and given tokens whose keys and values another engine had computed and were copied from it. Not part
        /// of `prompt_tokens_computed`.
        #[serde(default)]
        pub prompt_tokens_copied: u64,
        /// Chunks of prefixes handed over to be written to the prefix store.
        #[serde(default)]
        pub chunks_written: u64,
        /// Tokens sampled, stop tokens included.
        pub tokens_sampled: u64,
        /// Tokens sampled after their branch stopped or was cancelled, discarded. Not part of `tokens_sampled`.
        pub tokens_discarded: u64,
        /// Tokens of `tokens_sampled` that the form of their text forced: no other was allowed in their place.
        #[serde(default)]
        pub tokens_forced: u64,
        /// Masks that were requested, what a form allows in the place of a token: once for each token that is sampled,
        /// or scored as if it were sampled, in a form that has begun.
        #[serde(default)]
        pub masks_requested: u64,
        /// Masks that were computed for that: one at most for each state in which a branch was first.
        #[serde(default)]
        pub masks_computed: u64,
        /// Masks that another branch in the same state had, or one in the same place of the form's grammar.
        #[serde(default)]
        pub masks_shared: u64,
        /// Masks of `masks_shared` that a branch in the same place of the form's grammar had, in another state.
        #[serde(default)]
        pub mask_places_shared: u64,
        /// Masks that were computed and whose set of tokens another mask had.
        #[serde(default)]
        pub mask_sets_shared: u64,
        /// Masks of `masks_requested` that have no token: dead ends of forms.
        #[serde(default)]
        pub masks_empty: u64,
        /// Masks of `masks_requested` that take too much work to find.
        #[serde(default)]
        pub masks_failed: u64,
        /// Places in forms that were found again from their tokens.
        #[serde(default)]
        pub matchers_replayed: u64,
        /// The tokens that were read for that.
        #[serde(default)]
        pub matcher_tokens_replayed: u64,
        /// Forms in use now.
        #[serde(default)]
        pub forms_held: u64,
        /// Copies of their lexers now, of which each is worked on by one thread.
        #[serde(default)]
        pub form_lanes_held: u64,
        /// Bytes of these lexers now.
        #[serde(default)]
        pub lane_bytes_held: u64,
        /// Bytes of the masks that are kept now.
        #[serde(default)]
        pub mask_bytes_held: u64,
        /// Bytes of the branches' places in their forms now, about.
        #[serde(default)]
        pub matcher_bytes_held: u64,
        /// Tokens recomputed after preemption or eviction.
        pub tokens_recomputed: u64,
        /// Bytes of keys and values that the plans read, all layers.
        pub kv_bytes_read: u64,
        /// Bytes that a plan without sharing would have read for the same rows.
        pub kv_bytes_read_flat: u64,
        /// Tokens whose latents were expanded to copies that are kept, all layers.
        #[serde(default)]
        pub latent_tokens_expanded: u64,
        /// Tokens whose latents were expanded for a single step, in each layer; a token counts in every such step.
        #[serde(default)]
        pub latent_tokens_expanded_again: u64,
        /// Pages of copies of latents that were given up for others.
        #[serde(default)]
        pub latent_copies_evicted: u64,
        /// Pages that have copies of latents now.
        #[serde(default)]
        pub latent_copies_held: u64,
        /// Bytes of the pages that branches hold now, without pages that are only cached.
        pub kv_bytes_held: u64,
        /// Bytes of the pages that are only cached now.
        pub kv_bytes_cached: u64,
        /// The largest `kv_bytes_held` of any step.
        pub kv_bytes_peak: u64,
        /// At that peak: distinct tokens of the branches that hold pages. The rest of `kv_bytes_peak` is the free slots
        /// of pages that are not full.
        #[serde(default)]
        pub kv_tokens_peak: u64,
        /// At that peak: bytes that the same branches would have held without sharing, and with none freed behind
        /// windows of layers.
        pub kv_bytes_peak_unshared: u64,
        /// States of recurrent layers that branches hold now, without those that are only cached.
        #[serde(default)]
        pub states_held: u64,
        /// The most of any step.
        #[serde(default)]
        pub states_peak: u64,
        /// Number of preemptions.
        pub preemptions: u64,
        /// Preemptions that swapped keys and values to host memory.
        pub swapped_out: u64,
        /// Bytes that they moved.
        pub swapped_out_bytes: u64,
        /// Swapped branches that were restored.
        pub swapped_in: u64,
        /// Bytes that were moved back.
        pub swapped_in_bytes: u64,
        /// Scheduling: rows, slots, and recording submitted steps.
        pub seconds_scheduling: f64,
        /// Building forests, plans and step arrays.
        pub seconds_planning: f64,
        /// Submitting steps: loading their arrays and enqueueing their work; on the CPU, computing them.
        pub seconds_forward: f64,
        /// Seconds of `seconds_forward` in which the CPU's threads had no work while ops ran, in the mean of all
        /// threads: they waited for each other, or for what one of them does alone. `None` where it is not counted.
        #[serde(default)]
        pub seconds_idle: Option<f64>,
        /// Waiting for the samples of submitted steps, and for the steps of other engines on the same cores.
        pub seconds_waiting: f64,
        /// Waiting for masks; a device computes meanwhile.
        #[serde(default)]
        pub seconds_masking: f64,
        /// Committing samples: text, stop conditions, events.
        pub seconds_committing: f64,
    }
}
