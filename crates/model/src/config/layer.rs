//! The description of one layer as data: its attention or its state (`recurrent`), its feed-forward block and its
//! norms. Layers of one model may differ in any of these. `layout` lists the tensors, the decoder computes.

use offshoot_backend::{Gate, HeadLayout, HeadNormForm, HeadNormSpan, LatentHeads, Router};
use offshoot_core::ids::GroupIx;

use super::recurrent::RecurrentSpec;
use super::rope::RopeConfig;

/// One layer of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    pub norms: LayerNorms,
    /// Whether the residual stream is multiplied by a learned number at the end of the layer (Gemma 4).
    pub output_scale: bool,
    pub branch_scale: BranchScale,
}

/// What the outputs of a layer's blocks are multiplied by before they are added to the residual stream. Of blocks
/// without a norm behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BranchScale {
    /// Of attention, or what the layer has in its place.
    pub mixer: Option<f32>,
    pub feed_forward: Option<f32>,
}

impl BranchScale {
    /// The same factor for both.
    pub fn of_both(factor: Option<f32>) -> Self {
        Self { mixer: factor, feed_forward: factor }
    }
}

/// How a layer mixes the positions of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    Attention(AttentionSpec),
    Recurrent(RecurrentSpec),
    /// It mixes none: the layer has a feed-forward block alone (Nemotron-H).
    None,
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// The query heads, and the key heads that are stored: of latent attention those of the absorbed form.
    pub heads: HeadLayout,
    /// The sliding window: positions that a row attends to, its own included. `None`: all.
    pub window: Option<u32>,
    /// `None`: queries and keys are not rotated (some layers of SmolLM3).
    pub rope: Option<RopeConfig>,
    /// Whether queries are multiplied by a number that grows with their position.
    pub growth: Option<QueryGrowth>,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Whether each query head has a learned score that belongs to no position (gpt-oss).
    pub sinks: bool,
    pub keys: KeySource,
    pub head_norm: Option<HeadNorm>,
    /// The largest size of an element of a query, key or value, before rope; larger ones are cut to it (OLMoE).
    pub clip: Option<f32>,
    /// Where the gates of queries come from: what each query head reads is multiplied by the sigmoid of its gate.
    pub gate: Option<QueryGate>,
    /// Whether the projections of queries, keys and values have biases; of latent attention those to the ranks of
    /// queries and latents alone.
    pub qkv_bias: bool,
    /// Whether the projection of what heads have read has a bias.
    pub out_bias: bool,
}

/// The module that projects the gates of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryGate {
    /// That of queries: each head's query, then its gate (Qwen3-Next, Qwen3.5).
    InQueries,
    /// One of their own, `gate_proj` (AFMoE).
    Own,
}

/// Queries are multiplied by `1 + beta * ln(1 + floor((position + offset) / original_context))` after their rope
/// (Ministral 3, Mistral 4, Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub beta: f64,
    pub original_context: usize,
    /// What the first position counts as: 0, or 1 in Llama 4.
    pub offset: usize,
}

/// Where a layer's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeySource {
    /// Keys and values are projected from the layer's input.
    Projected,
    /// The projected keys, before their norm and rope, are the values too (Gemma 4's global layers).
    KeysAreValues,
    /// The layer reads the keys and values that an earlier layer has stored (Gemma 4's last layers).
    OfLayer(usize),
    /// Each token has a latent, from which the keys and values of all heads are computed (DeepSeek-V2).
    Latent(LatentSpec),
}

/// Latent attention; see `LatentHeads`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    pub heads: LatentHeads,
    /// The width of what queries are projected from, which has a norm as latents have. `None`: they are projected from
    /// the layer's input.
    pub query_rank: Option<usize>,
    /// Epsilon of both norms.
    pub eps: f32,
    /// Latents are multiplied by it behind their norm (LongCat).
    pub latent_scale: f32,
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    pub norm: Norm,
    pub span: HeadNormSpan,
    /// Whether value heads are normalised too, without weights (Gemma 4).
    pub values: bool,
    /// Whether the norms of queries and keys multiply by weights. Llama 4's do not.
    pub weights: bool,
    /// Whether they come behind the rope (Hunyuan), or before it.
    pub after_rope: bool,
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    Dense(DenseSpec),
    Experts(ExpertsSpec),
    /// Both, each with norms of its own, and their sum (Gemma 4's mixtures).
    DenseAndExperts {
        dense: DenseSpec,
        experts: ExpertsSpec,
        norm: Norm,
    },
    /// Experts, and one that all rows share: `experts(x) + shared(x)`, or if `gated` `experts(x) + sigmoid(gate x) *
    /// shared(x)` (Qwen3-Next, Qwen3.5).
    SharedExpert {
        shared: DenseSpec,
        experts: ExpertsSpec,
        gated: bool,
    },
    /// A dense block, and experts that read what it reads. What these compute is carried to the next layer, whose block
    /// adds it (LongCat-Flash).
    Opens {
        dense: DenseSpec,
        experts: ExpertsSpec,
    },
    /// A dense block, and what the experts of the layer before have computed.
    Closes(DenseSpec),
    /// The layer ends behind attention, or what it has in its place (Nemotron-H).
    None,
}

