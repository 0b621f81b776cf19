//! Two staging slots that steps use in turn: page-locked copies that a step may write, the event that marks its end,
//! and its samples on their way to the host. Steps that are never collected, or loaded and never run, affect no other.

use std::collections::VecDeque;

use crate::driver::device::Device;
use crate::driver::event::Event;
use crate::driver::memory::Memory;
use crate::memory::staged::{STAGING_SLOTS, Staged, StagingSlot};
use crate::sampling::ResultLayout;
use offshoot_backend::SampledToken;
use offshoot_core::error::Result;

pub struct StagingSlots {
    now: StagingSlot,
    /// Whether the step of this slot has begun and `done` does not mark its end yet.
    unmarked: bool,
    /// Reached when the step of a slot is done, its results included.
    done: [Event; STAGING_SLOTS],
    results: Staged,
    under_way: VecDeque<UnderWay>,
}

enum UnderWay {
    Running { slot: StagingSlot, results: ResultLayout },
    Done(Vec<Option<SampledToken>>),
}

impl StagingSlots {
    /// With room for `bytes` of results.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(Self {
            now: StagingSlot::default(),
            unmarked: false,
            done: [device.event()?, device.event()?],
            results: Staged::new(device, bytes)?,
            under_way: VecDeque::new(),
        })
    }

    pub fn now(&self) -> StagingSlot {
        self.now
    }

    /// Where the sampler leaves the results of a step.
    pub fn results(&self) -> &Memory {
        self.results.memory()
    }

    /// Begins the next step: waits for the step before last, whose slot it reuses. That step's results are kept aside
    /// if they were not collected.
    pub fn begin(&mut self) -> Result<()> {
        if std::mem::take(&mut self.unmarked) {
            // Copies of a step that was loaded and never run may still be reading this slot.
            self.done[self.now.ix()].record()?;
        }
        let slot = self.now.next();
        self.done[slot.ix()].wait()?;
        self.settle(|other| other == slot)?;
        self.now = slot;
        self.unmarked = true;
        Ok(())
    }

    /// Reserves `bytes` for results; returns whether the device address changed.
    pub fn reserve(&mut self, device: &Device, bytes: usize) -> Result<bool> {
        if bytes > self.results.memory().bytes() {
            self.settle(|_| true)?;
        }
        self.results.reserve(device, bytes)
    }

    /// Called when the step is enqueued: enqueues the copy of its results, if it samples.
    pub fn finish(&mut self, device: &Device, results: Option<&ResultLayout>) -> Result<()> {
        if let Some(results) = results {
            self.results.fetch(device, self.now, results.bytes())?;
        }
        self.done[self.now.ix()].record()?;
        self.unmarked = false;
        self.under_way.push_back(match results {
            Some(results) => UnderWay::Running { slot: self.now, results: results.clone() },
            None => UnderWay::Done(Vec::new()),
        });
        Ok(())
    }

    /// Waits for the oldest step in flight. Panics if there is none.
    pub fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        match self.under_way.pop_front().expect("a step is run before it is collected") {
            UnderWay::Done(sampled) => Ok(sampled),
            UnderWay::Running { slot, results } => self.take(slot, &results),
        }
    }

    /// Takes the results of steps in flight from some slots, so that their memory can be reused or freed.
    fn settle(&mut self, of: impl Fn(StagingSlot) -> bool) -> Result<()> {
        for ix in 0..self.under_way.len() {
            if let UnderWay::Running { slot, results } = &self.under_way[ix]
                && of(*slot)
            {
                self.under_way[ix] = UnderWay::Done(self.take(*slot, results)?);
            }
        }
        Ok(())
    }

    /// Waits for the step of `slot`.
    fn take(&self, slot: StagingSlot, results: &ResultLayout) -> Result<Vec<Option<SampledToken>>> {
        self.done[slot.ix()].wait()?;
        Ok(results.parse(self.results.bytes(slot)))
    }
}
