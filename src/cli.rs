//! What the user typed: the command line as clap parses it. Holds no logic but the choice of a default; `main` hands each
//! command to the floor that does it.

mod judge;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

pub use judge::JudgeArgs;

use crate::backend::{DeviceChoice, Dtype};
use crate::batch::BatchOptions;
use crate::bench::decode::DecodeOptions;
use crate::bench::products::ProductOptions;
use crate::bench::tree_attention::TreeOptions;
use crate::bench::workloads::WorkloadOptions;
use crate::check::{CheckOptions, DeviceCheck};
use crate::judge::Isolation;
use crate::plan::Planner;
use crate::run::rescore::RescoreOptions;
use crate::run::{Budget, RunOptions};
use crate::view::ViewOptions;

#[derive(Debug, Parser)]
#[command(name = "offshoot", version, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// What computes: auto (a GPU that will do, else the CPU), cpu, cuda or cuda:N
    #[arg(long, global = true, value_name = "DEVICE", default_value_t)]
    pub device: DeviceChoice,

    /// Threads for the CPU backend (default: one a core)
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,

    /// Say more on stderr: once for each step of the work, twice for details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a task file: sample, answer, vote, grade. Without one: the bundled demo
    Run(RunArgs),
    /// Hold the device's arithmetic against the CPU's definition. With --model: print a model's facts and check its
    /// arithmetic. With --kernels: compile the CUDA kernels
    Check(CheckArgs),
    /// Measure: decode steps, matrix products, attention, the machine itself
    Bench(BenchArgs),
    /// Answer, vote and grade anew from the samples of a run, without a model
    Rescore(RescoreArgs),
    /// Answer a file of OpenAI Batch requests (/v1/chat/completions and /v1/completions)
    Batch(BatchArgs),
    /// Show what a run searched: its sampling trees as text, or as a page for the browser, JSON or a drawing
    Tree(TreeArgs),
    /// Judge samples made elsewhere on a code benchmark's problems, each candidate in a sandbox, and report pass@k
    Judge(JudgeArgs),
    /// Write a commented task file and example items to start from
    New(NewArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Task file (JSON, // comments allowed)
    pub task: Option<PathBuf>,
    /// Model folder, instead of the task's
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Only the first N items
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Samples an item, instead of the task's
    #[arg(long, value_name = "N")]
    pub samples: Option<u32>,
    /// Seed of all coins, instead of the task's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Change any value of the task file: sampling.temperature=0.6
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// How shared prefixes are attended to (default: balanced); changes speed, never results
    #[arg(long, value_enum)]
    pub plan: Option<Planner>,
    /// Folder for results (default: runs/NAME, then runs/NAME-2, ...)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The k of pass@k, maj@k and best@k (default: powers of two)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub k: Option<Vec<u32>>,
    /// Go on with a run that was stopped, or that is to have more samples or items: the one in --out, or the task's latest
    /// that fits; where there is none yet, begin one. Samples on disk are not drawn again, failed items are tried again
    #[arg(long)]
    pub resume: bool,
    /// Also write every item's sampling tree under OUT/trees, for `offshoot tree OUT`
    #[arg(long)]
    pub trees: bool,
    /// Show the first prompt, token counts by level and the memory needed; sample nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub judging: JudgingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The judge of a task that has one.
#[derive(Clone, Copy, Debug, Args)]
pub struct JudgingArgs {
    /// Candidate programs judged at once, where the task has a judge (default: one a core)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub judges: Option<u16>,
    #[command(flatten)]
    pub sandboxing: Sandboxing,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Sandboxing {
    /// Judge candidates also where their files and network cannot be isolated: they can then do whatever you can
    #[arg(long)]
    pub unsafe_no_sandbox: bool,
}

impl Sandboxing {
    pub fn isolation(self) -> Isolation {
        if self.unsafe_no_sandbox { Isolation::Unsafe } else { Isolation::Required }
    }
}

/// Budgets of the engine.
#[derive(Clone, Copy, Debug, Args)]
pub struct EngineArgs {
    /// Branches that grow at once, a row each in every step; changes speed and memory (default: 128 on the CPU, up to 4096
    /// on a GPU)
    #[arg(long, value_name = "N")]
    pub max_branches: Option<usize>,
    /// Share of the device's free memory for keys and values (default: 0.5 on the CPU, 0.9 on a GPU)
    #[arg(long, value_name = "SHARE")]
    pub memory: Option<f64>,
    /// Memory for keys and values in MiB, instead of a share
    #[arg(long, value_name = "MIB", conflicts_with = "memory")]
    pub kv_memory: Option<usize>,
    /// Host memory in MiB for keys and values of branches that make room for others (default: none on the CPU; on a GPU a
    /// quarter of what is free, at most 32768)
    #[arg(long, value_name = "MIB")]
    pub swap_memory: Option<usize>,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Model folder in Hugging Face form
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Golden file for that model: transformers' logits, log-probabilities and greedy tokens
    #[arg(long, value_name = "FILE", requires = "model")]
    pub golden: Option<PathBuf>,
    /// Hold the device against every model folder with a golden.json beneath this one, too
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "kernels"])]
    pub goldens: Option<PathBuf>,
    /// Few and small cases of the device's check, for tools that slow it down
    #[arg(long, conflicts_with_all = ["model", "kernels"])]
    pub quick: bool,
    /// One JSON object a row of the device's check instead of a table
    #[arg(long, conflicts_with_all = ["model", "kernels"])]
    pub json: bool,
    /// Compile every CUDA kernel, which needs NVRTC but no GPU; registers that spill fail the check
    #[arg(long, conflicts_with = "model")]
    pub kernels: bool,
    /// Architectures to compile for
    #[arg(long, value_name = "ARCH", requires = "kernels", default_values = ["sm_80", "sm_89", "sm_90a"])]
    pub arch: Vec<String>,
}

