//! The engine's budgets: what the user sets of them, and what the device and the model make of the rest.

use crate::backend::KvDtype;
use crate::backend::cpu::free_bytes;
use crate::engine::{EngineConfig, EngineFacts, PoolSize};
use crate::error::{Error, Result};
use crate::figures::bytes;
use crate::model::ModelConfig;
use crate::plan::Planner;

use super::DeviceFacts;

/// What the user sets of the engine; `None` leaves it to the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Branches that grow at once.
    pub max_branches: Option<usize>,
    /// Rows of a step.
    pub step_rows: Option<usize>,
    /// Bytes for keys and values.
    pub pool_bytes: Option<usize>,
    /// The share of the device's free memory that they take instead.
    pub memory: Option<f64>,
    /// Bytes of host memory for keys and values of branches that had to yield.
    pub swap_bytes: Option<usize>,
    /// Whether results are exact, whatever that costs.
    pub deterministic: bool,
    /// What keys and values are rounded to.
    pub kv: KvDtype,
}

/// Shares of the free memory: of the host's, which others use too, and of a device that nothing else needs.
const HOST_SHARE: f64 = 0.5;
const DEVICE_SHARE: f64 = 0.9;

/// The most and the fewest branches that grow at once on a device apart. Between them, so many that their logits take
/// no more than this part of its free memory.
const MOST_BRANCHES: usize = 4096;
const FEWEST_BRANCHES: usize = 128;
const LOGITS_PART: usize = 32;

/// Rows of a step on a device apart: many times what makes products as fast as they get (about 200 rows of 16-bit
/// weights on an H200), so that little of a step is overhead.
const DEVICE_STEP_ROWS: usize = 2048;

/// Host memory for swapped branches: this part of what is free, and no more than so many bytes.
const SWAP_PART: usize = 4;
const MOST_SWAP: usize = 32 << 30;

impl Budget {
    /// Names the budget that nothing can be done with.
    pub fn check(&self) -> Result<()> {
        if let Some(memory) = self.memory.filter(|&memory| !(memory > 0.0 && memory <= 1.0)) {
            return Err(Error::value("--memory", "a number above 0, at most 1", memory.to_string()));
        }
        if let Some(swap) = self.swap_bytes.filter(|&swap| swap > free_bytes()) {
            let expected = format!("at most {}, the host's free memory", bytes(free_bytes() as u64));
            return Err(Error::value("--swap-memory", expected, bytes(swap as u64)));
        }
        match (self.pool_bytes, self.max_branches) {
            (Some(0), _) => Err(Error::value("--kv-memory", "a number of MiB from 1 up", "0")),
            (_, Some(0)) => Err(Error::value("--max-branches", "a number from 1 up", "0")),
            _ => Ok(()),
        }
    }

    /// Branches that grow at once where `free` bytes are free beside the weights.
    pub fn branches(&self, device: DeviceFacts, config: &ModelConfig, free: usize) -> usize {
        let logits = config.vocab * size_of::<f32>();
        self.max_branches.unwrap_or_else(|| match device.is_async {
            true => (free / LOGITS_PART / logits).clamp(FEWEST_BRANCHES, MOST_BRANCHES),
            false => EngineConfig::default().max_branches,
        })
    }

    /// The engine's configuration; `useful` is the most KV bytes that the job can make use of.
    pub fn engine_config(&self, device: DeviceFacts, branches: usize, planner: Planner, useful: usize) -> EngineConfig {
        let host = EngineConfig {
            max_branches: branches,
            step_rows: self.step_rows.unwrap_or(EngineConfig::default().step_rows),
            planner,
            pool: self.pool(HOST_SHARE, useful),
            deterministic: self.deterministic,
            ..EngineConfig::default()
        };
        match device.is_async {
            true => EngineConfig {
                step_rows: self.step_rows.unwrap_or(DEVICE_STEP_ROWS),
                pool: self.pool(DEVICE_SHARE, useful),
                swap_bytes: self.swap_bytes.unwrap_or_else(|| (free_bytes() / SWAP_PART).min(MOST_SWAP)),
                run_ahead: true,
                ..host
            },
            false => EngineConfig { swap_bytes: self.swap_bytes.unwrap_or(0), ..host },
        }
    }

    fn pool(&self, share: f64, useful: usize) -> PoolSize {
        match self.pool_bytes {
            Some(bytes) => PoolSize::Bytes(bytes.min(useful)),
            None => PoolSize::Share { of_free: self.memory.unwrap_or(share), at_most: useful },
        }
    }
}

/// Refuses `what`, of `given` tokens and at most `drawn` more, where it could not have the keys and values of all of
/// them even alone.
pub fn check_path(facts: &EngineFacts, what: impl FnOnce() -> String, given: usize, drawn: usize) -> Result<()> {
    let (needed, pool) = (facts.path_pages(given, drawn), facts.pool_pages);
    if needed <= pool {
        return Ok(());
    }
    let size = |pages: usize| bytes((pages * facts.page_bytes) as u64);
    let expected = format!("at least {} for {} of {given} tokens and {drawn} to draw", size(needed), what());
    Err(Error::value("memory for keys and values (--kv-memory, --memory)", expected, size(pool)))
}
