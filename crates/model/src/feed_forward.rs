//! The feed-forward block of a layer: a dense one, a mixture of experts, or both side by side. `activations` holds its
//! buffers; the layer adds what it computes to the residual stream.

use std::sync::Arc;

use offshoot_backend::{Backend, ExpertInput, ExpertKind, OutputMode, Split};
use offshoot_core::error::{Error, Result};

use super::activations::{BlockBuffers, BufferIndices, InnerBuffers, MixtureBuffers, StreamBuffers};
use super::config::{Activation, DenseSpec, ExpertsSpec, FeedForward, Norm};
use super::layout::{DenseTensors, ExpertTensors, LayerTensors};
use super::loader::Loader;
use super::lora::StepAdapters;
use super::parts::{Linear, NormLayer};
use super::weights::ExpertStack;

/// The feed-forward block of a layer.
pub enum FeedForwardLayer<B: Backend> {
    Dense(Dense<B>),
    Experts(Mixture<B>),
    /// The norms of the dense block's output, of the experts' input and of their output.
    Both {
        dense: Dense<B>,
        experts: Mixture<B>,
        norms: [NormLayer<B>; 3],
    },
    /// The expert that all rows share is gated by one number a row.
    Shared {
        shared: Dense<B>,
        gate: Linear<B>,
        experts: Mixture<B>,
    },
}

/// A dense block: the same matrices for all rows.
pub struct Dense<B: Backend> {
    activation: Activation,
    up: Linear<B>,
    down: Linear<B>,
}

/// A router and its experts.
pub struct Mixture<B: Backend> {
    spec: ExpertsSpec,
    router: Linear<B>,
    /// The norm of the router's input, and a factor for each expert.
    scales: Option<(NormLayer<B>, Arc<B::Vector>)>,
    up: Arc<B::Experts>,
    down: Arc<B::Experts>,
}

impl<B: Backend> FeedForwardLayer<B> {
    pub fn load(loader: &mut Loader<'_, B>, tensors: &LayerTensors, spec: &FeedForward) -> Result<Self> {
        const LISTED: &str = "the layout lists the tensors of every block";
        let mut dense = |spec: &DenseSpec| {
            let DenseTensors { up, down } = tensors.dense.as_ref().expect(LISTED);
            let (up, down) = (Linear::load(loader, up)?, Linear::load(loader, down)?);
            Ok::<_, Error>(Dense { activation: spec.activation, up, down })
        };
        Ok(match spec {
            FeedForward::Dense(spec) => Self::Dense(dense(spec)?),
            FeedForward::Experts(spec) => {
                Self::Experts(Mixture::load(loader, tensors.experts.as_ref().expect(LISTED), spec)?)
            }
            FeedForward::SharedExpert { shared, experts } => Self::Shared {
                shared: dense(shared)?,
                gate: Linear::load(loader, tensors.shared_gate.as_ref().expect(LISTED))?,
                experts: Mixture::load(loader, tensors.experts.as_ref().expect(LISTED), experts)?,
            },
            FeedForward::DenseAndExperts { dense: block, experts, norm } => {
                let block = dense(block)?;
                let listed = tensors.experts.as_ref().expect(LISTED);
                let [first, second, third] = listed.norms.as_ref().expect(LISTED);
                let mut load = |tensors| NormLayer::load(loader, tensors, *norm);
                let norms = [load(first)?, load(second)?, load(third)?];
                Self::Both { dense: block, experts: Mixture::load(loader, listed, experts)?, norms }
            }
        })
    }

    /// The linear layer that alone reads the block's input, if one does.
    pub fn reads_input_once(&self) -> Option<&Linear<B>> {
        match self {
            Self::Dense(dense) => Some(&dense.up),
            Self::Experts(_) | Self::Both { .. } | Self::Shared { .. } => None,
        }
    }

    /// `residual += block(normed)`; `after`: the norm of what the block computes.
    pub fn add_to(
        &self,
        backend: &mut B,
        s: &mut StreamBuffers<B>,
        buffers: BufferIndices,
        after: Option<&NormLayer<B>>,
        adapters: StepAdapters<'_, B>,
    ) {
        let StreamBuffers { residual, normed, inner, mixtures, blocks, shared_gate, .. } = s;
        match (self, after) {
            (Self::Dense(dense), None) => dense.add_to(backend, residual, normed, &mut inner[buffers.inner], adapters),
            (Self::Dense(dense), Some(norm)) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                dense.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                norm.add_to(backend, residual, block);
            }
            (Self::Experts(experts), None) => {
                let mixture = &mut mixtures[buffers.mixture];
                experts.route(backend, residual, normed, mixture, adapters);
                experts.add_to(backend, residual, normed, mixture);
            }
            (Self::Experts(experts), Some(norm)) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                experts.route(backend, residual, normed, mixture, adapters);
                experts.apply(backend, block, normed, mixture);
                norm.add_to(backend, residual, block);
            }
            (Self::Shared { shared, gate, experts }, None) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                let factor = shared_gate.as_mut().expect("a model that shares an expert has the buffer of its gate");
                shared.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                gate.apply(backend, factor, normed, adapters);
                backend.sigmoid_times(block, factor);
                experts.route(backend, residual, normed, mixture, adapters);
                experts.add_to(backend, residual, normed, mixture);
                backend.add(residual, block);
            }
            (Self::Shared { .. }, Some(_)) => unreachable!("no family has a norm behind a shared expert"),
            (Self::Both { dense, experts, norms: [of_dense, before, of_experts] }, after) => {
                let BlockBuffers { block, sum } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                dense.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                of_dense.apply(backend, sum, block);
                experts.route(backend, residual, normed, mixture, adapters);
                before.apply(backend, normed, residual);
                experts.apply(backend, block, normed, mixture);
                of_experts.add_to(backend, sum, block);
                add(backend, residual, sum, after);
            }
        }
    }
}

