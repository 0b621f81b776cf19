//! The feed-forward block of a layer: a dense one, a mixture of experts, or both side by side. `activations` holds its
//! buffers; the layer adds what it computes to the residual stream.

use std::sync::Arc;

use offshoot_backend::{Backend, ExpertInput, ExpertKind, OutputMode, RouterWeighs, Split};
use offshoot_core::error::{Error, Result};

use super::activations::{BlockBuffers, BufferIndices, InnerBuffers, MixtureBuffers, PlaceBuffers, StreamBuffers};
use super::config::{Activation, DenseSpec, ExpertsSpec, FeedForward, Norm};
use super::layout::{DenseTensors, ExpertTensors, LayerTensors, TensorSpec};
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
    /// The expert that all rows share may be gated by one number a row.
    Shared {
        shared: Dense<B>,
        gate: Option<Linear<B>>,
        experts: Mixture<B>,
    },
    /// What experts compute is carried to the next layer.
    Opens {
        dense: Dense<B>,
        experts: Mixture<B>,
    },
    /// What is carried is added behind the dense block.
    Closes(Dense<B>),
}

/// What happens to the output of a block before it is added to the residual stream.
pub enum BlockEnd<B: Backend> {
    AsItIs,
    Norm(NormLayer<B>),
    Scale(f32),
}

const CARRIED: &str = "a model whose experts are carried has this buffer";

/// A dense block: the same matrices for all rows.
pub struct Dense<B: Backend> {
    activation: Activation,
    up: Linear<B>,
    down: Linear<B>,
    /// Factors of what `up` gives.
    factors: Option<Arc<B::Vector>>,
    /// What xIELU multiplies by.
    xielu: Option<Arc<B::Vector>>,
}

/// A router and its experts.
pub struct Mixture<B: Backend> {
    spec: ExpertsSpec,
    router: Linear<B>,
    /// The norm of the router's input.
    norm: Option<NormLayer<B>>,
    /// A factor of each expert's weight.
    factors: Option<Arc<B::Vector>>,
    choosing_bias: Option<Arc<B::Vector>>,
    up: Arc<B::Experts>,
    down: Arc<B::Experts>,
    /// The projections before and behind experts of a width of their own.
    latent: Option<[Linear<B>; 2]>,
}

impl<B: Backend> FeedForwardLayer<B> {
    /// `None` if the layer has no such block.
    pub fn load(loader: &mut Loader<'_, B>, tensors: &LayerTensors, spec: &FeedForward) -> Result<Option<Self>> {
        const LISTED: &str = "the layout lists the tensors of every block";
        let mut dense = |spec: &DenseSpec| {
            let DenseTensors { up, down, xielu } = tensors.dense.as_ref().expect(LISTED);
            let (up, down) = (Linear::load(loader, up)?, Linear::load(loader, down)?);
            let xielu = xielu.as_ref().map(|tensors| xielu_numbers(loader, tensors)).transpose()?;
            let factors = match spec.gate_factor {
                None => None,
                Some(factor) => {
                    let of_halves = [vec![factor; spec.width], vec![1.0; spec.width]].concat();
                    Some(loader.split_constant(&of_halves, &Split::outputs([spec.width; 2]))?)
                }
            };
            Ok::<_, Error>(Dense { activation: spec.activation, up, down, factors, xielu })
        };
        Ok(Some(match spec {
            FeedForward::None => return Ok(None),
            FeedForward::Dense(spec) => Self::Dense(dense(spec)?),
            FeedForward::Experts(spec) => {
                Self::Experts(Mixture::load(loader, tensors.experts.as_ref().expect(LISTED), spec)?)
            }
            FeedForward::SharedExpert { shared, experts, .. } => {
                let shared = dense(shared)?;
                let gate = tensors.shared_gate.as_ref().map(|gate| Linear::load(loader, gate)).transpose()?;
                if gate.is_none() {
                    loader.backend.reserve_at_once()?;
                }
                let experts = Mixture::load(loader, tensors.experts.as_ref().expect(LISTED), experts)?;
                Self::Shared { shared, gate, experts }
            }
            FeedForward::Opens { dense: block, experts } => Self::Opens {
                dense: dense(block)?,
                experts: Mixture::load(loader, tensors.experts.as_ref().expect(LISTED), experts)?,
            },
            FeedForward::Closes(spec) => Self::Closes(dense(spec)?),
            FeedForward::DenseAndExperts { dense: block, experts, norm } => {
                let block = dense(block)?;
                let listed = tensors.experts.as_ref().expect(LISTED);
                let [first, second, third] = listed.norms.as_ref().expect(LISTED);
                let mut load = |tensors| NormLayer::load(loader, tensors, *norm);
                let norms = [load(first)?, load(second)?, load(third)?];
                Self::Both { dense: block, experts: Mixture::load(loader, listed, experts)?, norms }
            }
        }))
    }

