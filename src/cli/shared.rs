//! Options that several commands have, and how values are read.

use std::time::Duration;

use clap::Args;

use crate::backend::KvDtype;
use crate::judge::Isolation;
use crate::run::Budget;

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

/// How the engine works.
#[derive(Clone, Copy, Debug, Args)]
pub struct EngineArgs {
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// What is drawn depends on a sample's own tokens and coins alone, to the last bit: not on what is computed beside it, on
    /// the plan, or on where a run was resumed. The CPU always works so; a GPU takes longer for it
    #[arg(long)]
    pub deterministic: bool,
}

/// Budgets of the engine.
#[derive(Clone, Copy, Debug, Args)]
pub struct BudgetArgs {
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
    /// What keys and values are rounded to: with fp8, twice the tokens fit and other samples are drawn (`check --model DIR
    /// --kv-dtype fp8` says how far off its log-probabilities are)
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
}

impl From<EngineArgs> for Budget {
    fn from(args: EngineArgs) -> Self {
        Self { deterministic: args.deterministic, ..args.budget.into() }
    }
}

impl From<BudgetArgs> for Budget {
    fn from(args: BudgetArgs) -> Self {
        Self {
            max_branches: args.max_branches,
            kv_bytes: args.kv_memory.map(mib),
            memory: args.memory,
            swap_bytes: args.swap_memory.map(mib),
            deterministic: false,
            kv: args.kv_dtype,
        }
    }
}

/// The ks in their order, each once.
pub(super) fn each_once(mut ks: Vec<u32>) -> Vec<u32> {
    ks.sort_unstable();
    ks.dedup();
    ks
}

/// A span of time that can be waited for.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("expected a number of seconds from 0 up, found {text}"))
}

/// Something a second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("expected a number above 0, found {text}"))
}

/// Requests a second: not so few that their arrivals have no time.
pub(super) fn arrivals(text: &str) -> Result<f64, String> {
    const FEWEST: f64 = 1e-6;
    rate(text).and_then(|rate| {
        if rate < FEWEST { Err(format!("expected a number from {FEWEST} up, found {text}")) } else { Ok(rate) }
    })
}

/// Bytes of so many MiB.
pub(super) fn mib(mib: usize) -> usize {
    mib.saturating_mul(1 << 20)
}
