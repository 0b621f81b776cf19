//! The options of `offshoot bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{BatchesArgs, EngineArgs, WeightArgs, mib, rate, seconds, whole};
use crate::backend::{Dtype, KvDtype, StateDtype};
use crate::error::{Error, Result};
use crate::lab::bench::allreduce::AllreduceOptions;
use crate::lab::bench::decode::DecodeOptions;
use crate::lab::bench::delta_rule::{DeltaRuleOptions, Prompts};
use crate::lab::bench::products::{LayerForm, ProductOptions};
use crate::lab::bench::tree_attention::TreeOptions;
use crate::lab::bench::workloads::WorkloadOptions;
use crate::launch::DeviceChoice;
use crate::plan::Planner;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Tokens per second of N samples of one prompt
    Decode(DecodeArgs),
    /// Linear layers: as a share of the CPU's rate, or those of a model's shape on any device compared with their lower
    /// bound
    Gemm(GemmArgs),
    /// Tree attention of one decode step: by planner, or on the trees of a file
    Attention(AttentionArgs),
    /// Gated delta-rule layers of a model's shape, in decode steps and prompts, compared with their lower bound
    DeltaRule(DeltaRuleArgs),
    /// Sums over the GPUs of one model, by size: own kernels and NCCL, beside what the link allows
    Allreduce(AllreduceArgs),
    /// Whole jobs on a model with random weights, as JSON lines
    Workloads(WorkloadArgs),
    /// The papers' batches, arrivals and rates through the scheduler, on a model with random weights, as JSON lines
    Batches(BatchesArgs),
    /// Peak multiply rates and read bandwidth
    Machine(JsonArgs),
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GemmArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Shape of a model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: Option<String>,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE", requires = "shape")]
    pub file: Option<PathBuf>,
    /// Numbers of rows
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(1..),
        requires = "shape",
        default_value = "1,8,16,32,64,128,256,512,1024,2048,2560"
    )]
    pub rows: Vec<usize>,
    /// Dtype of the random weights
    #[arg(long, value_enum, default_value = "bf16", requires = "shape")]
    pub dtype: Dtype,
    /// Format of the layers' weights (default: dense)
    #[arg(long, value_enum, value_name = "FORMAT", requires = "shape")]
    pub weights: Option<LayerForm>,
    /// Memory bandwidth for the lower bound, in bytes per second (default: measured)
    #[arg(long, value_name = "B", value_parser = rate, requires = "shape")]
    pub floor_bandwidth: Option<f64>,
    /// Compute rate for the lower bound, in operations per second (default: measured)
    #[arg(long, value_name = "F", value_parser = rate, requires = "shape")]
    pub floor_flops: Option<f64>,
    /// Compare the library's recommended algorithms with batch-invariant ones instead of with the fastest
    #[arg(long, requires = "shape")]
    pub deterministic: bool,
}

impl GemmArgs {
    /// The options of the measurement, if a shape is given.
    pub fn product_options(&self) -> Option<ProductOptions> {
        Some(ProductOptions {
            file: self.file.clone(),
            shape: self.shape.clone()?,
            rows: self.rows.clone(),
            dtype: self.dtype,
            weights: self.weights,
            bandwidth: self.floor_bandwidth,
            flops: self.floor_flops,
            deterministic: self.deterministic,
            json: self.json,
        })
    }
}

#[derive(Debug, Args)]
pub struct AllreduceArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Bytes that each GPU adds up: a number, or KiB or MiB as in 8K and 64M
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = size_in_bytes,
        default_value = "8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M"
    )]
    pub bytes: Vec<usize>,
    /// What numbers are rounded to when they are sent
    #[arg(long, value_enum, value_name = "DTYPE", value_delimiter = ',', default_value = "bf16,f32")]
    pub dtype: Vec<Dtype>,
}

impl From<AllreduceArgs> for AllreduceOptions {
    fn from(args: AllreduceArgs) -> Self {
        Self { bytes: args.bytes, dtypes: args.dtype, json: args.json }
    }
}

/// Most bytes of a buffer that is measured.
const MOST_BYTES: usize = 1 << 30;

/// `512`, `8K`, `64M`: from 16 bytes up to a GiB.
fn size_in_bytes(text: &str) -> Result<usize> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| (16..=MOST_BYTES).contains(bytes))
        .ok_or_else(|| Error::value("value", "a size from 16 to 1024M, as 8K or 64M", text))
}

#[derive(Debug, Args)]
pub struct DeltaRuleArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Shape of a model: qwen3.5-9b, or one of the file's
    #[arg(long, value_name = "NAME", default_value = "qwen3.5-9b")]
    pub shape: String,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Branches of decode steps
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(1..),
        default_value = "1,16,64,256,1024"
    )]
    pub branches: Vec<usize>,
    /// Steps with prompts: sequences and the tokens of each
    #[arg(long, value_name = "NxT", value_delimiter = ',', default_value = "1x2048,8x256,64x32")]
    pub prompts: Vec<Prompts>,
    /// Dtype of activations
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: Dtype,
    /// Storage format of states
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE")]
    pub state_dtype: StateDtype,
    /// Memory bandwidth for the lower bound, in bytes per second (default: measured)
    #[arg(long, value_name = "B", value_parser = rate)]
    pub floor_bandwidth: Option<f64>,
    /// Compute rate for the lower bound, in operations per second (default: measured)
    #[arg(long, value_name = "F", value_parser = rate)]
    pub floor_flops: Option<f64>,
    /// Use the deterministic mode
    #[arg(long)]
    pub deterministic: bool,
}

