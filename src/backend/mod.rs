//! Floor 3: the ops of a transformer step, defined once here in prose, once on the CPU in clear loops, and again
//! wherever they must be fast. Everything above sees rows, tokens, plans and opaque buffers; everything below sees
//! memory.
//!
//! Activations are buffers of `rows x width`, row-major, that hold f32 or, where [`ActivationDtype`] allows it, less.
//! Three types are kept apart: how a matrix is stored ([`WeightFormat`]), what its products take ([`Dtype`], the
//! compute dtype: today that of the matrix's elements), and how keys and values are kept ([`KvDtype`]).
//!
//! *Arithmetic by compute dtype*: f32: f32 operands, f32 accumulation; f16 and bf16: the activation operand of a dot
//! product may be rounded to that dtype (to nearest even), products are accumulated in f32, and a backend may store
//! what [`ActivationDtype::Operands`] names in it. Keys and values are stored in the compute dtype, rounded to fewer
//! bits before where that is asked for; attention follows the same rule (queries and softmax numerators may be rounded
//! to the dtype of keys and values, or to f16 where they are fp8).
//!
//! *Batch invariance*: an op's result for a row depends on that row's inputs alone, to the last bit; see `plan` for
//! attention. A backend whose tile is 1 does not promise it, until it is told to ([`Backend::set_batch_invariant`]).
//!
//! *Steps*: the integers of a step are loaded once ([`Backend::load`]), and ops read them from there. A backend may
//! enqueue work and return: results are waited for in `collect` and `read`, and nowhere else. Work is done in the order
//! in which it was asked for, so that a page may be given to another as soon as its last reader is enqueued.

pub mod cpu;
pub mod cuda;
mod kv_dtype;
mod levels;
pub mod sim;
mod step;
mod timed;
pub mod weights;

use crate::error::Result;
use crate::ids::{LayerIx, PageId, TokenId};
use crate::plan::{CostModel, NewPage};

pub use kv_dtype::{KvDtype, e4m3};
pub use levels::{Attended, AttentionLevels, LevelBounds, LevelMass, LevelRow, MOST_LEVELS};
pub use step::{RowToken, StepBatch, StepShape, advance_slots};
pub use timed::{Rates, Timed};
pub use weights::{Dtype, MatrixPart, RandomWeight, StackShape, Uniform, WeightFormat, WeightView, with_bytes};

/// How one row of `qkv` is divided: `q_heads` heads, then `kv_heads` key heads, then `kv_heads` value heads, each of
/// `head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl HeadLayout {
    pub fn qkv_width(&self) -> usize {
        (self.q_heads + 2 * self.kv_heads) * self.head_dim
    }

    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Query heads that share one key head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

/// The widest head that the kernels of a device take. Every head has an even number of elements: keys of 16 bits lie in
/// pairs.
pub const MOST_HEAD_DIM: usize = 256;

/// Which normalisation a head gets before rope (Qwen3's q_norm and k_norm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    Query,
    Key,
}

/// The size of the KV memory: `pages` pages of `page_tokens` tokens in each layer.
#[derive(Clone, Debug)]
pub struct KvShape {
    /// Of each layer.
    pub heads: Vec<HeadLayout>,
    /// The compute dtype; keys and values are kept in it unless `Backend::set_kv_dtype` says otherwise.
    pub dtype: Dtype,
    pub pages: usize,
}

impl KvShape {
    /// Of so many layers with the same heads.
    pub fn uniform(layers: usize, heads: HeadLayout, dtype: Dtype, pages: usize) -> Self {
        Self { heads: vec![heads; layers], dtype, pages }
    }

    pub fn layers(&self) -> usize {
        self.heads.len()
    }
}

