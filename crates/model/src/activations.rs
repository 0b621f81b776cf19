//! The activation buffers of a step. They are resized to the step's rows and keep their memory, so that steady decoding
//! allocates nothing. Layers share one buffer per distinct width.

use offshoot_backend::{ActivationDtype, Backend, Dtype, HeadLayout, LatentHeads, RouterWeighs, Share, StepShape};
use offshoot_core::error::Result;

use super::config::{
    Activation, BranchScale, DenseSpec, ExpertsSpec, FeedForward, LatentSpec, LayerNorms, LayerSpec, Mixer,
    ModelConfig, OutputHead, PerLayerInputs, RecurrentSpec, kind_index, kinds,
};
use super::layout::{LayerTensors, Layout};
use super::recurrent::RecurrentBuffers;

/// All activation buffers of a decoder.
pub struct Activations<B: Backend> {
    /// For all rows of the step.
    pub all: StreamBuffers<B>,
    /// `[rows, qkv width]`, one for each kind of heads; of latent attention queries, and latents where one product
    /// gives both.
    pub qkv: Vec<B::Buffer>,
    /// The buffers of each kind of heads; `None` for those of attention.
    pub recurrent: Vec<Option<RecurrentBuffers<B>>>,
    /// The buffers of each kind of heads; `None` for those that have no latents.
    pub latent: Vec<Option<LatentBuffers<B>>>,
    /// For the rows whose logits are computed, after the last attention.
    pub logit_rows: StreamBuffers<B>,
    /// `[logit rows, outputs of the layer]`, one for each layer of a scorer before its last.
    pub value_layers: Vec<B::Buffer>,
    /// `[logit rows, outputs]`: the logits, or a scorer's values.
    pub output: B::Buffer,
}

/// The buffers of latent attention, of `R` rows; widths as [`LatentHeads`] has them.
pub struct LatentBuffers<B: Backend> {
    /// `[R, query_rank]`, sums before its norm and operands behind it, if queries are made of it.
    pub low: Option<[B::Buffer; 2]>,
    /// `[R, rank + rope]`; `None`: they lie behind the queries of their rows, in `Activations::qkv`.
    pub latents: Option<B::Buffer>,
    /// `[R, heads * (rank + rope)]`: the queries of the absorbed form.
    pub absorbed: B::Buffer,
    /// `[R, heads * rank]`: what these have read.
    pub read: B::Buffer,
    /// `[R, heads]`: log-sum-exps.
    pub lse: B::Buffer,
    /// `[R, heads * value]` and `[R, heads]`: what is read of copies, and the log-sum-exps.
    pub expanded: [B::Buffer; 2],
}

/// The residual stream of `R` rows, and the buffers of the blocks that read and write it.
pub struct StreamBuffers<B: Backend> {
    /// `[R, hidden]`
    pub residual: B::Buffer,
    /// `[R, hidden]`: input of the next linear layer.
    pub normed: B::Buffer,
    /// `[R, q width]`, one for each kind of heads: what the heads have read.
    pub attended: Vec<B::Buffer>,
    /// The gates of the same, if the model has them.
    pub gates: Vec<B::Buffer>,
    /// `[R, rank]`: what these are projected from, of kinds whose gates have two projections.
    pub low_gates: Vec<Option<B::Buffer>>,
    /// `[R, 1]`, if all rows share an expert with a gate.
    pub shared_gate: Option<B::Buffer>,
    /// One for each kind of dense feed-forward block.
    pub inner: Vec<InnerBuffers<B>>,
    /// What a block computed, in models that do not add it to the residual stream as it is.
    pub blocks: Option<BlockBuffers<B>>,
    /// `[R, hidden]`: what experts computed for the next layer, in models that carry it.
    pub carried: Option<B::Buffer>,
    /// One for each kind of mixture.
    pub mixtures: Vec<MixtureBuffers<B>>,
    pub inputs: Option<LayerInputBuffers<B>>,
}

