//! `offshoot plan --replay TRACE`: replays a recorded trace through the scheduler.

use std::path::{Path, PathBuf};

use super::job::poisson;
use super::model::{ReplaySettings, SimulatedMachine, replay};
use super::read::read_trace;
use super::record::JobRecord;
use offshoot_core::error::{Error, Result};

/// What to replay.
#[derive(Clone, Debug)]
pub struct TraceReplay {
    pub trace: PathBuf,
    /// Requests per second, arriving independently; `None`: the trace's arrival times, or all at once if it has none.
    pub rate: Option<f64>,
    /// Only this many first requests; `None`: all.
    pub requests: Option<usize>,
    pub seed: u64,
}

/// Replays a trace under `settings`.
pub fn replay_trace(machine: &SimulatedMachine, settings: &ReplaySettings, what: &TraceReplay) -> Result<JobRecord> {
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
