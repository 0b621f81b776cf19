//! What a family of models is, as data: which fields of config.json say what, what holds where they are silent, and how
//! its parts are put together. `table` has one [`Description`] for each family; the readers beside this file make a
//! `ModelConfig` of it and of a config.json. To add a family that is made of known parts, add a file to `table`.

use std::fmt;

use offshoot_backend::{Gate, HeadNormSpan, LeastSum, RopePairs};
use offshoot_core::error::Result;
use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::layer::{Activation, ExpertWidthField, Norm, QueryGate};
use super::super::modules::{LLAMA, Modules};
use super::super::recurrent::RecurrentSpec;
use super::super::rope::{LayerKind, RopeDefaults};
use super::canonical::Canonical;
use super::keys::Why;

/// A family of models.
pub struct Description {
    /// Its `model_type`; that of the text model where a wrapper has another.
    pub name: &'static str,
    /// Other values of `model_type` that mean it.
    pub also: &'static [&'static str],
    /// Fields that the family calls otherwise than they are read: its own name and the one that is read.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Rewrites what of a config.json is said in the family's own words, after renaming and before defaults.
    pub adapt: Option<fn(&Fields<'_>, &mut Canonical) -> Result<()>>,
    /// What transformers assumes of fields that are not written, an object.
    pub defaults: fn() -> Value,
    /// Fields of which one value is computed, and that value in JSON. Others are refused.
    pub fixed: &'static [(&'static str, &'static str)],
    /// Fields of the family's configs that change nothing, beside those that change nothing in any.
    pub ignored: &'static [(&'static str, Why)],
    pub norm: NormKind,
    /// The field of the norms' epsilon, and its value where it is not written.
    pub eps: (&'static str, f64),
    pub places: NormPlaces,
    pub blocks: Blocks,
    pub biases: Biases,
    pub activation: ActivationRule,
    pub kinds: KindRule,
    pub windows: WindowRule,
    pub rope: RopeRule,
    /// Whether a stretched rope lengthens the context beyond `max_position_embeddings`.
    pub stretches_context: bool,
    /// The norms of queries and keys.
    pub head_norm: Option<HeadNormRule>,
    /// The field of the largest size of an element of a query, key or value.
    pub clip: Option<&'static str>,
    /// Where the gates of query heads come from, if they have some.
    pub gate: Option<QueryGate>,
    /// Whether queries grow as `llama_4_scaling_beta` of the rope says.
    pub grows: bool,
    /// Whether each query head has a learned score that belongs to no position.
    pub sinks: bool,
    pub keys: KeyRule,
    pub scales: ScaleRule,
    /// The fields of the width of dense blocks; the first that is written counts, or else the last.
    pub dense_width: &'static [&'static str],
    pub experts: Option<ExpertRule>,
    pub latent: Option<LatentRule>,
    /// Reads layers of the kind [`LayerKind::Linear`], where there are some, with the epsilon of the model's norms.
    pub recurrent: Option<fn(&Fields<'_>, f32) -> Result<RecurrentSpec>>,
    /// Whether checkpoints may have layers behind the model's that predict further tokens.
    pub predicts_further: bool,
    /// The names of its tensors.
    pub modules: Modules,
    pub gguf: GgufRule,
}

/// The kind of a norm, whose epsilon the config says.
#[derive(Clone, Copy)]
pub enum NormKind {
    Rms,
    RmsPlusOne,
    Layer,
    LayerPlusOne,
    LayerNoBias,
}

impl NormKind {
    pub fn with(self, eps: f32) -> Norm {
        match self {
            Self::Rms => Norm::Rms { eps },
            Self::RmsPlusOne => Norm::RmsPlusOne { eps },
            Self::Layer => Norm::Layer { eps },
            Self::LayerPlusOne => Norm::LayerPlusOne { eps },
            Self::LayerNoBias => Norm::LayerNoBias { eps },
        }
    }
}

/// Where a layer has norms.
#[derive(Clone, Copy)]
pub enum NormPlaces {
    /// Before attention and before the feed-forward block.
    Before,
    /// Behind both.
    After,
    /// Before and behind both.
    Around,
    /// One before both, which read the same row.
    Parallel,
    /// One before each of both, which run side by side.
    ParallelOfTwo,
    /// The first of these if the field says so, else the second.
    If(&'static str, &'static NormPlaces, &'static NormPlaces),
}

/// Which blocks a layer has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// One that mixes positions, and a feed-forward block.
    Both,
    /// One: layers of the kind [`LayerKind::None`] have a feed-forward block, others have none (Nemotron-H, Mamba-2).
    One,
    /// Attention beside a recurrent layer, which read the same rows, and a feed-forward block (Falcon-H1).
    Beside,
}

