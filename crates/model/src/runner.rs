//! What an engine asks of a model in memory ([`StepRunner`]): one object-safe trait at the grain of a step, below which
//! devices differ and above which an engine has no type parameter. A model on one backend implements it
//! ([`super::Loaded`]). Which rows a step has, which pages they use and what becomes of samples is left to the engine.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::config::ModelConfig;
use super::lora::Adapter;
use super::sleep::{Sleep, SleepParts};
use super::update::{CheckedUpdate, UpdateScope, WeightForm};
use super::weights::TensorSource;
use offshoot_backend::{
    AdapterSlot, CopyStore, RouteShape, SampleRequest, SampledToken, SavedPages, StepBatch, StepShape, SwapRates,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{PageId, StateId};
use offshoot_kv::plan::{NewPage, PlanHints};
use offshoot_kv::{KvSlot, PageGroups};

/// A model in the memory of its device, or of several that compute it together, with its keys and values.
///
/// An engine first calls [`prepare`](StepRunner::prepare), then [`allocate`](StepRunner::allocate), each once; the
/// methods below these panic before. Then it submits steps and collects them in the same order; it may submit the next
/// step before it collects the last one. Pages and states are copied in between, in the order of the calls: a copy sees
/// what all steps submitted before it compute, and a step sees what was restored before it.
pub trait StepRunner: Send {
    fn config(&self) -> &ModelConfig;

    /// What engines and planners need to know of the model on this device. `prepare` may change it.
    fn facts(&self) -> RunnerFacts;

    /// Bytes of the device's memory that can still be allocated.
    fn free_bytes(&self) -> Result<usize>;

    /// Free bytes that pages and states can have: without what `allocate` takes beside them.
    fn kv_room(&self) -> Result<usize>;

    /// Allocates what steps within `limits` need, so that no step allocates it later.
    ///
    /// # Errors
    ///
    /// The device lacks memory, or experts are to be kept of a model in which they cannot be
    /// ([`ModelConfig::route_shape`]).
    fn prepare(&mut self, limits: StepLimits) -> Result<()>;

    /// Allocates keys, values and states, and copies of latents.
    ///
    /// # Errors
    ///
    /// The device lacks memory.
    fn allocate(&mut self, room: KvRoom) -> Result<()>;

    /// Frees what `prepare` and `allocate` allocated, with all keys and values, for another engine.
    fn clear(&mut self);

    /// What updates of the weights are checked by, on any thread.
    fn weight_form(&self) -> Arc<WeightForm>;

    /// Puts the tensors of an update in the place of those that are loaded; the others stay. No step may be submitted
    /// and not collected. What was computed with the old weights (keys, values, states) is not to be read again.
    ///
    /// # Errors
    ///
    /// The device fails or lacks memory, or weights were dropped and the update has not all. The old weights are in
    /// force, unless [`has_weights`](StepRunner::has_weights) says that none are: only where a device that replaces
    /// weights in place has failed midway.
    fn apply_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()>;

    /// Checks an update and applies it.
    ///
    /// # Errors
    ///
    /// As [`WeightForm::check`], before which nothing changes, and [`StepRunner::apply_update`].
    fn update_weights(&mut self, source: &dyn TensorSource, scope: UpdateScope) -> Result<()> {
        let form = self.weight_form();
        let update = form.check(source, scope)?;
        self.apply_update(&update)
    }

    /// Whether weights are loaded: not after they were dropped ([`WeightSleep::Dropped`](super::WeightSleep::Dropped)),
    /// until an update of all has succeeded.
    fn has_weights(&self) -> bool;

    /// Gives memory back to the device, so that others have it. No step may be submitted and not collected. Until
    /// [`wake`](StepRunner::wake) steps are refused. Parts that sleep already stay asleep.
    ///
    /// # Errors
    ///
    /// The host lacks memory for the weights, or the device fails. What was awake is awake again, unless
    /// [`asleep`](StepRunner::asleep) says otherwise: then the device failed once more. Keys, values and states may be
    /// gone.
    fn sleep(&mut self, sleep: Sleep) -> Result<()>;

    /// What sleeps.
    fn asleep(&self) -> SleepParts;

    /// Takes the memory of these parts again, at the addresses that it had. Pages and states are as many as before, and
    /// hold nothing. Parts that are awake stay so.
    ///
    /// # Errors
    ///
    /// The device lacks memory: the parts that could not wake sleep on.
    fn wake(&mut self, parts: SleepParts) -> Result<()>;

    /// Submits a step: loads its integers and enqueues its ops. A device that computes asynchronously may not have
    /// begun when this returns; any other has ended. A step whose requests are late
    /// ([`StepRequests::Late`](offshoot_backend::StepRequests::Late)) is computed up to its logits.
    ///
    /// # Errors
    ///
    /// A token or position out of range, or a shortage of memory ([`Error::is_shortage`]), after which a step with
    /// fewer rows can still be submitted; or a part of the model sleeps or has no weights.
    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure>;

    /// Submits the last step again, each row one token further ([`StepBatch::advance`]): only if
    /// [`StepBatch::can_advance`], and at most [`MOST_COUNTED`](offshoot_backend::MOST_COUNTED) times if a request has
    /// penalties. `uniforms`: one for each row, not read where requests are late. `new_pages`: for rows whose token is
    /// the first of a page.
    ///
    /// # Errors
    ///
    /// As [`StepRunner::submit`].
    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure>;

    /// Gives the step that was submitted last its late requests
    /// ([`StepRequests::Late`](offshoot_backend::StepRequests::Late)), one for each row of its logits, and enqueues
    /// their sampling: before the next step is submitted, and before the step is collected. A step that was submitted
    /// as an advanced one gets new requests. None has an unseen token ([`SampleRequest::unseen`]): the steps before
    /// were collected when requests are made from what they sampled.
    ///
    /// # Errors
    ///
    /// The device fails or lacks memory. After a shortage ([`Error::is_shortage`]) the step still waits for requests,
    /// and may get others.
    fn sample(&mut self, requests: Vec<SampleRequest>) -> Result<()>;

    /// Waits for the oldest step that was submitted and not collected. Returns one sample for each of its requests;
    /// `None` where no token may be sampled ([`collect`](offshoot_backend::Backend::collect)).
    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>>;

    /// Waits for the oldest step that was submitted and not collected, one of
    /// [`StepRequests::Values`](offshoot_backend::StepRequests::Values): only of a scorer
    /// ([`RunnerFacts::values`]). Returns the values of the step's logits rows.
    fn collect_values(&mut self) -> Result<RowValues>;

    /// How long the threads that compute steps had no work while ops ran, in the mean of all threads, since the device
    /// was opened. `None` if it is not counted.
    fn idle(&self) -> Option<Duration>;

    /// Copies pages to host memory.
    fn save_pages(&mut self, pages: &[PageId]) -> Result<SavedPages>;

    /// Copies saved pages, in the same order, to `pages`, which may be other ones. `saved` may come from another model
    /// of the same [`page_layout`](RunnerFacts::page_layout), shape and dtypes.
    fn restore_pages(&mut self, saved: &SavedPages, pages: &[PageId]) -> Result<()>;

    /// The experts kept in `slots` of the page group that [`RunnerFacts::routes`] names, `[slots, layers, chosen]`,
    /// after all submitted steps. Only where it names one.
    fn read_routes(&mut self, slots: &[KvSlot]) -> Result<Vec<u16>>;

    /// Overwrites `slots` of page number `page` of `saved` with those of page number `from` of `others`, both saved by
    /// this model.
    fn join_pages(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>);

    /// Copies the state in `slot`, all recurrent layers, to host memory: [`state_bytes`](RunnerFacts::state_bytes)
    /// bytes in the device's own order.
    fn save_state(&mut self, slot: StateId) -> Result<Vec<u8>>;

    /// Copies a saved state to `slot`, which may be another one.
    fn restore_state(&mut self, saved: &[u8], slot: StateId) -> Result<()>;

    /// Loads an adapter in a slot, in place of what is there. Steps that were submitted before are computed with what
    /// was there; rows of later ones may name the slot (`StepBatch::adapters`).
    ///
    /// # Errors
    ///
    /// The adapter is not one for this model, or the device lacks memory: then the slot is as it was.
    fn load_adapter(&mut self, slot: AdapterSlot, adapter: &Adapter) -> Result<()>;

    /// Empties a slot, after which no step may name it.
    ///
    /// # Errors
    ///
    /// There is no adapter.
    fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<()>;
}

/// What a scorer computed for the logits rows of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RowValues {
    /// Values of a row; at least one.
    pub width: usize,
    /// The values of one row after the other. Some may be no finite numbers.
    pub data: Vec<f32>,
}

