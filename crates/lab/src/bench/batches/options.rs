//! The options of `bench batches`, and the tables that it can be asked for.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use offshoot_args::words::{DTYPES, KV_DTYPES, one_of};
use offshoot_args::{arrivals, seconds, whole};
use offshoot_backend::{Dtype, KvDtype};
use offshoot_core::error::{Error, Result};
use offshoot_estimate::replay::RateSearch;

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// BatchLLM's microbenchmarks and industry shapes, and a job of four levels, under three policies
    Batchllm,
    /// One of BatchLLM's industry shapes without order, memory-centric batching, sharing, or plans that read shared
    /// pages once
    Ablation,
    /// ChunkAttention's: requests that arrive over time, with a shared prompt or without
    Chunk,
    /// RelayAttention's throughput: answers of recorded lengths after a system prompt, all at once
    Relay,
    /// RelayAttention's rate: the highest sustainable rate of such requests
    Rate,
    /// RelayAttention's timing of questions after examples, one sampled token each
    Mmlu,
}

/// Displays as on the command line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no table is hidden");
        write!(f, "{}", value.get_name())
    }
}

// The options of `bench batches`.
#[derive(Clone, Debug, Args)]
pub struct BatchesOptions {
    /// Shape of the model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Tables to run, one after another
    #[arg(long = "table", value_enum, value_name = "NAME", value_delimiter = ',', required = true)]
    pub tables: Vec<Table>,
    /// Only jobs with names that start with one of these (default: all jobs of the tables)
    #[arg(long = "job", value_name = "NAME", value_delimiter = ',')]
    pub jobs: Vec<String>,
    /// Only these variants of a job: fcfs, batchllm, ours, ours-by-arrival, ours-256-branches, ours-unshared,
    /// ours-flat-plan (default: all that the table compares)
    #[arg(long = "way", value_name = "NAME", value_delimiter = ',')]
    pub ways: Vec<String>,
    /// Maximum number of requests per job (default: as in the table)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 20))]
    pub requests: Option<u32>,
    /// Tables chunk and rate: requests per second; several values run one after another (default: 1 and 4; table rate:
    /// a search for the highest sustainable rate)
    #[arg(long = "rate", value_name = "R", value_delimiter = ',', value_parser = arrivals)]
    pub rates: Vec<f64>,
    /// Tables chunk and rate: seconds in which requests arrive; an average in the table chunk, where the number of
    /// requests is this times the rate (default: 120)
    #[arg(long, value_name = "S", value_parser = span)]
    pub span: Option<Duration>,
    /// Table rate: requests per second at which the search starts (default: 8)
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "rates")]
    pub first_rate: Option<f64>,
    /// Table rate: stop when the lowest rate that fails is at most this many times the highest one that is sustained
    /// (default: 1.04)
    #[arg(long, value_name = "TIMES", value_parser = above_one, conflicts_with = "rates")]
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
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    /// Storage format of keys and values
    #[arg(long = "kv-dtype", value_parser = one_of(KV_DTYPES), default_value = "model", value_name = "DTYPE")]
    pub kv: KvDtype,
    /// Rows of a step: prompts fill the rows that decoding branches leave
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 2048)]
    pub step_rows: usize,
    /// Size of the KV cache in tokens (default: nine tenths of the free memory, as far as the job can use it)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub kv_tokens: Option<usize>,
    /// Compute nothing: estimate the runs on this device (h200, cpu, or a file with a device's figures)
    #[arg(long, value_name = "NAME_OR_JSON")]
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

impl BatchesOptions {
    /// Duration in which requests arrive, for tables with arrivals over time.
    pub fn span(&self) -> Duration {
        self.span.unwrap_or(SPAN)
    }

    /// Most requests of a job.
    pub fn most_requests(&self) -> usize {
        self.requests.map_or(usize::MAX, |requests| requests as usize)
    }

    pub fn search(&self) -> RateSearch {
        let usual = RateSearch::default();
        RateSearch {
            first: self.first_rate.unwrap_or(usual.first),
            precision: self.precision.unwrap_or(usual.precision),
            ..usual
        }
    }

    /// # Errors
    ///
    /// An option was given that no selected table uses.
    pub fn refuse_ignored_options(&self) -> Result<()> {
        const ARRIVING: &[Table] = &[Table::Chunk, Table::Rate];
        const SEARCHED: &[Table] = &[Table::Rate];
        let options = [
            ("--rate", !self.rates.is_empty(), ARRIVING),
            ("--span", self.span.is_some(), ARRIVING),
            ("--first-rate", self.first_rate.is_some(), SEARCHED),
            ("--precision", self.precision.is_some(), SEARCHED),
            ("--lengths", self.lengths.is_some(), &[Table::Relay, Table::Rate]),
            ("--questions", self.questions.is_some(), &[Table::Mmlu]),
        ];
        let is_unused = |tables: &[Table]| !tables.iter().any(|table| self.tables.contains(table));
        let unused = options.into_iter().find(|&(_, is_given, tables)| is_given && is_unused(tables));
        let Some((option, _, tables)) = unused else { return Ok(()) };
        let of: Vec<String> = tables.iter().map(Table::to_string).collect();
        let found: Vec<String> = self.tables.iter().map(Table::to_string).collect();
        Err(Error::value(option, format!("a table that uses it ({})", of.join(" or ")), found.join(", ")))
    }
}
