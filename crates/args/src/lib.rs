//! Options that several commands share, and parsers of values. The commands are in `cli`, those that check ops and
//! measure in `lab`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod command;
pub mod words;

use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_judge::{Isolation, JudgeSetup};
use offshoot_kv::plan::Planner;
use offshoot_launch::{
    AdapterLimits, Devices, EngineBudget, EngineOptions, JudgeFolderOptions, PrefixFolder, ScorerOptions,
};
use offshoot_model::{ActivationChoice, MadeFormat, WeightChoice};
use offshoot_score::FormChoice;
use words::{ACTIVATIONS, KV_DTYPES, MADE_FORMATS, PLANNERS, STATE_DTYPES, one_of};

/// Options of the judge, for tasks that have one.
#[derive(Clone, Debug, Args)]
pub struct JudgingArgs {
    /// Candidate programs judged at once, if the task has a judge (default: one per core)
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub judges: Option<u16>,
    #[command(flatten)]
    pub candidates: CandidateArgs,
}

/// How candidates run.
#[derive(Clone, Debug, Args)]
pub struct CandidateArgs {
    /// Python interpreter of candidates and tests, or the folder of a virtual environment (default: OFFSHOOT_PYTHON, or
    /// python3 on the search path)
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
    /// Also judge candidates if files and network cannot be isolated: they can then do whatever you can
    #[arg(long)]
    pub unsafe_no_sandbox: bool,
}

impl From<CandidateArgs> for JudgeSetup {
    fn from(args: CandidateArgs) -> Self {
        let isolation = if args.unsafe_no_sandbox { Isolation::Unsafe } else { Isolation::Required };
        Self { isolation, python: args.python, helper: None }
    }
}

/// How the engine works.
#[derive(Clone, Copy, Debug, Args)]
pub struct EngineArgs {
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// Make samples depend only on their own tokens and random numbers, to the last bit: not on other samples, the
    /// plan, or where a run was resumed. On the CPU always true without `--latent-copies`; slower on a GPU
    #[arg(long)]
    pub deterministic: bool,
}

/// How the engine of a command is built.
#[derive(Clone, Debug, Args)]
pub struct LaunchArgs {
    /// How shared prefixes are attended to (default: balanced); changes speed, never results (on a GPU not even a
    /// rounding with --deterministic)
    #[arg(long, value_parser = one_of(PLANNERS))]
    pub plan: Option<Planner>,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub prefixes: PrefixStoreArgs,
}

impl LaunchArgs {
    pub fn on(self, devices: Devices) -> EngineOptions {
        let Self { plan, engine, prefixes } = self;
        EngineOptions { devices, budget: engine.into(), plan, prefix_store: prefixes.into() }
    }
}

/// A scorer beside the model.
#[derive(Clone, Debug, Args)]
pub struct ScorerArgs {
    /// Folder of a reward model beside the model (of `serve`, and of prompts to plan, perhaps of an embedder). Both
    /// stand on one device and divide the memory for keys and values
    #[arg(long, value_name = "DIR")]
    pub scorer: Option<PathBuf>,
    /// How the scorer reads texts: the name of a form (last-token, step-tag, step-lines, ...) or a file with one
    /// (default: scorer.json in its folder, or the form of its class)
    #[arg(long, value_name = "NAME_OR_FILE", value_parser = FormChoice::named, requires = "scorer")]
    pub scorer_form: Option<FormChoice>,
    /// Share of the memory for keys and values that the scorer has (default: as much as holds texts of the length that
    /// the model's part holds)
    #[arg(long, value_name = "SHARE", value_parser = number, requires = "scorer")]
    pub scorer_memory: Option<f64>,
}

impl From<ScorerArgs> for Option<ScorerOptions> {
    fn from(args: ScorerArgs) -> Self {
        let ScorerArgs { scorer, scorer_form, scorer_memory } = args;
        scorer.map(|path| ScorerOptions { path, form: scorer_form, memory: scorer_memory })
    }
}

/// A judge beside the model.
#[derive(Clone, Debug, Args)]
pub struct JudgeFolderArgs {
    /// Folder of the model that judges samples, instead of the model itself. Both stand on one device and divide the
    /// memory for keys and values
    #[arg(long, value_name = "DIR")]
    pub judge: Option<PathBuf>,
    /// Share of the memory for keys and values that the judge has (default: what the model's samples cannot use, or as
    /// much as holds texts of the length that the model's part holds)
    #[arg(long, value_name = "SHARE", value_parser = number, requires = "judge")]
    pub judge_memory: Option<f64>,
}

