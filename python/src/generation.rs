//! A running generation: the samples of a list of prompts, as events. The engine works whether Python reads them or
//! not; reading waits without the interpreter's lock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use offshoot::engine::{EngineHandle, Hear, Priority, UniformKey};
use offshoot::ids::TokenId;
use offshoot::launch::{self, AsRequest, GenerateEvent, PromptRequest, SampleId, generate};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors::exception;
use crate::events;
use crate::params::Sampling;
use crate::process::OfProcess;
use crate::samples::Samples;

/// Most events that one call returns.
const EVENTS_AT_ONCE: usize = 4096;

/// A prompt with what its request refers to.
pub struct OwnedRequest {
    pub tokens: Vec<TokenId>,
    pub sampling: Sampling,
    pub uniforms: UniformKey,
    pub priority: Priority,
}

impl AsRequest for OwnedRequest {
    fn as_request(&self) -> PromptRequest<'_> {
        let Sampling { params, stop, n, prompt_logprobs } = &self.sampling;
        let (uniforms, priority) = (self.uniforms, self.priority);
        PromptRequest {
            tokens: &self.tokens,
            n: *n,
            prompt_logprobs: *prompt_logprobs,
            params,
            stop,
            uniforms,
            priority,
        }
    }
}

/// Events of running samples, in the order in which they happen.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Generation(OfProcess<Mutex<launch::Generation<OwnedRequest>>>);

impl Generation {
    pub fn new(engine: &EngineHandle, requests: Vec<OwnedRequest>, tokens: bool) -> Generation {
        let hear = if tokens { Hear::Tokens } else { Hear::Finishes };
        Generation(OfProcess::new(Mutex::new(generate(engine, requests, hear))))
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, launch::Generation<OwnedRequest>>> {
        Ok(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits at most `wait` seconds for events and takes those that there are then; `None` once every sample has ended.
    fn take(&self, py: Python<'_>, wait: f64) -> PyResult<Option<Vec<GenerateEvent>>> {
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::ZERO);
        py.detach(|| -> PyResult<Option<Vec<GenerateEvent>>> {
            let mut generation = self.lock()?;
            let mut taken = match generation.poll(wait) {
                Poll::Ready(None) => return Ok(None),
                Poll::Ready(Some(event)) => vec![event],
                Poll::Pending => return Ok(Some(Vec::new())),
            };
            while taken.len() < EVENTS_AT_ONCE {
                let Poll::Ready(Some(event)) = generation.poll(Duration::ZERO) else { break };
                taken.push(event);
            }
            Ok(Some(taken))
        })
    }
}

#[pymethods]
impl Generation {
    /// Waits at most `wait` seconds and appends the events that there are then to `into`, which keeps them if Ctrl-C is
    /// raised as this returns. False once every sample has ended. An event is a tuple of its kind, prompt, sample and
    /// `tokens`: (token ids, text, log-probabilities, likeliest tokens); `finished`: see `events::finish`; `failed`: an
    /// exception; `refused` has no sample: the prompt's exception.
    fn next_events(&self, py: Python<'_>, wait: f64, into: &Bound<'_, PyList>) -> PyResult<bool> {
        let Some(taken) = self.take(py, wait)? else { return Ok(false) };
        taken.into_iter().try_for_each(|event| into.append(tuple(py, event)?))?;
        Ok(true)
    }

    /// The same for samples that are kept in a table: appends what finished to `into`. Returns the numbers of the
    /// prompts that they are of; None once every sample has ended. Raises what a sample failed of.
    fn next_samples(&self, py: Python<'_>, wait: f64, into: &Samples) -> PyResult<Option<Vec<usize>>> {
        let Some(taken) = self.take(py, wait)? else { return Ok(None) };
        let mut prompts = Vec::new();
        for event in taken {
            match event {
                GenerateEvent::Tokens { .. } => {}
                GenerateEvent::Finished { sample, finish } => {
                    prompts.push(sample.prompt);
                    into.push(sample, finish);
                }
                GenerateEvent::Failed { error, .. } | GenerateEvent::Refused { error, .. } => {
                    return Err(exception(error));
                }
            }
        }
        Ok(Some(prompts))
    }

    /// Cancels samples, each a (prompt, sample): they finish as cancelled with their tokens so far.
    fn cancel(&self, py: Python<'_>, samples: Vec<(usize, usize)>) -> PyResult<()> {
        let samples: Vec<SampleId> = samples.into_iter().map(|(prompt, sample)| SampleId { prompt, sample }).collect();
        py.detach(|| self.lock().map(|mut generation| generation.cancel(&samples)))
    }

    /// Cancels all samples of a prompt.
    fn cancel_prompt(&self, py: Python<'_>, prompt: usize) -> PyResult<()> {
        py.detach(|| self.lock().map(|mut generation| generation.cancel_prompt(prompt)))
    }
}

fn tuple(py: Python<'_>, event: GenerateEvent) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        GenerateEvent::Tokens { sample, tokens, text } => {
            ("tokens", sample.prompt, sample.sample, events::tokens(py, &tokens, &text)?).into_pyobject(py)
        }
        GenerateEvent::Finished { sample, finish } => {
            ("finished", sample.prompt, sample.sample, events::finish(py, &finish)?).into_pyobject(py)
        }
        GenerateEvent::Failed { sample, error } => {
            ("failed", sample.prompt, sample.sample, exception(error).into_value(py)).into_pyobject(py)
        }
        GenerateEvent::Refused { prompt, error } => {
            ("refused", prompt, py.None(), exception(error).into_value(py)).into_pyobject(py)
        }
    }
}
