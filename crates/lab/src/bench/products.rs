//! `bench gemm --shape`: times the linear layers of a model (those of experts: `mixtures`) by number of rows, each with
//! the library's recommended algorithm and with the fastest one measured, compared with the physical lower bound, and
//! their sum per decode step. Calls alternate between copies of the weights, so that these are read from memory as in a
//! step.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rayon::prelude::*;
use serde::Serialize;

use super::FloorArgs;
use super::mixtures;
use super::tables::{median, print, rounded};
use super::workload_file::read_jobs;
use offshoot_args::whole;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_backend::{
    ActivationDtype, CodeFormat, Dtype, MatrixPart, QuantFormat, RandomWeight, Rates, Rounding, Timed, Uniform,
    WeightFormat,
};
use offshoot_cases::Destination;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_launch::{DeviceBackend, DeviceChoice, OnDevice};
use offshoot_model::config::{DenseSpec, kinds};
use offshoot_model::{MadeFormat, ModelConfig};

/// Formats of layers that can be measured: those made at load, and published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LayerForm {
    /// As `run --weights fp8`
    Fp8,
    /// As `run --weights int8`
    Int8,
    /// As `run --weights int4`: a scale for 32 inputs of an output
    Int4,
    /// As AWQ and GPTQ checkpoints: int4 with a scale and a zero point for 128 inputs. The output layer is dense
    Awq,
    /// As gpt-oss' experts: e2m1 with a power of two for 32 inputs. The output layer is dense
    Mxfp4,
}

impl LayerForm {
    /// Of the layers, and of the output layer; `None`: it is dense.
    fn formats(self) -> (QuantFormat, Option<QuantFormat>) {
        let made = |format: MadeFormat| (format.of_layers(), format.of_head(false));
        let published =
            |codes, group, zeros| (QuantFormat { codes, group: Some(group), zeros, rounding: Rounding::Exact }, None);
        match self {
            LayerForm::Fp8 => made(MadeFormat::Fp8),
            LayerForm::Int8 => made(MadeFormat::Int8),
            LayerForm::Int4 => made(MadeFormat::Int4),
            LayerForm::Awq => published(CodeFormat::Int4, 128, true),
            LayerForm::Mxfp4 => published(CodeFormat::Fp4, 32, false),
        }
    }
}

// The options of `bench gemm --shape`.
#[derive(Clone, Debug, Args)]
pub struct ProductOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Shape of a model: llama3-8b, codellama-7b, llama-134m, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Numbers of rows
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(1..),
        default_value = "1,8,16,32,64,128,256,512,1024,2048,2560"
    )]
    pub rows: Vec<usize>,
    /// Dtype of the random weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    /// Format of the layers' weights (default: dense)
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub weights: Option<LayerForm>,
    #[command(flatten)]
    pub floor: FloorArgs,
    /// Compare the library's recommended algorithms with batch-invariant ones instead of with the fastest
    #[arg(long)]
    pub deterministic: bool,
}

impl ProductOptions {
    /// Of the layers' weights.
    pub fn layer_format(&self) -> WeightFormat {
        let made = self.weights.map(|form| form.formats().0);
        made.map_or(WeightFormat::Dense(self.dtype), WeightFormat::Quantised)
    }

    /// Of the output layer's.
    fn head_format(&self) -> WeightFormat {
        let made = self.weights.and_then(|form| form.formats().1);
        made.map_or(WeightFormat::Dense(self.dtype), WeightFormat::Quantised)
    }
}

/// Total size in bytes, and number, of the copies of the weights.
const WEIGHT_BYTES: usize = 512 << 20;
const COPIES: std::ops::RangeInclusive<usize> = 2..=8;
/// Consecutive calls that are timed together, and number of such timings, of which the median counts.
pub const CALLS: usize = 8;
pub const TIMES: usize = 10;
/// Budget of autotuning; one layer at one number of rows takes at most a tenth of it.
const MEASURING: Duration = Duration::from_secs(12);
/// More rows than any step has.
const MOST_ROWS: usize = 1 << 16;

/// A kind of linear layer, and how often a decode step computes it.
struct LinearLayer {
    name: &'static str,
    outputs: usize,
    inputs: usize,
    count: usize,
    into: Destination,
    weights: WeightFormat,
}

