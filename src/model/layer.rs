//! One layer of the decoder: attention, the feed-forward block, and how both are added to the residual stream.

use crate::backend::{Attended, Backend, HeadKind, HeadLayout, Scoring};
use crate::error::Result;
use crate::ids::LayerIx;

use super::activations::{Activations, BlockBuffers, BufferIndices, StreamBuffers};
use super::config::{AttentionKind, AttentionSpec, KeySource, LayerNorms, ModelConfig, kind_index, kinds};
use super::decoder::LoadedRope;
use super::feed_forward::FeedForwardLayer;
use super::inputs::LayerInput;
use super::layout::LayerTensors;
use super::parts::{Linear, NormLayer, norm_weight};
use super::rope::Turning;
use super::weights::{WeightSource, vector_of};

/// A layer with its weights.
pub struct Layer<B: Backend> {
    attention: Attention<B>,
    /// `None` if attention reads the residual stream itself.
    before_attention: Option<NormLayer<B>>,
    /// Of what attention computes; `None` if that is added as it is.
    after_attention: Option<NormLayer<B>>,
    before_feed_forward: BlockInput<B>,
    after_feed_forward: Option<NormLayer<B>>,
    feed_forward: FeedForwardLayer<B>,
    input: Option<LayerInput<B>>,
    /// Factor of the residual stream at the layer's end.
    output_scale: Option<f32>,
    pub buffers: BufferIndices,
}

/// What the feed-forward block reads.
enum BlockInput<B: Backend> {
    Normed(NormLayer<B>),
    /// The residual stream itself.
    Residual,
    /// What attention read, if the two run in parallel.
    AsAttention,
}

struct Attention<B: Backend> {
    /// The heads in `qkv`.
    projected: HeadLayout,
    scale: f32,
    softcap: Option<f32>,
    sinks: Option<B::Vector>,
    qkv: Linear<B>,
    head_norms: Vec<(HeadKind, B::Vector)>,
    norm_eps: f32,
    out: Linear<B>,
    /// Index of its plan in the step.
    plan: usize,
    /// Indices in `Decoder::ropes` of what its heads are rotated by, one after the other.
    ropes: Vec<usize>,
    /// Which of the layers that store keys and values it reads, and whether that is this one.
    stored: LayerIx,
    stores: bool,
}

/// The distinct kinds of attention and ropes of the layers.
pub struct Kinds {
    pub attention: Vec<AttentionKind>,
    /// What queries and keys are rotated by, in the order of `Decoder::ropes`.
    pub ropes: Vec<Turning>,
    by_layer: Vec<AttentionKind>,
    stored: Vec<usize>,
}

/// The operands of all layers in a step.
pub struct StepOperands<'a, B: Backend> {
    pub ropes: &'a [LoadedRope<B>],
    pub kv: &'a mut B::Kv,
    pub loaded: &'a mut B::Step,
}

impl Kinds {
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            attention: config.attention_kinds(),
            by_layer: config.attention_by_layer(),
            ropes: kinds(config.layers.iter().flat_map(|layer| Turning::of(&layer.attention))),
            stored: config.stored_layers(),
        }
    }
}

impl<B: Backend> Layer<B> {
    /// Layer `ix`.
    pub fn load(
        backend: &mut B,
        source: &WeightSource,
        tensors: &LayerTensors,
        config: &ModelConfig,
        ix: usize,
        kinds: &Kinds,
        buffers: BufferIndices,
    ) -> Result<Self> {
        let spec = &config.layers[ix];
        let attention = Attention::load(backend, source, tensors, &spec.attention, kinds, ix)?;
        let mut norm = |tensors: &Option<_>, norm| match (tensors, norm) {
            (Some(tensors), Some(norm)) => NormLayer::load(backend, source, tensors, norm).map(Some),
            _ => Ok(None),
        };
        let (of_attention, of_feed_forward) = (&tensors.attention_norms, &tensors.feed_forward_norms);
        let norms = match spec.norms {
            LayerNorms::Sequential { attention: around, feed_forward } => {
                let before = norm(&of_feed_forward.before, feed_forward.before())?;
                (
                    norm(&of_attention.before, around.before())?,
                    norm(&of_attention.after, around.after())?,
                    before.map_or(BlockInput::Residual, BlockInput::Normed),
                    norm(&of_feed_forward.after, feed_forward.after())?,
                )
            }
            LayerNorms::Parallel(shared) => {
                (norm(&of_attention.before, Some(shared))?, None, BlockInput::AsAttention, None)
            }
        };
        let (before_attention, after_attention, before_feed_forward, after_feed_forward) = norms;
        let input =
            tensors.input.as_ref().zip(config.per_layer_inputs).map(|(tensors, inputs)| {
                LayerInput::load(backend, source, tensors, config.final_norm, ix * inputs.width)
            });
        let output_scale = tensors.output_scale.as_ref().map(|tensor| source.values(tensor)).transpose()?;
        Ok(Self {
            attention,
            before_attention,
            after_attention,
            before_feed_forward,
            after_feed_forward,
            input: input.transpose()?,
            feed_forward: FeedForwardLayer::load(backend, source, tensors, &spec.feed_forward)?,
            output_scale: output_scale.map(|scale| scale[0]),
            buffers,
        })
    }