/// `residual += after(x)`
fn add<B: Backend>(backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, after: Option<&NormLayer<B>>) {
    match after {
        None => backend.add(residual, x),
        Some(norm) => norm.add_to(backend, residual, x),
    }
}

impl<B: Backend> Dense<B> {
    /// `out = down(activation(up x))`
    fn apply(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        inner: &mut InnerBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        let inner = self.activate(backend, x, inner, adapters);
        self.down.apply(backend, out, inner, adapters);
    }

    /// `residual += down(activation(up x))`
    fn add_to(
        &self,
        backend: &mut B,
        residual: &mut B::Buffer,
        x: &B::Buffer,
        inner: &mut InnerBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        let inner = self.activate(backend, x, inner, adapters);
        self.down.add_to(backend, residual, inner, adapters);
    }

    fn activate<'a>(
        &self,
        backend: &mut B,
        x: &B::Buffer,
        inner: &'a mut InnerBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) -> &'a B::Buffer {
        self.up.apply(backend, &mut inner.up, x, adapters);
        match (self.activation, &mut inner.gated) {
            (Activation::Gated(gate), Some(gated)) => {
                self.down.gate_input(backend, gated, &inner.up, gate, adapters);
                gated
            }
            (Activation::Gated(_), None) => unreachable!("`InnerBuffers::new` makes a buffer for gated kinds"),
            (Activation::Gelu, _) => {
                backend.gelu(&mut inner.up);
                &inner.up
            }
        }
    }
}

impl<B: Backend> Mixture<B> {
    fn load(loader: &mut Loader<'_, B>, tensors: &ExpertTensors, spec: &ExpertsSpec) -> Result<Self> {
        let scales = match (&tensors.router_scales, spec.router_norm) {
            (Some([norm, factors]), Some(kind)) => {
                // The router's input is also divided by the root of its width.
                let root = (norm.elements() as f32).sqrt();
                let weight = loader.made_vector(norm, &Split::Whole, |weight| weight / root)?;
                let norm = NormLayer::Rms { weight, eps: Norm::eps(kind) };
                Some((norm, loader.vector(std::slice::from_ref(factors), None, &Split::Whole)?))
            }
            _ => None,
        };
        let biases = tensors.biases.as_ref();
        let (halves, inputs) = (Split::outputs([spec.width; 2]), Split::Inputs);
        let (matrices, bias) = (&tensors.up, biases.map(|[up, _]| up));
        let up = ExpertStack { matrices, bias, alternating: tensors.alternating, width: spec.width, split: &halves };
        let (matrices, bias) = (&tensors.down, biases.map(|[_, down]| down));
        let down = ExpertStack { matrices, bias, alternating: false, width: spec.width, split: &inputs };
        let (up, down) = (loader.experts(&up, ExpertKind::Gated)?, loader.experts(&down, ExpertKind::Linear)?);
        Ok(Self { spec: *spec, router: Linear::load(loader, &tensors.router)?, scales, up, down })
    }

    /// Chooses the experts of each row: by `normed`, or by the router's own norm of `residual`, which overwrites it.
    fn route(
        &self,
        backend: &mut B,
        residual: &B::Buffer,
        normed: &mut B::Buffer,
        buffers: &mut MixtureBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        if let Some((norm, _)) = &self.scales {
            norm.apply(backend, normed, residual);
        }
        self.router.apply(backend, &mut buffers.scores, normed, adapters);
        backend.route(&mut buffers.routes, &buffers.scores, self.scales.as_ref().map(|(_, factors)| &**factors), None);
    }

    /// `out = sum of the chosen experts' outputs, weighed`
    fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer, buffers: &mut MixtureBuffers<B>) {
        self.multiply(backend, x, buffers);
        backend.combine(out, &buffers.down, None, &buffers.routes, OutputMode::Replace);
    }

    /// `residual += sum of the chosen experts' outputs, weighed`
    fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, buffers: &mut MixtureBuffers<B>) {
        self.multiply(backend, x, buffers);
        backend.combine(residual, &buffers.down, None, &buffers.routes, OutputMode::Add);
    }

    /// `down = down(gate(up x))`, at the places of the chosen experts.
    fn multiply(&self, backend: &mut B, x: &B::Buffer, buffers: &mut MixtureBuffers<B>) {
        let MixtureBuffers { routes, up, gated, down, .. } = buffers;
        backend.expert_gated(gated, up, x, &self.up, routes, self.spec.gate);
        backend.expert_linear(down, gated, &self.down, routes, ExpertInput::Places);
    }
}
