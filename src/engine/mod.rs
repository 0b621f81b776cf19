//! Floor 5: the step loop. Defines the requests, the events and the channel client (`EngineHandle`) that everything above is
//! built on, and hides the model, the backend and the prefix tree behind one thread. What a search does with branches is
//! floor 6's affair.
//!
//! A branch is a list of tokens. What of it is kept in the prefix tree, and whether it is computed, is the engine's affair
//! alone: a root, a fork, a continuation and a branch that had to give up its pages all become runnable in the same way, by
//! being matched with what is there (`cache`). See `scheduler` for the order of rows and for the logits that forks share.

mod batch;
mod branch;
mod cache;
pub mod coins;
mod commands;
mod commit;
pub mod handle;
pub mod metrics;
pub mod request;
mod sampler;
mod scheduler;
pub mod scripted;
mod text;

use std::sync::Arc;
use std::time::Instant;

pub use coins::{CoinKey, ForkKind};
pub use handle::{EngineFacts, EngineHandle, Extension};
pub use metrics::Metrics;
pub use request::{Continuation, Event, Extend, Finish, FinishReason, SamplingParams, Stop};
pub use scripted::{ScriptedCall, ScriptedReply};

use crate::backend::{Backend, Sampled};
use crate::engine::cache::{Branches, Cache};
use crate::engine::scheduler::{Budget, Schedule, Scheduler};
use crate::error::{Error, Result};
use crate::kv::{Forest, StepRow};
use crate::model::Decoder;
use crate::plan::{AttentionPlan, Planner};
use crate::tokenizer::Tokenizer;

/// How an engine works. None of it changes what is drawn.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Branches that grow at once; each has one row in a step.
    pub max_branches: usize,
    /// Rows of prompts and given tokens that a step computes beside them, at most.
    pub chunk: usize,
    pub planner: Planner,
    /// Bytes of keys and values, all layers; whole pages of them are used.
    pub pool_bytes: usize,
    /// Whether every plan is proved before it is used, and the prefix tree checked whenever nothing grows.
    pub check_plans: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_branches: 128,
            chunk: 256,
            planner: Planner::default(),
            pool_bytes: 1 << 30,
            check_plans: cfg!(debug_assertions),
        }
    }
}

/// A model, its keys and values, and the branches that grow on them.
pub struct Engine<B: Backend> {
    backend: B,
    model: Decoder<B>,
    kv: B::Kv,
    step: B::Step,
    tokenizer: Option<Arc<Tokenizer>>,
    facts: EngineFacts,
    config: EngineConfig,
    cache: Cache,
    branches: Branches,
    scheduler: Scheduler,
    metrics: Metrics,
}

impl<B: Backend> Engine<B> {
    /// Starts a thread that owns backend and model, and returns its client. Without a tokenizer, text is empty and stop
    /// strings are an error.
    pub fn start(
        mut backend: B,
        model: Decoder<B>,
        tokenizer: Option<Arc<Tokenizer>>,
        config: EngineConfig,
    ) -> Result<EngineHandle> {
        for (what, value) in [("max_branches", config.max_branches), ("chunk", config.chunk)] {
            if value == 0 {
                return Err(Error::value(what, "a number from 1 up", "0"));
            }
        }
        let page_bytes = B::page_bytes(&model.kv_shape(1));
        let pool_pages = config.pool_bytes / page_bytes;
        if pool_pages == 0 {
            let expected = format!("at least one page ({page_bytes} bytes)");
            return Err(Error::value("memory for keys and values", expected, format!("{} bytes", config.pool_bytes)));
        }
        let kv = backend.kv(&model.kv_shape(pool_pages))?;
        let step = model.step(&mut backend)?;
        let facts = EngineFacts {
            context: model.config().context,
            vocab: model.config().vocab,
            bos: model.config().bos,
            eos: model.config().eos.iter().copied().filter(|token| token.ix() < model.config().vocab).collect(),
            device: backend.describe(),
            page_tokens: B::PAGE_TOKENS as usize,
            page_bytes,
            pool_pages,
        };
        let (handle, commands, epitaph) = EngineHandle::new(facts.clone());
        let cache = Cache::new(B::PAGE_TOKENS, pool_pages);
        let mut engine = Engine {
            backend,
            model,
            kv,
            step,
            tokenizer,
            facts,
            config,
            cache,
            branches: Branches::new(),
            scheduler: Scheduler::default(),
            metrics: Metrics::default(),
        };
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || handle::live(&epitaph, || engine.run(&commands)))
            .map_err(|error| Error::EngineStopped { why: format!("its thread cannot start: {error}") })?;
        Ok(handle)
    }

    /// One step of everything that grows.
    fn step(&mut self) -> Result<()> {
        let mut schedule = self.schedule();
        if schedule.rows.is_empty() {
            return Ok(()); // Whatever waited could never fit, and has failed.
        }
        let forest = self.forest(&schedule);
        let plans = self.plan(&forest)?;
        let drawn = self.compute(&mut schedule, plans)?;
        self.commit(&schedule, drawn);
        Ok(())
    }

    fn schedule(&mut self) -> Schedule {
        let began = Instant::now();
        let budget = Budget { max_branches: self.config.max_branches, chunk: self.config.chunk };
        let schedule = self.scheduler.next_rows(&mut self.branches, &mut self.cache, budget);
        self.metrics.seconds_scheduling += began.elapsed().as_secs_f64();
        schedule
    }

    fn forest(&mut self, schedule: &Schedule) -> Forest {
        let began = Instant::now();
        let rows: Vec<StepRow> = schedule.rows.iter().map(|row| row.at).collect();
        let forest = self.cache.prefix.forest(&rows);
        self.metrics.seconds_planning += began.elapsed().as_secs_f64();
        forest
    }

    /// One plan for each window kind of the model's layers.
    fn plan(&mut self, forest: &Forest) -> Result<Vec<AttentionPlan>> {
        let began = Instant::now();
        let mut plans = Vec::new();
        for hints in self.model.plan_hints() {
            let plan = self.config.planner.plan(forest, hints);
            if self.config.check_plans {
                plan.check(forest)
                    .map_err(|fault| Error::Internal(format!("{:?} plan: {fault}", self.config.planner)))?;
            }
            let layers = self.model.config().windows.iter().filter(|&&window| window == hints.window).count() as u64;
            let stats = plan.stats(hints);
            self.metrics.kv_bytes_read += layers * stats.kv_bytes_read;
            self.metrics.kv_bytes_read_flat += layers * stats.flat_kv_bytes;
            plans.push(plan);
        }
        self.metrics.seconds_planning += began.elapsed().as_secs_f64();
        Ok(plans)
    }

    /// The forward step and a draw for each ask, in the order of `schedule.asks`.
    fn compute(&mut self, schedule: &mut Schedule, plans: Vec<AttentionPlan>) -> Result<Vec<Sampled>> {
        let began = Instant::now();
        let request =
            |ask: &scheduler::Ask| sampler::request(&self.branches[&ask.branch], ask.position, &self.facts.eos);
        let batch = batch::step_batch(schedule, &self.branches, plans, request);
        self.model.forward(&mut self.backend, &mut self.kv, &mut self.step, batch)?;
        let drawn = self.backend.collect(&mut self.step)?;
        self.metrics.seconds_forward += began.elapsed().as_secs_f64();
        Ok(drawn)
    }
}
