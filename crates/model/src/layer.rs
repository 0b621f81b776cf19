//! One layer of the decoder: attention or a recurrent layer, the feed-forward block, and how both are added to the
//! residual stream. Either block may be missing.

use offshoot_backend::{
    Attended, Backend, HeadLayout, HeadNormForm, HeadNormSpan, HeadSteps, MOST_ROPES, Scoring, Segment, Split, StepRows,
};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use std::sync::Arc;

use super::activations::{Activations, BlockBuffers, BufferIndices, StreamBuffers};
use super::config::{
    AttentionKind, AttentionSpec, BlockNorms, HeadNorm, LayerNorms, LayerSpec, Mixer, ModelConfig, kind_index, kinds,
};
use super::feed_forward::{BlockEnd, FeedForwardLayer};
use super::inputs::LayerInput;
use super::latent::LatentAttention;
use super::layout::LayerTensors;
use super::loader::Loader;
use super::lora::StepAdapters;
use super::operands::StepOperands;
use super::parts::{Linear, NormLayer, norm_weights};
use super::recurrent::Recurrent;
use super::rope::Turning;

/// A layer with its weights.
pub struct Layer<B: Backend> {
    /// `None`: the layer mixes no positions.
    mixer: Option<MixerLayer<B>>,
    /// The projection of the gates of what attention reads; a recurrent layer has its own.
    gate: Option<Linear<B>>,
    /// Adds what `mixer` reads to the residual stream.
    out: Option<Linear<B>>,
    before_attention: BlockInput<B>,
    /// The norm of what attention computes; `None` if that is added as it is.
    after_attention: BlockEnd<B>,
    before_feed_forward: BlockInput<B>,
    after_feed_forward: BlockEnd<B>,
    /// `None`: the layer has no such block.
    feed_forward: Option<FeedForwardLayer<B>>,
    /// Whether the next layer reads what this one's norm before attention computes.
    is_read_again: bool,
    input: Option<LayerInput<B>>,
    /// Factor of the residual stream at the layer's end.
    output_scale: Option<f32>,
    pub buffers: BufferIndices,
}

/// What a block reads.
enum BlockInput<B: Backend> {
    Normed(NormLayer<B>),
    /// A norm of the residual stream as attention found it, if the two run in parallel.
    NormedBeside(NormLayer<B>),
    /// The residual stream itself.
    Residual,
    /// What the block before it read: the feed-forward block what attention did, if the two run in parallel.
    AsBefore,
}

/// What mixes positions.
enum MixerLayer<B: Backend> {
    Attention(Attention<B>),
    Latent(LatentAttention<B>),
    Recurrent(Recurrent<B>),
}

/// Where a layer with attention finds its keys and values, or its latents.
#[derive(Clone, Copy)]
pub struct PlaceInKv {
    /// Its place among the layers with attention.
    pub layer: LayerIx,
    /// Which of the layers that store keys and values it reads.
    pub stored: LayerIx,
    /// Index of its plan in the step.
    pub plan: usize,
}

struct Attention<B: Backend> {
    place: PlaceInKv,
    /// The heads in `qkv`.
    projected: HeadLayout,
    scale: f32,
    softcap: Option<f32>,
    sinks: Option<Arc<B::Vector>>,
    qkv: Linear<B>,
    /// For each of `HeadKind::ALL`.
    head_norms: [Option<Arc<B::Vector>>; 3],
    head_norm: Option<HeadNorm>,
    clip: Option<f32>,
    /// Indices in `Decoder::ropes` of what its heads are rotated by, one after the other.
    ropes: [Option<usize>; MOST_ROPES],
    /// Whether it stores the keys and values that it reads.
    stores: bool,
}

/// The distinct kinds of attention and ropes of the layers.
pub struct Kinds {
    pub attention: Vec<AttentionKind>,
    /// What queries and keys are rotated by, in the order of `Decoder::ropes`.
    pub ropes: Vec<Turning>,
    by_layer: Vec<Option<AttentionKind>>,
    stored: Vec<usize>,
}

const ALL_LISTED: &str = "the layout lists the tensors of every layer";

impl Kinds {
    /// The place of layer `ix`, which is `layer` among those with attention.
    fn place(&self, ix: usize, layer: LayerIx) -> PlaceInKv {
        let kind = self.by_layer[ix].as_ref().expect("a layer with attention has a kind");
        PlaceInKv { layer, stored: LayerIx::new(self.stored[ix]), plan: kind_index(&self.attention, kind) }
    }

    /// Indices in `ropes` of what turns the heads of a layer.
    fn ropes_of(&self, spec: &AttentionSpec) -> [Option<usize>; MOST_ROPES] {
        Turning::of(spec).map(|turning| turning.map(|turning| kind_index(&self.ropes, &turning)))
    }