    /// `attended = attention(qkv(norm(residual)))`. Stores the new keys and values, and calls `observe` with the
    /// operands of attention.
    pub fn attend(
        &self,
        backend: &mut B,
        a: &mut Activations<B>,
        ix: LayerIx,
        step: &mut StepOperands<'_, B>,
        observe: &mut impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let attention = &self.attention;
        let (qkv, attended) = (&mut a.qkv[self.buffers.heads], &mut a.all.attended[self.buffers.heads]);
        match &self.before_attention {
            Some(norm) => norm.apply(backend, &mut a.all.normed, &a.all.residual),
            None => backend.round(&mut a.all.normed, &a.all.residual),
        }
        attention.qkv.apply(backend, qkv, &a.all.normed);
        for (kind, weight) in &attention.head_norms {
            backend.head_norm(qkv, attention.projected, *kind, weight, attention.norm_eps);
        }
        for &rope in &attention.ropes {
            backend.rope(qkv, attention.projected, &step.ropes[rope].table, step.loaded);
        }
        let stored = attention.stored;
        if attention.stores {
            backend.kv_append(step.kv, stored, qkv, step.loaded);
        }
        let Attention { scale, softcap, ref sinks, plan, .. } = *attention;
        let scoring = Scoring { scale, softcap, sinks: sinks.as_ref() };
        backend.tree_attention(attended, qkv, step.kv, stored, step.loaded, plan, scoring);
        observe(backend, Attended { layer: ix, stored, qkv, kv: step.kv, plan, scoring });
    }

    /// `residual += out(attended)`, then `residual += feed_forward(norm(residual))`, each with the norms behind it. Without
    /// a norm of its own the feed-forward block reads the same normed input as attention.
    pub fn transform(&self, backend: &mut B, s: &mut StreamBuffers<B>) {
        let attended = &s.attended[self.buffers.heads];
        match &self.after_attention {
            None => self.attention.out.add_to(backend, &mut s.residual, attended),
            Some(norm) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(&mut s.blocks);
                self.attention.out.apply(backend, block, attended);
                norm.add_to(backend, &mut s.residual, block);
            }
        }
        match &self.before_feed_forward {
            BlockInput::Normed(norm) => norm.apply(backend, &mut s.normed, &s.residual),
            BlockInput::Residual => backend.round(&mut s.normed, &s.residual),
            BlockInput::AsAttention => {}
        }
        self.feed_forward.add_to(backend, s, self.buffers, self.after_feed_forward.as_ref());
        if let Some(input) = &self.input {
            input.add_to(backend, s);
        }
        if let Some(scale) = self.output_scale {
            backend.scale(&mut s.residual, scale);
        }
    }
}

impl<B: Backend> Attention<B> {
    /// Of layer `ix`.
    fn load(
        backend: &mut B,
        source: &WeightSource,
        tensors: &LayerTensors,
        spec: &AttentionSpec,
        kinds: &Kinds,
        ix: usize,
    ) -> Result<Self> {
        let mut head_norms = Vec::new();
        if let (Some(tensors), Some(spec)) = (&tensors.head_norms, spec.head_norm) {
            head_norms.push((HeadKind::Query, norm_weight(backend, source, &tensors.query, spec.norm)?));
            if let Some(key) = &tensors.key {
                head_norms.push((HeadKind::Key, norm_weight(backend, source, key, spec.norm)?));
            }
        }
        if spec.head_norm.is_some_and(|norm| norm.values) && !matches!(spec.keys, KeySource::OfLayer(_)) {
            head_norms.push((HeadKind::Value, vector_of(backend, &vec![1.0; spec.heads.head_dim])?));
        }
        let sinks = tensors.sinks.as_ref().map(|tensor| source.vector(backend, std::slice::from_ref(tensor)));
        Ok(Self {
            projected: spec.projected(),
            scale: spec.scale,
            softcap: spec.softcap,
            sinks: sinks.transpose()?,
            qkv: Linear::load(backend, source, &tensors.qkv)?,
            head_norms,
            norm_eps: spec.head_norm.map_or(0.0, |norm| norm.norm.eps()),
            out: Linear::load(backend, source, &tensors.out)?,
            plan: kind_index(&kinds.attention, &kinds.by_layer[ix]),
            ropes: Turning::of(spec).map(|turning| kind_index(&kinds.ropes, &turning)).collect(),
            stored: LayerIx::new(kinds.stored[ix]),
            stores: spec.stores_keys(),
        })
    }
}