impl From<DeltaRuleArgs> for DeltaRuleOptions {
    fn from(args: DeltaRuleArgs) -> Self {
        Self {
            file: args.file,
            shape: args.shape,
            branches: args.branches,
            prompts: args.prompts,
            dtype: args.dtype,
            state_dtype: args.state_dtype,
            bandwidth: args.floor_bandwidth,
            flops: args.floor_flops,
            deterministic: args.deterministic,
            json: args.json,
        }
    }
}

#[derive(Debug, Args)]
pub struct AttentionArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Trees to measure, one JSON object per line; prints JSON lines
    #[arg(long, value_name = "FILE")]
    pub trees: Option<PathBuf>,
    /// Only trees of these names
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "trees")]
    pub only: Vec<String>,
    /// How shared prefixes are attended to
    #[arg(long, value_enum, default_value = "balanced", requires = "trees")]
    pub plan: Planner,
    /// Memory bandwidth for the lower bound, in bytes per second (default: measured)
    #[arg(long, value_name = "B", value_parser = rate, requires = "trees")]
    pub floor_bandwidth: Option<f64>,
    /// Compute rate for the lower bound, in operations per second (default: measured)
    #[arg(long, value_name = "F", value_parser = rate, requires = "trees")]
    pub floor_flops: Option<f64>,
    /// Start no measurement after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3600", requires = "trees")]
    pub budget_seconds: Duration,
    /// Make a row's result depend on that row alone, to the last bit
    #[arg(long, requires = "trees")]
    pub deterministic: bool,
    /// Storage format of keys and values; errors are relative to unrounded keys and values
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t, requires = "trees")]
    pub kv_dtype: KvDtype,
    /// Standard deviation of the attention scores
    #[arg(long, value_name = "TIMES", value_parser = sharpness, default_value = "1", requires = "trees")]
    pub sharpness: f64,
}

impl AttentionArgs {
    /// The options of the measurement, if a file of trees is given.
    pub fn tree_options(&self) -> Option<TreeOptions> {
        Some(TreeOptions {
            trees: self.trees.clone()?,
            only: self.only.clone(),
            planner: self.plan,
            bandwidth: self.floor_bandwidth,
            flops: self.floor_flops,
            budget: self.budget_seconds,
            deterministic: self.deterministic,
            kv: self.kv_dtype,
            sharpness: self.sharpness as f32,
        })
    }
}

#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Shape of the model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Workloads to run (default: all)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Shapes and workloads, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: Dtype,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Storage format of keys and values
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
    /// How shared prefixes are attended to
    #[arg(long, value_enum, default_value = "balanced")]
    pub plan: Planner,
    /// Leave out attention, to measure the upper bound for any attention
    #[arg(long)]
    pub without_attention: bool,
    /// Use the library's recommended algorithms for linear layers instead of the fastest measured ones
    #[arg(long, conflicts_with = "deterministic")]
    pub recommended_gemm: bool,
    /// Make samples depend only on their own tokens and random numbers, to the last bit
    #[arg(long)]
    pub deterministic: bool,
    /// Branches that run at once (default: all of the largest workload)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub max_branches: Option<usize>,
    /// Rows of a step: prompts fill the rows that decoding branches leave
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 4096)]
    pub step_rows: usize,
    /// Memory for keys and values in MiB (default: nine tenths of the free memory, as far as the job can use it)
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(1..))]
    pub kv_memory: Option<usize>,
    /// Start no measurement after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3600")]
    pub budget_seconds: Duration,
}

impl From<WorkloadArgs> for WorkloadOptions {
    fn from(args: WorkloadArgs) -> Self {
        Self {
            file: args.file,
            shape: args.shape,
            workloads: args.workload,
            dtype: args.dtype,
            weights: args.weights.into(),
            kv: args.kv_dtype,
            planner: args.plan,
            without_attention: args.without_attention,
            recommended_gemm: args.recommended_gemm,
            deterministic: args.deterministic,
            max_branches: args.max_branches,
            step_rows: args.step_rows,
            pool_bytes: args.kv_memory.map(mib),
            budget: args.budget_seconds,
        }
    }
}

#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// Model folder, GGUF file, or a config.json (then with --random-weights)
    #[arg(long, value_name = "DIR_OR_JSON")]
    pub config: PathBuf,
    /// Use random weights of that shape instead of the folder's
    #[arg(long)]
    pub random_weights: bool,
    /// Tokens of the shared prompt
    #[arg(long, value_name = "P", value_parser = whole::<usize>(1..), default_value_t = 512)]
    pub prompt: usize,
    /// Samples; several values are measured one after another
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<usize>(1..), default_value = "32")]
    pub samples: Vec<usize>,
    /// Tokens generated by each sample
    #[arg(long, value_name = "G", value_parser = whole::<usize>(1..), default_value_t = 64)]
    pub generate: usize,
    /// Planners to measure, one after another
    #[arg(long, value_enum, value_delimiter = ',', default_value = "balanced")]
    pub plan: Vec<Planner>,
    /// Weight dtype of random weights (default: the config's)
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Runs of each case; the median is printed
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 3)]
    pub repeat: usize,
    /// One JSON object per case, with all runs, instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl DecodeArgs {
    pub fn on(self, device: DeviceChoice) -> DecodeOptions {
        let args = self;
        DecodeOptions {
            device,
            config: args.config,
            random_weights: args.random_weights,
            dtype: args.dtype,
            prompt: args.prompt,
            samples: args.samples,
            generate: args.generate,
            plans: args.plan,
            repeat: args.repeat,
            json: args.json,
            budget: args.engine.into(),
        }
    }
}

/// A positive number; the limit keeps queries finite in 16 bits.
fn sharpness(text: &str) -> Result<f64> {
    const MOST: f64 = 1e4;
    match rate(text)? {
        sharpness if sharpness > MOST => Err(Error::value("value", format!("a number up to {MOST}"), text)),
        sharpness => Ok(sharpness),
    }
}