    pub fn of(config: &ModelConfig) -> Self {
        Self {
            attention: config.attention_kinds(),
            by_layer: config.attention_by_layer(),
            ropes: kinds(config.attention().flat_map(Turning::of).flatten()),
            stored: config.stored_layers(),
        }
    }
}

impl<B: Backend> Layer<B> {
    /// Layer `ix`.
    pub fn load(
        loader: &mut Loader<'_, B>,
        tensors: &LayerTensors,
        config: &ModelConfig,
        ix: usize,
        kinds: &Kinds,
        buffers: BufferIndices,
    ) -> Result<Self> {
        let spec = &config.layers[ix];
        let before = |is: fn(&LayerSpec) -> bool| LayerIx::new(config.layers[..ix].iter().filter(|l| is(l)).count());
        let mixer = match (&spec.mixer, &tensors.recurrent) {
            (Mixer::None, _) => None,
            (Mixer::Attention(attention), _) => {
                let place = kinds.place(ix, before(|layer| layer.attention().is_some()));
                Some(match (attention.latent(), &tensors.latent) {
                    (Some(spec), Some(own)) => {
                        let turned = (kinds.ropes_of(attention), attention.scale);
                        let latent = LatentAttention::load(loader, tensors, own, spec, kinds, place, turned)?;
                        MixerLayer::Latent(latent)
                    }
                    (None, _) => MixerLayer::Attention(Attention::load(loader, tensors, attention, kinds, place)?),
                    (Some(_), None) => unreachable!("{ALL_LISTED}"),
                })
            }
            (Mixer::Recurrent(spec), Some(own)) => {
                let layer = before(|layer| layer.recurrent().is_some());
                Some(MixerLayer::Recurrent(Recurrent::load(loader, tensors, own, spec, layer)?))
            }
            (Mixer::Recurrent(_), None) => unreachable!("{ALL_LISTED}"),
        };
        let mut norm = |tensors: &Option<_>, norm| match (tensors, norm) {
            (Some(tensors), Some(norm)) => NormLayer::load(loader, tensors, norm).map(Some),
            _ => Ok(None),
        };
        let (of_attention, of_feed_forward) = (&tensors.attention_norms, &tensors.feed_forward_norms);
        let (before_attention, after_attention, before_feed_forward, after_feed_forward) = match spec.norms {
            LayerNorms::Sequential { attention: around, feed_forward } => {
                let before = norm(&of_feed_forward.before, feed_forward.before())?;
                (
                    BlockInput::of(around, norm(&of_attention.before, around.before())?),
                    norm(&of_attention.after, around.after())?,
                    BlockInput::of(feed_forward, before),
                    norm(&of_feed_forward.after, feed_forward.after())?,
                )
            }
            LayerNorms::Parallel(shared) => {
                let before = norm(&of_attention.before, Some(shared))?;
                (before.map_or(BlockInput::Residual, BlockInput::Normed), None, BlockInput::AsBefore, None)
            }
            LayerNorms::ParallelOfTwo { attention, feed_forward } => {
                let before = norm(&of_attention.before, Some(attention))?;
                let beside = norm(&of_feed_forward.before, Some(feed_forward))?;
                (
                    before.map_or(BlockInput::Residual, BlockInput::Normed),
                    None,
                    beside.map_or(BlockInput::Residual, BlockInput::NormedBeside),
                    None,
                )
            }
        };
        let input = tensors
            .input
            .as_ref()
            .zip(config.per_layer_inputs)
            .map(|(tensors, inputs)| LayerInput::load(loader, tensors, config.final_norm, ix * inputs.width));
        let output_scale = tensors.output_scale.as_ref().map(|tensor| loader.values(tensor)).transpose()?;
        Ok(Self {
            mixer,
            gate: tensors.gate.as_ref().map(|gate| Linear::load(loader, gate)).transpose()?,
            out: tensors.out.as_ref().map(|out| Linear::load(loader, out)).transpose()?,
            before_attention,
            after_attention: BlockEnd::new(after_attention, spec.branch_scale.mixer),
            before_feed_forward,
            after_feed_forward: BlockEnd::new(after_feed_forward, spec.branch_scale.feed_forward),
            is_read_again: config.layers.get(ix + 1).is_some_and(LayerSpec::reads_as_before),
            input: input.transpose()?,
            feed_forward: FeedForwardLayer::load(loader, tensors, &spec.feed_forward)?,
            output_scale: output_scale.map(|scale| scale[0]),
            buffers,
        })
    }

    /// The linear layer that alone reads what the norm before attention computes, if one does.
    fn reads_normed_once(&self) -> Option<&Linear<B>> {
        if self.reads_normed_again() || self.is_read_again {
            return None;
        }
        match self.mixer.as_ref()? {
            MixerLayer::Recurrent(_) => None,
            MixerLayer::Latent(latent) => latent.reads_alone(),
            MixerLayer::Attention(attention) => Some(&attention.qkv),
        }
    }

