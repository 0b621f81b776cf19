//! The mixtures of experts of `bench gemm --shape`: router and sums, and the grouped products, at numbers of rows whose
//! experts are chosen evenly at random. A grouped product's bound reads the weights of the experts that are needed
//! once.

use rayon::prelude::*;

use super::layers::{CALLS, LayerTimes, MeasuredLayer, ProductOptions, TIMES};
use super::tables::median;
use offshoot_backend::{
    ActivationDtype, Dtype, ExpertInput, ExpertKind, MatrixPart, OutputMode, RandomWeight, Rates, Timed, Uniform,
    WeightFormat, WeightView,
};
use offshoot_core::error::Result;
use offshoot_model::ModelConfig;
use offshoot_model::config::{Activation, ExpertsSpec, kinds};

/// Copies of the experts, used in turn, so that none is in a cache.
const COPIES: usize = 2;

/// Measures the mixtures of a model; `done` gets each kind of product with its count and its times by number of rows.
pub fn measure<B: Timed>(
    backend: &mut B,
    config: &ModelConfig,
    options: &ProductOptions,
    rates: Rates,
    mut done: impl FnMut(MeasuredLayer<'_>) -> Result<()>,
) -> Result<()> {
    let experts = || config.layers.iter().filter_map(|layer| layer.feed_forward.experts().copied());
    for spec in kinds(experts()) {
        let count = experts().filter(|other| *other == spec).count();
        let (hidden, weights) = (spec.latent.unwrap_or(config.hidden), options.layer_format());
        let mixture = TimedMixture { spec, hidden, rates, bytes: options.dtype.bytes(), weights };
        for op in [MixtureOp::Route, MixtureOp::Up, MixtureOp::Down, MixtureOp::Combine] {
            let (name, outputs, inputs) = mixture.shape(op);
            for times in mixture.measure(backend, op, options)? {
                let (shape, deterministic) = (options.shape.as_str(), options.deterministic);
                done(MeasuredLayer { shape, layer: name, outputs, inputs, count, deterministic, times })?;
            }
        }
    }
    Ok(())
}

/// The ops of a mixture, in the order of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MixtureOp {
    Route,
    /// With its gate, if it has one.
    Up,
    Down,
    Combine,
}

struct TimedMixture {
    spec: ExpertsSpec,
    hidden: usize,
    rates: Rates,
    /// Bytes of an activation.
    bytes: usize,
    weights: WeightFormat,
}

impl TimedMixture {
    /// Name, outputs and inputs.
    fn shape(&self, op: MixtureOp) -> (&'static str, usize, usize) {
        let TimedMixture { spec, hidden, .. } = *self;
        match op {
            MixtureOp::Route => ("route", spec.router.chosen, spec.routed()),
            MixtureOp::Up => ("experts up", spec.activation.up_width(spec.width), hidden),
            MixtureOp::Down => ("experts down", hidden, spec.width),
            MixtureOp::Combine => ("combine", hidden, spec.router.chosen),
        }
    }

    /// Microseconds that no implementation can beat.
    fn floor(&self, op: MixtureOp, rows: usize) -> f64 {
        let TimedMixture { spec, hidden, rates, bytes, weights: format } = *self;
        let (places, (_, outputs, inputs)) = ((rows * spec.router.chosen) as f64, self.shape(op));
        let seconds = match op {
            MixtureOp::Route => (rows * spec.routed() * size_of::<f32>()) as f64 / rates.bytes_per_s,
            MixtureOp::Combine => (places * bytes as f64 + (rows * 8) as f64) * hidden as f64 / rates.bytes_per_s,
            MixtureOp::Up | MixtureOp::Down => {
                let weights = distinct(&spec, rows) * format.bytes(outputs, inputs) as f64;
                (weights / rates.bytes_per_s).max(2.0 * places * (outputs * inputs) as f64 / rates.flops_per_s)
            }
        };
        1e6 * seconds
    }