    /// The linear layer that alone reads the block's input, if one does.
    pub fn reads_input_once(&self) -> Option<&Linear<B>> {
        match self {
            Self::Dense(dense) | Self::Closes(dense) => Some(&dense.up),
            Self::Experts(_) | Self::Both { .. } | Self::Shared { .. } | Self::Opens { .. } => None,
        }
    }

    /// Whether it is a mixture of experts, or has one.
    pub fn has_experts(&self) -> bool {
        match self {
            Self::Dense(_) | Self::Closes(_) => false,
            Self::Experts(_) | Self::Both { .. } | Self::Shared { .. } | Self::Opens { .. } => true,
        }
    }

    /// `residual += end(block(normed))`
    pub fn add_to(
        &self,
        backend: &mut B,
        s: &mut StreamBuffers<B>,
        buffers: BufferIndices,
        end: &BlockEnd<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        let StreamBuffers { residual, normed, inner, mixtures, blocks, carried, shared_gate, .. } = s;
        match (self, end) {
            (Self::Dense(dense), BlockEnd::AsItIs) => {
                dense.add_to(backend, residual, normed, &mut inner[buffers.inner], adapters);
            }
            (Self::Dense(dense), end) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                dense.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                end.add_to(backend, residual, block);
            }
            (Self::Experts(experts), BlockEnd::AsItIs) => {
                let mixture = &mut mixtures[buffers.mixture];
                experts.route(backend, residual, normed, mixture, adapters);
                experts.give(backend, residual, normed, mixture, OutputMode::Add, adapters);
            }
            (Self::Experts(experts), end) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                experts.route(backend, residual, normed, mixture, adapters);
                experts.give(backend, block, normed, mixture, OutputMode::Replace, adapters);
                end.add_to(backend, residual, block);
            }
            (Self::Shared { shared, gate: None, experts }, BlockEnd::AsItIs) => {
                let (mixture, inner) = (&mut mixtures[buffers.mixture], &mut inner[buffers.inner]);
                debug_assert!(experts.norm.is_none(), "the shared expert reads `normed` while the router does");
                backend.at_once(
                    |backend| shared.up.apply(backend, &mut inner.up, normed, adapters),
                    |backend| experts.choose(backend, normed, mixture, adapters),
                );
                experts.give(backend, residual, normed, mixture, OutputMode::Add, adapters);
                let inner = shared.gate(backend, inner, adapters);
                shared.down.add_to(backend, residual, inner, adapters);
            }
            (Self::Shared { shared, gate: Some(gate), experts }, BlockEnd::AsItIs) => {
                let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                shared.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                let factor = shared_gate.as_mut().expect("a model that gates a shared expert has this buffer");
                gate.apply(backend, factor, normed, adapters);
                backend.sigmoid_times(block, factor);
                experts.route(backend, residual, normed, mixture, adapters);
                experts.give(backend, residual, normed, mixture, OutputMode::Add, adapters);
                backend.add(residual, block);
            }
            (Self::Opens { dense, experts }, BlockEnd::AsItIs) => {
                let mixture = &mut mixtures[buffers.mixture];
                experts.route(backend, residual, normed, mixture, adapters);
                let carried = carried.as_mut().expect(CARRIED);
                experts.give(backend, carried, normed, mixture, OutputMode::Replace, adapters);
                dense.add_to(backend, residual, normed, &mut inner[buffers.inner], adapters);
            }
            (Self::Closes(dense), BlockEnd::AsItIs) => {
                dense.add_to(backend, residual, normed, &mut inner[buffers.inner], adapters);
                backend.add(residual, carried.as_ref().expect(CARRIED));
            }
            (Self::Shared { shared, gate, experts }, end) => {
                let BlockBuffers { block, sum } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                shared.apply(backend, sum, normed, &mut inner[buffers.inner], adapters);
                if let Some(gate) = gate {
                    let factor = shared_gate.as_mut().expect("a model that gates a shared expert has this buffer");
                    gate.apply(backend, factor, normed, adapters);
                    backend.sigmoid_times(sum, factor);
                }
                experts.route(backend, residual, normed, mixture, adapters);
                experts.give(backend, block, normed, mixture, OutputMode::Replace, adapters);
                backend.add(sum, block);
                end.add_to(backend, residual, sum);
            }
            (Self::Opens { .. } | Self::Closes(_), _) => {
                unreachable!("no family changes what such a block computes")
            }
            (Self::Both { dense, experts, norms: [of_dense, before, of_experts] }, end) => {
                let BlockBuffers { block, sum } = StreamBuffers::behind_blocks(blocks);
                let mixture = &mut mixtures[buffers.mixture];
                dense.apply(backend, block, normed, &mut inner[buffers.inner], adapters);
                of_dense.apply(backend, sum, block);
                experts.route(backend, residual, normed, mixture, adapters);
                before.apply(backend, normed, residual);
                experts.give(backend, block, normed, mixture, OutputMode::Replace, adapters);
                of_experts.add_to(backend, sum, block);
                end.add_to(backend, residual, sum);
            }
        }
    }
}

