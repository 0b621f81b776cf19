//! A recurrent layer of the decoder: its projections, its convolution, its gates and the norm of what it gives. The ops
//! are defined in `backend::states`.

use std::ops::Range;
use std::sync::Arc;

use offshoot_backend::{
    ActivationDtype, Backend, Dtype, GateFunction, GatedNorm, NormOrder, ScanRule, Share, Split, StateRule, StepRows,
};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;

use super::config::{ChannelSpec, DeltaSpec, RecurrentSpec, ScanSpec, SumFactors, SumSpec};
use super::layout::{ConvTensors, LayerTensors, RecurrentTensors, RuleTensors, TensorSpec};
use super::loader::Loader;
use super::lora::StepAdapters;
use super::operands::StepOperands;
use super::parts::{Linear, NormLayer};

/// The layer without its projection out, which all layers have that mix positions.
pub struct Recurrent<B: Backend> {
    input: Linear<B>,
    conv: Conv<B>,
    rule: Rule<B>,
    gate: Option<OutputGate<B>>,
    /// Its place among the recurrent layers.
    layer: LayerIx,
}

struct Conv<B: Backend> {
    /// `[channels, tokens]`
    weight: Arc<B::Vector>,
    bias: Option<Arc<B::Vector>>,
}

/// What a layer's kind has of its own.
enum Rule<B: Backend> {
    Delta {
        gates: Linear<B>,
        rate: Arc<B::Vector>,
        dt: Arc<B::Vector>,
    },
    Channel {
        beta: Linear<B>,
        decay: [Linear<B>; 2],
        rate: Arc<B::Vector>,
        dt: Arc<B::Vector>,
    },
    Sum {
        steps: Linear<B>,
        /// Factor of what `steps` gives.
        factor: Option<f32>,
        rate: Arc<B::Vector>,
        dt: Arc<B::Vector>,
        skip: Arc<B::Vector>,
        limits: [f32; 2],
    },
    Scan {
        /// What steps are made of, inputs and outputs of the state, each with its norm.
        inner: [(Linear<B>, NormLayer<B>); 3],
        steps: Linear<B>,
        rate: Arc<B::Vector>,
        dt: Arc<B::Vector>,
        skip: Arc<B::Vector>,
    },
    Conv,
}

/// The gate of what a layer gives, and the norm around it.
struct OutputGate<B: Backend> {
    /// The projection before `gate`, if there is one.
    low: Option<Linear<B>>,
    gate: Linear<B>,
    /// Factor of what `gate` gives.
    factor: Option<f32>,
    /// `None`: there is no norm.
    weight: Option<Arc<B::Vector>>,
    how: GatedNorm,
}

/// The buffers of recurrent layers of one kind, of `R` rows; widths as `RecurrentSpec` has them.
pub enum RecurrentBuffers<B: Backend> {
    /// Of layers with a gate or a step for each head.
    Heads {
        /// `[R, conv width]`: what the convolution gives.
        conv: B::Buffer,
        /// `[R, 2 * value heads]`: b, then a; or `[R, value heads]`: steps.
        gates: B::Buffer,
    },
    Channel {
        conv: B::Buffer,
        /// `[R, heads]`
        beta: B::Buffer,
        /// `[R, rank]`
        low: B::Buffer,
        /// `[R, heads * key_dim]`
        decay: B::Buffer,
    },
    Scan {
        conv: B::Buffer,
        /// What steps are made of, inputs and outputs of the state: `[R, rank]`, `[R, state]` and `[R, state]`, before
        /// and behind their norms.
        inner: [[B::Buffer; 2]; 3],
        /// `[R, channels]`
        steps: B::Buffer,
    },
    /// Of gated convolutions, which need none.
    Conv,
}

const MADE_FOR_IT: &str = "a layer's buffers are those of its kind";

impl<B: Backend> Recurrent<B> {
    /// `layer`: its place among the recurrent layers.
    pub fn load(
        loader: &mut Loader<'_, B>,
        tensors: &LayerTensors,
        own: &RecurrentTensors,
        spec: &RecurrentSpec,
        layer: LayerIx,
    ) -> Result<Self> {
        Ok(Self {
            input: Linear::load(loader, tensors.projections())?,
            conv: Conv::load(loader, &own.conv, spec)?,
            rule: Rule::load(loader, &own.rule, spec)?,
            gate: OutputGate::load(loader, own, spec)?,
            layer,
        })
    }