impl From<JudgeFolderArgs> for Option<JudgeFolderOptions> {
    fn from(args: JudgeFolderArgs) -> Self {
        let JudgeFolderArgs { judge, judge_memory } = args;
        judge.map(|path| JudgeFolderOptions { path, memory: judge_memory })
    }
}

/// A server that judges samples.
#[derive(Clone, Debug, Args)]
pub struct JudgeServerArgs {
    /// Address of a server of the OpenAI protocol that judges samples, up to /v1, in place of the task's judge
    #[arg(long, value_name = "URL")]
    pub judge_url: Option<String>,
    /// The server's name of the model that judges samples (default: the task's, or else the only one that the server
    /// has)
    #[arg(long, value_name = "NAME")]
    pub judge_model: Option<String>,
    /// File with the key for the judge's server (default: the environment's OFFSHOOT_JUDGE_KEY, if there is one)
    #[arg(long, value_name = "FILE")]
    pub judge_key_file: Option<PathBuf>,
}

/// Where computed prefixes stay.
#[derive(Clone, Debug, Args)]
pub struct PrefixStoreArgs {
    /// Keep keys, values and states of prompts in this folder, 512 tokens a file, and read them from there instead of
    /// computing them. Other runs, batches and processes may use it at once; samples are the same
    #[arg(long, value_name = "DIR")]
    pub prefix_store: Option<PathBuf>,
    /// Most GiB of the prefix store; the files used longest ago are removed
    #[arg(long, value_name = "GIB", value_parser = rate, default_value_t = 20.0, requires = "prefix_store")]
    pub prefix_store_size: f64,
}

impl From<PrefixStoreArgs> for Option<PrefixFolder> {
    fn from(args: PrefixStoreArgs) -> Self {
        let most_bytes = (args.prefix_store_size * f64::from(1 << 30)) as u64;
        args.prefix_store.map(|path| PrefixFolder::new(path, most_bytes))
    }
}

/// Budgets of the engine.
#[derive(Clone, Copy, Debug, Args)]
pub struct BudgetArgs {
    /// Branches that run at once, one row each per step; affects speed and memory (default: 128 on the CPU, up to 4096
    /// on a GPU)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub max_branches: Option<usize>,
    /// The longest sequence in tokens, prompt and sample together (default: the model's context). Longrope models
    /// (Phi-3, Phi-4-mini) use their short factors if it is at most their original context
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>(1..))]
    pub context: Option<usize>,
    /// Share of the device's free memory for keys and values (default: 0.5 on the CPU, 0.9 on a GPU)
    #[arg(long, value_name = "SHARE", value_parser = number)]
    pub memory: Option<f64>,
    /// Memory for keys and values in MiB, instead of a share
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(1..), conflicts_with = "memory")]
    pub kv_memory: Option<usize>,
    /// Memory in MiB for copies of latents that are expanded to keys and values, of that for keys and values; only for
    /// models with latent attention (default: an eighth on a GPU; none on the CPU and with --deterministic, as samples
    /// then depend on what is read from copies, by rounding)
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(0..))]
    pub latent_copies: Option<usize>,
    /// Host memory in MiB for keys, values and states of preempted branches (default: none on the CPU; on a GPU a
    /// quarter of the free memory, at most 32768)
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(0..))]
    pub swap_memory: Option<usize>,
    /// Storage format of keys and values. With fp8, twice the tokens fit, but samples differ (`check --model DIR
    /// --kv-dtype fp8` reports the error of log-probabilities)
    #[arg(long, value_parser = one_of(KV_DTYPES), default_value = "model", value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
    /// Storage format of the states of recurrent layers. With bf16, about twice the branches fit, but samples differ
    /// (`check --model DIR --state-dtype bf16` reports the error of log-probabilities)
    #[arg(long, value_parser = one_of(STATE_DTYPES), default_value = "f32", value_name = "DTYPE")]
    pub state_dtype: StateDtype,
    #[command(flatten)]
    pub weights: WeightArgs,
}

/// Room for adapters (LoRA).
#[derive(Clone, Copy, Debug, Args)]
pub struct AdapterArgs {
    /// Most adapters (LoRA) that are loaded at once, for which memory is kept free (default: those that are named, or 1
    /// beside --max-lora-rank)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=255))]
    pub max_loras: Option<usize>,
    /// The largest rank of an adapter (default: 16)
    #[arg(long, value_name = "RANK", value_parser = whole::<usize>(1..))]
    pub max_lora_rank: Option<usize>,
}