/// The buffers behind a block, `[R, hidden]` each.
pub struct BlockBuffers<B: Backend> {
    /// Before its norm.
    pub block: B::Buffer,
    /// The sum of a dense block and experts.
    pub sum: B::Buffer,
}

/// The buffers of a mixture of experts.
pub struct MixtureBuffers<B: Backend> {
    chosen: usize,
    /// `[R, routed experts]`
    pub scores: B::Buffer,
    pub routes: B::Routes,
    pub places: PlaceBuffers<B>,
    /// Of experts with a width of their own.
    pub latent: Option<LatentExpertBuffers<B>>,
}

/// The buffers of the places of a mixture: a place is a row at one of its experts.
pub struct PlaceBuffers<B: Backend> {
    pub inner: InnerBuffers<B>,
    /// `[places, hidden]`, or the width that experts have of their own.
    pub down: B::Buffer,
    /// `[places, hidden]`, or that width: what experts read, where it is weighed.
    pub weighed: Option<B::Buffer>,
}

/// The buffers around experts with a width of their own, `[R, width]` each.
pub struct LatentExpertBuffers<B: Backend> {
    /// What experts read, then their sums as the projection behind them reads them.
    pub rows: B::Buffer,
    pub sums: B::Buffer,
}

/// The buffers of inputs by layer.
pub struct LayerInputBuffers<B: Backend> {
    /// `[R, layers * width]`: the tokens' second embeddings, then the inputs of all layers.
    pub tokens: B::Buffer,
    pub layers: B::Buffer,
    /// `[R, width]`
    pub gated: B::Buffer,
}

/// The buffers inside a feed-forward block, of `R` rows, or as many places.
pub struct InnerBuffers<B: Backend> {
    /// Gated: `[R, 2 * width]`, gate and up side by side. Else `[R, width]`.
    pub up: B::Buffer,
    /// `[R, width]`; `None` if the activation works in place.
    pub gated: Option<B::Buffer>,
}

/// Indices of the buffers that a layer uses.
#[derive(Clone, Copy)]
pub struct BufferIndices {
    /// Index in `Activations::qkv`, `recurrent` and `latent`, `StreamBuffers::attended`, `gates` and `low_gates`;
    /// `None` if the layer mixes no positions.
    pub heads: Option<usize>,
    /// Index in `StreamBuffers::inner`; unused if the layer has no dense block.
    pub inner: usize,
    /// Index in `StreamBuffers::mixtures`; unused if the layer has no experts.
    pub mixture: usize,
}

impl BufferIndices {
    /// The indices of each layer. `layout`: that of `config`.
    pub fn of(config: &ModelConfig, layout: &Layout) -> Vec<BufferIndices> {
        let (heads, inner, mixtures) = (head_kinds(config, layout), inner_kinds(config), mixture_kinds(config));
        let of_layer = |(layer, own): (&LayerSpec, Option<MixedHeads>)| BufferIndices {
            heads: own.map(|own| kind_index(&heads, &own)),
            inner: layer.feed_forward.dense().map_or(0, |dense| kind_index(&inner, dense)),
            mixture: layer.feed_forward.experts().map_or(0, |experts| kind_index(&mixtures, experts)),
        };
        config.layers.iter().zip(heads_of(config, layout)).map(of_layer).collect()
    }
}

/// The heads by which a layer mixes positions.
#[derive(Clone, Copy, PartialEq)]
enum MixedHeads {
    Attention(HeadLayout),
    Latent(LatentRows),
    Recurrent(RecurrentSpec),
}

/// What the first products of latent attention give.
#[derive(Clone, Copy, PartialEq)]
struct LatentRows {
    heads: LatentHeads,
    /// The width of what queries are made of.
    query_rank: Option<usize>,
    /// Whether latents lie behind the queries of their rows.
    joined: bool,
}