/// Whether a linear layer has a bias.
#[derive(Clone, Copy)]
pub enum Bias {
    Never,
    Always,
    /// If this field says so.
    Flag(&'static str),
}

impl Bias {
    pub fn read(self, fields: &Fields<'_>) -> Result<bool> {
        match self {
            Self::Never => Ok(false),
            Self::Always => Ok(true),
            Self::Flag(name) => Ok(fields.flag(name)?.unwrap_or(false)),
        }
    }
}

/// Which linear layers have a bias: the projections of queries, keys and values, the one out of attention, those of
/// dense blocks, and the output layer.
#[derive(Clone, Copy)]
pub struct Biases {
    pub qkv: Bias,
    pub out: Bias,
    pub mlp: Bias,
    pub head: Bias,
}

impl Biases {
    pub const NONE: Self = Self { qkv: Bias::Never, out: Bias::Never, mlp: Bias::Never, head: Bias::Never };
    pub const OF_ATTENTION: Self =
        Self { qkv: Bias::Flag("attention_bias"), out: Bias::Flag("attention_bias"), ..Self::NONE };
    pub const OF_ALL: Self = Self { mlp: Bias::Flag("mlp_bias"), ..Self::OF_ATTENTION };
}

/// The activation of dense blocks and experts.
#[derive(Clone, Copy)]
pub struct ActivationRule {
    pub field: &'static str,
    /// Names that the field may have, and what each means; where the field is not written, the first holds.
    pub known: &'static [(&'static str, Activation)],
}

impl ActivationRule {
    pub const SILU: Self = Self::silu(Gate::Silu);
    pub const RELU_SQUARED: Self = Self { field: "hidden_act", known: &[("relu2", Activation::ReluSquared)] };

    /// A gated block whose config calls its gate silu.
    pub const fn silu(gate: Gate) -> Self {
        let known: &'static [(&'static str, Activation)] = match gate {
            Gate::Silu => &[("silu", Activation::Gated(Gate::Silu)), ("swish", Activation::Gated(Gate::Silu))],
            Gate::Gelu => &[("silu", Activation::Gated(Gate::Gelu)), ("swish", Activation::Gated(Gate::Gelu))],
            Gate::Clamped => &[("silu", Activation::Gated(Gate::Clamped)), ("swish", Activation::Gated(Gate::Clamped))],
        };
        Self { field: "hidden_act", known }
    }
}

/// What kind of mixer each layer has.
#[derive(Clone, Copy)]
pub struct KindRule {
    /// Whether `layer_types` says so, where it is written.
    pub listed: bool,
    /// Words of `layer_types` beside those of [`LayerKind`].
    pub words: &'static [(&'static str, LayerKind)],
    pub otherwise: ImpliedKinds,
    /// Whether the last layer has full attention, whatever `layer_types` says.
    pub last_is_full: bool,
}

impl KindRule {
    pub const fn all(kind: LayerKind) -> Self {
        Self { listed: true, words: &[], otherwise: ImpliedKinds::All(kind), last_is_full: false }
    }

    /// Each `period`-th layer has full attention, others are of kind `rest`; `field` may hold another period.
    pub const fn every(field: Option<&'static str>, period: usize, rest: LayerKind) -> Self {
        Self { listed: true, words: &[], otherwise: ImpliedKinds::Every { field, period, rest }, last_is_full: false }
    }

    /// `layer_types` does not count.
    pub const fn unlisted(self) -> Self {
        Self { listed: false, ..self }
    }
}

/// The kinds of layers where `layer_types` does not say them.
#[derive(Clone, Copy)]
pub enum ImpliedKinds {
    All(LayerKind),
    Every {
        field: Option<&'static str>,
        period: usize,
        rest: LayerKind,
    },
    /// Layers from `max_window_layers` on have windows; the number where it is not written.
    Behind(u64),
    /// Every other layer below `max_window_layers` has a window, the first one too, if `use_sliding_window` says so.
    EvenBelow(u64),
    /// Layers without a rope have windows, if `use_sliding_window` says so.
    Unrotated,
}

