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
    /// Only jobs with names that start with one of these (default: all jobs of the tables)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub job: Vec<String>,
    /// Only these variants of a job: fcfs, batchllm, ours, ours-by-arrival, ours-256-branches, ours-unshared,
    /// ours-flat-plan (default: all that the table compares)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub way: Vec<String>,
    /// Maximum number of requests per job (default: as in the table)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 20))]
    pub requests: Option<u32>,
    /// Tables chunk and rate: requests per second; several values run one after another (default: 1 and 4; table rate:
    /// a search for the highest sustainable rate)
    #[arg(long, value_name = "R", value_delimiter = ',', value_parser = arrivals)]
    pub rate: Vec<f64>,
    /// Tables chunk and rate: seconds in which requests arrive; an average in the table chunk, where the number of
    /// requests is this times the rate (default: 120)
    #[arg(long, value_name = "S", value_parser = span)]
    pub span: Option<Duration>,
    /// Table rate: requests per second at which the search starts (default: 8)
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "rate")]
    pub first_rate: Option<f64>,
    /// Table rate: stop when the lowest rate that fails is at most this many times the highest one that is sustained
    /// (default: 1.04)
    #[arg(long, value_name = "TIMES", value_parser = above_one, conflicts_with = "rate")]
    pub precision: Option<f64>,
    /// Tables relay and rate: file with lengths of prompt and answer, `N,M` per line (.csv)
    #[arg(long, value_name = "FILE")]
    pub lengths: Option<PathBuf>,
    /// Table mmlu: file with lengths of prompts (.json)
    #[arg(long, value_name = "FILE")]
    pub questions: Option<PathBuf>,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: Dtype,
    /// Storage format of keys and values
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
    /// Rows of a step: prompts fill the rows that decoding branches leave
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 2048)]
    pub step_rows: usize,
    /// Size of the KV cache in tokens (default: nine tenths of the free memory, as far as the job can use it)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub kv_tokens: Option<usize>,
    /// Start no run after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3600")]
    pub budget_seconds: Duration,
    /// Compute nothing: estimate the runs on this device (h200, cpu, or a file with a device's figures)
    #[arg(long, alias = "modelled", value_name = "NAME_OR_JSON")]
    pub simulated: Option<String>,
}

/// A duration above 0, at most an hour.
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

/// Default of `--span`.
const SPAN: Duration = Duration::from_secs(120);

impl BatchesArgs {
    /// The first given option that no selected table uses, and the tables that use it.
    pub fn unused_option(&self) -> Option<(&'static str, &'static [Table])> {
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
        let is_unused = |tables: &[Table]| !tables.iter().any(|table| self.table.contains(table));
        options
            .into_iter()
            .find_map(|(name, is_given, tables)| (is_given && is_unused(tables)).then_some((name, tables)))
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
