//! How an engine is built, as its user chooses: the same for a run, a batch, a server and a program.

use std::path::Path;
use std::sync::Arc;

use super::{Demand, Devices, EngineBudget, Launch, Launched, ModelSource, PrefixFolder};
use offshoot_core::error::Result;
use offshoot_engine::EngineHandle;
use offshoot_kv::plan::Planner;
use offshoot_model::ModelFolder;
use offshoot_text::Tokenizer;

/// Devices, budgets, and what changes the speed alone.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub devices: Devices,
    /// Of each device; what is the host's is divided among replicas.
    pub budget: EngineBudget,
    /// `None`: the default planner.
    pub plan: Option<Planner>,
    /// Where computed prefixes are kept on disk; `None`: nowhere.
    pub prefix_store: Option<PrefixFolder>,
}

impl EngineOptions {
    /// Opens a model folder for jobs that are not known in advance.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, the folder is no model that is known, or no device has room for it.
    pub fn open(&self, model: &Path) -> Result<(Launched, Arc<Tokenizer>)> {
        self.budget.check()?;
        let folder = ModelFolder::open(model)?.with(self.budget.weights)?;
        let tokenizer = Arc::new(Tokenizer::load(model)?);
        let launch = self.launch(ModelSource::folder(&folder)?, Some(&tokenizer), Demand::unbounded());
        Ok((launch.start()?, tokenizer))
    }

    /// The inputs of an engine. Without a tokenizer it returns tokens without text.
    pub fn launch<'a>(
        &self,
        model: ModelSource<'a>,
        tokenizer: Option<&Arc<Tokenizer>>,
        demand: Demand<'a>,
    ) -> Launch<'a> {
        Launch { model, tokenizer: tokenizer.cloned(), demand, options: self.clone() }
    }
}

/// Opens a model folder for sampling, on the first device that can hold it and with the default budgets.
pub fn open(model: &Path) -> Result<(EngineHandle, Arc<Tokenizer>)> {
    let (launched, tokenizer) = EngineOptions::default().open(model)?;
    Ok((launched.engine, tokenizer))
}