    /// Whether its feed-forward block is a mixture of experts, or has one.
    pub fn has_experts(&self) -> bool {
        self.feed_forward.as_ref().is_some_and(FeedForwardLayer::has_experts)
    }

    /// Whether `transform` reads the input of attention, too.
    pub fn reads_normed_again(&self) -> bool {
        let is_gated = match &self.mixer {
            Some(MixerLayer::Recurrent(recurrent)) => recurrent.is_gated(),
            Some(MixerLayer::Attention(_) | MixerLayer::Latent(_)) | None => self.gate.is_some(),
        };
        is_gated || matches!(self.before_feed_forward, BlockInput::AsBefore)
    }

    /// `attended = attention(qkv(norm(residual)))`, or what a recurrent layer gives in its place. Stores the new keys
    /// and values or states, and calls `observe` with the operands of attention. Nothing if the layer mixes no
    /// positions.
    pub fn attend(
        &self,
        backend: &mut B,
        a: &mut Activations<B>,
        step: &mut StepOperands<'_, B>,
        observe: &mut impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let (Some(mixer), Some(heads)) = (&self.mixer, self.buffers.heads) else { return };
        self.before_attention.fill(backend, &mut a.all, self.reads_normed_once(), step.adapters(StepRows::All));
        let (qkv, attended) = (&mut a.qkv[heads], &mut a.all.attended[heads]);
        let attention = match mixer {
            MixerLayer::Attention(attention) => attention,
            MixerLayer::Latent(latent) => {
                let own = a.latent[heads].as_mut().expect("its kind of heads has these buffers");
                return latent.attend(backend, attended, &a.all.normed, (qkv, own), step, observe);
            }
            MixerLayer::Recurrent(recurrent) => {
                let buffers = a.recurrent[heads].as_mut().expect("its kind of heads has these buffers");
                return recurrent.mix(backend, attended, &a.all.normed, qkv, buffers, step);
            }
        };
        attention.qkv.apply(backend, qkv, &a.all.normed, step.adapters(StepRows::All));
        let PlaceInKv { layer, stored, plan } = attention.place;
        let steps = HeadSteps {
            heads: attention.projected,
            norms: attention.head_norms.each_ref().map(Option::as_deref),
            form: attention.head_norm.map_or(HeadNormForm::PLAIN, HeadNorm::form),
            eps: attention.head_norm.map_or(0.0, |norm| norm.norm.eps()),
            norms_after_rope: attention.head_norm.is_some_and(|norm| norm.after_rope),
            clip: attention.clip,
            ropes: attention.ropes.map(|rope| rope.map(|rope| &step.ropes[rope].table)),
            layer: stored,
            stores: attention.stores,
        };
        backend.prepare_heads(qkv, &steps, step.kv, step.loaded);
        let Attention { scale, softcap, ref sinks, .. } = *attention;
        let scoring = Scoring { scale, softcap, sinks: sinks.as_deref() };
        backend.tree_attention(attended, qkv, step.kv, stored, step.loaded, plan, scoring);
        observe(backend, Attended { layer, stored, qkv, kv: step.kv, plan, scoring });
    }

    /// `residual += out(attended)`, gated if the layer has a gate, then `residual += feed_forward(norm(residual))`,
    /// each with the norms behind it. Without a norm of its own the feed-forward block reads the same normed input as
    /// attention.
    pub fn transform(&self, backend: &mut B, s: &mut StreamBuffers<B>, adapters: StepAdapters<'_, B>) {
        self.gate_attended(backend, s, adapters);
        let up = self.feed_forward.as_ref().and_then(FeedForwardLayer::reads_input_once);
        if let BlockInput::NormedBeside(_) = self.before_feed_forward {
            self.before_feed_forward.fill(backend, s, up, adapters);
        }
        self.add_attended(backend, s, adapters);
        if let Some(feed_forward) = &self.feed_forward {
            if !matches!(self.before_feed_forward, BlockInput::NormedBeside(_)) {
                self.before_feed_forward.fill(backend, s, up, adapters);
            }
            feed_forward.add_to(backend, s, self.buffers, &self.after_feed_forward, adapters);
        }
        if let Some(input) = &self.input {
            input.add_to(backend, s, adapters);
        }
        if let Some(scale) = self.output_scale {
            backend.scale(&mut s.residual, scale);
        }
    }

