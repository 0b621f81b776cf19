//! The engine's budgets: the user's settings, and the defaults derived from the device and the model.

use std::fmt;

use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::memory::{self, free_bytes};
use offshoot_core::setting::{GPU_MEMORY, KV_MEMORY, LATENT_COPIES, MAX_BRANCHES, MEMORY, SWAP_MEMORY};
use offshoot_engine::{AdapterLimits, CopySize, EngineConfig, EngineFacts, PoolSize};
use offshoot_kv::plan::Planner;
use offshoot_model::{ModelConfig, WeightChoice};

use super::DeviceKind;

/// The user's engine settings; `None`: a default for the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineBudget {
    /// Most branches that run at once.
    pub max_branches: Option<usize>,
    /// The longest sequence, in tokens.
    pub context: Option<usize>,
    /// Most rows of a step.
    pub step_rows: Option<usize>,
    /// Bytes for keys and values.
    pub pool_bytes: Option<usize>,
    /// Bytes of the memory for keys and values that copies of latents have, of models with latent attention; `None`: an
    /// eighth, or nothing where results are exact.
    pub latent_copies: Option<usize>,
    /// Share of the device's free memory for keys and values, in (0, 1]; used when `pool_bytes` is `None`.
    pub memory: Option<f64>,
    /// Share of free memory for keys and values on a GPU alone, whose memory no other program needs; used when `memory`
    /// is `None`, too.
    pub gpu_memory: Option<f64>,
    /// Bytes of host memory for keys, values and states of preempted branches.
    pub swap_bytes: Option<usize>,
    /// Whether results must be bit-identical between runs, at the cost of speed.
    pub deterministic: bool,
    /// Whether the experts of each token are kept beside its keys and values, for requests that ask for them.
    pub keeps_routes: bool,
    /// How many adapters can be loaded at once, and of which size.
    pub adapters: AdapterLimits,
    /// Storage format of keys and values.
    pub kv: KvDtype,
    /// Storage format of the states of recurrent layers.
    pub states: StateDtype,
    /// What dense weights become when they are loaded, and whether activations are rounded.
    pub weights: WeightChoice,
}

/// Default shares of free memory: of the host's memory, which other programs use too, and of a GPU's memory.
const HOST_SHARE: f64 = 0.5;
const DEVICE_SHARE: f64 = 0.9;

/// Bounds on the branches that run at once on an asynchronous device. Between the bounds, the number of branches whose
/// logits fit into 1/`LOGITS_PART` of the free memory.
const MOST_BRANCHES: usize = 4096;
const FEWEST_BRANCHES: usize = 128;
const LOGITS_PART: usize = 32;

/// Texts that a scorer on an asynchronous device reads at once: each has many rows of a step.
const SCORER_BRANCHES: usize = 256;

/// Rows of a step on an asynchronous device: ten times the rows at which matrix products reach full speed (about 200
/// rows of 16-bit weights on an H200), so that the fixed cost of a step is small.
const DEVICE_STEP_ROWS: usize = 2048;

/// Host memory for swapped branches: 1/`SWAP_PART` of the free memory, at most `MOST_SWAP` bytes.
const SWAP_PART: usize = 4;
const MOST_SWAP: usize = 32 << 30;

impl EngineBudget {
    /// Checks the budgets.
    ///
    /// # Errors
    ///
    /// The first budget out of its range, with the range.
    pub fn check(&self) -> Result<()> {
        for (name, share) in [(MEMORY, self.memory), (GPU_MEMORY, self.gpu_memory)] {
            if let Some(share) = share.filter(|&share| !(share > 0.0 && share <= 1.0)) {
                return Err(Error::value(name, "a number above 0, at most 1", share.to_string()));
            }
        }
        self.adapters.check()?;
        let free = memory::free();
        if let Some(swap) = self.swap_bytes.filter(|&swap| swap > free.bytes) {
            let expected = format!("at most {free}, the host's free memory");
            let what = format!("host memory for preempted branches ({SWAP_MEMORY})");
            return Err(Error::value(what, expected, bytes(swap as u64)));
        }
        if let Some(copies) = self.latent_copies.filter(|&copies| copies > 0 && self.deterministic) {
            let expected = "0 where results are exact: what is read from copies is rounded otherwise";
            return Err(Error::value(LATENT_COPIES, expected, bytes(copies as u64)));
        }
        match (self.pool_bytes, self.max_branches) {
            (Some(0), _) => Err(Error::value(KV_MEMORY, "a size above 0", "0")),
            (_, Some(0)) => Err(Error::value(MAX_BRANCHES, "a number from 1 up", "0")),
            _ => Ok(()),
        }
    }

    /// The budget of one of several engines that share the host: its memory for swapped branches, and, on the CPU, what
    /// keys and values take of its free memory.
    pub fn one_of(&self, engines: usize, is_async: bool) -> Self {
        let swap_bytes = match self.swap_bytes {
            None if is_async => Some(default_swap() / engines),
            swap_bytes => swap_bytes.map(|bytes| bytes / engines),
        };
        let memory = match is_async {
            true => self.memory,
            false => Some(self.memory.unwrap_or(HOST_SHARE) / engines as f64),
        };
        EngineBudget { swap_bytes, memory, ..*self }
    }