impl MixedHeads {
    /// `None` if the layer mixes no positions.
    fn of(layer: &LayerSpec, tensors: &LayerTensors) -> Option<Self> {
        Some(match &layer.mixer {
            Mixer::None => return None,
            Mixer::Attention(attention) => match attention.latent() {
                Some(LatentSpec { heads, query_rank, .. }) => {
                    let joined = tensors.latent.as_ref().is_some_and(|latent| latent.latents.is_none());
                    Self::Latent(LatentRows { heads, query_rank, joined })
                }
                None => Self::Attention(attention.projected()),
            },
            Mixer::Recurrent(recurrent) => Self::Recurrent(*recurrent),
        })
    }

    fn qkv_width(self) -> usize {
        match self {
            Self::Attention(heads) => heads.qkv_width(),
            Self::Latent(LatentRows { heads, joined: false, .. }) => heads.query_width(),
            Self::Latent(LatentRows { heads, joined: true, .. }) => heads.query_width() + heads.latent_width(),
            Self::Recurrent(recurrent) => recurrent.input_width(),
        }
    }

    fn qkv_share(self) -> Share {
        match self {
            Self::Attention(heads) => Share::Heads(heads),
            Self::Latent(LatentRows { heads, joined: true, .. }) => Share::Latents(heads),
            Self::Latent(_) | Self::Recurrent(_) => Share::Columns,
        }
    }

    fn attended_width(self) -> usize {
        match self {
            Self::Attention(heads) => heads.out_width(),
            Self::Latent(rows) => rows.heads.out_width(),
            Self::Recurrent(recurrent) => recurrent.out_width(),
        }
    }
}

/// The heads of each layer.
fn heads_of<'a>(config: &'a ModelConfig, layout: &'a Layout) -> impl Iterator<Item = Option<MixedHeads>> + 'a {
    config.layers.iter().zip(&layout.layers).map(|(layer, tensors)| MixedHeads::of(layer, tensors))
}

fn head_kinds(config: &ModelConfig, layout: &Layout) -> Vec<MixedHeads> {
    kinds(heads_of(config, layout).flatten())
}

/// True if, in any layer, what was mixed is multiplied by a gate before the output projection.
fn has_gates(config: &ModelConfig) -> bool {
    config.layers.iter().any(|layer| match &layer.mixer {
        Mixer::Attention(attention) => attention.gate.is_some(),
        Mixer::Recurrent(recurrent) => recurrent.is_gated(),
        Mixer::None => false,
    })
}

fn inner_kinds(config: &ModelConfig) -> Vec<DenseSpec> {
    kinds(config.layers.iter().filter_map(|layer| layer.feed_forward.dense().copied()))
}

fn mixture_kinds(config: &ModelConfig) -> Vec<ExpertsSpec> {
    kinds(config.layers.iter().filter_map(|layer| layer.feed_forward.experts().copied()))
}

/// Whether some block's output passes a norm or a sum before it is added to the residual stream.
fn keeps_blocks(config: &ModelConfig) -> bool {
    let passes = |layer: &LayerSpec| match layer.norms {
        LayerNorms::Sequential { attention, feed_forward } => attention.after().or(feed_forward.after()).is_some(),
        LayerNorms::Parallel(_) | LayerNorms::ParallelOfTwo { .. } => false,
    };
    let sums = |layer: &LayerSpec| {
        let beside =
            matches!(layer.feed_forward, FeedForward::DenseAndExperts { .. } | FeedForward::SharedExpert { .. });
        beside || layer.branch_scale != BranchScale::default()
    };
    config.per_layer_inputs.is_some() || config.layers.iter().any(|layer| passes(layer) || sums(layer))
}

/// What `make` makes of each of `all`. A plain loop, as backends have each a copy of it.
pub fn made_of<T, M>(all: impl IntoIterator<Item = T>, mut make: impl FnMut(T) -> Result<M>) -> Result<Vec<M>> {
    let mut made = Vec::new();
    for one in all {
        made.push(make(one)?);
    }
    Ok(made)
}