    /// Multiplies what was mixed by its gates, whose input is still that of attention.
    fn gate_attended(&self, backend: &mut B, s: &mut StreamBuffers<B>, adapters: StepAdapters<'_, B>) {
        let (Some(mixer), Some(heads)) = (&self.mixer, self.buffers.heads) else { return };
        match (mixer, &self.gate) {
            (MixerLayer::Recurrent(recurrent), _) if recurrent.is_gated() => {
                let StreamBuffers { attended, gates, low_gates, normed, .. } = s;
                let low = low_gates[heads].as_mut();
                recurrent.gate(backend, &mut attended[heads], normed, &mut gates[heads], low, adapters);
            }
            (MixerLayer::Attention(_) | MixerLayer::Latent(_), Some(gate)) => {
                let (attended, gates) = (&mut s.attended[heads], &mut s.gates[heads]);
                gate.apply(backend, gates, &s.normed, adapters);
                backend.sigmoid_times(attended, gates);
            }
            (MixerLayer::Recurrent(_), _) | (_, None) => {}
        }
    }

    /// `residual += end(out(attended))`
    fn add_attended(&self, backend: &mut B, s: &mut StreamBuffers<B>, adapters: StepAdapters<'_, B>) {
        let (Some(out), Some(heads)) = (&self.out, self.buffers.heads) else { return };
        let attended = &s.attended[heads];
        match &self.after_attention {
            BlockEnd::AsItIs => out.add_to(backend, &mut s.residual, attended, adapters),
            end => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(&mut s.blocks);
                out.apply(backend, block, attended, adapters);
                end.add_to(backend, &mut s.residual, block);
            }
        }
    }
}

impl<B: Backend> BlockInput<B> {
    /// What a block with these norms reads; `before`: the norm before it.
    fn of(norms: BlockNorms, before: Option<NormLayer<B>>) -> Self {
        match (before, norms) {
            (Some(norm), _) => Self::Normed(norm),
            (None, BlockNorms::AsBefore) => Self::AsBefore,
            (None, _) => Self::Residual,
        }
    }

    /// Makes `normed` what the block reads. `alone`: the linear layer that alone reads that.
    fn fill(
        &self,
        backend: &mut B,
        s: &mut StreamBuffers<B>,
        alone: Option<&Linear<B>>,
        adapters: StepAdapters<'_, B>,
    ) {
        match (self, alone) {
            (Self::Normed(norm) | Self::NormedBeside(norm), Some(next)) => {
                norm.apply_for(backend, &mut s.normed, &s.residual, next, adapters);
            }
            (Self::Normed(norm) | Self::NormedBeside(norm), None) => norm.apply(backend, &mut s.normed, &s.residual),
            (Self::Residual, _) => backend.round(&mut s.normed, &s.residual),
            (Self::AsBefore, _) => {}
        }
    }
}

impl<B: Backend> Attention<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        tensors: &LayerTensors,
        spec: &AttentionSpec,
        kinds: &Kinds,
        place: PlaceInKv,
    ) -> Result<Self> {
        let mut head_norms = [None, None, None];
        if let Some(norm) = spec.head_norm {
            let [of_queries, of_keys, of_values] = &mut head_norms;
            match &tensors.head_norms {
                Some(tensors) => {
                    let [queries, keys] = head_norm_splits(norm.span, spec.heads);
                    *of_queries = Some(norm_weights(loader, &tensors.query, norm.norm, &queries)?);
                    if let Some(key) = &tensors.key {
                        *of_keys = Some(norm_weights(loader, key, norm.norm, &keys)?);
                    }
                }
                None => {
                    let ones = loader.constant(&vec![1.0; spec.heads.head_dim])?;
                    *of_keys = spec.stores_keys().then(|| ones.clone());
                    *of_queries = Some(ones);
                }
            }
            if norm.values && spec.stores_keys() {
                *of_values = Some(loader.constant(&vec![1.0; spec.heads.head_dim])?);
            }
        }
        let by_head = Split::Outputs(vec![Segment::of_queries(spec.heads, 1)]);
        let sinks = tensors.sinks.as_ref().map(std::slice::from_ref);
        let sinks = sinks.map(|tensor| loader.vector(tensor, None, &by_head));
        Ok(Self {
            place,
            projected: spec.projected(),
            scale: spec.scale,
            softcap: spec.softcap,
            sinks: sinks.transpose()?,
            qkv: Linear::load(loader, tensors.projections())?,
            head_norms,
            head_norm: spec.head_norm,
            clip: spec.clip,
            ropes: kinds.ropes_of(spec),
            stores: spec.stores_keys(),
        })
    }
}

/// How ranks divide the weights of the norms of queries and of keys.
fn head_norm_splits(span: HeadNormSpan, heads: HeadLayout) -> [Split; 2] {
    match span {
        HeadNormSpan::Head | HeadNormSpan::AllHeads => [Split::Whole, Split::Whole],
        HeadNormSpan::EachHead => {
            let width = heads.kv_heads * heads.head_dim;
            let keys = Segment { width, unit: heads.head_dim, meets_keys: false };
            [Segment::of_queries(heads, heads.head_dim), keys].map(|segment| Split::Outputs(vec![segment]))
        }
    }
}
