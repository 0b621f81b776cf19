//! A device that is only described: the room for keys and values that a job would have there, and engines that keep its time.

use std::sync::Arc;

use super::PlanOptions;
use super::pool::Pool;
use super::source::Model;
use crate::backend::Backend;
use crate::backend::modelled::{Clock, DeviceProfile, Modelled};
use crate::engine::{Engine, EngineConfig, EngineHandle, PoolSize};
use crate::error::{Error, Result};
use crate::figures::bytes;
use crate::model::Decoder;
use crate::plan::{CostModel, Planner};

/// Host memory for branches that yield where the user gives none: as much as a run takes at most, for that of the machine at hand
/// says nothing of the one that is described.
const SWAP_BYTES: usize = 32 << 30;

pub struct Device {
    profile: Arc<DeviceProfile>,
    config: EngineConfig,
    pub pool: Pool,
    pub cost: CostModel,
    pub described: String,
}

impl Device {
    /// The profile that `options` name, with `model` on it.
    pub fn open(options: &PlanOptions, model: &Model) -> Result<Self> {
        options.budget.check()?;
        let profile = Arc::new(DeviceProfile::named(&options.device_profile)?);
        let modelled = Modelled::new(profile.clone());
        let (weights, memory) = (model.config.weight_bytes(model.dtype), modelled.free_bytes()?);
        let Some(free) = memory.checked_sub(weights) else {
            let expected = format!("at least {}, the size of the weights", bytes(weights as u64));
            return Err(Error::value(format!("memory of {}", profile.name), expected, bytes(memory as u64)));
        };
        let branches = options.budget.branches::<Modelled>(&model.config, free);
        let config = EngineConfig {
            swap_bytes: options.budget.swap_bytes.unwrap_or(SWAP_BYTES),
            check_plans: false,
            ..options.budget.engine_config::<Modelled>(branches, Planner::default(), usize::MAX)
        };
        let (cost, described) = (modelled.cost_model(), modelled.describe());
        let pool = Pool { pages: 0, page_tokens: Modelled::PAGE_TOKENS, page_bytes: 0 };
        let mut device = Self { profile, config, pool, cost, described };
        let (_, handle, _) = device.engine(model, branches)?;
        let facts = handle.facts();
        device.pool = Pool { pages: facts.pool_pages as u64, page_bytes: facts.page_bytes as u64, ..device.pool };
        // The same for whatever number of branches.
        device.config.pool = PoolSize::Bytes(facts.pool_pages * facts.page_bytes);
        Ok(device)
    }

    /// Branches that grow at once.
    pub fn branches(&self) -> usize {
        self.config.max_branches
    }

    /// An engine of so many branches at most, and the clock that it moves.
    pub fn engine(&self, model: &Model, branches: usize) -> Result<(Engine<Modelled>, EngineHandle, Clock)> {
        let mut modelled = Modelled::new(self.profile.clone());
        let clock = modelled.clock();
        let decoder = Decoder::random(&mut modelled, model.config.clone(), model.dtype, 0)?;
        let config = EngineConfig { max_branches: branches, ..self.config.clone() };
        let (engine, handle) = Engine::build(modelled, decoder, None, config)?;
        Ok((engine, handle, clock))
    }
}