impl<B: Backend> StreamBuffers<B> {
    /// The buffers behind a block. Only for models that have them.
    pub fn behind_blocks(blocks: &mut Option<BlockBuffers<B>>) -> &mut BlockBuffers<B> {
        blocks.as_mut().expect("`keeps_blocks` names every model whose layers ask for them")
    }
}

impl<B: Backend> Activations<B> {
    /// `layout`: that of `config`.
    pub fn new(backend: &mut B, config: &ModelConfig, layout: &Layout, dtype: Dtype) -> Result<Self> {
        let heads = head_kinds(config, layout);
        let operands = ActivationDtype::Operands(dtype);
        let qkv = |heads: &MixedHeads| backend.shared_buffer(heads.qkv_width(), operands, heads.qkv_share());
        let qkv = made_of(&heads, qkv)?;
        let recurrent = |heads: &MixedHeads| match heads {
            MixedHeads::Attention(_) | MixedHeads::Latent(_) => Ok(None),
            MixedHeads::Recurrent(spec) => RecurrentBuffers::new(backend, spec, dtype).map(Some),
        };
        let recurrent = made_of(&heads, recurrent)?;
        let latent = |heads: &MixedHeads| match *heads {
            MixedHeads::Latent(rows) => LatentBuffers::new(backend, rows, dtype).map(Some),
            MixedHeads::Attention(_) | MixedHeads::Recurrent(_) => Ok(None),
        };
        Ok(Self {
            qkv,
            recurrent,
            latent: made_of(&heads, latent)?,
            all: StreamBuffers::new(backend, config, &heads, dtype)?,
            logit_rows: StreamBuffers::new(backend, config, &heads, dtype)?,
            value_layers: match &config.output {
                OutputHead::Values(head) => made_of(&head.inner, |layer| backend.buffer(layer.outputs, operands))?,
                OutputHead::Tokens | OutputHead::TokenLogits(_) | OutputHead::Hidden => Vec::new(),
            },
            output: match config.is_scorer() {
                true => backend.buffer(config.outputs(), ActivationDtype::Sums)?,
                false => backend.shared_buffer(config.vocab, ActivationDtype::Sums, Share::Gathered)?,
            },
        })
    }

    pub fn resize(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        self.all.resize(backend, shape.rows)?;
        for buffer in &mut self.qkv {
            backend.resize(buffer, shape.rows)?;
        }
        for recurrent in self.recurrent.iter_mut().flatten() {
            recurrent.resize(backend, shape.rows)?;
        }
        for latent in self.latent.iter_mut().flatten() {
            latent.resize(backend, shape.rows)?;
        }
        self.logit_rows.resize(backend, shape.logit_rows)?;
        self.value_layers.iter_mut().try_for_each(|buffer| backend.resize(buffer, shape.logit_rows))?;
        backend.resize(&mut self.output, shape.logit_rows)
    }

    /// Copies the rows whose logits are computed, as far as the rest of a layer after its attention reads them.
    /// `heads`: the layer's `BufferIndices::heads`; `reads_normed`: whether it reads the input of attention again.
    pub fn select_logit_rows(&mut self, backend: &mut B, heads: Option<usize>, reads_normed: bool, step: &B::Step) {
        let (all, logit_rows) = (&self.all, &mut self.logit_rows);
        backend.select_rows(&mut logit_rows.residual, &all.residual, step);
        if reads_normed {
            backend.select_rows(&mut logit_rows.normed, &all.normed, step);
        }
        if let Some(heads) = heads {
            backend.select_rows(&mut logit_rows.attended[heads], &all.attended[heads], step);
        }
        if let (Some(selected), Some(carried)) = (&mut logit_rows.carried, &all.carried) {
            backend.select_rows(selected, carried, step);
        }
        if let (Some(selected), Some(inputs)) = (&mut logit_rows.inputs, &all.inputs) {
            backend.select_rows(&mut selected.layers, &inputs.layers, step);
        }
    }
}