/// One kind of layer at one number of rows.
#[derive(Debug, Serialize)]
pub struct MeasuredLayer<'a> {
    pub shape: &'a str,
    pub layer: &'static str,
    pub outputs: usize,
    pub inputs: usize,
    pub count: usize,
    pub deterministic: bool,
    #[serde(flatten)]
    pub times: LayerTimes,
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

#[derive(Clone, Copy, Debug, Serialize)]
pub struct LayerTimes {
    rows: usize,
    /// Time of the recommended algorithm; `None` if the backend has only one algorithm.
    first_us: Option<f64>,
    us: f64,
    floor_us: f64,
    ratio: f64,
}

/// Measures every layer at every number of rows, printing each result as soon as it is known, then the sums.
pub fn main(device: DeviceChoice, options: &ProductOptions) -> Result<()> {
    device.open(None)?.with(MeasureProducts(options))
}

struct MeasureProducts<'a>(&'a ProductOptions);

impl OnDevice for MeasureProducts<'_> {
    type Output = ();

    fn run<B: DeviceBackend>(self, backend: B) -> Result<()> {
        measure_all(backend, self.0)
    }
}

fn measure_all<B: Timed>(mut backend: B, options: &ProductOptions) -> Result<()> {
    if let Some(rows) = options.rows.iter().find(|rows| !(1..=MOST_ROWS).contains(*rows)) {
        return Err(Error::value("--rows", format!("numbers from 1 to {MOST_ROWS}"), rows.to_string()));
    }
    let (config, _) = read_jobs(options.file.as_deref(), &options.shape, &[])?;
    let format = options.layer_format();
    if !config.is_multiplied(&backend, format) {
        let found = format!("{format} on {}", backend.describe());
        return Err(Error::value("--weights", "a format that the device multiplies", found));
    }
    let plain = WeightFormat::Dense(options.dtype);
    let rates = options.floor.rates(&mut backend, options.dtype, format)?;
    let dense_rates = if format == plain { rates } else { options.floor.rates(&mut backend, options.dtype, plain)? };
    if !options.json {
        out::line(format_args!("{}: {rates}", backend.describe()))?;
        out::line(format_args!(
            "{:<12} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>6}",
            "layer", "outputs", "inputs", "rows", "first us", "us", "floor us", "ratio"
        ))?;
    }
    let (shape, deterministic) = (options.shape.as_str(), options.deterministic);
    let mut step: Vec<LayerTimes> = options.rows.iter().map(|&rows| LayerTimes::new(rows, None, 0.0, 0.0)).collect();
    for (at, layer) in layers(&config, options).into_iter().enumerate() {
        // An output layer may have a format that the device does not multiply, unlike the other layers'.
        let format = if backend.multiplies(layer.weights) { layer.weights } else { plain };
        let rates = if format == plain { dense_rates } else { rates };
        let times = measure(&mut backend, &layer, format, options, rates)?;
        for (sum, times) in step.iter_mut().zip(times) {
            let LinearLayer { name, outputs, inputs, count, .. } = layer;
            print(options.json, &MeasuredLayer { shape, layer: name, outputs, inputs, count, deterministic, times })?;
            let more = count as f64;
            let first = times.first_us.map(|us| if at == 0 { 0.0 } else { sum.first_us.unwrap_or(0.0) } + more * us);
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
    let routers = || config.layers.iter().filter_map(|layer| layer.feed_forward.experts().map(|experts| experts.count));
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
        let random = RandomWeight { dtype, rows: outputs, cols: inputs, numbers };
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

impl LayerTimes {
    pub fn new(rows: usize, first_us: Option<f64>, us: f64, floor_us: f64) -> Self {
        let ratio = rounded(us / floor_us, 2);
        Self {
            rows,
            first_us: first_us.map(|us| rounded(us, 2)),
            us: rounded(us, 2),
            floor_us: rounded(floor_us, 2),
            ratio,
        }
    }
}

impl fmt::Display for LayerTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, us, floor_us, ratio, .. } = self;
        let first = self.first_us.map_or("-".to_owned(), |us| format!("{us:.1}"));
        write!(f, "{rows:>6} {first:>10} {us:>10.1} {floor_us:>10.1} {ratio:>6.2}")
    }
}

impl fmt::Display for MeasuredLayer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, outputs, inputs, times, .. } = self;
        write!(f, "{layer:<12} {outputs:>7} {inputs:>7} {times}")
    }
}

impl fmt::Display for MeasuredStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, times, .. } = self;
        write!(f, "{layer:<12} {:>7} {:>7} {times}", "", "")
    }
}
