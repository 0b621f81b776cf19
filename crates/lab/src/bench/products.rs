//! `bench gemm --shape`: times the linear layers of a model (those of experts: `mixtures`) by number of rows, each with
//! the library's recommended algorithm and with the fastest one measured, compared with the physical lower bound, and
//! their sum per decode step. Calls alternate between copies of the weights, so that these are read from memory as in a
//! step.

use std::fmt;
use std::time::Duration;

use rayon::prelude::*;
use serde::Serialize;

use super::layers::{CALLS, LayerTimes, MeasuredLayer, ProductOptions, TIMES};
use super::mixtures;
use super::tables::{median, print};
use super::workload_file::read_jobs;
use offshoot_backend::{ActivationDtype, MatrixPart, RandomWeight, Rates, Timed, Uniform, WeightFormat};
use offshoot_cases::Destination;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_launch::{DeviceBackend, OnDevice};
use offshoot_model::ModelConfig;
use offshoot_model::config::{DenseSpec, kinds};

/// Total size in bytes, and number, of the copies of the weights.
const WEIGHT_BYTES: usize = 512 << 20;
const COPIES: std::ops::RangeInclusive<usize> = 2..=8;
/// Budget of autotuning; one layer at one number of rows takes at most a tenth of it.
const MEASURING: Duration = Duration::from_secs(12);

/// A kind of linear layer, and how often a decode step computes it.
struct LinearLayer {
    name: &'static str,
    outputs: usize,
    inputs: usize,
    count: usize,
    into: Destination,
    weights: WeightFormat,
}

/// All linear layers of a decode step.
#[derive(Debug, Serialize)]
struct MeasuredStep<'a> {
    shape: &'a str,
    layer: &'static str,
    deterministic: bool,
    #[serde(flatten)]
    times: LayerTimes,
}

/// Measures every layer at every number of rows, printing each result as soon as it is known, then the sums.
impl OnDevice for &ProductOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let options = self;
        let (config, _) = read_jobs(options.file.as_deref(), &options.shape, &[])?;
        let format = options.layer_format();
        if !config.is_multiplied(&backend, format) {
            let found = format!("{format} on {}", backend.describe());
            return Err(Error::value("--weights", "a format that the device multiplies", found));
        }
        let plain = WeightFormat::Dense(options.dtype);
        let rates = options.floor.rates(&mut backend, options.dtype, format)?;
        let dense_rates =
            if format == plain { rates } else { options.floor.rates(&mut backend, options.dtype, plain)? };
        if !options.json {
            out::line(format_args!("{}: {rates}", backend.describe()))?;
            out::line(format_args!(
                "{:<12} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>6}",
                "layer", "outputs", "inputs", "rows", "first us", "us", "floor us", "ratio"
            ))?;
        }
        let (shape, deterministic) = (options.shape.as_str(), options.deterministic);
        let mut step: Vec<LayerTimes> =
            options.rows.iter().map(|&rows| LayerTimes::new(rows, None, 0.0, 0.0)).collect();
        for (at, layer) in layers(&config, options).into_iter().enumerate() {
            // An output layer may have a format that the device does not multiply, unlike the other layers'.
            let format = if backend.multiplies(layer.weights) { layer.weights } else { plain };
            let rates = if format == plain { dense_rates } else { rates };
            let times = measure(&mut backend, &layer, format, options, rates)?;
            for (sum, times) in step.iter_mut().zip(times) {
                let LinearLayer { name, outputs, inputs, count, .. } = layer;
                print(
                    options.json,
                    &MeasuredLayer { shape, layer: name, outputs, inputs, count, deterministic, times },
                )?;
                let more = count as f64;
                let first =
                    times.first_us.map(|us| if at == 0 { 0.0 } else { sum.first_us.unwrap_or(0.0) } + more * us);
                *sum = LayerTimes::new(sum.rows, first, sum.us + more * times.us, sum.floor_us + more * times.floor_us);
            }
        }
        mixtures::measure(&mut backend, &config, options, rates, |measured| {
            print(options.json, &measured)?;
            let MeasuredLayer { count, times, .. } = measured;
            let more = count as f64;
            for sum in step.iter_mut().filter(|sum| sum.rows == times.rows) {
                let first = sum.first_us.map(|us| us + more * times.us);
                *sum = LayerTimes::new(sum.rows, first, sum.us + more * times.us, sum.floor_us + more * times.floor_us);
            }
            Ok(())
        })?;
        step.into_iter()
            .try_for_each(|times| print(options.json, &MeasuredStep { shape, layer: "step", deterministic, times }))
    }
}

