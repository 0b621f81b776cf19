//! What `bench gemm --shape` is asked for, and what it tells of each kind of layer: of linear layers (`products`) and
//! of mixtures (`mixtures`).

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::floor::FloorArgs;
use super::tables::rounded;
use offshoot_args::whole;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_backend::quantised::NVFP4_GROUP;
use offshoot_backend::{CodeFormat, Dtype, QuantFormat, Rounding, WeightFormat};
use offshoot_model::MadeFormat;

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
    /// As checkpoints in NVFP4: e2m1 with an e4m3 scale for 16 inputs and a factor. The output layer is dense
    Nvfp4,
}

impl LayerForm {
    /// Formats of the layers, and of the output layer; `None`: it is dense.
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
            LayerForm::Nvfp4 => published(CodeFormat::Fp4, NVFP4_GROUP, false),
        }
    }
}

/// More rows than any step has.
const MOST_ROWS: u64 = 1 << 16;

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
        value_parser = whole::<usize>(1..=MOST_ROWS),
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
    /// The format of the layers' weights.
    pub fn layer_format(&self) -> WeightFormat {
        let made = self.weights.map(|form| form.formats().0);
        made.map_or(WeightFormat::Dense(self.dtype), WeightFormat::Quantised)
    }

    /// The format of the output layer's weights.
    pub fn head_format(&self) -> WeightFormat {
        let made = self.weights.and_then(|form| form.formats().1);
        made.map_or(WeightFormat::Dense(self.dtype), WeightFormat::Quantised)
    }
}

/// Consecutive calls that are timed together, and number of such timings, of which the median counts.
pub const CALLS: usize = 8;
pub const TIMES: usize = 10;

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

#[derive(Clone, Copy, Debug, Serialize)]
pub struct LayerTimes {
    pub rows: usize,
    /// Time of the recommended algorithm; `None` if the backend has only one algorithm.
    pub first_us: Option<f64>,
    pub us: f64,
    pub floor_us: f64,
    ratio: f64,
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
