//! The options of `offshoot bench batches`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{arrivals, seconds, whole};
use crate::backend::{Dtype, KvDtype};
use crate::error::{Error, Result};
use crate::lab::bench::batches::{BatchesOptions, Table};
use crate::lab::replay::RateSearch;

#[derive(Debug, Args)]
pub struct BatchesArgs {
    /// Shape of the model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Tables to run, one after another
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',', required = true)]
    pub table: Vec<Table>,
    /// Only jobs whose names begin so (default: all of the tables)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub job: Vec<String>,
    /// Only these ways to run a job, of fcfs, batchllm, ours, ours-by-arrival, ours-256-branches, ours-unshared,
    /// ours-flat-plan (default: all that the table compares)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub way: Vec<String>,
    /// The most requests of a job (default: as the table has them)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 20))]
    pub requests: Option<u32>,
    /// Of the tables chunk and rate: requests a second; several values are run one after another (default: 1 and 4; of the
    /// table rate, the most that can be sustained is looked for)
    #[arg(long, value_name = "R", value_delimiter = ',', value_parser = arrivals)]
    pub rate: Vec<f64>,
    /// Of the tables chunk and rate: seconds in which requests arrive; in the table chunk on average, as their number is
    /// this times the rate (default: 120)
    #[arg(long, value_name = "S", value_parser = span)]
    pub span: Option<Duration>,
    /// Of the table rate: requests a second that the search begins with (default: 8)
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "rate")]
    pub first_rate: Option<f64>,
    /// Of the table rate: how many times the rate that held the one that did not may be (default: 1.04)
    #[arg(long, value_name = "TIMES", value_parser = above_one, conflicts_with = "rate")]
    pub precision: Option<f64>,
    /// For the tables relay and rate: lengths of prompt and answer, `N,M` a line (.csv)
    #[arg(long, value_name = "FILE")]
    pub lengths: Option<PathBuf>,
    /// For the table mmlu: lengths of prompts (.json)
    #[arg(long, value_name = "FILE")]
    pub questions: Option<PathBuf>,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: Dtype,
    /// What keys and values are rounded to
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
    /// Rows of a step: prompts fill what branches that decode leave of them
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 2048)]
    pub step_rows: usize,
    /// Tokens that keys and values have room for (default: nine tenths of what is free, as far as it is useful)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub kv_tokens: Option<usize>,
    /// Begin nothing after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3600")]
    pub budget_seconds: Duration,
    /// Compute nothing: say what the runs would take on this device (h200, cpu, or a file with a device's figures)
    #[arg(long, alias = "modelled", value_name = "NAME_OR_JSON")]
    pub simulated: Option<String>,
}

/// Seconds in which something happens, and no more than can be waited for.
fn span(text: &str) -> Result<Duration> {
    const MOST: Duration = Duration::from_secs(3600);
    let fits = |span: &Duration| !span.is_zero() && *span <= MOST;
    let expected = || format!("a number of seconds above 0, at most {}", MOST.as_secs());
    seconds(text).ok().filter(fits).ok_or_else(|| Error::value("time", expected(), text))
}

fn above_one(text: &str) -> Result<f64> {
    const LEAST: f64 = 1.001;
    let times = text.parse().ok().filter(|times: &f64| times.is_finite() && *times >= LEAST);
    times.ok_or_else(|| Error::value("number", format!("a number from {LEAST} up"), text))
}

/// Seconds in which requests arrive where no others are asked for.
const SPAN: Duration = Duration::from_secs(120);

impl BatchesArgs {
    /// The first option given that none of the tables uses, and the tables that do.
    pub fn idle_option(&self) -> Option<(&'static str, &'static [Table])> {
        const ARRIVING: &[Table] = &[Table::Chunk, Table::Rate];
        const SEARCHED: &[Table] = &[Table::Rate];
        let options = [
            ("--rate", !self.rate.is_empty(), ARRIVING),
            ("--span", self.span.is_some(), ARRIVING),
            ("--first-rate", self.first_rate.is_some(), SEARCHED),
            ("--precision", self.precision.is_some(), SEARCHED),
            ("--lengths", self.lengths.is_some(), &[Table::Relay, Table::Rate]),
            ("--questions", self.questions.is_some(), &[Table::Mmlu]),
        ];
        let is_idle = |tables: &[Table]| !tables.iter().any(|table| self.table.contains(table));
        options.into_iter().find_map(|(name, is_given, tables)| (is_given && is_idle(tables)).then_some((name, tables)))
    }
}

impl From<BatchesArgs> for BatchesOptions {
    fn from(args: BatchesArgs) -> Self {
        let usual = RateSearch::default();
        Self {
            tables: args.table,
            jobs: args.job,
            ways: args.way,
            requests: args.requests.map(|requests| requests as usize),
            rates: args.rate,
            span: args.span.unwrap_or(SPAN),
            search: RateSearch {
                first: args.first_rate.unwrap_or(usual.first),
                precision: args.precision.unwrap_or(usual.precision),
                ..usual
            },
            lengths: args.lengths,
            questions: args.questions,
            file: args.file,
            shape: args.shape,
            dtype: args.dtype,
            kv: args.kv_dtype,
            step_rows: args.step_rows,
            kv_tokens: args.kv_tokens,
            budget: args.budget_seconds,
            simulated: args.simulated,
        }
    }
}
