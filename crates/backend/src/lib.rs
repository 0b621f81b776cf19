//! Floor 3: the ops of a transformer step ([`Backend`]). They are specified here in prose, defined on the CPU by clear
//! loops, and implemented again where they must be fast. Callers see rows, tokens, plans and opaque buffers; backends
//! manage memory.
//!
//! Activations are row-major buffers of `rows x width` in f32 or, where [`ActivationDtype`] allows it, the compute
//! dtype. Three types are separate: how a matrix is stored ([`WeightFormat`]), the dtype of the operands of its
//! products ([`Dtype`], the compute dtype: that of a dense matrix's elements), and how keys and values are stored
//! ([`KvDtype`]).
//!
//! *Arithmetic by compute dtype*. f32: f32 operands, f32 accumulation. f16 and bf16: the activation operand of a dot
//! product may be rounded to that dtype (to nearest even), products are accumulated in f32, and a backend may store
//! buffers of [`ActivationDtype::Operands`] in it. Keys and values are stored in the compute dtype, or first rounded to
//! the KV dtype. Attention follows the same rule: queries and softmax numerators may be rounded to the dtype of keys
//! and values, or to f16 where these are fp8.
//!
//! *Quantised matrices* ([`quantised`]): an element is `scale * (code - zero)`. Activations are rounded to what the
//! format says ([`Rounding`]), or to nothing; products of integers are exact, others are accumulated in f32.
//!
//! *Batch invariance*: an op's result for a row depends on that row's inputs only, to the last bit; see `plan` for
//! attention. A backend whose tile is 1 does not guarantee it before [`Backend::set_batch_invariant`] is called.
//!
//! *Steps*: the integers of a step are loaded once ([`Backend::load`]), and ops read them from there. A backend may
//! enqueue work and return; only `collect` and `read` wait for results. Work runs in the order it was enqueued, so a
//! page may be reused as soon as its last reader is enqueued.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod allowed;
mod device_memory;
mod experts;
mod gated_norm;
mod kv_dtype;
mod latent;
mod levels;
mod lora;
mod matrix;
pub mod quantised;
pub mod ranks;
mod routes;
mod sampling;
mod saved;
mod scoring;
mod shapes;
mod split;
mod states;
mod step;
mod timed;
mod weights;

use std::ops::Range;
use std::time::Duration;

use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{CostModel, NewPage};

pub use allowed::AllowedTokens;
pub use device_memory::{DeviceBytes, DeviceLender, DeviceMemory, DeviceView, IpcHandle, Keeper, MemoryBlock};
pub use experts::{
    ExpertInput, ExpertKind, Gate, GroupMerit, LeastSum, Router, RouterGroups, RouterScores, RouterWeighs,
};
pub use gated_norm::{GateFunction, GatedNorm, NormOrder};
pub use kv_dtype::{KvDtype, e4m3, e4m3_code, of_e4m3};
pub use latent::{LatentHeads, LatentSteps};
pub use levels::{Attended, AttentionLevels, LevelBounds, LevelMass, LevelRow, MOST_LEVELS};
pub use lora::{AdapterSlot, LoraPiece, LoraShape, LoraWeights, MOST_ADAPTERS, MOST_RANK, StepRows};
pub use matrix::{BlockView, HeldPart, MatrixPart, StackShape, WeightFormat, all_quantised, with_bytes, with_dense};
pub use offshoot_kv::{CopyStore, Expansion};
pub use quantised::{CodeFormat, QuantFormat, QuantRow, QuantSource, QuantView, Rounding, RoundingKind, ScaleSource};
pub use routes::RouteShape;
pub use sampling::{
    Distribution, Drawn, Filters, MOST_COUNTED, MOST_KEPT, MOST_TOP, Pick, Records, SampleRequest, SampledToken,
    SeenToken,
};
pub use saved::SavedPages;
pub use scoring::Scoring;
pub use shapes::{
    HeadKind, HeadLayout, HeadNormForm, HeadNormSpan, HeadSteps, KvShape, MOST_HEAD_DIM, MOST_ROPES, Values,
};
pub use split::{Segment, Share, Split};
pub use states::{
    ConvShape, DeltaHeads, L2_EPS, LayerState, MOST_CONV_TOKENS, ScanRule, StateDtype, StateKind, StateRule,
    StateShape, scan_block,
};
pub use step::{CopiesShape, RowToken, StepBatch, StepRequests, StepResults, StepShape, advance_slots};
pub use timed::{Rates, Timed};
pub use weights::{ActivationDtype, Dtype, Elements, RandomWeight, Uniform, WeightView};

/// Cosines and sines by position, `[positions, rotary / 2]` each, already multiplied by the rope type's attention
/// factor. `rotary` elements of a head are rotated, its first ones or, of latent attention, its last ones: pair `i`,
/// `(a, b) -> (a cos - b sin, b cos + a sin)`, consists of the elements that `pairs` says.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    pub rotary: usize,
    pub pairs: RopePairs,
    /// Whether key heads are rotated too, and not only query heads.
    pub keys: bool,
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

/// Which elements of `rotary` ones are rotated together, as pair `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopePairs {
    /// `i` and `i + rotary / 2`.
    #[default]
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

