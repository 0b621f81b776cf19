//! How the engine of a command is built, as its user chooses: the same for a run, a batch and a server.

use std::sync::Arc;

use super::{Demand, Devices, EngineBudget, Launch, ModelSource, PrefixFolder};
use offshoot_kv::plan::Planner;
use offshoot_text::Tokenizer;

/// Devices, budgets, and what changes the speed alone.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub devices: Devices,
    pub budget: EngineBudget,
    /// `None`: the default planner.
    pub plan: Option<Planner>,
    /// Where computed prefixes are kept on disk; `None`: nowhere.
    pub prefix_store: Option<PrefixFolder>,
}

impl EngineOptions {
    /// The inputs of an engine that returns texts.
    pub fn launch<'a>(&self, model: ModelSource<'a>, tokenizer: &Arc<Tokenizer>, demand: Demand<'a>) -> Launch<'a> {
        Launch {
            model,
            tokenizer: Some(tokenizer.clone()),
            devices: self.devices.clone(),
            budget: self.budget,
            planner: self.plan.unwrap_or_default(),
            demand,
            prefix_store: self.prefix_store.clone(),
        }
    }
}
