//! The order of the steps of several models on one GPU, each on the stream of its own backend.
//!
//! # Why steps follow each other
//! The blocks of an attention kernel wait for one another, which they may because all of them are resident at a time
//! (`kernels/attention/ended.cuh`). Of two such kernels on two streams each might have a part of its blocks resident
//! and wait for the rest for ever. So a step begins on the device behind the one that was enqueued before it, whichever
//! backend's that was. The host waits for nothing: it enqueues the wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::device::Device;
use crate::driver::event::Event;
use offshoot_core::error::Result;

/// What the backends of several models on one GPU share.
#[derive(Default)]
pub struct StepOrder {
    /// The end of the step that was enqueued last.
    last: Mutex<Option<Arc<Event>>>,
}

/// A step that is being enqueued, while no other one is. Its end is marked when this is dropped, also where the step
/// has failed and only a part of it was enqueued.
pub struct StepTurn<'o> {
    last: MutexGuard<'o, Option<Arc<Event>>>,
    end: Arc<Event>,
}

impl StepOrder {
    /// Waits until no other step is being enqueued, and has what is enqueued on `device` from now on begin behind the
    /// last one. `end`: the mark of `device`, moved by each of its steps.
    pub fn begin(&self, device: &Device, end: &Arc<Event>) -> Result<StepTurn<'_>> {
        // What a panic left enqueued has its end marked as well.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| !Arc::ptr_eq(last, end)) {
            device.wait_for(last)?;
        }
        Ok(StepTurn { last, end: end.clone() })
    }
}

impl Drop for StepTurn<'_> {
    fn drop(&mut self) {
        self.end.record_logged();
        *self.last = Some(self.end.clone());
    }
}