    /// `out = rule(conv(input(x)))`, before its gate; states are read and written as the step's runs say.
    pub fn mix(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        input: &mut B::Buffer,
        buffers: &mut RecurrentBuffers<B>,
        step: &mut StepOperands<'_, B>,
    ) {
        let Self { conv: Conv { weight, bias }, layer, .. } = self;
        let (layer, bias) = (*layer, bias.as_deref());
        let adapters = step.adapters(StepRows::All);
        self.input.apply(backend, input, x, adapters);
        match (&self.rule, buffers) {
            (Rule::Conv, RecurrentBuffers::Conv) => {
                backend.gated_conv(out, input, weight, bias, step.kv, layer, step.loaded);
            }
            (Rule::Delta { gates: linear, rate, dt }, RecurrentBuffers::Heads { conv, gates }) => {
                linear.apply(backend, gates, x, adapters);
                backend.causal_conv(conv, input, weight, bias, step.kv, layer, step.loaded);
                let rule = StateRule::Delta { rate: &**rate, dt: &**dt };
                backend.state_update(out, conv, gates, rule, step.kv, layer, step.loaded);
            }
            (Rule::Sum { steps, factor, rate, dt, skip, limits }, RecurrentBuffers::Heads { conv, gates }) => {
                steps.apply(backend, gates, x, adapters);
                if let Some(factor) = factor {
                    backend.scale(gates, *factor);
                }
                backend.causal_conv(conv, input, weight, bias, step.kv, layer, step.loaded);
                let rule = StateRule::Sum { rate: &**rate, dt: &**dt, skip: &**skip, limits: *limits };
                backend.state_update(out, conv, gates, rule, step.kv, layer, step.loaded);
            }
            (
                Rule::Channel { beta: of_beta, decay: [down, up], rate, dt },
                RecurrentBuffers::Channel { conv, beta, low, decay },
            ) => {
                of_beta.apply(backend, beta, x, adapters);
                down.apply(backend, low, x, adapters);
                up.apply(backend, decay, low, adapters);
                backend.causal_conv(conv, input, weight, bias, step.kv, layer, step.loaded);
                backend.channel_update(out, conv, beta, decay, rate, dt, step.kv, layer, step.loaded);
            }
            (
                Rule::Scan { inner: linears, steps: of_steps, rate, dt, skip },
                RecurrentBuffers::Scan { conv, inner, steps },
            ) => {
                backend.causal_conv(conv, input, weight, bias, step.kv, layer, step.loaded);
                let adapters = step.adapters(StepRows::All);
                for ((linear, norm), [sums, normed]) in linears.iter().zip(inner.iter_mut()) {
                    linear.apply(backend, sums, conv, adapters);
                    norm.apply(backend, normed, sums);
                }
                let [[_, low], [_, b], [_, c]] = inner;
                of_steps.apply(backend, steps, low, adapters);
                let rule = ScanRule { rate: &**rate, dt: &**dt, skip: &**skip };
                backend.selective_scan(out, conv, steps, b, c, rule, step.kv, layer, step.loaded);
            }
            _ => unreachable!("{MADE_FOR_IT}"),
        }
    }

    /// Multiplies what the layer gives by its gate, if it has one, with the norm around that. `x`: what the layer read;
    /// `gates` and `low`: the buffers of the gate, `low` if it has two projections.
    pub fn gate(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        gates: &mut B::Buffer,
        low: Option<&mut B::Buffer>,
        adapters: StepAdapters<'_, B>,
    ) {
        let Some(OutputGate { low: before, gate, factor, weight, how }) = &self.gate else { return };
        match (before, low) {
            (Some(before), Some(low)) => {
                before.apply(backend, low, x, adapters);
                gate.apply(backend, gates, low, adapters);
            }
            (None, _) => gate.apply(backend, gates, x, adapters),
            (Some(_), None) => unreachable!("{MADE_FOR_IT}"),
        }
        if let Some(factor) = factor {
            backend.scale(gates, *factor);
        }
        backend.gated_norm(out, gates, weight.as_deref(), *how);
    }

    /// Whether what it gives has a gate.
    pub fn is_gated(&self) -> bool {
        self.gate.is_some()
    }
}