impl From<CheckArgs> for CheckOptions {
    fn from(args: CheckArgs) -> Self {
        let CheckArgs { model, golden, goldens, quick, json, kernels, arch } = args;
        match model {
            Some(folder) => CheckOptions::Model { folder, golden },
            None if kernels => CheckOptions::Kernels { archs: arch },
            None => CheckOptions::Device(DeviceCheck { goldens, quick, json }),
        }
    }
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Tokens per second of N samples of one prompt
    Decode(DecodeArgs),
    /// Linear layers: as a share of the CPU's rate, or those of a model's shape on any device beside their floor
    Gemm(GemmArgs),
    /// Tree attention of one decode step: by planner, or on the trees of a file
    Attention(AttentionArgs),
    /// Whole jobs on a model of random weights, as JSON lines
    Workloads(WorkloadArgs),
    /// Peak multiply rates and read bandwidth
    Machine(JsonArgs),
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GemmArgs {
    /// One JSON object a line instead of a table
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
        requires = "shape",
        default_value = "1,8,16,32,64,128,256,512,1024,2048,2560"
    )]
    pub rows: Vec<usize>,
    /// Dtype of the random weights
    #[arg(long, value_enum, default_value = "bf16", requires = "shape")]
    pub dtype: Dtype,
    /// Bytes a second of the floor (default: measured)
    #[arg(long, value_name = "B", value_parser = rate, requires = "shape")]
    pub floor_bandwidth: Option<f64>,
    /// Operations a second of the floor (default: measured)
    #[arg(long, value_name = "F", value_parser = rate, requires = "shape")]
    pub floor_flops: Option<f64>,
}

impl GemmArgs {
    /// What to measure where a shape is given.
    pub fn product_options(&self) -> Option<ProductOptions> {
        Some(ProductOptions {
            file: self.file.clone(),
            shape: self.shape.clone()?,
            rows: self.rows.clone(),
            dtype: self.dtype,
            bandwidth: self.floor_bandwidth,
            flops: self.floor_flops,
            json: self.json,
        })
    }
}

#[derive(Debug, Args)]
pub struct AttentionArgs {
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Trees to measure, a JSON object a line; prints JSON lines
    #[arg(long, value_name = "FILE")]
    pub trees: Option<PathBuf>,
    /// Only trees of these names
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "trees")]
    pub only: Vec<String>,
    /// How shared prefixes are attended to
    #[arg(long, value_enum, default_value = "balanced", requires = "trees")]
    pub plan: Planner,
    /// Bytes a second of the floor (default: measured)
    #[arg(long, value_name = "B", value_parser = rate, requires = "trees")]
    pub floor_bandwidth: Option<f64>,
    /// Operations a second of the floor (default: measured)
    #[arg(long, value_name = "F", value_parser = rate, requires = "trees")]
    pub floor_flops: Option<f64>,
    /// Begin nothing after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3600", requires = "trees")]
    pub budget_seconds: Duration,
}