impl RopePairs {
    /// The elements of pair `i`.
    pub fn elements(self, i: usize, rotary: usize) -> (usize, usize) {
        match self {
            RopePairs::Halves => (i, i + rotary / 2),
            RopePairs::Neighbours => (2 * i, 2 * i + 1),
        }
    }
}

/// Whether an op replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Replace,
    Add,
}

impl OutputMode {
    /// Replaces `out` by `y`, or adds `y` to it.
    #[inline(always)]
    pub fn put(self, out: &mut f32, y: f32) {
        match self {
            OutputMode::Replace => *out = y,
            OutputMode::Add => *out += y,
        }
    }
}

/// Estimated rates to choose how preempted keys and values are restored: by a copy from host memory, or by recomputing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapRates {
    /// Bytes per second between host memory and KV memory, one way.
    pub host_bytes: f64,
    /// Floating-point operations per second of linear layers with many rows.
    pub flops: f64,
}

/// What a device can give the memory back of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPart {
    Weights,
    /// Keys, values and states.
    Kv,
}

/// The ops. `R`: rows of the step; `H`: hidden width; widths are in elements. Ops panic on shapes that do not fit: the
/// decoder checks shapes when it loads a model, so a mismatch is a bug.
pub trait Backend: Send + 'static {
    /// Activations, `rows x width`; see [`ActivationDtype`].
    type Buffer: Send;
    /// A weight matrix `[out, in]` in the layout this backend multiplies fastest.
    type Matrix: Send + Sync;
    /// A weight vector, f32.
    type Vector: Send + Sync;
    /// The matrices of the experts of a mixture, and their biases.
    type Experts: Send + Sync;
    /// The experts chosen for the rows of a step, and the rows of each expert.
    type Routes: Send;
    /// Keys and values of all layers, in pages.
    type Kv: Send;
    /// The maps of a layer's latents to the keys and values of all heads (see [`LatentHeads`]).
    type LatentMaps: Send + Sync;
    /// A [`RopeTable`] in the memory that ops read.
    type Rope: Send;
    /// The loaded step in the memory that ops read, and the samples not collected yet.
    type Step: Send;
    /// What the loaded adapters add to one linear layer, by slot.
    type Lora: Send;
    /// What one adapter adds to one linear layer, in the memory that ops read, and in no slot yet.
    type LoraTerm: Send;

    /// Whether the backend computes asynchronously, in its own memory. Then the host can prepare the next step
    /// meanwhile, and pages can be swapped to host memory.
    const IS_ASYNC: bool;

    /// Whether weights of one dtype can multiply activations stored for another one ([`ActivationDtype::Operands`]).
    const MIXES_DTYPES: bool;

    /// Whether weights that replace others are written to the memory of these, which steps name that were captured
    /// (`replace_matrix`): then an error of the device in between leaves weights of both. If not, the old ones stay as
    /// they are until they are dropped.
    const REPLACES_IN_PLACE: bool = false;

    /// Whether activations are put into the order of a quantised matrix's inputs that has one of its own
    /// (`QuantView::order`), and parts of different formats are stacked.
    const ORDERS_INPUTS: bool = true;

    /// Slots per page.
    fn page_tokens(&self) -> u32;

    /// One line for people: device, instruction set or architecture, threads.
    fn describe(&self) -> String;
    /// Identifies the arithmetic: devices with equal strings compute the same bits when batch-invariant.
    fn arithmetic(&self) -> String;
    /// Names the order of the bytes of saved pages ([`SavedPages`]), beside the model's shape and dtypes: devices with
    /// equal strings can restore each other's.
    fn page_layout(&self) -> String;
    /// The costs that planners use for this device.
    fn cost_model(&self) -> CostModel;
    /// The tile size of attention (see `plan`).
    fn tile(&self) -> u32;
    /// The tile size of plans of attention with these heads, over keys and values of `dtype`, within `window`: a
    /// multiple of [`Backend::tile`].
    fn attention_tile(&self, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> u32 {
        let _ = (heads, dtype, window);
        self.tile()
    }
    /// Makes all ops batch-invariant, possibly slower. Steps and plans made before become invalid.
    fn set_batch_invariant(&mut self);
    /// Sets the KV dtype, which is the compute dtype at first. KV memory and steps made before become invalid.
    fn set_kv_dtype(&mut self, kv: KvDtype);
    /// Rates that decide how preempted keys and values are restored.
    fn swap_rates(&self) -> SwapRates;
    /// Bytes that can still be allocated for weights, activations, keys and values.
    fn free_bytes(&self) -> Result<usize>;
    /// How many devices compute together, each of which has a copy of what is not divided (`Split::Whole`). Bytes are
    /// those of all.
    fn devices(&self) -> usize {
        1
    }

    /// How many of them share each key head and divide its keys and values by positions; 1 if each has all of its own.
    fn sharing(&self) -> usize {
        1
    }

    /// Whether it is the first of them, which alone says what concerns all.
    fn is_first(&self) -> bool {
        true
    }

    /// Whether matrices of this format are multiplied as they are stored. Others must be made dense before `matrix`.
    fn multiplies(&self, format: WeightFormat) -> bool;
    /// Whether experts' matrices of this format and of `width` inputs are multiplied as they are stored, also where
    /// devices that compute together divide the inputs.
    fn multiplies_experts(&self, format: WeightFormat, width: usize) -> bool {
        let _ = width;
        self.multiplies(format)
    }
    /// Whether parts in the memory of a GPU ([`MatrixPart::Device`]) are copied from there. If not, none is given.
    fn copies_from_devices(&self) -> bool {
        false
    }
    /// Stacks `parts` (each `[out_i, in]`, equal `in`) into one matrix `[sum out_i, in]`. Dense parts have one dtype
    /// where the backend does not mix dtypes.
    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Self::Matrix>;
    /// Stacks `parts` as `matrix` does, of which a rank keeps what `split` gives it: parts that must become dense are
    /// cut first.
    fn split_matrix(&mut self, parts: &[HeldPart<'_>], _split: &Split) -> Result<Self::Matrix> {
        with_dense(parts, |parts| self.matrix(parts))
    }
    /// Concatenates `parts` into one f32 vector.
    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Vector>;
    /// Concatenates `parts` as `vector` does, of which a rank keeps what `split` gives it.
    fn split_vector(&mut self, parts: &[WeightView<'_>], _split: &Split) -> Result<Self::Vector> {
        self.vector(parts)
    }
    /// One matrix for each expert, of equal shapes and formats; `biases`: none, or one for each expert. Only the op
    /// that `kind` names may be called with them.
    fn experts(
        &mut self,
        matrices: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
        kind: ExpertKind,
    ) -> Result<Self::Experts>;
    /// Loads what takes the place of `old`, as [`Backend::split_matrix`] does: a matrix of the same shape and formats,
    /// divided alike. The bits are those of a matrix that is loaded anew. No step may be running.
    fn replace_matrix(&mut self, old: &Self::Matrix, parts: &[HeldPart<'_>], split: &Split) -> Result<Self::Matrix> {
        let _ = old;
        self.split_matrix(parts, split)
    }
    /// Loads what takes the place of `old`, as [`Backend::split_vector`] does.
    fn replace_vector(&mut self, old: &Self::Vector, parts: &[WeightView<'_>], split: &Split) -> Result<Self::Vector> {
        let _ = old;
        self.split_vector(parts, split)
    }
    /// The maps of a layer with latent attention, a matrix `[heads.map_rows(), rank]` of `parts`, which are dense and
    /// of the compute dtype `dtype` or become so. A rank keeps those of the heads that `split` gives it. `old`: the
    /// maps whose place they take, as in [`Backend::replace_matrix`].
    fn latent_maps(
        &mut self,
        parts: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        split: &Split,
        old: Option<&Self::LatentMaps>,
    ) -> Result<Self::LatentMaps>;
    /// How many times the maps of latents are in memory.
    fn latent_map_copies(&self) -> usize {
        1
    }
    /// Where weights are replaced in place: puts a matrix, which was loaded for it, in the place of that of expert
    /// `expert`, of the same shape and format. Elsewhere experts are loaded anew, and this is not called.
    fn replace_expert(&mut self, experts: &Self::Experts, expert: usize, matrix: Self::Matrix) -> Result<()>;
    /// As [`Backend::replace_expert`], for the expert's bias.
    fn replace_expert_bias(&mut self, experts: &Self::Experts, expert: usize, bias: Self::Vector) -> Result<()>;
    /// Gives the memory of all weights, or of keys, values and states, back to the device, whose other users have it
    /// until [`Backend::wake`]; addresses stay reserved, so that captured steps stay valid. `keeps`: the contents wait
    /// in host memory, else they are lost. Returns false where memory is the host's: nothing is done, and what is not
    /// kept is to be dropped.
    fn sleep(&mut self, part: MemoryPart, keeps: bool) -> Result<bool> {
        let _ = (part, keeps);
        Ok(false)
    }
    /// Takes the memory again that `sleep` has given back.
    fn wake(&mut self, part: MemoryPart) -> Result<()> {
        let _ = part;
        Ok(())
    }
    /// Numbers that ops are called with have changed: steps that were captured with the old ones are forgotten.
    fn forget_steps(&mut self) {}
    /// The elements of a matrix, as it was loaded; `None` if it is not dense. Of several devices that compute together,
    /// each gives a whole matrix that has its own elements, and zeros elsewhere.
    fn read_matrix(&mut self, matrix: &Self::Matrix, split: &Split) -> Result<Option<Elements>>;
    /// The elements of a vector, as [`Backend::read_matrix`] gives those of a matrix.
    fn read_vector(&mut self, vector: &Self::Vector, split: &Split) -> Result<Elements>;
    /// The elements of the matrix of expert `expert`, and of its bias (f32; none: empty), as [`Backend::read_matrix`]
    /// gives those of a matrix.
    fn read_expert(
        &mut self,
        experts: &Self::Experts,
        expert: usize,
        split: &Split,
    ) -> Result<Option<(Elements, Vec<f32>)>>;

    fn rope_table(&mut self, table: &RopeTable) -> Result<Self::Rope>;
    /// A table of empty slots for a layer of this shape, which `split` divides as it does the layer's matrix.
    fn lora(&mut self, shape: &LoraShape, split: &Split) -> Result<Self::Lora>;
    /// Loads an adapter's weights for the layer of `lora`, one for each part; `None`: the adapter adds nothing there.
    /// A backend may round them to the layer's compute dtype.
    fn lora_term(&mut self, lora: &Self::Lora, parts: &[Option<LoraWeights<'_>>]) -> Result<Self::LoraTerm>;
    /// Puts `term` in a slot, or empties it. Steps that were run before still see what was there; later ones need not
    /// be captured anew.
    fn set_lora(&mut self, lora: &mut Self::Lora, slot: AdapterSlot, term: Option<Self::LoraTerm>);
    /// A buffer with no rows.
    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Self::Buffer>;
    /// A buffer with no rows, of which a rank has the share that `_share` says.
    fn shared_buffer(&mut self, width: usize, holds: ActivationDtype, _share: Share) -> Result<Self::Buffer> {
        self.buffer(width, holds)
    }
    /// Sets the row count of a buffer (contents unspecified); reuses its memory if large enough.
    fn resize(&mut self, buffer: &mut Self::Buffer, rows: usize) -> Result<()>;
    /// Routes of no rows, among `experts` experts, of which `router` says how many are identities.
    fn routes(&mut self, experts: usize, router: Router) -> Result<Self::Routes>;
    /// Sets the row count of routes (contents unspecified).
    fn resize_routes(&mut self, routes: &mut Self::Routes, rows: usize) -> Result<()>;
    /// Writes `values`, `[rows, width]`, to the first `rows` rows, rounded to the buffer's dtype.
    fn write(&mut self, buffer: &mut Self::Buffer, rows: usize, values: &[f32]) -> Result<()>;
    /// The first `rows` rows, `[rows, width]`. Waits for enqueued work.
    fn read(&mut self, buffer: &Self::Buffer, rows: usize) -> Result<Vec<f32>>;

    /// Bytes per element of keys and values at the current KV dtype, in layers with these heads and compute dtype.
    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize;
    /// How many of the devices that compute together store each key and value of layers with these heads.
    fn kv_copies(&self, heads: HeadLayout) -> usize {
        let _ = heads;
        1
    }
    /// Bytes per page, all layers of a page group.
    fn page_bytes(&self, shape: &KvShape) -> usize;
    /// Bytes that `kv` allocates in addition to its pages.
    fn kv_overhead_bytes(&self, _shape: &KvShape) -> usize {
        0
    }
    /// Bytes that a recurrent layer needs in a step of up to so many rows, beside its state and activations. All layers
    /// use them in turn.
    fn state_scratch_bytes(&self, _layer: LayerState, _dtype: Dtype, _rows: usize) -> usize {
        0
    }
    /// Allocates as much as any of them needs, so that no step of up to so many rows allocates it later.
    fn reserve_state_scratch(&mut self, _layers: &[LayerState], _dtype: Dtype, _rows: usize) -> Result<()> {
        Ok(())
    }
    /// Allocates KV memory. Errors: no room for it, or recurrent layers that the backend does not compute.
    fn kv(&mut self, shape: &KvShape) -> Result<Self::Kv>;
    /// Copies `pages` to host memory.
    fn save_pages(&mut self, kv: &Self::Kv, pages: &[PageId]) -> Result<SavedPages>;
    /// Copies saved pages, in the same order, to `pages`, which may be other ones.
    fn restore_pages(&mut self, kv: &mut Self::Kv, saved: &SavedPages, pages: &[PageId]) -> Result<()>;

    /// The experts kept in `slots` of a page group ([`KvShape::routes`]): `[slots, layers, chosen]`. Waits for enqueued
    /// work.
    fn read_routes(&mut self, kv: &Self::Kv, slots: &[KvSlot]) -> Result<Vec<u16>>;

    /// Copies the state in `slot`, all delta-rule layers, to host memory: as many bytes as [`StateShape::state_bytes`]
    /// says, in the device's own order.
    fn save_state(&mut self, kv: &Self::Kv, slot: StateId) -> Result<Vec<u8>>;
    /// Copies a saved state to `slot`, which may be another one.
    fn restore_state(&mut self, kv: &mut Self::Kv, saved: &[u8], slot: StateId) -> Result<()>;

    /// Overwrites `slots` of page number `page` of `saved` with those of page number `from` of `others`, both saved
    /// from `kv`.
    fn join_saved(
        kv: &Self::Kv,
        saved: &mut SavedPages,
        page: usize,
        others: &SavedPages,
        from: usize,
        slots: Range<u32>,
    );

    /// An empty step, for a model with this compute dtype. `heads`: for each plan, those of its layers; `outputs`: the
    /// numbers that it computes for a row: a logit of each token of the vocabulary, or a scorer's values.
    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, outputs: usize) -> Result<Self::Step>;
    /// Allocates in `step` what the shape of a batch determines, so that no step up to this shape allocates it later.
    /// Returns the shape that [`Backend::load`] would return.
    fn reserve(&mut self, _step: &mut Self::Step, shape: StepShape) -> Result<StepShape> {
        Ok(shape)
    }
    /// Loads `batch` into `step`. After a memory shortage ([`offshoot_core::Error::is_shortage`]), here or in
    /// `advance` or `run`, a batch with fewer rows can still be loaded.
    fn load(&mut self, step: &mut Self::Step, batch: StepBatch) -> Result<StepShape>;
    /// Advances the loaded batch by one token per row ([`StepBatch::advance`]), after counting the tokens it sampled
    /// ([`StepBatch::count_unseen`]). Only if [`StepBatch::can_advance`], and at most [`MOST_COUNTED`] times if a
    /// request has penalties. Where requests are late, the step gets new ones after it is run.
    fn advance(&mut self, step: &mut Self::Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape>;
    /// Whether a step that is loaded here, if `is_loaded` says so, is loaded on every device that computes the model:
    /// then all run it, else none. Asked once behind each load of a step, before `run`, and of late requests.
    fn agree(&mut self, step: &mut Self::Step, is_loaded: bool) -> bool {
        let _ = step;
        is_loaded
    }
    /// Enqueues the loaded step: calls `ops`, or replays what they enqueued for an earlier step of the same shape. So
    /// `ops` may depend on the shape only, and must use the same buffers each time.
    fn run(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()>;
    /// After an error of `run`: whether ops of the step may have been computed, in part or all.
    fn has_begun(&self) -> bool {
        true
    }
    /// Makes room for `at_once`, which a backend need not have. A model that calls that calls this when it is loaded,
    /// before free memory is counted for keys and values.
    fn reserve_at_once(&mut self) -> Result<()> {
        Ok(())
    }
    /// Enqueues what `first` and `second` enqueue, of which neither writes what the other reads or writes: a device may
    /// compute both at the same time.
    fn at_once(&mut self, first: impl FnOnce(&mut Self), second: impl FnOnce(&mut Self)) {
        first(self);
        second(self);
    }
    /// How long the threads that compute steps had no work while ops ran, in the mean of all threads, since the backend
    /// was opened. `None`: it is not counted, as of GPUs and of several devices that compute one model.
    fn idle(&self) -> Option<Duration> {
        None
    }
    /// Like `run`, but always calls `ops`, which may depend on more than the shape.
    fn run_once(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        self.run(step, shape, ops)
    }
    /// Loads the late requests ([`StepRequests::Late`]) of the step that was run last, one for each of its logits rows.
    /// None has an `unseen` token: the host knows all tokens when it makes them. [`Backend::sample_late`] follows,
    /// before another step is loaded. After a shortage of memory other requests can be loaded.
    fn load_requests(&mut self, step: &mut Self::Step, requests: Vec<SampleRequest>) -> Result<()>;
    /// Samples by the late requests that were loaded last, as [`Backend::sample`] does in a step that is loaded with
    /// its requests. `logits`: those that the step has computed. The samples can be collected.
    fn sample_late(&mut self, logits: &Self::Buffer, step: &mut Self::Step) -> Result<()>;
    /// Waits for the oldest step that was run, and sampled if its requests are late, and not collected. Returns one
    /// sample per request; `None` of one whose scores are all -inf, as all tokens are banned or the model's logits are
    /// no numbers. A row of a later step that refers to such a sample ([`RowToken::Sampled`]) has token 0.
    fn collect(&mut self, step: &mut Self::Step) -> Result<Vec<Option<SampledToken>>>;
    /// Keeps `values` `[logits rows, outputs]`, in f32, for the host: the last op of a [`StepRequests::Values`] step.
    fn keep_values(&mut self, values: &Self::Buffer, step: &mut Self::Step) -> Result<()>;
    /// Waits for the oldest step that was run and not collected, one of [`StepRequests::Values`]. Returns the values of
    /// each of its logits rows, one row after the other.
    fn collect_values(&mut self, step: &mut Self::Step) -> Result<Vec<f32>>;

    /// `out[r] = table[tokens[r]]`, widened to f32. `table` is `[vocab, H]`.
    fn embed(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step);
    /// `out[r] += table[position of r]`; `out` holds sums, `table` is `[positions, H]`.
    fn add_positions(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step);
    /// `out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]`. `next`: the results are read by one product only,
    /// the next op, which is that with this matrix. A backend may then keep nothing but what that multiplies, so `out`
    /// is not to be read otherwise until it is written again.
    fn rms_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        next: Option<&Self::Matrix>,
    );
    /// `out[r][i] = (x[r][i] - mean(x[r])) / sqrt(var(x[r]) + eps) * weight[i] + bias[i]`, population variance.
    fn layer_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        bias: &Self::Vector,
        eps: f32,
    );
    /// `out[r][i] += x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]`; both buffers hold sums.
    fn rms_norm_add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, weight: &Self::Vector, eps: f32);
    /// `out[r] = x[r]`, sums rounded to the dtype of `out`.
    fn round(&mut self, out: &mut Self::Buffer, x: &Self::Buffer);
    /// `out[r] += x[r]`; both buffers hold sums.
    fn add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer);
    /// In place, `x[r][i] * factor`.
    fn scale(&mut self, x: &mut Self::Buffer, factor: f32);
    /// In place, `cap * tanh(x[r][i] / cap)`.
    fn softcap(&mut self, x: &mut Self::Buffer, cap: f32);
    /// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`: a linear layer, which may add to the residual.
    fn linear(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        mode: OutputMode,
    );
    /// Adds what adapters add to a linear layer, for each row with an adapter that has something for the layer: for
    /// each part, `h[j] = scale * sum over k of A[j][k] x[r][k]`, then for each output n of the part
    /// `out[r][n] += sum over j of B[n][j] h[j]`, in f32, j rising; the sum is added when it is complete. The result
    /// for a row depends on that row and its adapter alone, to the last bit, also where not all ops are
    /// batch-invariant.
    /// `rows`: which rows of the step `out` and `x` have. Only in steps whose shape has adapters.
    fn add_lora(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        lora: &Self::Lora,
        rows: StepRows,
        step: &Self::Step,
    );
    /// [`Backend::linear`], then [`Backend::add_lora`]. Ranks whose parts are summed add to each part.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn linear_with_lora(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        mode: OutputMode,
        lora: &Self::Lora,
        rows: StepRows,
        step: &Self::Step,
    ) {
        self.linear(out, x, w, bias, mode);
        self.add_lora(out, x, lora, rows, step);
    }
    /// `rms_norm` of the heads of one kind in `qkv`, in place, or `layer_norm` without a bias, as `form` says.
    fn head_norm(
        &mut self,
        qkv: &mut Self::Buffer,
        heads: HeadLayout,
        kind: HeadKind,
        form: HeadNormForm,
        weight: &Self::Vector,
        eps: f32,
    );
    /// Rotates query heads of `qkv`, and key heads if the table says so, in place by the rows' positions.
    fn rope(&mut self, qkv: &mut Self::Buffer, heads: HeadLayout, table: &Self::Rope, step: &Self::Step);
    /// Stores the key and value heads of row `r` of `qkv` in slot `r` of the step, in layer `layer`, rounded to the KV
    /// dtype.
    fn kv_append(&mut self, kv: &mut Self::Kv, layer: LayerIx, qkv: &Self::Buffer, step: &Self::Step);
    /// [`Backend::head_norm`], [`Backend::clamp`], [`Backend::rope`] and [`Backend::kv_append`] in turn, as `steps`
    /// says.
    fn prepare_heads(
        &mut self,
        qkv: &mut Self::Buffer,
        steps: &HeadSteps<'_, Self::Vector, Self::Rope>,
        kv: &mut Self::Kv,
        step: &Self::Step,
    ) {
        prepare_heads_in_turn(self, qkv, steps, kv, step);
    }
    /// Tree attention by plan `plan` of the step: for each row and query head, the softmax of the scores of the
    /// positions it attends to (see `AttentionPlan`), times the values. `scoring` says what a score is, and which terms
    /// of the softmax belong to no position. `out` is `[R, HeadLayout::out_width]`; of `qkv` only the query heads are
    /// read.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn tree_attention(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        kv: &Self::Kv,
        layer: LayerIx,
        step: &mut Self::Step,
        plan: usize,
        scoring: Scoring<'_, Self::Vector>,
    );
    /// Tree attention by plan `plan`, of which a row may see nothing, or not all of its context: `out` as of
    /// [`Backend::tree_attention`], and `lse` `[R, q_heads]`, f32, the natural log-sum-exps of its scores. A row that
    /// sees nothing has zeros and -inf. [`Backend::merge_attended`] merges two such results.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn tree_attention_lse(
        &mut self,
        out: &mut Self::Buffer,
        lse: &mut Self::Buffer,
        qkv: &Self::Buffer,
        kv: &Self::Kv,
        layer: LayerIx,
        step: &mut Self::Step,
        plan: usize,
        scoring: Scoring<'_, Self::Vector>,
    );
    /// Merges the results of attention over two sets of positions, `out` and `other` `[R, heads * width]` with their
    /// log-sum-exps `[R, heads]`: with `m` the larger of both, `out = (out * exp(lse - m) + other * exp(other_lse -
    /// m)) / (exp(lse - m) + exp(other_lse - m))` for each row and head, and `lse` becomes the log-sum-exp of both.
    /// Where both are -inf, `out` stays zero.
    fn merge_attended(
        &mut self,
        out: &mut Self::Buffer,
        lse: &mut Self::Buffer,
        other: &Self::Buffer,
        other_lse: &Self::Buffer,
    );
    /// What is done before latent attention to `queries` `[R, query_width]` and `latents` `[R, latent_width]`; `None`:
    /// the rows of `queries` end with those of latents, `[R, query_width + latent_width]`. The first `rank` elements of
    /// a row of `latents` become their `rms_norm`; the tables of `steps` rotate the last elements of each query, and of
    /// the row of `latents` where they say so, in place; then row `r` of `latents` is stored in slot `r` of the step,
    /// rounded to the KV dtype. `latents` is unspecified afterwards. A table that rotates queries alone may be as wide
    /// as a query, one that rotates both not wider than `rope`. `absorbed`, if the absorbed form is computed, is `[R,
    /// heads, rank + rope]`: the last `rope` elements of each query, as they are then, go to the last ones of its head
    /// there.
    fn prepare_latents(
        &mut self,
        queries: &mut Self::Buffer,
        latents: Option<&mut Self::Buffer>,
        absorbed: Option<&mut Self::Buffer>,
        steps: &LatentSteps<'_, Self::Vector, Self::Rope>,
        kv: &mut Self::Kv,
        step: &Self::Step,
    );
    /// The queries of the absorbed form: `out` `[R, heads, rank + rope]`, of which `[K_h^T q, p]` is the one of head
    /// `h` with `[q, p]` its query in `queries`, whose rows begin with `[heads, nope + rope]`. `p` is there already
    /// ([`Backend::prepare_latents`]) and stays.
    fn absorb_queries(&mut self, out: &mut Self::Buffer, queries: &Self::Buffer, maps: &Self::LatentMaps);
    /// The values of what heads have read in the absorbed form: `out` `[R, heads, value]`, `out[r][h] = V_h x[r][h]`
    /// with `x` `[R, heads, rank]`.
    fn map_values(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, maps: &Self::LatentMaps);
    /// Expands latents as the step's [`Expansion`]s of `store` say: for each slot with latent `c` and rotated part `r`
    /// in layer `layer` of `kv`, key `h` in the same slot of the page of `copies`, layer `copy_layer`, is `[K_h c, r]`
    /// and value `h` is `V_h c`.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn expand_latents(
        &mut self,
        copies: &mut Self::Kv,
        copy_layer: LayerIx,
        kv: &Self::Kv,
        layer: LayerIx,
        maps: &Self::LatentMaps,
        store: CopyStore,
        step: &Self::Step,
    );
    /// `out[r][i] = gate(x[r][i], x[r][F + i])` with `x` `[R, 2F]`, `out` `[R, F]`. `next`: see [`Backend::rms_norm`].
    fn gated(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, gate: Gate, next: Option<&Self::Matrix>);
    /// In place, `gelu(x[r][i]) * y[r][from + i]`, with the gelu of [`Backend::gelu`].
    fn gelu_times(&mut self, x: &mut Self::Buffer, y: &Self::Buffer, from: usize);
    /// In place, the tanh form: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    fn gelu(&mut self, x: &mut Self::Buffer);
    /// In place, `x[r][i]`, or 0 where that is negative. NaN stays.
    fn relu(&mut self, x: &mut Self::Buffer);
    /// In place, `max(x[r][i], 0)^2`. NaN stays.
    fn relu_squared(&mut self, x: &mut Self::Buffer);
    /// In place, `x[r][i] * Phi(x[r][i])`, with `Phi` the distribution function of the normal distribution: the gelu of
    /// erf.
    fn gelu_erf(&mut self, x: &mut Self::Buffer);
    /// In place, with `numbers` `[p, n, b, e]`: `p x^2 + b x` where `x > 0`, else `n (expm1(min(x, e)) - x) + b x`
    /// (xIELU).
    fn xielu(&mut self, x: &mut Self::Buffer, numbers: &Self::Vector);
    /// In place, `x[r][i]`, or the nearer of `-most` and `most` where that is beyond these. NaN stays.
    fn clamp(&mut self, x: &mut Self::Buffer, most: f32);
    /// In place, `x[r][i] * factors[i]`.
    fn scale_columns(&mut self, x: &mut Self::Buffer, factors: &Self::Vector);
    /// In place, `x[r][i] * sigmoid(y[r][i])`, or `sigmoid(y[r][0])` if `y` has one column.
    fn sigmoid_times(&mut self, x: &mut Self::Buffer, y: &Self::Buffer);
    /// The convolution of recurrent layer `layer`, whose shape is its [`ConvShape`]: `out` and `x` are `[R, width]`,
    /// `weight` is `[width, tokens]`, `bias` `[width]`. Reads and writes the last inputs in the states of the step's
    /// runs.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn causal_conv(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        bias: Option<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    );
    /// The state and the output of layer `layer`: `out` is `[R, value_width]`, `qkv` what the convolution gave, `gates`
    /// what [`StateRule`] says of `rule`, which is of the layer's own [`StateKind`]. Reads and writes the matrices in
    /// the states of the step's runs. A backend that is not batch-invariant may compute runs of many rows in chunks, in
    /// f16 and bf16 with operands of products in that dtype.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn state_update(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        gates: &Self::Buffer,
        rule: StateRule<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    );
    /// [`Backend::state_update`] of [`StateKind::Channel`]: `beta` is f32 `[R, value_heads]`, b, `decay` f32 `[R,
    /// value_heads * key_dim]`, f. `rate` is `[value_heads]`, `-exp(A_log)`; `dt`, `[value_heads * key_dim]`, is added
    /// to `decay`.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn channel_update(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        beta: &Self::Buffer,
        decay: &Self::Buffer,
        rate: &Self::Vector,
        dt: &Self::Vector,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    );
    /// The selective scan of layer `layer`: `out` and `x` are `[R, channels]`, `steps` f32 `[R, channels]` before their
    /// bias, `b` and `c` `[R, state]`. Reads and writes the states of the step's runs.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn selective_scan(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        steps: &Self::Buffer,
        b: &Self::Buffer,
        c: &Self::Buffer,
        rule: ScanRule<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    );
    /// The gated convolution of layer `layer`: `out` is `[R, width]`, `bcx` `[R, 3 * width]`: B, C and x. `out = C *
    /// conv(B * x)`, with the convolution of [`Backend::causal_conv`] without its silu.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn gated_conv(
        &mut self,
        out: &mut Self::Buffer,
        bcx: &Self::Buffer,
        weight: &Self::Vector,
        bias: Option<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    );
    /// In place, for each `how.width` neighbours of a row, with `norm(x) = x / sqrt(mean(x^2) + eps)`, in the order
    /// that `how` says: `norm(x) * weight * gate(g)` or `norm(x * gate(g)) * weight`. `gate` is as wide as `x`,
    /// `weight` as one norm, the same for each, or as the row. Without weights there is no norm: `x * gate(g)`.
    fn gated_norm(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer, weight: Option<&Self::Vector>, how: GatedNorm);
    /// Chooses the experts of each row by the router's `scores` `[R, experts]` as [`Router`] says, weighs them, and
    /// sorts the rows by expert. `factors`: each weight is multiplied by that of its expert. `bias`: is added to the
    /// merits by which experts are chosen; both `[experts]`.
    fn route(
        &mut self,
        routes: &mut Self::Routes,
        scores: &Self::Buffer,
        factors: Option<&Self::Vector>,
        bias: Option<&Self::Vector>,
    );
    /// Keeps the experts chosen for row `r` in slot `r` of the step, as those of layer `layer` among the layers with
    /// experts, where [`KvShape::routes`] says so.
    fn keep_routes(&mut self, kv: &mut Self::Kv, layer: LayerIx, routes: &Self::Routes, step: &Self::Step);
    /// For each place of a row at an expert: `out[place] = weight * x[row of the place]`, as routers weigh that
    /// [weigh inputs](RouterWeighs::Inputs). `out` is `[places, width of x]`. There are no identities.
    fn weigh_places(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, routes: &Self::Routes);
    /// For each place of a row at an expert, sorted by expert: `out[place] = w[expert] x[i] (+ bias[expert])`, where
    /// `i` is the place's row or the place itself (`input`). The result for a place depends on its input and expert
    /// only. Places at identities, the last ones, are unspecified.
    fn expert_linear(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        experts: &Self::Experts,
        routes: &Self::Routes,
        input: ExpertInput,
    );
    /// `out[place] = gate(g, u)`, with g and u the halves of `w[expert] x[row of the place] (+ bias[expert])`. `inner`:
    /// room for these, `[places, 2F]`, unspecified afterwards.
    fn expert_gated(
        &mut self,
        out: &mut Self::Buffer,
        inner: &mut Self::Buffer,
        x: &Self::Buffer,
        experts: &Self::Experts,
        routes: &Self::Routes,
        gate: Gate,
    );
    /// `out[r] = sum over the row's experts, in the order they were chosen in, of weight * x[place]`, or `out[r] += `
    /// that sum, added when it is complete. Where routers weigh inputs, these weights are 1. An identity gives row `r`
    /// of `input` `[R, width of x]` and nothing of `x`; without `input` it gives nothing.
    fn combine(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        input: Option<&Self::Buffer>,
        routes: &Self::Routes,
        mode: OutputMode,
    );
    /// `out[i] = x[logit_rows[i]]`: the rows whose logits are computed.
    fn select_rows(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, step: &Self::Step);
    /// Samples one token for each request of the step from `logits` `[logit_rows, vocab]`, as [`SampleRequest`]
    /// specifies.
    fn sample(&mut self, logits: &Self::Buffer, step: &mut Self::Step);
}