    /// The budget of the model beside one of this budget. What it gives up for lack of memory is computed again: host
    /// memory is the generator's. Copies of latents, which are set in bytes, are the generator's, too: the other model
    /// has the usual part of its own memory.
    pub(super) fn of_second(&self) -> Self {
        EngineBudget {
            max_branches: self.max_branches,
            pool_bytes: self.pool_bytes,
            memory: self.memory,
            gpu_memory: self.gpu_memory,
            swap_bytes: Some(0),
            deterministic: self.deterministic,
            ..EngineBudget::default()
        }
    }

    /// Branches that run at once when `free` bytes are left after the weights.
    pub fn branches(&self, device: DeviceKind, config: &ModelConfig, free: usize) -> usize {
        // Each of the devices has all logits.
        let logits = config.vocab * size_of::<f32>() * device.devices;
        self.max_branches.unwrap_or_else(|| match device.is_async {
            true if config.is_scorer() => SCORER_BRANCHES,
            true => (free / LOGITS_PART / logits).clamp(FEWEST_BRANCHES, MOST_BRANCHES),
            false => EngineConfig::default().max_branches,
        })
    }

    /// The engine's configuration; `useful`: the most bytes of keys and values that the job can use.
    pub fn engine_config(&self, device: DeviceKind, branches: usize, planner: Planner, useful: usize) -> EngineConfig {
        let host = EngineConfig {
            max_branches: branches,
            context: self.context,
            step_rows: self.step_rows.unwrap_or(EngineConfig::default().step_rows),
            planner,
            pool: self.pool(device.is_async, useful),
            copies: self.latent_copies.map_or(CopySize::Part, CopySize::Bytes),
            deterministic: self.deterministic,
            keeps_routes: self.keeps_routes,
            adapters: self.adapters,
            ..EngineConfig::default()
        };
        match device.is_async {
            true => EngineConfig {
                step_rows: self.step_rows.unwrap_or(DEVICE_STEP_ROWS),
                swap_bytes: self.swap_bytes.unwrap_or_else(default_swap),
                run_ahead: true,
                ..host
            },
            false => EngineConfig { swap_bytes: self.swap_bytes.unwrap_or(0), ..host },
        }
    }

    /// Bytes of copies of latents that are useful beside so many bytes of keys and values.
    pub(super) fn useful_copies(&self, is_async: bool, useful: usize) -> usize {
        match self.latent_copies {
            Some(bytes) => bytes,
            // An eighth of all.
            None if is_async && !self.deterministic => useful / 7,
            None => 0,
        }
    }

    /// The memory for keys and values, of which `useful` bytes are used.
    pub(super) fn pool(&self, is_async: bool, useful: usize) -> PoolSize {
        let usual = || if is_async { self.gpu_memory.unwrap_or(DEVICE_SHARE) } else { HOST_SHARE };
        match self.pool_bytes {
            Some(bytes) => PoolSize::Bytes(bytes.min(useful)),
            None => PoolSize::Share { of_free: self.memory.unwrap_or_else(usual), at_most: useful },
        }
    }
}

/// Host memory for swapped branches where the user does not say.
fn default_swap() -> usize {
    (free_bytes() / SWAP_PART).min(MOST_SWAP)
}

/// The tokens after a prompt: at most so many that are sampled, or given ones whose scores are computed.
#[derive(Clone, Copy, Debug)]
pub enum MoreTokens {
    Sampled(usize),
    Scored(usize),
}

impl MoreTokens {
    pub fn count(self) -> usize {
        match self {
            MoreTokens::Sampled(tokens) | MoreTokens::Scored(tokens) => tokens,
        }
    }
}

impl fmt::Display for MoreTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoreTokens::Sampled(tokens) => write!(f, "{tokens} to sample"),
            MoreTokens::Scored(tokens) => write!(f, "{tokens} to score"),
        }
    }
}

/// Refuses `what`, a sequence of `given` prompt tokens and `more` tokens, if its keys and values do not fit into the
/// pool even when it runs alone.
pub fn check_path(facts: &EngineFacts, what: impl FnOnce() -> String, given: usize, more: MoreTokens) -> Result<()> {
    let (needed, pool) = (facts.path_pages(given, more.count()), facts.pool_pages);
    if needed <= pool {
        return Ok(());
    }
    let size = |pages: usize| bytes((pages * facts.page_bytes) as u64);
    let expected = format!("at least {} for {} of {given} tokens and {more}", size(needed), what());
    Err(Error::kv_memory(expected, size(pool)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_compute_together_each_hold_all_logits() {
        let fields = serde_json::json!({
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 1 << 17, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": false
        });
        let config = ModelConfig::from_json(&fields.to_string()).unwrap();
        let budget = EngineBudget::default();
        let branches =
            |devices, free| budget.branches(DeviceKind { page_tokens: 32, is_async: true, devices }, &config, free);
        // 16 GiB hold the logits of 1,024 branches in a 32nd.
        assert_eq!(branches(1, 16 << 30), 1024);
        assert_eq!(branches(2, 2 * (16 << 30)), 1024);
    }
}
