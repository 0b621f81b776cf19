//! Checkers: long-lived processes that fork a child for each candidate; the tests run in the child. A checker handles
//! one candidate at a time. It is confined like a candidate, because tests also come from files.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::programs::Programs;
use super::stream::{self, StreamRead};
use crate::fair_clock::{ClockFile, Deadline, Patience, RealTimeEnd};
use crate::problem::Limits;
use crate::sandbox::{Running, Sandbox, WorkFolder};
use offshoot_core::error::{Error, Result};

/// Longest time between two messages of the tests; after it they count as hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_MESSAGE: u64 = 1 << 31;

/// A checker serves thousands of candidates: only its memory has a tight limit.
const LIMITS: Limits = Limits {
    cpu: Duration::from_secs(1 << 24),
    wall: Duration::MAX,
    memory_bytes: 4 << 30,
    output_bytes: 1 << 40,
    processes: 16,
};

/// The idle checkers.
#[derive(Debug, Default)]
pub(super) struct Checkers {
    idle: Mutex<Vec<Checker>>,
}

impl Checkers {
    /// Returns a checker that has started on `order`: an idle one, or else a new one.
    pub fn begin(&self, sandbox: &Sandbox, programs: &Programs, order: &Value) -> Result<Checker> {
        while let Some(idle) = self.pop() {
            // A checker that died while idle is dropped.
            if idle.begin(order).is_ok() {
                return Ok(idle);
            }
        }
        let fresh = Checker::start(sandbox, programs)?;
        match fresh.begin(order) {
            Ok(()) => Ok(fresh),
            Err(_) => Err(Error::Internal("a checker died at its start".to_string())),
        }
    }

    fn pop(&self) -> Option<Checker> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Returns an idle checker to the pool. Its last job must have ended ([`Checker::rest`]); otherwise drop it, which
    /// kills it.
    pub fn give_back(&self, checker: Checker) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(checker);
    }
}

/// The results of a reference program.
#[derive(Debug)]
pub(super) struct ReferenceAnswers {
    /// Serialised by the checker; only checkers read them.
    pub written: Vec<u8>,
    pub took: ReferenceTimes,
}

/// The time that a reference program took.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ReferenceTimes {
    /// CPU seconds for each input.
    pub seconds: Vec<f64>,
    /// How many of its results are computed again for each candidate.
    pub again: u32,
}

/// Why a reference program gave no result.
pub(super) struct ReferenceError {
    /// The number of inputs given to it; it failed on the last one.
    pub given: usize,
    pub why: String,
}

#[derive(Debug)]
pub(super) struct Checker {
    running: Running,
    _folder: WorkFolder,
}

impl Checker {
    fn start(sandbox: &Sandbox, programs: &Programs) -> Result<Checker> {
        let folder = sandbox.folder()?;
        let running = programs.start_checker(sandbox, folder.path(), LIMITS)?;
        Ok(Checker { running, _folder: folder })
    }

    fn stream(&self) -> &UnixStream {
        self.running.channel().expect("a checker is started with a channel")
    }

    /// Forks a child that runs `order`.
    fn begin(&self, order: &Value) -> Result<(), StreamRead> {
        self.send(b'J', order.to_string().as_bytes(), &mut self.patience(PATIENCE))
    }

    /// The clock of its process.
    pub fn clock(&self) -> Arc<ClockFile> {
        self.running.clock()
    }

    /// As long as it may take by its own clock.
    pub fn patience(&self, limit: Duration) -> Deadline {
        Deadline::new(self.clock(), limit)
    }

    pub fn send(&self, kind: u8, payload: &[u8], patience: &mut dyn Patience) -> Result<(), StreamRead> {
        stream::send(self.stream(), kind, payload, patience)
    }

    pub fn receive(&self, patience: &mut dyn Patience) -> StreamRead {
        stream::receive(self.stream(), LONGEST_MESSAGE, patience)
    }

    /// Ends the child if it still runs. Returns whether the checker can be used again: not one that takes a minute of
    /// real time.
    pub fn rest(&self) -> bool {
        let mut patience = self.patience(PATIENCE).until(RealTimeEnd::after(PATIENCE));
        if self.send(b'A', b"", &mut patience).is_err() {
            return false;
        }
        loop {
            match self.receive(&mut patience) {
                StreamRead::Frame { kind: b'Z', .. } => return true,
                StreamRead::Frame { .. } => {}
                _ => return false,
            }
        }
    }

    /// The results of a reference program, each input within `patience`; only for an order of the suite `expect`.
    pub fn answers(&self, patience: Duration) -> Result<ReferenceAnswers, ReferenceError> {
        let mut given = 0;
        let mut took = ReferenceTimes::default();
        let mut written = Err("its process ends".to_string());
        loop {
            match self.receive(&mut self.patience(if given == 0 { PATIENCE } else { patience })) {
                StreamRead::Frame { kind: b'T', .. } => given += 1,
                StreamRead::Frame { kind: b'S', payload } => match serde_json::from_slice(&payload) {
                    Ok(times) => took = times,
                    Err(why) => written = Err(format!("its times are unreadable: {why}")),
                },
                StreamRead::Frame { kind: b'E', payload } => written = Ok(payload),
                StreamRead::Frame { kind: b'F', payload } => {
                    written = Err(String::from_utf8_lossy(&payload).into_owned())
                }
                StreamRead::Frame { kind: b'Z', .. } => break,
                StreamRead::Frame { .. } => {}
                StreamRead::TimeOut => {
                    written = Err("it takes too long".to_string());
                    break;
                }
                StreamRead::End | StreamRead::TooLong => break,
            }
        }
        written.map(|written| ReferenceAnswers { written, took }).map_err(|why| ReferenceError { given, why })
    }
}
