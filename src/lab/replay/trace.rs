//! `offshoot plan --replay TRACE`: a recorded trace through the scheduler.

use std::path::{Path, PathBuf};

use super::job::poisson;
use super::model::{Machine, Settings, replay};
use super::read::read_trace;
use super::record::JobRecord;
use crate::error::{Error, Result};

/// What is to be replayed.
#[derive(Clone, Debug)]
pub struct TraceReplay {
    pub trace: PathBuf,
    /// Requests a second, as if they knew nothing of each other; `None`: when the trace says, or all at once where it does not.
    pub rate: Option<f64>,
    /// Only the first so many.
    pub requests: Option<usize>,
    pub seed: u64,
}

/// Replays a trace under `settings`.
pub fn replay_trace(machine: &Machine, settings: &Settings, what: &TraceReplay) -> Result<JobRecord> {
    if let Some(rate) = what.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
        return Err(Error::value("rate", "requests a second, above 0", rate.to_string()));
    }
    let mut job = read_trace(Path::new(&what.trace))?;
    job.requests.truncate(what.requests.unwrap_or(usize::MAX));
    if job.requests.is_empty() {
        return Err(Error::value("requests", "a number from 1 up", "0"));
    }
    let job = match what.rate {
        Some(rate) => job.arriving(poisson(rate, what.seed)),
        None => job,
    };
    replay(machine, settings, &job)
}
