//! A model whose steps have their memory and whose keys and values have none yet. What is free for these is known only
//! then; of several models on one device each is prepared before that memory is divided among them.

use std::sync::Arc;

use crate::adapters::AdapterLimits;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::handle::EngineHandle;
use crate::pool::PoolSize;
use offshoot_backend::StepShape;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::setting::{MAX_BRANCHES, MAX_LORAS};
use offshoot_model::{RunnerFacts, StepLimits, StepRunner};
use offshoot_text::Tokenizer;

/// A model that can compute steps of an engine's size, without memory for keys and values.
pub struct PreparedModel {
    pub(crate) model: Box<dyn StepRunner>,
    pub(crate) facts: RunnerFacts,
    pub(crate) config: EngineConfig,
    /// The longest sequence in tokens.
    pub(crate) longest: usize,
}

impl PreparedModel {
    /// Allocates the memory of the largest step of an engine of this configuration.
    ///
    /// # Errors
    ///
    /// A limit is 0, or too little memory is free.
    pub fn new(mut model: Box<dyn StepRunner>, config: EngineConfig) -> Result<PreparedModel> {
        let least = [(MAX_BRANCHES.to_string(), config.max_branches), ("rows of a step".to_string(), config.step_rows)];
        for (what, value) in least {
            if value == 0 {
                return Err(Error::value(what, "a number from 1 up", "0"));
            }
        }
        config.adapters.check()?;
        let largest = config.largest_step();
        check_room(&*model, largest)?;
        let longest = config.context.unwrap_or(usize::MAX).min(model.config().context);
        let EngineConfig { deterministic, keeps_routes, .. } = config;
        model.prepare(StepLimits { deterministic, longest, largest, keeps_routes })?;
        let facts = model.facts();
        Ok(PreparedModel { model, facts, config, longest })
    }

    /// What is known of the model and its device.
    pub fn facts(&self) -> &RunnerFacts {
        &self.facts
    }

    /// The configuration of the engine.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Bytes of device memory that keys, values and states can have, beside those of all adapters that may be loaded.
    ///
    /// # Errors
    ///
    /// The adapters alone need more than is free.
    pub fn room(&self) -> Result<usize> {
        let limits = self.config.adapters;
        let needed = limits.bytes(self.model.config(), self.facts.adapter_element_bytes);
        let room = self.model.kv_room()?;
        room.checked_sub(needed).ok_or_else(|| {
            let AdapterLimits { most, rank } = limits;
            let expected = format!("at least {} for {most} adapters of rank {rank}", bytes(needed as u64));
            Error::value(format!("free memory ({MAX_LORAS})"), expected, bytes(room as u64))
        })
    }

    /// The model with this size of its pool.
    #[must_use]
    pub fn with_pool(self, pool: PoolSize) -> PreparedModel {
        PreparedModel { config: EngineConfig { pool, ..self.config }, ..self }
    }

    /// The engine of the model, as [`Engine::build`] makes it: allocates keys, values and states.
    ///
    /// # Errors
    ///
    /// The pool is more than is free, or holds no page or no branch's states.
    pub fn build(self, tokenizer: Option<Arc<Tokenizer>>) -> Result<(Engine, EngineHandle)> {
        Engine::on(self, tokenizer)
    }
}

/// Refuses steps whose rows and logits, or values, alone are more than the memory that is free.
fn check_room(model: &dyn StepRunner, shape: StepShape) -> Result<()> {
    let config = model.config();
    let rows = shape.rows.saturating_mul(config.hidden);
    let logit_rows = shape.logit_rows.saturating_mul(config.outputs());
    let (needed, free) = (rows.saturating_add(logit_rows).saturating_mul(size_of::<f32>()), model.free_bytes()?);
    if needed > free {
        let expected = format!("at least {} for a step of {} rows", bytes(needed as u64), shape.rows);
        return Err(Error::value(format!("free memory ({MAX_BRANCHES})"), expected, bytes(free as u64)));
    }
    Ok(())
}