/// The rank that adapters may have if nothing else is said, as vLLM has it.
const USUAL_LORA_RANK: usize = 16;

impl AdapterArgs {
    /// The limits of an engine that is started with `named` adapters.
    pub fn limits(self, named: usize) -> AdapterLimits {
        let most = self.max_loras.unwrap_or_else(|| named.max(usize::from(self.max_lora_rank.is_some())));
        match most {
            0 => AdapterLimits::NONE,
            most => AdapterLimits { most, rank: self.max_lora_rank.unwrap_or(USUAL_LORA_RANK) },
        }
    }
}

/// What weights become when they are loaded.
#[derive(Clone, Copy, Debug, Args)]
pub struct WeightArgs {
    /// Make dense weights smaller when they are loaded: less memory, faster decoding, samples differ. On the CPU; int4
    /// also on GPUs, fp8 on Hopper
    #[arg(long, value_parser = one_of(MADE_FORMATS), value_name = "FORMAT")]
    pub weights: Option<MadeFormat>,
    /// What the activations of quantised weights are rounded to
    #[arg(long, value_parser = one_of(ACTIVATIONS), default_value = "format", value_name = "FORMAT")]
    pub activations: ActivationChoice,
}

impl From<WeightArgs> for WeightChoice {
    fn from(args: WeightArgs) -> Self {
        Self { weights: args.weights, activations: args.activations }
    }
}

impl From<EngineArgs> for EngineBudget {
    fn from(args: EngineArgs) -> Self {
        Self { deterministic: args.deterministic, ..args.budget.into() }
    }
}

impl From<BudgetArgs> for EngineBudget {
    fn from(args: BudgetArgs) -> Self {
        Self {
            max_branches: args.max_branches,
            context: args.context,
            pool_bytes: args.kv_memory.map(mib),
            latent_copies: args.latent_copies.map(mib),
            memory: args.memory,
            swap_bytes: args.swap_memory.map(mib),
            kv: args.kv_dtype,
            states: args.state_dtype,
            weights: args.weights.into(),
            ..Self::default()
        }
    }
}

/// The ks in rising order, each once.
pub fn each_once(mut ks: Vec<u32>) -> Vec<u32> {
    ks.sort_unstable();
    ks.dedup();
    ks
}

// Parsers of values. The option's name is added to their errors in `command`.

/// Parses whole numbers in `range`.
pub fn whole<T: TryFrom<u64>>(
    range: impl RangeBounds<u64> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<T> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number: &u64| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let is_whole = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let is_longer = is_whole && text.parse::<u64>().is_err() && range.end_bound() == Bound::Unbounded;
            if number.is_some() || is_longer {
                return Error::value("number", format!("a whole number of {} bits", 8 * size_of::<T>()), text);
            }
            let least = match range.start_bound() {
                Bound::Included(least) => *least,
                Bound::Excluded(below) => below + 1,
                Bound::Unbounded => 0,
            };
            let expected = match range.end_bound() {
                Bound::Included(most) => format!("a whole number from {least} to {most}"),
                Bound::Excluded(above) => format!("a whole number from {least} to {}", above - 1),
                Bound::Unbounded => format!("a whole number from {least} up"),
            };
            Error::value("number", expected, text)
        })
    }
}

pub fn number(text: &str) -> Result<f64> {
    text.parse().map_err(|_| Error::value("number", "a number", text))
}

/// Parses a duration in seconds.
pub fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| Error::value("time", "a number of seconds from 0 up", text))
}

/// Parses a positive finite number.
pub fn rate(text: &str) -> Result<f64> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| Error::value("rate", "a number above 0", text))
}

/// Parses requests per second, large enough that arrival times are finite.
pub fn arrivals(text: &str) -> Result<f64> {
    const FEWEST: f64 = 1e-6;
    let rate = rate(text).ok().filter(|rate| *rate >= FEWEST);
    rate.ok_or_else(|| Error::value("rate", format!("a finite number from {FEWEST} up"), text))
}

/// Converts MiB to bytes.
pub fn mib(mib: usize) -> usize {
    mib.saturating_mul(1 << 20)
}

/// Parses MiB from 1 up, into bytes.
pub fn mebibytes(text: &str) -> Result<usize> {
    whole(1..)(text).map(mib)
}
