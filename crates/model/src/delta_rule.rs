//! A gated delta-rule layer of the decoder: its projections and gates. The ops are defined in `backend::delta_rule`.

use offshoot_backend::{Backend, CONV_TOKENS, DeltaGates, Split, StepRows};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;

use super::activations::DeltaRuleBuffers;
use super::config::DeltaRuleSpec;
use super::layout::{DeltaRuleTensors, LayerTensors};
use super::lora::AdaptedLayer;
use super::operands::StepOperands;
use super::parts::Linear;
use super::weights::{WeightSource, split_vector_of};

/// The layer without its gate and output, which all rows of attention have too.
pub struct DeltaRule<B: Backend> {
    qkv: Linear<B>,
    ba: Linear<B>,
    conv: B::Vector,
    rate: B::Vector,
    dt: B::Vector,
    pub norm: B::Vector,
    pub eps: f32,
    /// Its place among the delta-rule layers.
    layer: LayerIx,
}

impl<B: Backend> DeltaRule<B> {
    /// `layer`: its place among the delta-rule layers.
    pub fn load(
        backend: &mut B,
        source: &WeightSource,
        tensors: &LayerTensors,
        own: &DeltaRuleTensors,
        spec: &DeltaRuleSpec,
        layer: LayerIx,
    ) -> Result<Self> {
        let one = std::slice::from_ref;
        let by_head = Split::outputs([spec.heads.value_heads]);
        let of_channels = Split::outputs(spec.heads.conv_segments().map(|width| CONV_TOKENS * width));
        let rate: Vec<f32> = source.values(&own.a_log)?.into_iter().map(|a_log| -a_log.exp()).collect();
        Ok(Self {
            qkv: Linear::load(backend, source, &tensors.qkv)?,
            ba: Linear::load(backend, source, &own.ba)?,
            conv: source.split_vector(backend, one(&own.conv), &of_channels)?,
            rate: split_vector_of(backend, &rate, &by_head)?,
            dt: source.split_vector(backend, one(&own.dt_bias), &by_head)?,
            norm: source.vector(backend, one(&own.norm))?,
            eps: spec.eps,
            layer,
        })
    }

    /// Its layers that adapters may change.
    pub fn adapted(&mut self) -> [&mut AdaptedLayer<B>; 2] {
        [&mut self.qkv.lora, &mut self.ba.lora]
    }

    /// `out = delta_rule(conv(qkv(x)), ba(x))`; states are read and written as the step's runs say.
    pub fn mix(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        qkv: &mut B::Buffer,
        buffers: &mut DeltaRuleBuffers<B>,
        step: &mut StepOperands<'_, B>,
    ) {
        let DeltaRuleBuffers { conv, ba } = buffers;
        let adapters = step.adapters(StepRows::All);
        self.qkv.apply(backend, qkv, x, adapters);
        self.ba.apply(backend, ba, x, adapters);
        backend.causal_conv(conv, qkv, &self.conv, step.kv, self.layer, step.loaded);
        let gates = DeltaGates { rate: &self.rate, dt: &self.dt };
        backend.delta_rule(out, conv, ba, gates, step.kv, self.layer, step.loaded);
    }
}