/// Cosines and sines by position: `[positions, rotary / 2]` each, multiplied by the rope type's attention factor
/// already. Rotates the first `rotary` elements of a head by halves, with h = `rotary / 2`: `(x[i], x[i + h]) -> (x[i]
/// cos - x[i + h] sin, x[i + h] cos + x[i] sin)`.
#[derive(Clone, Debug)]
pub struct RopeTable {
    pub rotary: usize,
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

/// What a buffer of activations is for, and so how precisely a backend must keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationDtype {
    /// Sums that many layers add to, and logits: f32.
    Sums,
    /// Operands of dot products and results of linear layers: f32, or the compute dtype (given).
    Operands(Dtype),
}

/// How fast keys and values can be had that were given up: brought back from host memory, or computed again. Estimates,
/// to choose between the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapRates {
    /// Bytes a second between host memory and the memory of keys and values, one way.
    pub host_bytes: f64,
    /// Floating-point operations a second of linear layers, over rows enough to be bound by them.
    pub flops: f64,
}

/// The most of the likeliest tokens that a request can want: what a kernel can list in its block's shared memory.
pub const MOST_TOP: usize = 2048;

/// The most tokens that the requests of a step count by themselves: a step whose requests have penalties can be
/// advanced so many times until it must be loaded again, with all tokens seen until then.
pub const MOST_COUNTED: usize = 128;

/// How the next token of one row is sampled. The CPU's order is the definition: penalties, temperature, top-k, top-p,
/// min-p, then the inverse of the cumulative distribution in vocabulary order at `uniform`.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    pub pick: Pick,
    /// Tokens seen so far that penalties apply to, each with its count in the sampled text and whether the prompt holds
    /// it.
    pub seen: Vec<SeenToken>,
    /// The step before this one samples this branch's newest token for its request of this index: one more sampled
    /// token, beside `seen`, for penalties ([`StepBatch::count_unseen`]).
    pub unseen: Option<u32>,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Added to single logits first of all.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Never sampled (e.g. end-of-text below the minimal length).
    pub banned: Vec<TokenId>,
    /// How many of the likeliest tokens to report beside the chosen one, at most [`MOST_TOP`].
    pub top_logprobs: usize,
}

impl SampleRequest {
    /// A sample that depends on nothing but the logits.
    pub fn of(pick: Pick) -> Self {
        Self {
            pick,
            seen: Vec::new(),
            unseen: None,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            top_logprobs: 0,
        }
    }

    /// The uniform of the sample; 0 where none is taken.
    pub fn uniform(&self) -> f64 {
        match self.pick {
            Pick::Random { uniform, .. } => uniform,
            Pick::Greedy | Pick::Given(_) => 0.0,
        }
    }