/// A dense block, the same matrices for all rows; `width`: the intermediate size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSpec {
    pub activation: Activation,
    pub width: usize,
    pub bias: bool,
    /// What gates are multiplied by before their activation, in gated blocks (Falcon-H1).
    pub gate_factor: Option<f32>,
}

/// A mixture of experts: a router chooses some for each row and weighs their outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Experts with matrices; behind them the router may have identities.
    pub count: usize,
    /// The intermediate size of one expert, and the field that holds it.
    pub width: usize,
    pub width_field: ExpertWidthField,
    pub activation: Activation,
    /// The width of what experts read and give, where two projections of the layer lie around them (Nemotron-H).
    /// `None`: that of the residual stream.
    pub latent: Option<usize>,
    /// Whether router and experts have biases.
    pub bias: bool,
    pub router: Router,
    /// Whether the router has a bias by which it chooses, and which weights do not see.
    pub choosing_bias: bool,
    /// Factor of all weights.
    pub scale: f32,
    /// The norm of the router's input, with weights of its own; then experts are scaled one by one (Gemma 4). `None`:
    /// the router reads what the experts read.
    pub router_norm: Option<Norm>,
}

impl ExpertsSpec {
    /// Experts among which the router chooses, identities among them.
    pub fn routed(&self) -> usize {
        self.count + self.router.identities
    }
}

/// The config's field of an expert's intermediate size, by which errors call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWidthField {
    /// All blocks of the model have experts.
    Intermediate,
    MoeIntermediate,
}

impl ExpertWidthField {
    pub fn name(self) -> &'static str {
        match self {
            Self::Intermediate => "intermediate_size",
            Self::MoeIntermediate => "moe_intermediate_size",
        }
    }

    /// The size of a gate and what it gates, stacked.
    pub fn doubled(self) -> &'static str {
        match self {
            Self::Intermediate => "2 * intermediate_size",
            Self::MoeIntermediate => "2 * moe_intermediate_size",
        }
    }
}

/// The activation function, and with it the form of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `down(gate(gate x, up x))`
    Gated(Gate),
    /// `fc2(gelu(fc1 x))`, with the gelu of tanh.
    Gelu,
    /// The same with the gelu of erf.
    GeluErf,
    /// `down(max(up x, 0)^2)`
    ReluSquared,
    /// `down(xielu(up x))`, with numbers of the layer (Apertus); of dense blocks.
    Xielu,
}

impl Activation {
    /// Outputs of the first linear layer for a block of this width.
    pub fn up_width(self, width: usize) -> usize {
        match self {
            Activation::Gated(_) => 2 * width,
            Activation::Gelu | Activation::GeluErf | Activation::ReluSquared | Activation::Xielu => width,
        }
    }
}

impl FeedForward {
    pub fn dense(&self) -> Option<&DenseSpec> {
        match self {
            FeedForward::Dense(dense)
            | FeedForward::DenseAndExperts { dense, .. }
            | FeedForward::Opens { dense, .. }
            | FeedForward::Closes(dense)
            | FeedForward::SharedExpert { shared: dense, .. } => Some(dense),
            FeedForward::Experts(_) | FeedForward::None => None,
        }
    }

    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            FeedForward::Experts(experts)
            | FeedForward::DenseAndExperts { experts, .. }
            | FeedForward::Opens { experts, .. }
            | FeedForward::SharedExpert { experts, .. } => Some(experts),
            FeedForward::Dense(_) | FeedForward::Closes(_) | FeedForward::None => None,
        }
    }
}

/// The norms of a layer, and with them how attention and feed-forward are added to the residual `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayerNorms {
    /// `x += after(attention(before(x)))`, then the same with the feed-forward block.
    Sequential { attention: BlockNorms, feed_forward: BlockNorms },
    /// `y = norm(x)`, then `x += attention(y) + feed_forward(y)` (Phi).
    Parallel(Norm),
    /// `x += attention(norm(x)) + feed_forward(other_norm(x))` (GPT-NeoX).
    ParallelOfTwo { attention: Norm, feed_forward: Norm },
}

/// The norms around a block: of its input, of its output, or both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockNorms {
    Before(Norm),
    /// OLMo 2 and 3.
    After(Norm),
    /// Gemma 2 to 4.
    Around {
        before: Norm,
        after: Norm,
    },
    /// The block reads what the one before it has read: of a layer behind one without a feed-forward block, what that
    /// one's mixer read (Falcon-H1).
    AsBefore,
    /// There is no block.
    None,
}

impl BlockNorms {
    pub fn before(self) -> Option<Norm> {
        match self {
            BlockNorms::Before(before) | BlockNorms::Around { before, .. } => Some(before),
            BlockNorms::After(_) | BlockNorms::AsBefore | BlockNorms::None => None,
        }
    }

