//! How an engine works, as its owner chooses.

use std::sync::Arc;

use crate::adapters::AdapterLimits;
use crate::copies::{CopyFacts, CopyMemory, CopySize};
use crate::gate::{StepGate, StepTurn};
use crate::pool::{PoolParts, PoolSize};
use crate::prefix_store::PrefixStoreOptions;
use offshoot_backend::{CopiesShape, CopyStore, StepShape};
use offshoot_core::error::Result;
use offshoot_kv::plan::{LatentFormChoice, Planner};
use offshoot_kv::{PageCounts, PageGroups, PrefixTree};

/// How an engine works. No field changes what is sampled, except by rounding where results are not exact
/// ([`EngineFacts::batch_invariant`](crate::EngineFacts::batch_invariant)).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most branches that run at once; each has one row in a step.
    pub max_branches: usize,
    /// The longest sequence in tokens; `None`: the model's context.
    pub context: Option<usize>,
    /// Rows of a step: one for each branch that decodes; prompts and given tokens fill the rest, at least 1/8 of the
    /// rows.
    pub step_rows: usize,
    pub planner: Planner,
    /// Memory for keys and values, all layers.
    pub pool: PoolSize,
    /// The part of it for copies of latents. None if results must be exact (`deterministic`).
    pub copies: CopySize,
    /// How latents are read: for checks.
    pub latent_forms: LatentFormChoice,
    /// Bytes of host memory for keys, values and states of preempted branches.
    pub swap_bytes: usize,
    /// Whether preempted branches are swapped wherever there is room, and prefixes copied between replicas (in
    /// small parts), even if computing again would be faster: for checks.
    pub swap_at_any_cost: bool,
    /// Whether the next step is submitted while the last one is computed. Saves the host's time if the device computes
    /// asynchronously, and costs one discarded token per finished branch.
    pub run_ahead: bool,
    /// Whether tokens that the form of a text forces, of which no other is allowed in each one's place, are computed
    /// several in one step, and not one after the other.
    pub joins_forced: bool,
    /// Whether results must be exact, also where that is slower.
    pub deterministic: bool,
    /// Whether the experts of each token are kept beside its keys and values, for extends that ask for them
    /// ([`SamplingParams::routes`](crate::SamplingParams::routes)). Only for models with experts.
    pub keeps_routes: bool,
    /// How many adapters can be loaded at once, and of which size. Memory for them is kept free of keys and values.
    pub adapters: AdapterLimits,
    /// Where computed prefixes are kept on disk; `None`: nowhere.
    pub prefix_store: Option<PrefixStoreOptions>,
    /// What this engine shares with others on the same cores, so that one of them computes at a time; `None`: it has
    /// them alone. Of use only where steps do not run on a device beside the cores
    /// ([`EngineFacts::is_async`](crate::EngineFacts::is_async)).
    pub gate: Option<Arc<StepGate>>,
    /// Whether every plan is checked before it is used, and the prefix tree whenever nothing runs.
    pub check_plans: bool,
}

/// Prompts and given tokens get at least 1/`PROMPT_PART` of a step's rows.
const PROMPT_PART: usize = 8;

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_branches: 128,
            context: None,
            step_rows: 256,
            planner: Planner::default(),
            pool: PoolSize::Share { of_free: 0.5, at_most: 1 << 30 },
            copies: CopySize::default(),
            latent_forms: LatentFormChoice::default(),
            swap_bytes: 0,
            swap_at_any_cost: false,
            run_ahead: false,
            joins_forced: true,
            deterministic: false,
            keeps_routes: false,
            adapters: AdapterLimits::NONE,
            prefix_store: None,
            gate: None,
            check_plans: cfg!(debug_assertions),
        }
    }
}

impl EngineConfig {
    /// Most rows with logits in a step: one for each branch, and at least 256, so that given tokens are scored in large
    /// chunks. Memory for that many logits is reserved.
    pub fn max_logit_rows(&self) -> usize {
        self.max_branches.max(256)
    }

    /// Waits for the engine's turn on the cores that it shares; `None`: it shares none.
    pub(crate) fn enter_gate(&self) -> Option<StepTurn<'_>> {
        self.gate.as_deref().map(StepGate::enter)
    }

    /// Rows that a step reserves for prompts and given tokens, however many branches decode.
    pub(crate) fn prompt_rows(&self) -> usize {
        (self.step_rows / PROMPT_PART).max(1)
    }

    /// An empty prefix tree whose prompts get slots for the rows of a step.
    pub(crate) fn prefix_tree(&self, page_tokens: u32, groups: PageGroups) -> PrefixTree {
        let rows = u32::try_from(self.largest_step().rows).expect("a step has fewer than 2^32 rows");
        PrefixTree::with_groups(page_tokens, groups).laying_ahead(rows)
    }

    /// How many pages texts will take in an engine of this configuration.
    pub fn page_counts(&self, page_tokens: u32, groups: PageGroups) -> PageCounts {
        self.prefix_tree(page_tokens, groups).page_counts()
    }

    /// The memory for copies, of a pool that is divided like this; errors as of [`CopySize::divide`].
    pub fn copy_memory(&self, pool: &PoolParts, facts: &CopyFacts) -> Result<CopyMemory> {
        let copies = if self.deterministic { CopySize::Bytes(0) } else { self.copies };
        copies.divide(pool, facts)
    }

    /// The shape of the largest step.
    pub fn largest_step(&self) -> StepShape {
        let rows = self.step_rows.max(self.max_branches.saturating_add(self.prompt_rows()));
        let (logit_rows, adapters) = (self.max_logit_rows(), self.adapters.most > 0);
        let may_copy = !self.deterministic && self.copies != CopySize::Bytes(0);
        // A step may expand more pages than it has rows; devices expand no more than some thousand slots at a time.
        let copies = CopiesShape { is_read: may_copy, expansions: if may_copy { rows } else { 0 } };
        StepShape { rows, logit_rows, samples: true, adapters, absorbs: true, copies: [copies; CopyStore::COUNT] }
    }
}