impl<B: Backend> StreamBuffers<B> {
    fn new(backend: &mut B, config: &ModelConfig, heads: &[MixedHeads], dtype: Dtype) -> Result<Self> {
        let normed = backend.buffer(config.hidden, ActivationDtype::Operands(dtype))?;
        // What experts compute is combined in f32.
        let parts = if config.has_experts() { ActivationDtype::Sums } else { ActivationDtype::Operands(dtype) };
        let summed = Share::Summed { parts, inputs: dtype };
        let mut sums = || backend.shared_buffer(config.hidden, ActivationDtype::Sums, summed);
        let residual = sums()?;
        let blocks = match keeps_blocks(config) {
            true => Some(BlockBuffers { block: sums()?, sum: sums()? }),
            false => None,
        };
        let carries = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForward::Opens { .. });
        let carried = config.layers.iter().any(carries).then(sums).transpose()?;
        let operands = ActivationDtype::Operands(dtype);
        let mut of_heads = |heads: &MixedHeads| backend.shared_buffer(heads.attended_width(), operands, Share::Columns);
        let attended = made_of(heads, &mut of_heads)?;
        let gates = if has_gates(config) { made_of(heads, of_heads)? } else { Vec::new() };
        let low_gates = made_of(heads, |heads| match heads {
            MixedHeads::Recurrent(RecurrentSpec::Channel(spec)) => backend.buffer(spec.rank, operands).map(Some),
            MixedHeads::Attention(_) | MixedHeads::Latent(_) | MixedHeads::Recurrent(_) => Ok(None),
        })?;
        let shares = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForward::SharedExpert { gated: true, .. });
        let shared_gate = match config.layers.iter().any(shares) {
            true => Some(backend.buffer(1, ActivationDtype::Sums)?),
            false => None,
        };
        let inner =
            made_of(inner_kinds(config), |kind| InnerBuffers::new(backend, kind.activation, kind.width, dtype))?;
        let mixture = |kind| MixtureBuffers::new(backend, kind, config.hidden, dtype);
        let mixtures = made_of(mixture_kinds(config), mixture)?;
        let inputs = config.per_layer_inputs;
        let inputs =
            inputs.map(|inputs| LayerInputBuffers::new(backend, inputs, config.layers.len(), dtype)).transpose()?;
        Ok(Self { residual, normed, attended, gates, low_gates, shared_gate, inner, blocks, carried, mixtures, inputs })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let mut resize = |buffer: &mut B::Buffer| backend.resize(buffer, rows);
        resize(&mut self.residual)?;
        resize(&mut self.normed)?;
        if let Some(BlockBuffers { block, sum }) = &mut self.blocks {
            resize(block)?;
            resize(sum)?;
        }
        let of_rows = self.attended.iter_mut().chain(&mut self.gates).chain(&mut self.shared_gate);
        for buffer in of_rows.chain(&mut self.carried).chain(self.low_gates.iter_mut().flatten()) {
            resize(buffer)?;
        }
        if let Some(LayerInputBuffers { tokens, layers, gated }) = &mut self.inputs {
            resize(tokens)?;
            resize(layers)?;
            resize(gated)?;
        }
        self.inner.iter_mut().try_for_each(|inner| inner.resize(backend, rows))?;
        self.mixtures.iter_mut().try_for_each(|mixture| mixture.resize(backend, rows))
    }
}