impl RowValues {
    /// The values of each row.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.width)
    }
}

/// A model on its device, in numbers.
#[derive(Clone, Debug)]
pub struct RunnerFacts {
    /// One line for people: device, instruction set or architecture, threads.
    pub device: String,
    /// Identifies the arithmetic: models with equal strings compute the same bits when batch-invariant.
    pub arithmetic: String,
    /// Names the order of the bytes of saved pages, beside the model's shape and dtypes.
    pub page_layout: String,
    /// Whether a row's results depend on that row alone, to the last bit.
    pub batch_invariant: bool,
    /// Whether the device computes asynchronously, in its own memory.
    pub is_async: bool,
    /// Devices that compute the model together.
    pub devices: usize,
    /// Slots of a page.
    pub page_tokens: u32,
    /// Bytes of a page, all layers of a page group; of several devices, those of all.
    pub page_bytes: usize,
    pub kv_bytes_per_token: usize,
    /// Bytes of a page of copies of latents, by [`CopyStore`]; 0 if the model has no latent attention.
    pub copy_page_bytes: [usize; CopyStore::COUNT],
    /// Bytes of a state, all recurrent layers; 0 if the model has none.
    pub state_bytes: usize,
    pub page_groups: PageGroups,
    /// What is kept of each token's experts beside its keys and values; `None`: nothing was asked for in `prepare`.
    pub routes: Option<RouteShape>,
    /// The values that a scorer computes for a row; `None`: the model generates.
    pub values: Option<usize>,
    pub swap_rates: SwapRates,
    /// Bytes of a number of an adapter.
    pub adapter_element_bytes: usize,
    /// One for each kind of attention among the layers. A step has one plan for each, in this order.
    pub plan_hints: Vec<PlanHints>,
    /// The number of layers that use each plan.
    pub layers_by_plan: Vec<usize>,
}