impl<B: Backend> Conv<B> {
    fn load(loader: &mut Loader<'_, B>, tensors: &ConvTensors, spec: &RecurrentSpec) -> Result<Self> {
        let ConvTensors { weights, bias, channels, segments } = tensors;
        let tokens = spec.state().conv.tokens;
        let split = Split::outputs(segments.iter().map(|width| tokens * width));
        let of_weights = channels.as_deref().map(|channels| {
            let elements = |range: &Range<usize>| range.start * tokens..range.end * tokens;
            channels.iter().map(elements).collect::<Vec<_>>()
        });
        let weight = match (spec, weights.as_slice(), &of_weights) {
            (RecurrentSpec::Sum(SumSpec { factors: Some(factors), .. }), [weight], Some(ranges)) => {
                let SumFactors { queries, keys, values, .. } = *factors;
                loader.vector_of(weight, &split, |stored| {
                    let of_part = |(range, factor): (&Range<usize>, f32)| {
                        stored[range.clone()].iter().map(move |x| factor * x).collect::<Vec<_>>()
                    };
                    ranges.iter().zip([queries, keys, values]).flat_map(of_part).collect()
                })?
            }
            (_, weights, ranges) => loader.vector(weights, ranges.as_deref(), &split)?,
        };
        let bias = bias.as_ref().map(|bias| {
            let split = Split::outputs(segments.iter().copied());
            loader.vector(std::slice::from_ref(bias), channels.as_deref(), &split)
        });
        Ok(Self { weight, bias: bias.transpose()? })
    }
}

impl<B: Backend> Rule<B> {
    fn load(loader: &mut Loader<'_, B>, tensors: &RuleTensors, spec: &RecurrentSpec) -> Result<Self> {
        let of_each = |spec: &TensorSpec| Split::outputs([spec.elements()]);
        let rate = |x: f32| -x.exp();
        Ok(match tensors {
            RuleTensors::Delta { gates, a_log, dt_bias } => Self::Delta {
                gates: Linear::load(loader, gates)?,
                rate: loader.made_vector(a_log, &of_each(a_log), rate)?,
                dt: loader.vector(std::slice::from_ref(dt_bias), None, &of_each(dt_bias))?,
            },
            RuleTensors::Channel { beta, decay: [down, up], a_log, dt_bias } => Self::Channel {
                beta: Linear::load(loader, beta)?,
                decay: [Linear::load(loader, down)?, Linear::load(loader, up)?],
                rate: loader.made_vector(a_log, &of_each(a_log), rate)?,
                dt: loader.vector(std::slice::from_ref(dt_bias), None, &of_each(dt_bias))?,
            },
            RuleTensors::Sum { steps, a_log, dt_bias, skip } => {
                let RecurrentSpec::Sum(SumSpec { limits, factors, .. }) = spec else { unreachable!("{MADE_FOR_IT}") };
                Self::Sum {
                    steps: Linear::load(loader, steps)?,
                    factor: factors.map(|factors| factors.steps).filter(|&factor| factor != 1.0),
                    rate: loader.made_vector(a_log, &of_each(a_log), rate)?,
                    dt: loader.vector(std::slice::from_ref(dt_bias), None, &of_each(dt_bias))?,
                    skip: loader.vector(std::slice::from_ref(skip), None, &of_each(skip))?,
                    limits: *limits,
                }
            }
            RuleTensors::Scan {
                inner: [steps_of, b, c],
                norms: [of_steps, of_b, of_c],
                steps,
                a_log,
                dt_bias,
                skip,
            } => {
                let RecurrentSpec::Scan(ScanSpec { channels, state, eps, .. }) = *spec else {
                    unreachable!("{MADE_FOR_IT}")
                };
                let mut normed = |linear, weight: &TensorSpec| -> Result<_> {
                    let linear = Linear::load(loader, linear)?;
                    let weight = loader.vector(std::slice::from_ref(weight), None, &Split::Whole)?;
                    Ok((linear, NormLayer::Rms { weight, eps }))
                };
                let inner = [normed(steps_of, of_steps)?, normed(b, of_b)?, normed(c, of_c)?];
                Self::Scan {
                    inner,
                    steps: Linear::load(loader, steps)?,
                    // Stored `[channels, state]`, read `[state, channels]`.
                    rate: loader.vector_of(a_log, &Split::Whole, |stored| {
                        let of_state = |n: usize| (0..channels).map(move |channel| channel * state + n);
                        (0..state).flat_map(of_state).map(|at| rate(stored[at])).collect()
                    })?,
                    dt: loader.vector(std::slice::from_ref(dt_bias), None, &of_each(dt_bias))?,
                    skip: loader.vector(std::slice::from_ref(skip), None, &of_each(skip))?,
                }
            }
            RuleTensors::Conv => Self::Conv,
        })
    }
}