    /// Whether tokens seen change its scores.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Changes the uniform of the sample, if it takes one.
    pub fn set_uniform(&mut self, new: f64) {
        if let Pick::Random { uniform, .. } = &mut self.pick {
            *uniform = new;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenToken {
    pub token: TokenId,
    pub sampled: u32,
    pub in_prompt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// The largest logit after penalties; of equals, the smallest token id.
    Greedy,
    /// `uniform` in [0, 1). `top_k == None`: all; `top_p == 1`, `min_p == 0`: off. `temperature > 0`.
    Random { temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32, uniform: f64 },
    /// The token is known (given text); only its log-probability is wanted.
    Given(TokenId),
}

/// The token of one row. Log-probabilities are those of the model itself: log-softmax of the unmodified logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: TokenId,
    pub logprob: f32,
    /// The likeliest tokens, falling.
    pub top: Vec<(TokenId, f32)>,
}

/// The ops. `R` = rows of this step, `H` = hidden width, widths in elements. Panics on shapes that do not fit: the
/// decoder checks shapes when it loads a model, so a misfit here is our own mistake.
pub trait Backend: Send + 'static {
    /// Activations, `rows x width`; see [`ActivationDtype`].
    type Buffer: Send;
    /// A weight matrix `[out, in]` in the layout this backend multiplies fastest.
    type Matrix: Send + Sync;
    /// A weight vector, f32.
    type Vector: Send + Sync;
    /// Keys and values of all layers, in pages.
    type Kv: Send;
    /// Keys and values of some pages, all layers, in host memory.
    type SavedPages: Send;
    /// A [`RopeTable`] where the ops read it.
    type Rope: Send;
    /// The step loaded last, where the ops read it, and the samples that were not collected yet.
    type Step: Send;

    /// Whether it computes by itself, in memory of its own: the host can then prepare the next step meanwhile, and host
    /// memory is room for what its own has none for.
    const IS_ASYNC: bool;

    /// Whether weights of one compute dtype multiply activations kept for another ([`ActivationDtype::Operands`]).
    const MIXES_DTYPES: bool;

    /// Slots of a page.
    fn page_tokens(&self) -> u32;

    /// One line for people: device, instruction set or architecture, threads.
    fn describe(&self) -> String;
    /// What decides the last bits of batch-invariant results: devices of which this is the same compute the same bits.
    fn arithmetic(&self) -> String;
    /// What the items of an attention plan cost here.
    fn cost_model(&self) -> CostModel;
    /// The tile that its attention reduces by (see `plan`).
    fn tile(&self) -> u32;
    /// From now on ops are batch-invariant, whatever that costs. Steps, and plans, that were made before are of no use
    /// then.
    fn set_batch_invariant(&mut self);
    /// From now on keys and values are kept so, as they are in the compute dtype before. Memory of theirs, and steps,
    /// that were made before are of no use then.
    fn set_kv_dtype(&mut self, kv: KvDtype);
    /// What giving up keys and values costs.
    fn swap_rates(&self) -> SwapRates;
    /// Bytes that can still be allocated for weights, activations, keys and values.
    fn free_bytes(&self) -> Result<usize>;

    /// Stacks `parts` (each `[out_i, in]`, equal `in` and format) into one matrix `[sum out_i, in]`.
    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Self::Matrix>;
    /// Concatenates `parts` into one f32 vector.
    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Vector>;
    fn rope_table(&mut self, table: &RopeTable) -> Result<Self::Rope>;
    /// A buffer without rows.
    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Self::Buffer>;
    /// Sets the row count of a buffer (contents unspecified); keeps its memory where it can.
    fn resize(&mut self, buffer: &mut Self::Buffer, rows: usize) -> Result<()>;
    /// Puts `values`, `rows * width`, row-major, in the first `rows` rows, rounded to what the buffer holds.
    fn write(&mut self, buffer: &mut Self::Buffer, rows: usize, values: &[f32]) -> Result<()>;
    /// The first `rows` rows, `rows * width` values, row-major.
    fn read(&mut self, buffer: &Self::Buffer, rows: usize) -> Result<Vec<f32>>;

    /// Bytes of an element of keys or values as they are kept now, in layers with these heads and compute dtype.
    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize;
    /// Bytes that one page takes, all layers.
    fn page_bytes(&self, shape: &KvShape) -> usize;
    /// Bytes of the same memory that `kv` takes beside its pages.
    fn kv_overhead_bytes(&self, _shape: &KvShape) -> usize {
        0
    }
    fn kv(&mut self, shape: &KvShape) -> Result<Self::Kv>;
    /// Copies `pages` to host memory.
    fn save_pages(&mut self, kv: &Self::Kv, pages: &[PageId]) -> Result<Self::SavedPages>;
    /// Copies what was saved into `pages`, which may be other ones, in the same order.
    fn restore_pages(&mut self, kv: &mut Self::Kv, saved: &Self::SavedPages, pages: &[PageId]) -> Result<()>;

    /// A step of nothing yet, for a model of this compute dtype and so many words. `heads`: of the layers that go by
    /// each of its plans.
    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, vocab: usize) -> Result<Self::Step>;
    /// Makes room in `step` for all that the shape of a batch bounds, so that no step up to this shape asks for it;
    /// returns the shape that [`Backend::load`] would.
    fn reserve(&mut self, _step: &mut Self::Step, shape: StepShape) -> Result<StepShape> {
        Ok(shape)
    }
    /// Replaces what `step` holds. A shortage of memory ([`crate::Error::is_shortage`]), here as in `advance` and
    /// `run`, leaves a step that another one, with fewer rows, can be loaded into.
    fn load(&mut self, step: &mut Self::Step, batch: StepBatch) -> Result<StepShape>;
    /// Replaces it by what [`StepBatch::advance`] makes of it, with what it has sampled counted
    /// ([`StepBatch::count_unseen`]); only where [`StepBatch::can_advance`], and at most [`MOST_COUNTED`] times where a
    /// request has penalties.
    fn advance(&mut self, step: &mut Self::Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape>;
    /// Enqueues the loaded step: calls `ops`, or enqueues again what they enqueued for an earlier step of the same
    /// shape. They must therefore depend on nothing but the shape, and on buffers that are still the same.
    fn run(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()>;
    /// The same for a step whose `ops` may depend on more than the shape: they are called for this step alone.
    fn run_once(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        self.run(step, shape, ops)
    }
    /// Waits for the oldest step that was run and not collected: one sample for each of its requests.
    fn collect(&mut self, step: &mut Self::Step) -> Result<Vec<Sampled>>;

    /// `out[r] = table[tokens[r]]`, widened to f32. `table` is `[vocab, H]`.
    fn embed(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step);
    /// `out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]`.
    fn rms_norm(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, weight: &Self::Vector, eps: f32);
    /// `out[r][i] = (x[r][i] - mean(x[r])) / sqrt(var(x[r]) + eps) * weight[i] + bias[i]`, population variance.
    fn layer_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        bias: &Self::Vector,
        eps: f32,
    );
    /// `out[r] = w x[r] (+ bias)`.
    fn linear(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, w: &Self::Matrix, bias: Option<&Self::Vector>);
    /// `out[r] += w x[r] (+ bias)`: a linear layer that ends in the residual.
    fn linear_add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, w: &Self::Matrix, bias: Option<&Self::Vector>);
    /// `rms_norm` of each query or key head of `qkv` alone, in place; `weight` is `[head_dim]`.
    fn head_norm(&mut self, qkv: &mut Self::Buffer, heads: HeadLayout, kind: HeadKind, weight: &Self::Vector, eps: f32);
    /// Rotates query and key heads of `qkv` in place by the rows' positions.
    fn rope(&mut self, qkv: &mut Self::Buffer, heads: HeadLayout, table: &Self::Rope, step: &Self::Step);
    /// Stores the key and value heads of row `r` of `qkv` in slot `r` of the step, in layer `layer`, rounded as they
    /// are kept.
    fn kv_append(&mut self, kv: &mut Self::Kv, layer: LayerIx, qkv: &Self::Buffer, step: &Self::Step);
    /// Tree attention by plan number `plan` of the step: for each row and query head, softmax over the positions it
    /// sees (see `AttentionPlan`) of `q . k[p] * scale`, times the values. `out` is `[R, q_heads * head_dim]`.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn tree_attention(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        kv: &Self::Kv,
        layer: LayerIx,
        step: &mut Self::Step,
        plan: usize,
        scale: f32,
    );
    /// `out[r][i] = silu(x[r][i]) * x[r][F + i]` with `x` `[R, 2F]`, `out` `[R, F]`.
    fn gated_silu(&mut self, out: &mut Self::Buffer, x: &Self::Buffer);
    /// In place, the tanh form: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    fn gelu(&mut self, x: &mut Self::Buffer);
    /// `out[i] = x[wanted[i]]`: the rows whose logits are wanted.
    fn select_rows(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, step: &Self::Step);
    /// Samples one token for each request of the step, from `logits` `[logit_rows, vocab]`, by the order that
    /// [`SampleRequest`] states.
    fn sample(&mut self, logits: &Self::Buffer, step: &mut Self::Step);
}
