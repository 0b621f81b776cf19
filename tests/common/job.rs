//! The work order that a driver is given in tests, and the tree that it searches.

use std::sync::atomic::AtomicBool;

use offshoot_core::Result;
use offshoot_engine::scripted::tokens_of;
use offshoot_engine::{EngineHandle, SamplingParams, Stop};
use offshoot_search::tree::{Prompt, SamplingTree};
use offshoot_search::{Assessor, Sample, SearchJob};

/// A prompt for engines that answer by a script, whose tokens are bytes.
pub fn prompt_of(text: &str) -> Prompt {
    Prompt { text: text.to_string(), tokens: tokens_of(text) }
}

/// A tree on an engine that answers by a script.
pub fn tree_on(engine: EngineHandle, prompt: &str) -> SamplingTree {
    SamplingTree::new(engine, prompt_of(prompt)).expect("a script takes any prompt").seed(1).named("item")
}

/// What a job borrows, but for what assesses its samples and where they go.
#[derive(Default)]
pub struct Order {
    pub params: SamplingParams,
    pub stop: Stop,
    pub interrupted: AtomicBool,
}

impl Order {
    pub fn job<'a>(
        &'a self,
        assessor: Assessor<'a>,
        record: &'a mut dyn FnMut(&Sample) -> Result<()>,
    ) -> SearchJob<'a> {
        let Order { params, stop, interrupted } = self;
        let mut job = SearchJob::new(params, stop).recorded_by(record).interrupted_by(interrupted);
        job.assessor = assessor;
        job
    }
}
