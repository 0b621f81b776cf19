//! Two staging slots that steps use in turn: page-locked copies that a step may write, the event that marks its end,
//! and its results on their way to the host. Steps that are never collected, or loaded and never run, affect no other.

use std::collections::VecDeque;

use crate::driver::device::Device;
use crate::driver::event::Event;
use crate::driver::memory::Memory;
use crate::memory::staged::{STAGING_SLOTS, Staged, StagingSlot};
use crate::sampling::ResultLayout;
use offshoot_backend::{Dtype, StepResults};
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

/// What the results of a step are, and where they lie in its bytes.
pub enum StepLayout {
    /// Nothing is sampled.
    None,
    Samples(ResultLayout),
    /// So many values in f32.
    Values(usize),
}

impl StepLayout {
    /// The results of a step that leaves no byte of them on the device.
    fn none(&self) -> Option<StepResults> {
        match self {
            StepLayout::None => Some(StepResults::Samples(Vec::new())),
            StepLayout::Values(0) => Some(StepResults::Values(Vec::new())),
            StepLayout::Samples(_) | StepLayout::Values(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            StepLayout::None => 0,
            StepLayout::Samples(results) => results.bytes(),
            StepLayout::Values(count) => count * Dtype::F32.bytes(),
        }
    }

    fn parse(&self, results: &[u8]) -> StepResults {
        match self {
            StepLayout::None => StepResults::Samples(Vec::new()),
            StepLayout::Samples(layout) => StepResults::Samples(layout.parse(results)),
            StepLayout::Values(_) => {
                StepResults::Values(results[..self.bytes()].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
            }
        }
    }
}

enum UnderWay {
    Running { slot: StagingSlot, results: StepLayout },
    Done(StepResults),
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

    /// Where the results of a step are left.
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

    /// Called when the step is enqueued: enqueues the copy of its results, if it has some.
    pub fn finish(&mut self, device: &Device, results: StepLayout) -> Result<()> {
        let (none, slot) = (results.none(), self.now);
        if none.is_none() {
            self.results.fetch(device, slot, results.bytes())?;
        }
        self.done[slot.ix()].record()?;
        self.unmarked = false;
        self.under_way.push_back(none.map_or(UnderWay::Running { slot, results }, UnderWay::Done));
        Ok(())
    }

    /// Waits for the oldest step in flight. Panics if there is none.
    pub fn collect(&mut self) -> Result<StepResults> {
        match self.under_way.pop_front().expect("a step is run before it is collected") {
            UnderWay::Done(results) => Ok(results),
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
    fn take(&self, slot: StagingSlot, results: &StepLayout) -> Result<StepResults> {
        self.done[slot.ix()].wait()?;
        Ok(results.parse(self.results.bytes(slot)))
    }
}
