//! A decoder together with its backend, keys and values ([`Loaded`]): the [`StepRunner`] of one backend, and the only
//! place where the type of a backend ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::config::ModelConfig;
use super::decoder::Decoder;
use super::lora::{Adapter, StagedAdapter};
use super::runner::{KvRoom, RowValues, RunnerFacts, StepFailure, StepLimits, StepRunner, no_adapter};
use super::sleep::{self, PartMemory, Sleep, SleepParts, WeightSleep};
use super::update::{CheckedUpdate, WeightForm, no_weights};
use offshoot_backend::{
    AdapterSlot, Backend, MemoryPart, SampleRequest, SampledToken, SavedPages, StepBatch, StepShape,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::NewPage;

/// A model that was loaded on one backend.
pub struct Loaded<B: Backend> {
    /// Made by `prepare`. Dropped before the backend: graphs that were captured name what it gives back.
    step: Option<B::Step>,
    backend: B,
    decoder: Decoder<B>,
    /// Made by `allocate`; none while keys and values sleep on a device that drops them.
    kv: Option<B::Kv>,
    /// An adapter that is loaded and in no slot yet.
    staged: Option<StagedAdapter<B>>,
    /// What `allocate` was called with.
    room: Option<KvRoom>,
    /// What sleeps.
    asleep: SleepParts,
    late: LateRequests,
}

/// The late requests of the step that was submitted last, one for each of so many rows of logits.
#[derive(Clone, Copy)]
enum LateRequests {
    /// It has none.
    None,
    Awaited(usize),
    Given(usize),
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
        let asleep = SleepParts::NONE;
        Loaded { step: None, backend, decoder, kv: None, room: None, asleep, staged: None, late: LateRequests::None }
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

    /// Refuses a step while a part sleeps, or without weights.
    fn check_awake(&self) -> Result<(), StepFailure> {
        match (self.asleep.any(), self.decoder.has_weights()) {
            (true, _) => Err(StepFailure::before(sleeps(self.asleep))),
            (false, false) => Err(StepFailure::before(no_weights())),
            (false, true) => Ok(()),
        }
    }

    /// Loads the tensors of an update, which `end_update` puts in force.
    pub(super) fn load_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        if self.asleep.weights {
            return Err(sleeps(self.asleep));
        }
        self.decoder.load_update(&mut self.backend, update)
    }

    /// See `Decoder::end_update`.
    pub(super) fn end_update(&mut self, is_loaded: bool) {
        self.decoder.end_update(is_loaded);
    }

    /// Refuses a step while the one before it waits for its requests.
    fn check_sampled(&self) -> Result<(), StepFailure> {
        match self.late {
            LateRequests::Awaited(rows) => {
                let found = format!("a step is submitted while the last one waits for {rows} late requests");
                Err(StepFailure::before(Error::Internal(found)))
            }
            LateRequests::None | LateRequests::Given(_) => Ok(()),
        }
    }

    /// Enqueues the loaded step, which then waits for its `late` requests.
    fn enqueue(&mut self, shape: StepShape, late: LateRequests) -> Result<(), StepFailure> {
        let Loaded { step, backend, decoder, kv, .. } = self;
        let (step, kv) = (step.as_mut().expect(PREPARED), kv.as_mut().expect(ALLOCATED));
        match decoder.enqueue(backend, kv, step, shape) {
            Ok(_) => {
                self.late = late;
                Ok(())
            }
            Err(error) => Err(StepFailure { error, has_begun: backend.has_begun() }),
        }
    }

    /// Enqueues the sampling of the late requests of the step that was submitted last.
    pub(super) fn sample_late(&mut self, requests: Vec<SampleRequest>) -> Result<(), StepFailure> {
        let LateRequests::Awaited(rows) = self.late else {
            let found = format!("{} late requests of a step that awaits none", requests.len());
            return Err(StepFailure::before(Error::Internal(found)));
        };
        if requests.len() != rows || requests.iter().any(|request| request.unseen.is_some()) {
            let found =
                format!("{} late requests for {rows} rows of logits, or tokens that are unseen", requests.len());
            return Err(StepFailure::before(Error::Internal(found)));
        }
        self.decoder.sample_late(&mut self.backend, self.step.as_mut().expect(PREPARED), requests)?;
        self.late = LateRequests::Given(rows);
        Ok(())
    }
}

impl<B: Backend> PartMemory for Loaded<B> {
    fn sleep_weights(&mut self, weights: WeightSleep) -> Result<bool> {
        self.backend.sleep(MemoryPart::Weights, weights == WeightSleep::InHostMemory)
    }

    fn drop_weights(&mut self, keeps_memory: bool) {
        self.decoder.drop_weights(keeps_memory);
    }

    fn sleep_kv(&mut self) -> Result<()> {
        if !self.backend.sleep(MemoryPart::Kv, false)? {
            self.kv = None;
            self.decoder.drop_copies();
        }
        Ok(())
    }

    fn wake_weights(&mut self) -> Result<()> {
        self.backend.wake(MemoryPart::Weights)
    }