impl<B: Backend> OutputGate<B> {
    fn load(loader: &mut Loader<'_, B>, own: &RecurrentTensors, spec: &RecurrentSpec) -> Result<Option<Self>> {
        let silu = |width| GatedNorm { width, eps: 0.0, gate: GateFunction::Silu, order: NormOrder::NormFirst };
        let by_head = |width, eps, gate| GatedNorm { width, eps, gate, order: NormOrder::NormFirst };
        let how = match *spec {
            RecurrentSpec::Delta(DeltaSpec { heads, eps, .. }) => by_head(heads.value_dim, eps, GateFunction::Silu),
            RecurrentSpec::Channel(ChannelSpec { heads, eps, .. }) => {
                by_head(heads.value_dim, eps, GateFunction::Sigmoid)
            }
            RecurrentSpec::Sum(SumSpec { heads, norm, .. }) => norm.unwrap_or(silu(heads.value_width())),
            RecurrentSpec::Scan(ScanSpec { channels, .. }) => silu(channels),
            RecurrentSpec::Conv(_) => return Ok(None),
        };
        let mut gates = Vec::new();
        for linear in &own.gate {
            gates.push(Linear::load(loader, linear)?);
        }
        let Some(gate) = gates.pop() else { return Ok(None) };
        let factor = match spec {
            RecurrentSpec::Sum(SumSpec { factors: Some(factors), .. }) => Some(factors.gate),
            _ => None,
        };
        // The weights of one head's norm are those of all heads, others are divided as the row is.
        let split = |weight: &TensorSpec| match weight.elements() == spec.out_width() {
            true => Split::outputs([weight.elements()]),
            false => Split::Whole,
        };
        let weight = own.norm.as_ref();
        let weight = weight.map(|weight| loader.vector(std::slice::from_ref(weight), None, &split(weight)));
        let factor = factor.filter(|&factor| factor != 1.0);
        Ok(Some(Self { low: gates.pop(), gate, factor, weight: weight.transpose()?, how }))
    }
}

impl<B: Backend> RecurrentBuffers<B> {
    pub fn new(backend: &mut B, spec: &RecurrentSpec, dtype: Dtype) -> Result<Self> {
        let (operands, sums) = (ActivationDtype::Operands(dtype), ActivationDtype::Sums);
        let conv_width = spec.state().conv.width;
        let mut divided = |width, holds| backend.shared_buffer(width, holds, Share::Columns);
        Ok(match spec {
            RecurrentSpec::Delta(DeltaSpec { heads, .. }) => {
                Self::Heads { conv: divided(conv_width, operands)?, gates: divided(2 * heads.value_heads, sums)? }
            }
            RecurrentSpec::Sum(SumSpec { heads, .. }) => {
                Self::Heads { conv: divided(conv_width, operands)?, gates: divided(heads.value_heads, sums)? }
            }
            RecurrentSpec::Channel(ChannelSpec { heads, rank, .. }) => {
                let (conv, beta) = (divided(conv_width, operands)?, divided(heads.value_heads, sums)?);
                let decay = divided(heads.key_width(), sums)?;
                Self::Channel { conv, beta, low: backend.buffer(*rank, operands)?, decay }
            }
            RecurrentSpec::Scan(ScanSpec { channels, state, rank, .. }) => {
                let (conv, steps) = (divided(conv_width, operands)?, divided(*channels, sums)?);
                let mut both = |width| Ok([backend.buffer(width, sums)?, backend.buffer(width, operands)?]);
                Self::Scan { conv, inner: [both(*rank)?, both(*state)?, both(*state)?], steps }
            }
            RecurrentSpec::Conv(_) => Self::Conv,
        })
    }

    pub fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let mut each = |buffer: &mut B::Buffer| backend.resize(buffer, rows);
        match self {
            Self::Heads { conv, gates } => [conv, gates].into_iter().try_for_each(each),
            Self::Channel { conv, beta, low, decay } => [conv, beta, low, decay].into_iter().try_for_each(each),
            Self::Scan { conv, inner, steps } => {
                each(conv)?;
                each(steps)?;
                inner.iter_mut().flatten().try_for_each(each)
            }
            Self::Conv => Ok(()),
        }
    }
}