/// Which layers have a window: none, or those of the kind [`LayerKind::Sliding`].
#[derive(Clone, Copy)]
pub struct WindowRule {
    pub used: WindowUse,
    /// `sliding_window` where it is not written, even as `null`.
    pub default: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WindowUse {
    Never,
    Always,
    /// If `use_sliding_window` says so.
    Switched,
}

impl WindowRule {
    /// What transformers assumes of most families.
    pub const DEFAULT: Option<usize> = Some(4096);
    pub const NONE: Self = Self { used: WindowUse::Never, default: None };
    pub const WRITTEN: Self = Self { used: WindowUse::Always, default: None };
}

/// The ropes of layers with full attention and with windows, and which layers have one.
#[derive(Clone, Copy)]
pub struct RopeRule {
    pub full: RopeDefaults,
    pub sliding: RopeDefaults,
    pub rotated: Rotated,
}

#[derive(Clone, Copy)]
pub enum Rotated {
    All,
    /// Those that have 1 in `no_rope_layers`, or but each `no_rope_layer_interval`-th.
    Listed,
    /// Those of the kind [`LayerKind::Sliding`]; all where `sliding_window` is `null`.
    Sliding,
    /// All, if this field has this value.
    If(&'static str, &'static str),
    None,
}

impl RopeRule {
    /// The same rope in all layers.
    pub const fn same(rope: RopeDefaults) -> Self {
        Self { full: rope, sliding: rope, rotated: Rotated::All }
    }

    pub const PLAIN: Self = Self::same(PLAIN_ROPE);
}

/// A rope of whole heads.
pub const PLAIN_ROPE: RopeDefaults = RopeDefaults {
    theta_field: Some("rope_theta"),
    theta: 10_000.0,
    fraction: 1.0,
    partial: false,
    scaled: true,
    is_phi3: false,
    pairs: RopePairs::Halves,
    scales_scores: false,
};

/// The norms of queries and keys, of the kind of the model's norms.
#[derive(Clone, Copy)]
pub struct HeadNormRule {
    pub span: HeadNormSpan,
    /// Whether value heads are normalised too, without weights.
    pub values: bool,
    /// Whether the norms of queries and keys multiply by weights.
    pub weights: bool,
    pub after_rope: bool,
    /// The field that says whether there are any, if one does.
    pub switch: Option<&'static str>,
}

impl HeadNormRule {
    pub const BY_HEAD: Self =
        Self { span: HeadNormSpan::Head, values: false, weights: true, after_rope: false, switch: None };
    pub const OF_ALL_HEADS: Self = Self { span: HeadNormSpan::AllHeads, ..Self::BY_HEAD };
}

/// Where keys and values come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    Projected,
    /// As in Gemma 4: widths differ by layer, last layers read what earlier ones store, keys may be values, and layers
    /// may have inputs of their own.
    Gemma4,
}

