//! A decoder together with its backend, keys and values ([`Loaded`]): the [`StepRunner`] of one backend, and the only
//! place where the type of a backend ends.

use std::ops::Range;
use std::time::Duration;

use super::config::ModelConfig;
use super::decoder::Decoder;
use super::lora::{Adapter, StagedAdapter};
use super::runner::{RunnerFacts, StepFailure, StepLimits, StepRunner, no_adapter};
use offshoot_backend::{AdapterSlot, Backend, SampledToken, SavedPages, StepBatch, StepShape};
use offshoot_core::error::Result;
use offshoot_core::ids::{PageId, StateId};
use offshoot_kv::plan::NewPage;

/// A model that was loaded on one backend.
pub struct Loaded<B: Backend> {
    /// Made by `prepare`. Dropped before the backend: graphs that were captured name what it gives back.
    step: Option<B::Step>,
    backend: B,
    decoder: Decoder<B>,
    /// Made by `allocate`.
    kv: Option<B::Kv>,
    /// An adapter that is loaded and in no slot yet.
    staged: Option<StagedAdapter<B>>,
}

const PREPARED: &str = "an engine prepares its model before the first step";
const ALLOCATED: &str = "an engine allocates its model's pages before it uses one";

impl<B: Backend> Decoder<B> {
    /// The decoder with the backend on which it was loaded, for an engine.
    pub fn on(self, backend: B) -> Box<dyn StepRunner> {
        Box::new(Loaded::new(backend, self))
    }
}

impl<B: Backend> Loaded<B> {
    /// `decoder` was loaded on this backend.
    pub(super) fn new(backend: B, decoder: Decoder<B>) -> Self {
        Loaded { step: None, backend, decoder, kv: None, staged: None }
    }

    pub(super) fn backend(&self) -> &B {
        &self.backend
    }

    /// The first half of `load_adapter`: nothing changes before `put_adapter`, nor after an error.
    pub(super) fn stage_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        self.staged = None;
        self.staged = Some(self.decoder.stage_adapter(&mut self.backend, adapter)?);
        Ok(())
    }

    /// The second half.
    pub(super) fn put_adapter(&mut self, slot: AdapterSlot) {
        if let Some(staged) = self.staged.take() {
            self.decoder.put_adapter(&mut self.backend, slot, staged);
        }
    }

    /// Forgets what was staged.
    pub(super) fn drop_staged(&mut self) {
        self.staged = None;
    }

    /// Enqueues the loaded step.
    fn enqueue(&mut self, shape: StepShape) -> Result<(), StepFailure> {
        let Loaded { step, backend, decoder, kv, .. } = self;
        let (step, kv) = (step.as_mut().expect(PREPARED), kv.as_mut().expect(ALLOCATED));
        match decoder.enqueue(backend, kv, step, shape) {
            Ok(_) => Ok(()),
            Err(error) => Err(StepFailure { error, has_begun: backend.has_begun() }),
        }
    }
}

impl<B: Backend> StepRunner for Loaded<B> {
    fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    fn facts(&self) -> RunnerFacts {
        let Loaded { backend, decoder, .. } = self;
        let one_page = decoder.kv_shape(1);
        RunnerFacts {
            device: backend.describe(),
            arithmetic: backend.arithmetic(),
            page_layout: backend.page_layout(),
            batch_invariant: backend.tile() > 1,
            is_async: B::IS_ASYNC,
            devices: backend.devices(),
            page_tokens: backend.page_tokens(),
            page_bytes: backend.page_bytes(&one_page),
            kv_bytes_per_token: decoder.kv_bytes_per_token(),
            state_bytes: one_page.states.state_bytes(),
            page_groups: decoder.config().page_groups(backend),
            swap_rates: backend.swap_rates(),
            plan_hints: decoder.plan_hints().to_vec(),
            layers_by_plan: decoder.layers_by_plan().to_vec(),
        }
    }

    fn free_bytes(&self) -> Result<usize> {
        self.backend.free_bytes()
    }

    fn kv_room(&self) -> Result<usize> {
        let Loaded { backend, decoder, .. } = self;
        let free = backend.free_bytes()?;
        let most_pages = free / backend.page_bytes(&decoder.kv_shape(1));
        Ok(free.saturating_sub(backend.kv_overhead_bytes(&decoder.kv_shape(most_pages))))
    }

    fn prepare(&mut self, limits: StepLimits) -> Result<()> {
        let Loaded { step, backend, decoder, .. } = self;
        let StepLimits { deterministic, longest, largest } = limits;
        if deterministic {
            decoder.set_batch_invariant(backend);
        }
        decoder.set_longest(backend, longest)?;
        let step = step.insert(decoder.step(backend)?);
        decoder.reserve(backend, step, largest)
    }

    fn allocate(&mut self, pages: usize, states: usize) -> Result<()> {
        self.kv = Some(self.backend.kv(&self.decoder.kv_shape(pages).with_states(states))?);
        Ok(())
    }

    fn clear(&mut self) {
        self.step = None;
        self.kv = None;
    }

    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure> {
        let step = self.step.as_mut().expect(PREPARED);
        let shape = self.decoder.load_batch(&mut self.backend, step, batch).map_err(StepFailure::before)?;
        self.enqueue(shape)
    }

    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure> {
        let step = self.step.as_mut().expect(PREPARED);
        let loaded = self.decoder.load_advanced(&mut self.backend, step, uniforms, new_pages);
        self.enqueue(loaded.map_err(StepFailure::before)?)
    }

    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        self.backend.collect(self.step.as_mut().expect(PREPARED))
    }

    fn idle(&self) -> Option<Duration> {
        self.backend.idle()
    }

    fn save_pages(&mut self, pages: &[PageId]) -> Result<SavedPages> {
        self.backend.save_pages(self.kv.as_ref().expect(ALLOCATED), pages)
    }

    fn restore_pages(&mut self, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        self.backend.restore_pages(self.kv.as_mut().expect(ALLOCATED), saved, pages)
    }

    fn join_pages(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        B::join_saved(self.kv.as_ref().expect(ALLOCATED), saved, page, others, from, slots);
    }

    fn save_state(&mut self, slot: StateId) -> Result<Vec<u8>> {
        self.backend.save_state(self.kv.as_ref().expect(ALLOCATED), slot)
    }

    fn restore_state(&mut self, saved: &[u8], slot: StateId) -> Result<()> {
        self.backend.restore_state(self.kv.as_mut().expect(ALLOCATED), saved, slot)
    }

    fn load_adapter(&mut self, slot: AdapterSlot, adapter: &Adapter) -> Result<()> {
        self.stage_adapter(adapter)?;
        self.put_adapter(slot);
        Ok(())
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<()> {
        match self.decoder.remove_adapter(&mut self.backend, slot) {
            true => Ok(()),
            false => Err(no_adapter(slot)),
        }
    }
}