impl<B: Backend> BlockEnd<B> {
    /// `scale`: a factor of the block's output, in layers without a norm of it.
    pub fn new(norm: Option<NormLayer<B>>, scale: Option<f32>) -> Self {
        match (norm, scale) {
            (Some(_), Some(_)) => unreachable!("no family scales what a norm behind a block computes"),
            (Some(norm), None) => Self::Norm(norm),
            (None, Some(factor)) => Self::Scale(factor),
            (None, None) => Self::AsItIs,
        }
    }

    /// `residual += end(block)`; `block` is unspecified afterwards.
    pub fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, block: &mut B::Buffer) {
        match self {
            Self::AsItIs => backend.add(residual, block),
            Self::Norm(norm) => norm.add_to(backend, residual, block),
            Self::Scale(factor) => {
                backend.scale(block, *factor);
                backend.add(residual, block);
            }
        }
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
        self.gate(backend, inner, adapters)
    }

    /// `activation(inner.up)`
    fn gate<'a>(
        &self,
        backend: &mut B,
        inner: &'a mut InnerBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) -> &'a B::Buffer {
        if let Some(factors) = &self.factors {
            backend.scale_columns(&mut inner.up, factors);
        }
        match (self.activation, &mut inner.gated) {
            (Activation::Gated(gate), Some(gated)) => {
                self.down.gate_input(backend, gated, &inner.up, gate, adapters);
                gated
            }
            (activation, _) => {
                apply_in_place(backend, activation, &mut inner.up, self.xielu.as_deref());
                &inner.up
            }
        }
    }
}

impl<B: Backend> Mixture<B> {
    fn load(loader: &mut Loader<'_, B>, tensors: &ExpertTensors, spec: &ExpertsSpec) -> Result<Self> {
        let (norm, factors) = match (&tensors.router_scales, spec.router_norm) {
            (Some([norm, factors]), Some(kind)) => {
                // The router's input is also divided by the root of its width.
                let root = (norm.elements() as f32).sqrt();
                let weight = loader.made_vector(norm, &Split::Whole, |weight| weight / root)?;
                let norm = NormLayer::Rms { weight, eps: Norm::eps(kind) };
                (Some(norm), Some(loader.vector(std::slice::from_ref(factors), None, &Split::Whole)?))
            }
            _ if spec.scale != 1.0 => (None, Some(loader.constant(&vec![spec.scale; spec.routed()])?)),
            _ => (None, None),
        };
        let choosing_bias = tensors.choosing_bias.as_ref();
        let choosing_bias =
            choosing_bias.map(|bias| loader.vector(std::slice::from_ref(bias), None, &Split::Whole)).transpose()?;
        let biases = tensors.biases.as_ref();
        let halves = matches!(spec.activation, Activation::Gated(_));
        let outputs = Split::outputs(vec![spec.width; if halves { 2 } else { 1 }]);
        // Experts that read weighed inputs have a place's row each, which no gated product takes.
        let kind = match (halves, spec.router.weighs) {
            (true, RouterWeighs::Outputs) => ExpertKind::Gated,
            _ => ExpertKind::Linear,
        };
        let inputs = Split::Inputs;
        let (matrices, bias) = (&tensors.up, biases.map(|[up, _]| up));
        let up = ExpertStack { matrices, bias, alternating: tensors.alternating, width: spec.width, split: &outputs };
        let (matrices, bias) = (&tensors.down, biases.map(|[_, down]| down));
        let down = ExpertStack { matrices, bias, alternating: false, width: spec.width, split: &inputs };
        let (up, down) = (loader.experts(&up, kind)?, loader.experts(&down, ExpertKind::Linear)?);
        let router = Linear::load(loader, &tensors.router)?;
        let latent = match &tensors.latent {
            Some([before, behind]) => Some([Linear::load(loader, before)?, Linear::load(loader, behind)?]),
            None => None,
        };
        Ok(Self { spec: *spec, router, norm, factors, choosing_bias, up, down, latent })
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
        if let Some(norm) = &self.norm {
            norm.apply(backend, normed, residual);
        }
        self.choose(backend, normed, buffers, adapters);
    }

