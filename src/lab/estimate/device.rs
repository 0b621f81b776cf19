//! A device that is only described, with a model on it: the room for keys and values that a job would have there.

use std::sync::Arc;

use super::pool::Pool;
use super::source::Model;
use crate::backend::Backend;
use crate::backend::sim::{DeviceProfile, Sim};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::figures::bytes;
use crate::lab::replay::{Machine, Settings};
use crate::launch::{Budget, DeviceFacts, ModelSource};
use crate::plan::{CostModel, Planner};

/// Host memory for branches that yield where the user gives none: as much as a run takes at most, for that of the machine at hand
/// says nothing of the one that is described.
const SWAP_BYTES: usize = 32 << 30;

pub struct Device {
    pub machine: Machine,
    pub settings: Settings,
    pub pool: Pool,
    pub cost: CostModel,
    pub tile: u32,
    pub described: String,
    pub kv_element_bytes: usize,
    branches: usize,
}

impl Device {
    /// The built-in `profile` or file of that name, with `model` on it: an engine is begun there as a run would begin one.
    pub fn open(profile: &str, budget: &Budget, model: &Model) -> Result<Self> {
        // Of host memory, that of this machine says nothing.
        Budget { swap_bytes: None, ..*budget }.check()?;
        let profile = Arc::new(DeviceProfile::named(profile)?);
        let mut sim = Sim::new(profile.clone());
        budget.kv.keep_on(&mut sim, model.config.heads, model.dtype);
        let kv_element_bytes = sim.kv_element_bytes(model.config.heads, model.dtype);
        let (weights, memory) = (model.config.weight_bytes(model.dtype), sim.free_bytes()?);
        let Some(free) = memory.checked_sub(weights) else {
            let expected = format!("at least {}, the size of the weights", bytes(weights as u64));
            return Err(Error::value(format!("memory of {}", profile.name), expected, bytes(memory as u64)));
        };
        let device = DeviceFacts::of(&sim);
        let branches = budget.branches(device, &model.config, free);
        let config = budget.engine_config(device, branches, Planner::default(), usize::MAX);
        let (cost, tile, described) = (sim.cost_model(), sim.tile(), sim.describe());
        let page_tokens = sim.page_tokens();
        let decoder = ModelSource::random(&model.config, model.dtype).load(&mut sim)?;
        let step_rows = config.step_rows;
        let (_, handle) = Engine::build(sim, decoder, None, config)?;
        let facts = handle.facts();
        let settings = Settings {
            step_rows,
            pool_bytes: Some(facts.pool_pages * facts.page_bytes),
            swap_bytes: budget.swap_bytes.unwrap_or(SWAP_BYTES),
            ..Settings::default()
        };
        let pool = Pool { pages: facts.pool_pages as u64, page_tokens, page_bytes: facts.page_bytes as u64 };
        let machine = Machine { model: model.config.clone(), dtype: model.dtype, kv: budget.kv, profile };
        Ok(Self { machine, settings, pool, cost, tile, described, kv_element_bytes, branches })
    }

    /// Branches that grow at once.
    pub fn branches(&self) -> usize {
        self.branches
    }
}
