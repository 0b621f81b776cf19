//! A gated delta-rule layer of the decoder: its projections and gates. The ops are defined in `backend::states`.

use offshoot_backend::{Backend, GateFunction, GatedNorm, NormOrder, Split, StateRule, StepRows};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use std::sync::Arc;

use super::activations::DeltaRuleBuffers;
use super::config::DeltaRuleSpec;
use super::layout::{DeltaRuleTensors, LayerTensors};
use super::loader::Loader;
use super::operands::StepOperands;
use super::parts::Linear;

/// The layer without its gate and output, which all rows of attention have too.
pub struct DeltaRule<B: Backend> {
    qkv: Linear<B>,
    ba: Linear<B>,
    conv: Arc<B::Vector>,
    rate: Arc<B::Vector>,
    dt: Arc<B::Vector>,
    pub norm: Arc<B::Vector>,
    pub gated: GatedNorm,
    /// Its place among the delta-rule layers.
    layer: LayerIx,
}

impl<B: Backend> DeltaRule<B> {
    /// `layer`: its place among the delta-rule layers.
    pub fn load(
        loader: &mut Loader<'_, B>,
        tensors: &LayerTensors,
        own: &DeltaRuleTensors,
        spec: &DeltaRuleSpec,
        layer: LayerIx,
    ) -> Result<Self> {
        let one = std::slice::from_ref;
        let by_head = Split::outputs([spec.heads.value_heads]);
        let of_channels = Split::outputs(spec.heads.conv_segments().map(|width| spec.state().conv.tokens * width));
        Ok(Self {
            qkv: Linear::load(loader, tensors.projections())?,
            ba: Linear::load(loader, &own.ba)?,
            conv: loader.vector(one(&own.conv), None, &of_channels)?,
            rate: loader.made_vector(&own.a_log, &by_head, |a_log| -a_log.exp())?,
            dt: loader.vector(one(&own.dt_bias), None, &by_head)?,
            norm: loader.vector(one(&own.norm), None, &Split::Whole)?,
            gated: GatedNorm {
                width: spec.heads.value_dim,
                eps: spec.eps,
                gate: GateFunction::Silu,
                order: NormOrder::NormFirst,
            },
            layer,
        })
    }

    /// `out = state_update(conv(qkv(x)), ba(x))`; states are read and written as the step's runs say.
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
        backend.causal_conv(conv, qkv, &self.conv, None, step.kv, self.layer, step.loaded);
        let rule = StateRule::Delta { rate: &*self.rate, dt: &*self.dt };
        backend.state_update(out, conv, ba, rule, step.kv, self.layer, step.loaded);
    }
}