impl KvDtype {
    /// Sets the KV dtype of `backend` for a model with these heads (of each layer) and this compute dtype. Logs a
    /// warning if fp8 saves no memory there.
    pub fn set_on<B: Backend>(self, backend: &mut B, heads: impl Iterator<Item = HeadLayout>, dtype: Dtype) {
        backend.set_kv_dtype(self);
        let bytes = heads.map(|heads| backend.kv_element_bytes(heads, dtype)).max().unwrap_or(dtype.bytes());
        match self {
            KvDtype::Model => {}
            KvDtype::Fp8 if !backend.is_first() => {}
            KvDtype::Fp8 if bytes == 1 => log::info!("keys and values are fp8 (e4m3)"),
            KvDtype::Fp8 => log::warn!(
                "keys and values are rounded to fp8 (e4m3), but take {bytes} bytes each on {}: latents aside, only \
                 Hopper stores them as fp8, in f16 and bf16 models with heads of 64 or 128",
                backend.describe()
            ),
        }
    }
}

/// The definition of [`Backend::prepare_heads`].
pub fn prepare_heads_in_turn<B: Backend + ?Sized>(
    backend: &mut B,
    qkv: &mut B::Buffer,
    steps: &HeadSteps<'_, B::Vector, B::Rope>,
    kv: &mut B::Kv,
    step: &B::Step,
) {
    let normalise = |backend: &mut B, qkv: &mut B::Buffer| {
        for (kind, weight) in HeadKind::ALL.into_iter().zip(steps.norms) {
            if let Some(weight) = weight {
                backend.head_norm(qkv, steps.heads, kind, steps.form, weight, steps.eps);
            }
        }
    };
    if !steps.norms_after_rope {
        normalise(backend, qkv);
    }
    if let Some(most) = steps.clip {
        backend.clamp(qkv, most);
    }
    for table in steps.ropes.into_iter().flatten() {
        backend.rope(qkv, steps.heads, table, step);
    }
    if steps.norms_after_rope {
        normalise(backend, qkv);
    }
    if steps.stores {
        backend.kv_append(kv, steps.layer, qkv, step);
    }
}