    /// Chooses the experts of each row by `normed`.
    fn choose(
        &self,
        backend: &mut B,
        normed: &B::Buffer,
        buffers: &mut MixtureBuffers<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        self.router.apply(backend, &mut buffers.scores, normed, adapters);
        let (factors, bias) = (self.factors.as_deref(), self.choosing_bias.as_deref());
        backend.route(&mut buffers.routes, &buffers.scores, factors, bias);
    }

    /// `out = sum of the chosen experts' outputs, weighed`, or `out += ` that.
    fn give(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        buffers: &mut MixtureBuffers<B>,
        mode: OutputMode,
        adapters: StepAdapters<'_, B>,
    ) {
        let MixtureBuffers { routes, places, latent, .. } = buffers;
        let (Some([before, behind]), Some(latent)) = (&self.latent, latent) else {
            self.multiply(backend, x, routes, places);
            return backend.combine(out, &places.down, self.identities_of(x), routes, mode);
        };
        before.apply(backend, &mut latent.rows, x, adapters);
        self.multiply(backend, &latent.rows, routes, places);
        backend.combine(&mut latent.sums, &places.down, None, routes, OutputMode::Replace);
        backend.round(&mut latent.rows, &latent.sums);
        match mode {
            OutputMode::Replace => behind.apply(backend, out, &latent.rows, adapters),
            OutputMode::Add => behind.add_to(backend, out, &latent.rows, adapters),
        }
    }

    /// What identities give, if there are some.
    fn identities_of<'a>(&self, x: &'a B::Buffer) -> Option<&'a B::Buffer> {
        Some(x).filter(|_| self.spec.router.identities > 0)
    }

    /// `down = down(activation(up x))`, at the places of the chosen experts.
    fn multiply(&self, backend: &mut B, x: &B::Buffer, routes: &B::Routes, places: &mut PlaceBuffers<B>) {
        let PlaceBuffers { inner: InnerBuffers { up, gated }, down, weighed } = places;
        let (x, input) = match weighed {
            None => (x, ExpertInput::Rows),
            Some(weighed) => {
                backend.weigh_places(weighed, x, routes);
                (&*weighed, ExpertInput::Places)
            }
        };
        let inner = match (self.spec.activation, gated, input) {
            (Activation::Gated(gate), Some(gated), ExpertInput::Rows) => {
                backend.expert_gated(gated, up, x, &self.up, routes, gate);
                &*gated
            }
            (Activation::Gated(gate), Some(gated), ExpertInput::Places) => {
                backend.expert_linear(up, x, &self.up, routes, input);
                backend.gated(gated, up, gate, None);
                &*gated
            }
            (activation, ..) => {
                backend.expert_linear(up, x, &self.up, routes, input);
                apply_in_place(backend, activation, up, None);
                &*up
            }
        };
        backend.expert_linear(down, inner, &self.down, routes, ExpertInput::Places);
    }
}

/// The activation of a block without a gate; `numbers`: those of xIELU.
fn apply_in_place<B: Backend>(backend: &mut B, activation: Activation, x: &mut B::Buffer, numbers: Option<&B::Vector>) {
    match activation {
        Activation::Gelu => backend.gelu(x),
        Activation::GeluErf => backend.gelu_erf(x),
        Activation::ReluSquared => backend.relu_squared(x),
        Activation::Xielu => backend.xielu(x, numbers.expect("dense blocks alone have this activation")),
        Activation::Gated(_) => unreachable!("`InnerBuffers::new` makes a buffer for gated kinds"),
    }
}

/// The numbers of `Backend::xielu`, made of `alpha_p`, `alpha_n`, `beta` and `eps`.
fn xielu_numbers<B: Backend>(loader: &mut Loader<'_, B>, tensors: &[TensorSpec; 4]) -> Result<Arc<B::Vector>> {
    let mut one = |tensor: &TensorSpec| Ok::<_, Error>(loader.values(tensor)?[0]);
    let [positive, negative, slope, most] = tensors;
    let (positive, negative, slope, most) = (one(positive)?, one(negative)?, one(slope)?, one(most)?);
    let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
    loader.constant(&[softplus(positive), slope + softplus(negative), slope, most])
}
