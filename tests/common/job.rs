//! The work order that a driver is given in tests.

use std::sync::atomic::AtomicBool;

use offshoot_core::Result;
use offshoot_engine::{SamplingParams, Stop};
use offshoot_search::{Assessor, Sample, SearchJob};

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
        SearchJob { params, stop, assessor, earlier: Vec::new(), record, interrupted }
    }
}