    fn measure<B: Timed>(&self, backend: &mut B, op: MixtureOp, options: &ProductOptions) -> Result<Vec<LayerTimes>> {
        let TimedMixture { spec, hidden, .. } = *self;
        let ProductOptions { dtype, rows, .. } = options;
        let (dtype, operands) = (*dtype, ActivationDtype::Operands(*dtype));
        let (_, outputs, inputs) = self.shape(op);
        let is_product = matches!(op, MixtureOp::Up | MixtureOp::Down);
        let copies = if is_product { COPIES } else { 0 };
        let kind = match (op, spec.activation) {
            (MixtureOp::Up, Activation::Gated(_)) => ExpertKind::Gated,
            _ => ExpertKind::Linear,
        };
        let weights = (0..copies).map(|copy| {
            let matrix = |expert: usize| {
                let numbers = Uniform { stream: ((copy * spec.count + expert) as u64) << 40, centre: 0.0, reach: 0.05 };
                let random = RandomWeight::of(dtype, outputs, inputs, numbers);
                backend.matrix(&[MatrixPart::random(random, self.weights)])
            };
            let matrices = (0..spec.count).map(matrix).collect::<Result<_>>()?;
            backend.experts(matrices, Vec::new(), kind)
        });
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let most = rows.iter().copied().max().unwrap_or(0);
        let drawn = |stream: u64, len: usize| -> Vec<f32> {
            let numbers = Uniform { stream: stream << 50, centre: 0.0, reach: 1.0 };
            (0..len).into_par_iter().map(|i| numbers.at(i)).collect()
        };
        let places = |rows: usize| rows * spec.router.chosen;
        // What the op reads: rows for the first product, places for the others.
        let (width, rows_of): (usize, &dyn Fn(usize) -> usize) = match op {
            MixtureOp::Route | MixtureOp::Up => (hidden, &|rows| rows),
            MixtureOp::Down => (spec.width, &places),
            MixtureOp::Combine => (hidden, &places),
        };
        let numbers = drawn(1, rows_of(most) * width);
        let mut x = backend.buffer(width, operands)?;
        let mut inner = backend.buffer(2 * spec.width, operands)?;
        let (out_width, holds) = match op {
            MixtureOp::Up => (spec.width, operands),
            MixtureOp::Down => (hidden, operands),
            MixtureOp::Route | MixtureOp::Combine => (hidden, ActivationDtype::Sums),
        };
        let mut out = backend.buffer(out_width, holds)?;
        let zeros = vec![0; spec.routed() * Dtype::F32.bytes()];
        let bias = WeightView { dtype: Dtype::F32, rows: 1, cols: spec.routed(), bytes: &zeros };
        let bias = spec.choosing_bias.then(|| backend.vector(&[bias])).transpose()?;
        // What identities give.
        let mut input = backend.buffer(hidden, operands)?;
        let mut all = Vec::with_capacity(rows.len());
        for &rows in rows {
            backend.resize(&mut input, rows)?;
            let input = Some(&input).filter(|_| spec.router.identities > 0);
            // Other experts in each call, where a row needs few.
            let mut scores = backend.buffer(spec.routed(), ActivationDtype::Sums)?;
            backend.resize(&mut scores, rows)?;
            let mut routes = Vec::new();
            for call in 0..CALLS {
                backend.write(&mut scores, rows, &drawn(2 + call as u64, rows * spec.routed()))?;
                let mut one = backend.routes(spec.routed(), spec.router)?;
                backend.resize_routes(&mut one, rows)?;
                backend.route(&mut one, &scores, None, bias.as_ref());
                routes.push(one);
            }
            backend.resize(&mut x, rows_of(rows))?;
            backend.write(&mut x, rows_of(rows), &numbers[..rows_of(rows) * width])?;
            backend.resize(&mut inner, places(rows))?;
            backend.resize(&mut out, if is_product { places(rows) } else { rows })?;
            let us = backend.time_calls(CALLS, TIMES, |backend, call| match op {
                MixtureOp::Route => backend.route(&mut routes[call], &scores, None, bias.as_ref()),
                MixtureOp::Up => {
                    let w = &weights[call % COPIES];
                    match spec.activation {
                        Activation::Gated(gate) => {
                            backend.expert_gated(&mut out, &mut inner, &x, w, &routes[call], gate);
                        }
                        _ => backend.expert_linear(&mut out, &x, w, &routes[call], ExpertInput::Rows),
                    }
                }
                MixtureOp::Down => {
                    backend.expert_linear(&mut out, &x, &weights[call % COPIES], &routes[call], ExpertInput::Places);
                }
                MixtureOp::Combine => backend.combine(&mut out, &x, input, &routes[call], OutputMode::Add),
            })?;
            all.push(LayerTimes::new(rows, None, median(us), self.floor(op, rows)));
        }
        Ok(all)
    }
}

/// The mean number of experts that `rows` rows need, if each chooses evenly at random.
fn distinct(spec: &ExpertsSpec, rows: usize) -> f64 {
    spec.router.experts_chosen(spec.count, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::{Gate, Router, RouterScores};
    use offshoot_model::config::ExpertWidthField;

    #[test]
    fn the_experts_needed_rise_from_the_chosen_ones_to_all() {
        let router = Router::new(8, RouterScores::SoftmaxOfChosen);
        let (width, width_field) = (1, ExpertWidthField::MoeIntermediate);
        let activation = Activation::Gated(Gate::Silu);
        let spec = ExpertsSpec {
            count: 128,
            width,
            width_field,
            activation,
            latent: None,
            bias: false,
            router,
            choosing_bias: false,
            scale: 1.0,
            router_norm: None,
        };
        assert!((distinct(&spec, 1) - 8.0).abs() < 1e-9);
        assert!((distinct(&spec, 16) - 128.0 * (1.0 - (15.0f64 / 16.0).powi(16))).abs() < 1e-9);
        assert!(distinct(&spec, 4096) > 127.99);
    }
}