/// A number by which something is multiplied.
#[derive(Clone, Copy)]
pub enum Factor {
    /// Nothing is multiplied; of scores: the usual factor holds.
    None,
    Fixed(f64),
    /// The number in a field. Of this and those below: nothing is multiplied where the field is not written.
    Field(&'static str),
    /// One over the number in a field.
    OneOver(&'static str),
    /// One over the root of the number in a field.
    OneOverRoot(&'static str),
    /// The number in a field over the root of the number of layers.
    OverRootOfLayers(&'static str),
    /// The number in a field over the width of the residual stream.
    OverHidden(&'static str),
    /// The root of the width of the residual stream.
    RootOfHidden,
    /// The same, if the field says so.
    RootOfHiddenIf(&'static str),
}

impl Factor {
    /// `hidden`: the width of the residual stream.
    pub fn read(self, fields: &Fields<'_>, hidden: usize, layers: usize) -> Result<Option<f32>> {
        let field = |name: &str, factor: &dyn Fn(f64) -> f64| Ok(fields.positive(name)?.map(factor));
        let factor = match self {
            Self::None => Ok(None),
            Self::Fixed(factor) => Ok(Some(factor)),
            Self::Field(name) => field(name, &|x| x),
            Self::OneOver(name) => field(name, &|x| 1.0 / x),
            Self::OneOverRoot(name) => field(name, &|x| 1.0 / x.sqrt()),
            Self::OverRootOfLayers(name) => field(name, &|x| x / (layers as f64).sqrt()),
            Self::OverHidden(name) => field(name, &|x| x / hidden as f64),
            Self::RootOfHidden => Ok(Some((hidden as f64).sqrt())),
            Self::RootOfHiddenIf(name) => Ok(fields.flag(name)?.unwrap_or(false).then(|| (hidden as f64).sqrt())),
        };
        factor.map(|factor: Option<f64>| factor.map(|factor| factor as f32))
    }
}

/// By what a model multiplies.
#[derive(Clone, Copy)]
pub struct ScaleRule {
    /// Of embeddings, and whether the factor is rounded to the dtype of their table.
    pub embeddings: Factor,
    pub rounds_embeddings: bool,
    /// Of products of queries and keys; usually one over the root of their width.
    pub scores: Factor,
    /// Of what a block adds to the residual stream.
    pub branches: Factor,
    pub logits: Factor,
    /// The fields of the caps of scores and of logits.
    pub score_cap: Option<&'static str>,
    pub logit_cap: Option<&'static str>,
    /// Whether layers multiply the residual stream by a number of their own at their end.
    pub of_layers: bool,
}

impl ScaleRule {
    pub const NONE: Self = Self {
        embeddings: Factor::None,
        rounds_embeddings: false,
        scores: Factor::None,
        branches: Factor::None,
        logits: Factor::None,
        score_cap: None,
        logit_cap: None,
        of_layers: false,
    };
}

/// Mixtures of experts.
#[derive(Clone, Copy)]
pub struct ExpertRule {
    pub layers: ExpertLayers,
    /// Names of the field of the number of experts; the first that is written counts, or else the last.
    pub count: &'static [&'static str],
    /// The field of the number of experts that each row chooses.
    pub chosen: &'static str,
    /// The field of an expert's width.
    pub width: ExpertWidthField,
    pub scores: ScoreRule,
    pub normalise: Normalise,
    pub groups: GroupRule,
    /// Whether the router has a bias by which it chooses.
    pub choosing_bias: bool,
    /// Whether router and experts have biases that they add.
    pub bias: bool,
    /// Whether the router has a norm of its own, and each expert a factor.
    pub router_norm: bool,
    pub beside: Beside,
    /// The field of the width of what experts read and give, if they may have one of their own.
    pub latent: Option<&'static str>,
    /// What is added to the sum by which sigmoids are divided.
    pub least: LeastSum,
    /// The field that says whether the output of such layers is the "sum" of both or, as where it is not written, their
    /// "average".
    pub average: Option<&'static str>,
}

/// Which layers have experts.
#[derive(Clone, Copy)]
pub enum ExpertLayers {
    All,
    /// Each `decoder_sparse_step`-th one that is not among `mlp_only_layers`.
    Stepped,
    /// Those from `first_k_dense_replace` on.
    Behind,
    /// Those that are "sparse" in `mlp_layer_types`, or but the first one.
    Listed,
    /// All, if this field says so.
    If(&'static str),
    /// All, unless there are none of them.
    AnyCount,
    /// The first of each two, of which the second adds what the experts have computed.
    Opening,
}

/// How a router weighs experts; fields that say otherwise are refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ScoreRule {
    Softmax,
    SoftmaxOfChosen,
    Sigmoid,
    /// A sparse mixer, by `router_jitter_noise`.
    SparseMixer,
    /// "softmax" of the chosen or "sigmoid", as the field says, or else the former.
    OfChosen(&'static str),
}

/// Whether the weights of the chosen experts are divided by their sum.
#[derive(Clone, Copy)]
pub enum Normalise {
    Always,
    /// A config that says otherwise is refused.
    Never,
    /// If `norm_topk_prob` says so.
    Written,
}

/// The groups among which experts are chosen.
#[derive(Clone, Copy)]
pub enum GroupRule {
    None,
    /// The fields `n_group` and `topk_group`; a group is as good as the sum of its two best experts.
    SumOfTwo,
    /// The same fields if `topk_method` is "group_limited_greedy"; a group is as good as its best expert.
    ByMethod,
}

/// What stands beside experts.
#[derive(Clone, Copy)]
pub enum Beside {
    Nothing,
    /// An expert that all rows share, of the width in this field, with a gate.
    Gated(&'static str),
    /// As many experts that all rows share as this field says, of the width of the others.
    Shared(&'static str),
    /// An expert that all rows share, of the width in this field; zero means none.
    Ungated(&'static str),
    /// A dense block, whose output is added behind norms.
    Dense,
    /// A dense block; what the experts compute is added at the end of the next layer.
    Opening,
}

impl ExpertRule {
    /// A softmax over all experts, whose chosen weights are divided by their sum.
    pub const SOFTMAX: Self = Self {
        layers: ExpertLayers::All,
        count: &["num_local_experts", "num_experts"],
        chosen: "num_experts_per_tok",
        width: ExpertWidthField::MoeIntermediate,
        scores: ScoreRule::Softmax,
        normalise: Normalise::Always,
        groups: GroupRule::None,
        choosing_bias: false,
        bias: false,
        router_norm: false,
        beside: Beside::Nothing,
        latent: None,
        least: LeastSum::Tiny,
        average: None,
    };

    /// DeepSeek-V3's router: sigmoids, a bias that only chooses, and groups.
    pub const SIGMOID: Self = Self {
        layers: ExpertLayers::Behind,
        count: &["n_routed_experts"],
        scores: ScoreRule::Sigmoid,
        normalise: Normalise::Written,
        groups: GroupRule::SumOfTwo,
        choosing_bias: true,
        beside: Beside::Shared("n_shared_experts"),
        ..Self::SOFTMAX
    };
}

/// Latent attention.
#[derive(Clone, Copy)]
pub struct LatentRule {
    /// Which elements the rope turns together; `None`: `rope_interleave` says so.
    pub pairs: Option<RopePairs>,
    /// Whether `v_head_dim` is the quotient of the width and the number of heads where it is not written.
    pub derives_values: bool,
    /// Whether queries and latents are multiplied by roots of the quotients of widths (LongCat).
    pub scaled_by_ranks: bool,
}

impl LatentRule {
    pub const DEEPSEEK: Self = Self { pairs: None, derives_values: false, scaled_by_ranks: false };
}

/// What is to know of the family's GGUF files.
#[derive(Clone, Copy)]
pub struct GgufRule {
    /// llama.cpp's name of the architecture; `None`: there are no such files, or another family names them.
    pub architecture: Option<&'static str>,
    /// The `model_type` of files of this architecture that have experts, or windows.
    pub with_experts: Option<&'static str>,
    pub with_windows: Option<&'static str>,
    /// Whether the rows of queries and keys lie so that the rope turns neighbours.
    pub paired: bool,
    pub windows: FileWindows,
    /// The key of the width that `intermediate_size` is.
    pub width: &'static str,
    /// Whether the norm before the feed-forward block is called that behind attention.
    pub norm_behind_attention: bool,
    /// Whether yarn cuts the bounds of its ramp to whole numbers.
    pub truncates: bool,
    /// Whether the rope was trained on the whole context where no key says otherwise.
    pub trained_on_context: bool,
    /// Models of so many layers scale scores by the width of the residual stream; `None`: no model of the family scales
    /// or caps scores in its own way.
    pub scaled_by_hidden: Option<u64>,
}

/// Which layers of a GGUF file have a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileWindows {
    None,
    InAll,
    /// Those that a list or a period says, or else the family.
    ByLayer,
    /// The same; without a window and a list none has one.
    ByLayerOrNone,
}

impl GgufRule {
    pub const NONE: Self = Self {
        architecture: None,
        with_experts: None,
        with_windows: None,
        paired: false,
        windows: FileWindows::None,
        width: "feed_forward_length",
        norm_behind_attention: false,
        truncates: true,
        trained_on_context: false,
        scaled_by_hidden: None,
    };

    pub const fn named(architecture: &'static str) -> Self {
        Self { architecture: Some(architecture), ..Self::NONE }
    }
}

/// Llama, of which other families say in what they differ.
pub const PLAIN: Description = Description {
    name: "llama",
    also: &[],
    renamed: &[],
    adapt: None,
    defaults: || json!({}),
    fixed: &[],
    ignored: &[],
    norm: NormKind::Rms,
    eps: ("rms_norm_eps", 1e-6),
    places: NormPlaces::Before,
    blocks: Blocks::Both,
    biases: Biases::OF_ATTENTION,
    activation: ActivationRule::SILU,
    kinds: KindRule::all(LayerKind::Full),
    windows: WindowRule::NONE,
    rope: RopeRule::PLAIN,
    stretches_context: true,
    head_norm: None,
    clip: None,
    gate: None,
    grows: false,
    sinks: false,
    keys: KeyRule::Projected,
    scales: ScaleRule::NONE,
    dense_width: &["intermediate_size"],
    experts: None,
    latent: None,
    recurrent: None,
    predicts_further: false,
    modules: LLAMA,
    gguf: GgufRule::NONE,
};

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.trim_end_matches("_text"))
    }
}