impl<B: Backend> LatentBuffers<B> {
    fn new(backend: &mut B, rows: LatentRows, dtype: Dtype) -> Result<Self> {
        let LatentRows { heads, query_rank, joined } = rows;
        let operands = ActivationDtype::Operands(dtype);
        let low = match query_rank {
            Some(rank) => Some([backend.buffer(rank, ActivationDtype::Sums)?, backend.buffer(rank, operands)?]),
            None => None,
        };
        let latents = if joined { None } else { Some(backend.buffer(heads.latent_width(), operands)?) };
        let mut of_heads = |width: usize, holds| backend.shared_buffer(heads.heads * width, holds, Share::Columns);
        Ok(Self {
            low,
            latents,
            absorbed: of_heads(heads.latent_width(), operands)?,
            read: of_heads(heads.rank, operands)?,
            lse: of_heads(1, ActivationDtype::Sums)?,
            expanded: [of_heads(heads.value, operands)?, of_heads(1, ActivationDtype::Sums)?],
        })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let Self { low, latents, absorbed, read, lse, expanded } = self;
        let all = low.iter_mut().flatten().chain(latents).chain([absorbed, read, lse]).chain(expanded);
        all.into_iter().try_for_each(|buffer| backend.resize(buffer, rows))
    }
}

impl<B: Backend> InnerBuffers<B> {
    fn new(backend: &mut B, activation: Activation, width: usize, dtype: Dtype) -> Result<Self> {
        let mut empty = |width| backend.shared_buffer(width, ActivationDtype::Operands(dtype), Share::Columns);
        let gated = matches!(activation, Activation::Gated(_));
        Ok(Self { up: empty(activation.up_width(width))?, gated: if gated { Some(empty(width)?) } else { None } })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let buffers = std::iter::once(&mut self.up).chain(&mut self.gated);
        buffers.into_iter().try_for_each(|buffer| backend.resize(buffer, rows))
    }
}

impl<B: Backend> MixtureBuffers<B> {
    fn new(backend: &mut B, kind: ExpertsSpec, hidden: usize, dtype: Dtype) -> Result<Self> {
        let operands = ActivationDtype::Operands(dtype);
        let latent = match kind.latent {
            None => None,
            Some(width) => {
                let summed = Share::Summed { parts: ActivationDtype::Sums, inputs: dtype };
                let sums = backend.shared_buffer(width, ActivationDtype::Sums, summed)?;
                Some(LatentExpertBuffers { rows: backend.buffer(width, operands)?, sums })
            }
        };
        let width = kind.latent.unwrap_or(hidden);
        let weighed = match kind.router.weighs {
            RouterWeighs::Outputs => None,
            RouterWeighs::Inputs => Some(backend.buffer(width, operands)?),
        };
        Ok(Self {
            chosen: kind.router.chosen,
            scores: backend.buffer(kind.routed(), ActivationDtype::Sums)?,
            routes: backend.routes(kind.routed(), kind.router)?,
            places: PlaceBuffers {
                inner: InnerBuffers::new(backend, kind.activation, kind.width, dtype)?,
                down: backend.shared_buffer(width, operands, Share::Parts)?,
                weighed,
            },
            latent,
        })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        backend.resize(&mut self.scores, rows)?;
        backend.resize_routes(&mut self.routes, rows)?;
        if let Some(LatentExpertBuffers { rows: own, sums }) = &mut self.latent {
            backend.resize(own, rows)?;
            backend.resize(sums, rows)?;
        }
        let PlaceBuffers { inner, down, weighed } = &mut self.places;
        inner.resize(backend, rows * self.chosen)?;
        std::iter::once(down).chain(weighed).try_for_each(|buffer| backend.resize(buffer, rows * self.chosen))
    }
}

impl<B: Backend> LayerInputBuffers<B> {
    fn new(backend: &mut B, inputs: PerLayerInputs, layers: usize, dtype: Dtype) -> Result<Self> {
        Ok(Self {
            tokens: backend.buffer(layers * inputs.width, ActivationDtype::Sums)?,
            layers: backend.buffer(layers * inputs.width, ActivationDtype::Sums)?,
            gated: backend.buffer(inputs.width, ActivationDtype::Operands(dtype))?,
        })
    }
}