impl AttentionArgs {
    /// What to measure where a file of trees is given.
    pub fn tree_options(&self) -> Option<TreeOptions> {
        Some(TreeOptions {
            trees: self.trees.clone()?,
            only: self.only.clone(),
            planner: self.plan,
            bandwidth: self.floor_bandwidth,
            flops: self.floor_flops,
            budget: self.budget_seconds,
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
    /// How shared prefixes are attended to
    #[arg(long, value_enum, default_value = "balanced")]
    pub plan: Planner,
    /// Leave out attention: the ceiling that no attention can pass
    #[arg(long)]
    pub without_attention: bool,
    /// Compute linear layers as the device's library recommends, instead of the fastest way that measuring finds
    #[arg(long)]
    pub recommended_gemm: bool,
    /// Branches that grow at once (default: all of the largest workload)
    #[arg(long, value_name = "N")]
    pub max_branches: Option<usize>,
    /// Rows of a step: prompts fill what branches that decode leave of them
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub step_rows: usize,
    /// Memory for keys and values in MiB (default: nine tenths of what is free, as far as it is useful)
    #[arg(long, value_name = "MIB")]
    pub kv_memory: Option<usize>,
    /// Begin nothing after so many seconds
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
            planner: args.plan,
            without_attention: args.without_attention,
            recommended_gemm: args.recommended_gemm,
            max_branches: args.max_branches,
            step_rows: args.step_rows,
            kv_bytes: args.kv_memory.map(mib),
            budget: args.budget_seconds,
        }
    }
}

#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// Model folder, or a config.json (then with --random-weights)
    #[arg(long, value_name = "DIR_OR_JSON")]
    pub config: PathBuf,
    /// Random weights of that shape instead of the folder's
    #[arg(long)]
    pub random_weights: bool,
    /// Tokens of the shared prompt
    #[arg(long, value_name = "P", default_value_t = 512)]
    pub prompt: usize,
    /// Samples; several values are measured one after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "32")]
    pub samples: Vec<usize>,
    /// Tokens generated by each sample
    #[arg(long, value_name = "G", default_value_t = 64)]
    pub generate: usize,
    /// Planners to measure, one after another
    #[arg(long, value_enum, value_delimiter = ',', default_value = "balanced")]
    pub plan: Vec<Planner>,
    /// Weight dtype of random weights (default: the config's)
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Runs of each case; the median is printed
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repeat: usize,
    /// One JSON object a case, raw runs included, instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub struct RescoreArgs {
    /// Folder of a run's results; what was there is kept as *.before
    pub run: PathBuf,
    /// Task file to answer, grade and choose by, instead of the run's own
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Change how answers are found, graded and chosen: answer.regex='#### (.*)' (what decided the samples stays)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The k of pass@k, maj@k and best@k (default: powers of two)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub k: Option<Vec<u32>>,
    /// Folder for results, instead of the run's
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub judging: JudgingArgs,
}

impl From<RescoreArgs> for RescoreOptions {
    fn from(args: RescoreArgs) -> Self {
        Self {
            run: args.run,
            task: args.task,
            set: args.set,
            k: args.k.map(each_once),
            out: args.out,
            judges: args.judging.judges.map(usize::from),
            isolation: args.judging.sandboxing.isolation(),
        }
    }
}

#[derive(Debug, Args)]
pub struct BatchArgs {
    /// Requests, a JSON object a line, as for OpenAI's Batch
    pub input: PathBuf,
    /// Where the answers go, in the order of the requests
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Model folder; the `model` that a request names is only repeated in its answer
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Go on with OUT: requests that it answers already are passed over
    #[arg(long)]
    pub resume: bool,
    /// Seed of the coins of requests that bring none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// How shared prefixes are attended to (default: balanced); changes speed, never results
    #[arg(long, value_enum)]
    pub plan: Option<Planner>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl BatchArgs {
    pub fn on(self, device: DeviceChoice) -> BatchOptions {
        let args = self;
        BatchOptions {
            input: args.input,
            out: args.out,
            model: args.model,
            resume: args.resume,
            seed: args.seed,
            plan: args.plan,
            device,
            budget: args.engine.into(),
        }
    }
}

#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Folder of a run's results
    pub run: PathBuf,
    /// Only this item: its id, or its number among the task's items, from 0
    #[arg(long, value_name = "ID|N")]
    pub item: Option<String>,
    /// Write one page that holds everything, for any browser, without a network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a drawing for Graphviz
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// Write the trees for programs
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl From<TreeArgs> for ViewOptions {
    fn from(args: TreeArgs) -> Self {
        Self { run: args.run, item: args.item, html: args.html, dot: args.dot, json: args.json }
    }
}

#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name of the task; writes NAME.json and NAME.jsonl
    pub name: String,
}

impl RunArgs {
    pub fn on(self, device: DeviceChoice) -> RunOptions {
        let args = self;
        RunOptions {
            task: args.task,
            model: args.model,
            limit: args.limit,
            samples: args.samples,
            seed: args.seed,
            set: args.set,
            plan: args.plan,
            out: args.out,
            k: args.k.map(each_once),
            resume: args.resume,
            trees: args.trees,
            dry_run: args.dry_run,
            judges: args.judging.judges.map(usize::from),
            isolation: args.judging.sandboxing.isolation(),
            device,
            budget: args.engine.into(),
        }
    }
}

/// The ks in their order, each once.
fn each_once(mut ks: Vec<u32>) -> Vec<u32> {
    ks.sort_unstable();
    ks.dedup();
    ks
}

/// A span of time that can be waited for.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("expected a number of seconds from 0 up, found {text}"))
}

/// Something a second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("expected a number above 0, found {text}"))
}

/// Bytes of so many MiB.
fn mib(mib: usize) -> usize {
    mib.saturating_mul(1 << 20)
}

impl From<EngineArgs> for Budget {
    fn from(args: EngineArgs) -> Self {
        Self {
            max_branches: args.max_branches,
            kv_bytes: args.kv_memory.map(mib),
            memory: args.memory,
            swap_bytes: args.swap_memory.map(mib),
        }
    }
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
