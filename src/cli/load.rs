//! The options of `offshoot bench serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{arrivals, seconds, whole};
use crate::lab::bench::serve::{LoadOptions, Pace, SyntheticWork, WorkSource};

/// Requests that run at once, unless a pace is given.
const CONCURRENCY: usize = 64;

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Requests as `offshoot batch` takes them (default: synthetic ones)
    pub input: Option<PathBuf>,
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// API key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The requests' model (default: the file's, or none)
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Requests to send (default: all of the file or trace; 64 synthetic ones)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub requests: Option<usize>,
    /// Requests that run at once; one that ends is followed by the next (default: 64)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub concurrency: Option<usize>,
    /// Requests per second that arrive on average, as a Poisson process, whether or not earlier ones have ended
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "concurrency")]
    pub rate: Option<f64>,
    /// Lengths of prompts and outputs from a trace of Mooncake's format, and its arrivals unless a pace is given
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub trace: Option<PathBuf>,
    /// Divide the trace's lengths by this
    #[arg(long, value_name = "TIMES", value_parser = whole::<usize>(1..), default_value_t = 1, requires = "trace")]
    pub shrink: usize,
    /// Synthetic requests: tokens of a prompt
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 128,
          conflicts_with_all = ["input", "trace"])]
    pub prompt_tokens: usize,
    /// Synthetic requests: tokens that all prompts begin with
    #[arg(long, value_name = "N", value_parser = whole::<usize>(0..), default_value_t = 96,
          conflicts_with_all = ["input", "trace"])]
    pub shared_tokens: usize,
    /// Synthetic requests: tokens of each choice
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 64,
          conflicts_with_all = ["input", "trace"])]
    pub max_tokens: usize,
    /// Synthetic requests: choices
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 1,
          conflicts_with_all = ["input", "trace"])]
    pub choices: usize,
    /// Synthetic prompts: token ids are below this
    #[arg(long, value_name = "N", value_parser = whole::<usize>(2..), default_value_t = 500, conflicts_with = "input")]
    pub vocab: usize,
    /// Seed of the arrivals
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..), default_value_t = 0)]
    pub seed: u64,
    /// Whole answers instead of streams
    #[arg(long)]
    pub no_stream: bool,
    /// Seconds after which a request counts as an error
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "600")]
    pub timeout_seconds: Duration,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl From<LoadArgs> for LoadOptions {
    fn from(args: LoadArgs) -> Self {
        let pace = match (args.rate, args.concurrency) {
            (Some(rate), _) => Pace::Rate(rate),
            (None, Some(streams)) => Pace::Concurrency(streams),
            (None, None) if args.trace.is_some() => Pace::AsRecorded,
            (None, None) => Pace::Concurrency(CONCURRENCY),
        };
        let source = match (args.input, args.trace) {
            (Some(input), _) => WorkSource::Batch(input),
            (None, Some(path)) => WorkSource::Trace { path, shrink: args.shrink, vocab: args.vocab },
            (None, None) => WorkSource::Synthetic(SyntheticWork {
                prompt_tokens: args.prompt_tokens,
                shared_tokens: args.shared_tokens,
                max_tokens: args.max_tokens,
                n: args.choices,
                vocab: args.vocab,
            }),
        };
        LoadOptions {
            url: args.url,
            key: args.key,
            model: args.model,
            source,
            requests: args.requests,
            pace,
            seed: args.seed,
            stream: !args.no_stream,
            timeout: args.timeout_seconds,
            json: args.json,
        }
    }
}