/// What an engine's keys, values and states have room in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvRoom {
    /// Pages of all page groups together.
    pub pages: usize,
    pub states: usize,
    /// Pages for copies of latents, by [`CopyStore`]; 0 of both where there are none.
    pub copies: [usize; CopyStore::COUNT],
}

/// Bounds on the steps that a model is prepared for.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Whether a row's results must depend on that row alone, to the last bit, at the cost of speed.
    pub deterministic: bool,
    /// Tokens of the longest sequence: at most the model's context.
    pub longest: usize,
    pub largest: StepShape,
    /// Whether the experts of each token are kept beside its keys and values. Costs memory and, in the last layer of a
    /// prompt, the experts of rows whose logits nobody reads.
    pub keeps_routes: bool,
}

/// The error of a slot that is to be emptied and is empty.
pub(super) fn no_adapter(slot: AdapterSlot) -> Error {
    Error::value("adapter slot", "one that an adapter is loaded in", slot.number().to_string())
}

/// Why a step was not submitted.
#[derive(Debug)]
pub struct StepFailure {
    pub error: Error,
    /// Whether ops of the step may have been computed, in part or all: of the states that it changes none is to be read
    /// again. If not, nothing has changed.
    pub has_begun: bool,
}

impl StepFailure {
    /// A failure before the first op.
    pub fn before(error: Error) -> Self {
        StepFailure { error, has_begun: false }
    }
}