    fn wake_kv(&mut self) -> Result<()> {
        self.backend.wake(MemoryPart::Kv)?;
        match (&self.kv, self.room) {
            (None, Some(room)) => self.allocate(room),
            _ => Ok(()),
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
        let layout = match decoder.routes() {
            Some(_) => format!("{}, with experts", backend.page_layout()),
            None => backend.page_layout(),
        };
        RunnerFacts {
            device: backend.describe(),
            arithmetic: backend.arithmetic(),
            page_layout: layout,
            batch_invariant: backend.tile() > 1,
            is_async: B::IS_ASYNC,
            devices: backend.devices(),
            page_tokens: backend.page_tokens(),
            page_bytes: backend.page_bytes(&one_page),
            kv_bytes_per_token: decoder.kv_bytes_per_token(),
            copy_page_bytes: decoder.copy_page_bytes(backend),
            state_bytes: one_page.states.state_bytes(),
            page_groups: decoder.config().page_groups(backend),
            routes: decoder.routes(),
            values: decoder.config().is_scorer().then(|| decoder.config().outputs()),
            swap_rates: backend.swap_rates(),
            // The host computes what adapters add from f32.
            adapter_element_bytes: if B::IS_ASYNC { decoder.dtype().bytes() } else { size_of::<f32>() },
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
        // The pages of a model without attention take no memory, nor does what lies beside them.
        let most_pages = free.checked_div(backend.page_bytes(&decoder.kv_shape(1))).unwrap_or(0);
        Ok(free.saturating_sub(backend.kv_overhead_bytes(&decoder.kv_shape(most_pages))))
    }

    fn prepare(&mut self, limits: StepLimits) -> Result<()> {
        let Loaded { step, backend, decoder, .. } = self;
        let StepLimits { deterministic, longest, largest, keeps_routes } = limits;
        decoder.keep_routes(keeps_routes)?;
        if deterministic {
            decoder.set_batch_invariant(backend);
        }
        decoder.set_longest(backend, longest)?;
        let step = step.insert(decoder.step(backend)?);
        decoder.reserve(backend, step, largest)
    }

    fn allocate(&mut self, room: KvRoom) -> Result<()> {
        let shape = self.decoder.kv_shape(room.pages).with_states(room.states);
        self.kv = Some(self.backend.kv(&shape)?);
        self.decoder.allocate_copies(&mut self.backend, room.copies)?;
        self.room = Some(room);
        Ok(())
    }

    fn clear(&mut self) {
        self.step = None;
        self.late = LateRequests::None;
        self.kv = None;
        self.decoder.drop_copies();
        self.room = None;
        self.asleep.kv = false;
    }

    fn weight_form(&self) -> Arc<WeightForm> {
        self.decoder.weight_form()
    }

    fn apply_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        let loaded = self.load_update(update);
        self.end_update(loaded.is_ok());
        loaded
    }

    fn has_weights(&self) -> bool {
        self.decoder.has_weights()
    }

    fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        let mut asleep = self.asleep;
        // Keys and values that were never allocated have nothing to give back.
        let sleep = Sleep { kv: sleep.kv && self.room.is_some(), ..sleep };
        let slept = sleep::sleep(self, &mut asleep, sleep);
        self.asleep = asleep;
        slept
    }

    fn asleep(&self) -> SleepParts {
        self.asleep
    }

    fn wake(&mut self, parts: SleepParts) -> Result<()> {
        let mut asleep = self.asleep;
        let woken = sleep::wake(self, &mut asleep, parts);
        self.asleep = asleep;
        woken
    }

    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure> {
        self.check_awake()?;
        self.check_sampled()?;
        let late =
            if batch.requests.are_late() { LateRequests::Awaited(batch.logit_rows.len()) } else { LateRequests::None };
        let step = self.step.as_mut().expect(PREPARED);
        let shape = self.decoder.load_batch(&mut self.backend, step, batch).map_err(StepFailure::before)?;
        self.enqueue(shape, late)
    }

    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure> {
        self.check_awake()?;
        self.check_sampled()?;
        let late = match self.late {
            LateRequests::Given(rows) | LateRequests::Awaited(rows) => LateRequests::Awaited(rows),
            LateRequests::None => LateRequests::None,
        };
        let step = self.step.as_mut().expect(PREPARED);
        let loaded = self.decoder.load_advanced(&mut self.backend, step, uniforms, new_pages);
        self.enqueue(loaded.map_err(StepFailure::before)?, late)
    }

    fn sample(&mut self, requests: Vec<SampleRequest>) -> Result<()> {
        self.sample_late(requests).map_err(|failure| failure.error)
    }

    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        self.backend.collect(self.step.as_mut().expect(PREPARED))
    }

    fn collect_values(&mut self) -> Result<RowValues> {
        let data = self.backend.collect_values(self.step.as_mut().expect(PREPARED))?;
        Ok(RowValues { width: self.decoder.config().outputs(), data })
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

    fn read_routes(&mut self, slots: &[KvSlot]) -> Result<Vec<u16>> {
        self.backend.read_routes(self.kv.as_ref().expect(ALLOCATED), slots)
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

/// The error of what a model is asked for while parts of it sleep.
fn sleeps(parts: SleepParts) -> Error {
    let found = match parts {
        SleepParts { weights: true, kv: true } => "weights, keys and values asleep",
        SleepParts { weights: true, kv: false } => "weights asleep",
        SleepParts { .. } => "keys and values asleep",
    };
    Error::value("the model", "one that was woken, before it is used", found)
}