/// In the order of a step; of each kind of layer.
fn layers(config: &ModelConfig, options: &ProductOptions) -> Vec<LinearLayer> {
    let ModelConfig { hidden, vocab, .. } = *config;
    let (made, plain) = (options.layer_format(), WeightFormat::Dense(options.dtype));
    let layer = |name, outputs, inputs, count, into| LinearLayer { name, outputs, inputs, count, into, weights: made };
    let mut all = Vec::new();
    for heads in kinds(config.heads()) {
        let count = config.heads().filter(|other| *other == heads).count();
        all.push(layer("qkv", heads.qkv_width(), hidden, count, Destination::Operands));
        all.push(layer("out", hidden, heads.q_width(), count, Destination::Added));
    }
    let dense = || config.layers.iter().filter_map(|layer| layer.feed_forward.dense().copied());
    for kind in kinds(dense()) {
        let count = dense().filter(|other| *other == kind).count();
        let DenseSpec { activation, width, .. } = kind;
        all.push(layer("up", activation.up_width(width), hidden, count, Destination::Operands));
        all.push(layer("down", hidden, width, count, Destination::Added));
    }
    let routers =
        || config.layers.iter().filter_map(|layer| layer.feed_forward.experts().map(|experts| experts.routed()));
    for outputs in kinds(routers()) {
        let count = routers().filter(|other| *other == outputs).count();
        all.push(LinearLayer { weights: plain, ..layer("router", outputs, hidden, count, Destination::Sums) });
    }
    let head = layer("head", vocab, hidden, 1, Destination::Sums);
    all.push(LinearLayer { weights: options.head_format(), ..head });
    all
}

/// Times by number of rows, with weights of `format`.
fn measure<B: Timed>(
    backend: &mut B,
    layer: &LinearLayer,
    format: WeightFormat,
    options: &ProductOptions,
    rates: Rates,
) -> Result<Vec<LayerTimes>> {
    let LinearLayer { outputs, inputs, into, .. } = *layer;
    let ProductOptions { dtype, rows, .. } = options;
    let dtype = *dtype;
    let bytes = format.bytes(outputs, inputs);
    let copies = (WEIGHT_BYTES / bytes.max(1)).clamp(*COPIES.start(), *COPIES.end());
    let weights = (0..copies).map(|copy| {
        let numbers = Uniform { stream: (copy as u64) << 40, centre: 0.0, reach: 0.05 };
        let random = RandomWeight::of(dtype, outputs, inputs, numbers);
        backend.matrix(&[MatrixPart::random(random, format)])
    });
    let weights = weights.collect::<Result<Vec<_>>>()?;
    let mut x = backend.buffer(inputs, ActivationDtype::Operands(dtype))?;
    let mut out = backend.buffer(outputs, into.stores(dtype))?;
    // Random numbers, because zeros are multiplied faster.
    let numbers = Uniform { stream: 1 << 60, centre: 0.0, reach: 1.0 };
    let most = rows.iter().copied().max().unwrap_or(0);
    let drawn: Vec<f32> = (0..most * inputs).into_par_iter().map(|i| numbers.at(i)).collect();
    let mut times = Vec::with_capacity(rows.len());
    for &rows in rows {
        backend.resize(&mut x, rows)?;
        backend.resize(&mut out, rows)?;
        backend.write(&mut x, rows, &drawn[..rows * inputs])?;
        let mut time = |backend: &mut B| -> Result<f64> {
            let us = backend.time_calls(CALLS, TIMES, |backend, call| {
                into.compute(backend, &mut out, &x, &weights[call % copies], None);
            })?;
            Ok(median(us))
        };
        let first = if backend.choose_products(None) { Some(time(backend)?) } else { None };
        match options.deterministic {
            true => backend.set_batch_invariant(),
            false => drop(backend.choose_products(Some(MEASURING))),
        }
        let us = time(backend)?;
        let flops = 2.0 * rows as f64 * outputs as f64 * inputs as f64;
        let floor = (bytes as f64 / rates.bytes_per_s).max(flops / rates.flops_per_s) * 1e6;
        times.push(LayerTimes::new(rows, first, us, floor));
    }
    Ok(times)
}

impl fmt::Display for MeasuredStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, times, .. } = self;
        write!(f, "{layer:<12} {:>7} {:>7} {times}", "", "")
    }
}
