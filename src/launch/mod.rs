//! Assembles an engine: a device, its budgets and a model become an [`EngineHandle`]. Also says in which order the prompts of a job
//! are begun. What is sampled with the engine is left to its caller.

mod budget;
mod order;

pub use budget::{Budget, check_path};
pub use order::{Draws, Order};

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, DeviceChoice, Dtype, Opened};
use crate::engine::{Engine, EngineFacts, EngineHandle};
use crate::error::{Error, Result};
use crate::model::check::facts;
use crate::model::{Decoder, ModelFolder};
use crate::plan::Planner;
use crate::tokenizer::Tokenizer;

/// A model folder ready to sample from, on the first device that will do and with the default budgets: for programs of one's own.
pub fn open(model: &Path) -> Result<(EngineHandle, Arc<Tokenizer>)> {
    let folder = ModelFolder::open(model)?;
    let tokenizer = Arc::new(Tokenizer::load(model)?);
    let (device, budget, any) =
        (DeviceChoice::Auto, Budget::default(), Most { branches: usize::MAX, tokens: usize::MAX });
    let (engine, _) = start_engine(&folder, tokenizer.clone(), device, &budget, Planner::default(), any)?;
    Ok((engine, tokenizer))
}

/// What a job can make use of at most: branches at once, and tokens that all its branches hold.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub branches: usize,
    pub tokens: usize,
}

/// A model in memory and its engine, for jobs without a task; with it the number of branches that grow at once.
pub fn start_engine(
    folder: &ModelFolder,
    tokenizer: Arc<Tokenizer>,
    device: DeviceChoice,
    budget: &Budget,
    planner: Planner,
    most: Most,
) -> Result<(EngineHandle, usize)> {
    let dtype = facts(folder)?.dtype;
    match device.open(folder.config.weight_bytes(dtype))? {
        Opened::Cpu { cpu, .. } => start_on(cpu, folder, dtype, tokenizer, budget, planner, most),
        Opened::Cuda(cuda) => start_on(*cuda, folder, dtype, tokenizer, budget, planner, most),
    }
}

fn start_on<B: Backend>(
    mut backend: B,
    folder: &ModelFolder,
    dtype: Dtype,
    tokenizer: Arc<Tokenizer>,
    budget: &Budget,
    planner: Planner,
    most: Most,
) -> Result<(EngineHandle, usize)> {
    budget.kv.keep_on(&mut backend, folder.config.heads, dtype);
    let decoder = Decoder::load(&mut backend, folder)?;
    let branches = budget.branches::<B>(&folder.config, backend.free_bytes()?).min(most.branches);
    // A branch fills pages of its own, and leaves the last one of its prompt half empty.
    let in_pages = most.tokens.saturating_add(most.branches.saturating_mul(2 * backend.page_tokens() as usize));
    let useful = in_pages.saturating_mul(decoder.kv_bytes_per_token());
    let engine =
        Engine::start(backend, decoder, Some(tokenizer), budget.engine_config::<B>(branches, planner, useful))?;
    Ok((engine, branches))
}

/// Pages that are lacking, as the options and the memory that they stand for.
pub fn in_bytes(error: Error, facts: &EngineFacts) -> Error {
    let Error::OutOfPages { needed, capacity, .. } = error else { return error };
    let mib = |pages: usize| (pages * facts.page_bytes).div_ceil(1 << 20);
    let expected = format!("at least {} MiB, which one sample's keys and values need", mib(needed));
    Error::value("memory for keys and values (--kv-memory, --memory)", expected, format!("{} MiB", mib(capacity)))
}
