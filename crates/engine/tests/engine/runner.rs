//! A model between an engine and its runner: a test looks at what the engine asks of it, and lets it fail.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use offshoot_backend::{AdapterSlot, SampleRequest, SampledToken, SavedPages, StepBatch};
use offshoot_core::error::Result;
use offshoot_core::ids::{PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::NewPage;
use offshoot_model::{
    Adapter, CheckedUpdate, KvRoom, ModelConfig, RowValues, RunnerFacts, Sleep, SleepParts, StepFailure, StepLimits,
    StepRunner, WeightForm,
};

/// What is done in the place of a model's own calls.
pub trait Watch: Send {
    /// A step that is submitted next.
    fn see(&mut self, _: &StepBatch) {}

    /// The late requests of the step that was submitted last; an error in the place of the model's own answer.
    fn see_requests(&mut self, _: &[SampleRequest]) -> Result<()> {
        Ok(())
    }

    /// What the step that was collected has sampled, to be changed.
    fn change(&mut self, _: &mut [Option<SampledToken>]) {}

    /// The values of the step that was collected, to be changed.
    fn change_values(&mut self, _: &mut RowValues) {}

    fn sleep(&mut self, model: &mut dyn StepRunner, sleep: Sleep) -> Result<()> {
        model.sleep(sleep)
    }

    fn apply_update(&mut self, model: &mut dyn StepRunner, update: &CheckedUpdate<'_>) -> Result<()> {
        model.apply_update(update)
    }
}

/// A model that is watched.
pub struct Watched<W> {
    pub model: Box<dyn StepRunner>,
    pub watch: W,
}

impl<W: Watch> StepRunner for Watched<W> {
    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure> {
        self.watch.see(&batch);
        self.model.submit(batch)
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn facts(&self) -> RunnerFacts {
        self.model.facts()
    }

    fn free_bytes(&self) -> Result<usize> {
        self.model.free_bytes()
    }

    fn kv_room(&self) -> Result<usize> {
        self.model.kv_room()
    }

    fn prepare(&mut self, limits: StepLimits) -> Result<()> {
        self.model.prepare(limits)
    }

    fn allocate(&mut self, room: KvRoom) -> Result<()> {
        self.model.allocate(room)
    }

    fn clear(&mut self) {
        self.model.clear();
    }

    fn weight_form(&self) -> Arc<WeightForm> {
        self.model.weight_form()
    }

    fn apply_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        self.watch.apply_update(&mut *self.model, update)
    }

    fn has_weights(&self) -> bool {
        self.model.has_weights()
    }

    fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        self.watch.sleep(&mut *self.model, sleep)
    }

    fn asleep(&self) -> SleepParts {
        self.model.asleep()
    }

    fn wake(&mut self, parts: SleepParts) -> Result<()> {
        self.model.wake(parts)
    }

    fn load_adapter(&mut self, slot: AdapterSlot, adapter: &Adapter) -> Result<()> {
        self.model.load_adapter(slot, adapter)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<()> {
        self.model.unload_adapter(slot)
    }

    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure> {
        self.model.submit_advanced(uniforms, new_pages)
    }

    fn sample(&mut self, requests: Vec<SampleRequest>) -> Result<()> {
        self.watch.see_requests(&requests)?;
        self.model.sample(requests)
    }

    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        let mut sampled = self.model.collect()?;
        self.watch.change(&mut sampled);
        Ok(sampled)
    }

    fn collect_values(&mut self) -> Result<RowValues> {
        let mut values = self.model.collect_values()?;
        self.watch.change_values(&mut values);
        Ok(values)
    }

    fn idle(&self) -> Option<Duration> {
        self.model.idle()
    }

    fn save_pages(&mut self, pages: &[PageId]) -> Result<SavedPages> {
        self.model.save_pages(pages)
    }

    fn restore_pages(&mut self, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        self.model.restore_pages(saved, pages)
    }

    fn read_routes(&mut self, slots: &[KvSlot]) -> Result<Vec<u16>> {
        self.model.read_routes(slots)
    }

    fn join_pages(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        self.model.join_pages(saved, page, others, from, slots);
    }

    fn save_state(&mut self, slot: StateId) -> Result<Vec<u8>> {
        self.model.save_state(slot)
    }

    fn restore_state(&mut self, saved: &[u8], slot: StateId) -> Result<()> {
        self.model.restore_state(saved, slot)
    }
}