    pub fn after(self) -> Option<Norm> {
        match self {
            BlockNorms::After(after) | BlockNorms::Around { after, .. } => Some(after),
            BlockNorms::Before(_) | BlockNorms::AsBefore | BlockNorms::None => None,
        }
    }

    /// These with each norm as `change` makes it.
    pub fn map(self, change: impl Fn(Norm) -> Norm) -> Self {
        match self {
            BlockNorms::Before(before) => BlockNorms::Before(change(before)),
            BlockNorms::After(after) => BlockNorms::After(change(after)),
            BlockNorms::Around { before, after } => BlockNorms::Around { before: change(before), after: change(after) },
            BlockNorms::AsBefore | BlockNorms::None => self,
        }
    }
}

/// The kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    Rms {
        eps: f32,
    },
    /// Multiplies by one plus the stored weights (Gemma 2 and 3, Qwen3-Next, Qwen3.5).
    RmsPlusOne {
        eps: f32,
    },
    /// With a bias.
    Layer {
        eps: f32,
    },
    /// With a bias; multiplies by one plus the stored weights (Nemotron).
    LayerPlusOne {
        eps: f32,
    },
    /// Cohere.
    LayerNoBias {
        eps: f32,
    },
}

/// Layers of the same kind share one attention plan per step: heads and window determine which keys and values are
/// read, and the page group where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionKind {
    pub heads: HeadLayout,
    pub window: Option<u32>,
    pub group: GroupIx,
}

impl LayerSpec {
    /// `None` if it has none.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Recurrent(_) | Mixer::None => None,
        }
    }

    /// `None` if it has none.
    pub fn recurrent(&self) -> Option<&RecurrentSpec> {
        match &self.mixer {
            Mixer::Attention(_) | Mixer::None => None,
            Mixer::Recurrent(recurrent) => Some(recurrent),
        }
    }

    /// Whether its first block reads what the layer before has read.
    pub fn reads_as_before(&self) -> bool {
        matches!(self.norms, LayerNorms::Sequential { attention: BlockNorms::AsBefore, .. })
    }

    pub(super) fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Recurrent(_) | Mixer::None => None,
        }
    }
}

impl AttentionSpec {
    /// Whether the layer stores keys and values of its own.
    pub fn stores_keys(&self) -> bool {
        !matches!(self.keys, KeySource::OfLayer(_))
    }

    /// What the layer's latents are; `None` if it has keys and values of its own kind.
    pub fn latent(&self) -> Option<LatentSpec> {
        match self.keys {
            KeySource::Latent(latent) => Some(latent),
            KeySource::Projected | KeySource::KeysAreValues | KeySource::OfLayer(_) => None,
        }
    }

    /// Elements of a row's query before its rope: of latent attention that of the expanded form.
    pub fn query_width(&self) -> usize {
        self.latent().map_or(self.heads.q_width(), |latent| latent.heads.query_width())
    }

    /// Elements of what a row's heads have read in the end: of latent attention expanded values.
    pub fn out_width(&self) -> usize {
        self.latent().map_or(self.heads.out_width(), |latent| latent.heads.out_width())
    }

    /// The heads that the layer projects: without keys and values if it reads those of another layer.
    pub fn projected(&self) -> HeadLayout {
        if self.stores_keys() { self.heads } else { HeadLayout { kv_heads: 0, ..self.heads } }
    }
}

impl HeadNorm {
    pub fn form(self) -> HeadNormForm {
        HeadNormForm { span: self.span, centred: self.norm.is_layer_norm() }
    }
}

impl Norm {
    pub fn eps(self) -> f32 {
        match self {
            Norm::Rms { eps }
            | Norm::RmsPlusOne { eps }
            | Norm::Layer { eps }
            | Norm::LayerPlusOne { eps }
            | Norm::LayerNoBias { eps } => eps,
        }
    }

    /// Whether it subtracts the mean.
    pub fn is_layer_norm(self) -> bool {
        matches!(self, Norm::Layer { .. } | Norm::LayerPlusOne { .. } | Norm::LayerNoBias { .. })
    }

    /// Whether a checkpoint has a bias of it.
    pub fn has_bias(self) -> bool {
        matches!(self, Norm::Layer { .. } | Norm::LayerPlusOne { .. })
    }

    /// The norm that this is where one plus the weights are stored.
    #[must_use]
    pub fn with_stored_sum(self) -> Self {
        match self {
            Norm::RmsPlusOne { eps } => Norm::Rms { eps },
            Norm::LayerPlusOne { eps } => Norm::Layer { eps },
            Norm::Rms { .. } | Norm::Layer { .. } | Norm::LayerNoBias { .. } => self,
        }
    }
}

/// The distinct values of `items`, in order of first occurrence.
pub fn kinds<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kinds = Vec::new();
    for item in items {
        if !kinds.contains(&item) {
            kinds.push(item);
        }
    }
    kinds
}

/// The index of `kind` in the `kinds` of all layers.
pub fn kind_index<T: PartialEq>(kinds: &[T], kind: &T) -> usize {
    kinds.iter().position(|other| other == kind).expect("the kinds are those of all layers")
}
