//! `bench serve`: loads a running server with requests of the OpenAI protocol and measures what its clients see. `work`
//! makes the requests and their arrivals, `client` sends one, `load` sends them all, `report` sums up.

mod client;
mod events;
mod load;
mod report;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use self::client::Client;
use self::load::load;
use self::report::LoadReport;
use super::tables::print;
use crate::error::{Error, Result};

/// Which server, and with what.
pub struct LoadOptions {
    /// `http://HOST:PORT`.
    pub url: String,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<String>,
    /// The requests' `model`; `None`: as in the file of requests, or none.
    pub model: Option<String>,
    pub source: WorkSource,
    /// Requests to send; `None`: all of the file, or 64 synthetic ones.
    pub requests: Option<usize>,
    pub pace: Pace,
    pub seed: u64,
    /// Whether answers are streamed.
    pub stream: bool,
    /// After which a request counts as an error.
    pub timeout: Duration,
    pub json: bool,
}

/// Where the requests come from.
pub enum WorkSource {
    /// A file as `offshoot batch` takes it.
    Batch(PathBuf),
    /// A trace of lengths and arrivals; every length is divided by `shrink`.
    Trace {
        path: PathBuf,
        shrink: usize,
        vocab: usize,
    },
    Synthetic(SyntheticWork),
}

/// Prompts of token ids that begin alike. Every choice has exactly `max_tokens` tokens.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticWork {
    pub prompt_tokens: usize,
    /// Tokens that all prompts begin with, at most `prompt_tokens`.
    pub shared_tokens: usize,
    pub max_tokens: usize,
    /// Choices of a request.
    pub n: usize,
    /// Token ids are below this.
    pub vocab: usize,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As many at once; the next one as soon as one ends.
    Concurrency(usize),
    /// So many per second, as a Poisson process, whether or not earlier ones have ended.
    Rate(f64),
    /// At the times of the trace.
    AsRecorded,
}

/// # Errors
///
/// The requests cannot be read, or the server answers none of them.
pub fn main(options: &LoadOptions) -> Result<()> {
    let work = work::read(options)?;
    let client = Client::new(&options.url, options.key.as_deref(), options.timeout)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Internal(format!("the runtime does not start: {error}")))?;
    let record = runtime.block_on(load(client, work, options.pace));
    let report = LoadReport::of(&record, options);
    print(options.json, &report)?;
    match report.answered {
        0 => Err(Error::value(options.url.as_str(), "answers", report.first_error())),
        _ => Ok(()),
    }
}
