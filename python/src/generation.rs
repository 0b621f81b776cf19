//! A running generation: the samples of a list of prompts, as events. The engine works whether Python reads them or
//! not; reading waits without the interpreter's lock.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use offshoot::{Hear, TokenId};
use offshoot_core::ids::AdapterVersion;
use offshoot_engine::{EngineHandle, Event, GroupEnd, Priority, Stragglers, UniformKey};
use offshoot_launch::{AsRequest, GenerationEvent, PromptRequest, RefusedPrompt, generate};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::engine::check_ready;
use crate::errors::{OrRaise, exception};
use crate::events;
use crate::params::{self, Sampling};
use crate::process::OfProcess;
use crate::samples::Samples;

/// Most events that one call returns.
const EVENTS_AT_ONCE: usize = 4096;

/// A prompt to sample, as Python hands it over.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Request {
    tokens: Vec<TokenId>,
    sampling: Sampling,
    uniforms: UniformKey,
    /// Its place in the engine's queue.
    priority: Priority,
    group_end: Option<GroupEnd>,
    adapter: Option<AdapterVersion>,
}

#[pymethods]
impl Request {
    /// `seed` and `name`: what its random numbers follow from. `priority`: lower numbers are served earlier.
    /// `min_finished`: the other samples are cancelled once so many have finished; their branches are kept with `keep`.
    /// `adapter`: the version of the one that it is computed with.
    #[new]
    #[pyo3(signature = (token_ids, sampling, seed, name, priority=0, min_finished=None, keep=false, adapter=None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn new(
        token_ids: Vec<u32>,
        sampling: &Sampling,
        seed: u64,
        name: &str,
        priority: i32,
        min_finished: Option<NonZeroUsize>,
        keep: bool,
        adapter: Option<u64>,
    ) -> Request {
        let (uniforms, priority) = (UniformKey::root(seed, name), Priority(priority));
        let stragglers = if keep { Stragglers::Keep } else { Stragglers::Cancel };
        let group_end = min_finished.map(|min_finished| GroupEnd { min_finished, stragglers });
        let (tokens, adapter) = (params::token_ids(token_ids), adapter.map(AdapterVersion));
        Request { tokens, sampling: sampling.clone(), uniforms, priority, group_end, adapter }
    }
}

/// A request that waits or is sampled.
pub struct OwnedRequest(Py<Request>);

impl OwnedRequest {
    pub fn new(request: Py<Request>) -> OwnedRequest {
        OwnedRequest(request)
    }
}

impl AsRequest for OwnedRequest {
    fn as_request(&self) -> PromptRequest<'_> {
        let Request { tokens, sampling, uniforms, priority, .. } = self.0.get();
        let Sampling { params, stop, n, prompt_logprobs } = sampling;
        PromptRequest {
            tokens,
            n: *n,
            prompt_logprobs: *prompt_logprobs,
            params,
            stop,
            uniforms: *uniforms,
            priority: *priority,
        }
    }

    fn group_end(&self) -> Option<GroupEnd> {
        self.0.get().group_end
    }

    fn adapter(&self) -> Option<AdapterVersion> {
        self.0.get().adapter
    }
}

/// Events of running samples, in the order in which they happen.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Generation {
    engine: OfProcess<EngineHandle>,
    running: OfProcess<Mutex<offshoot_launch::Generation<OwnedRequest>>>,
}

impl Generation {
    pub fn new(engine: &EngineHandle, requests: Vec<OwnedRequest>, tokens: bool) -> Generation {
        let hear = if tokens { Hear::Tokens } else { Hear::Finishes };
        let running = OfProcess::new(Mutex::new(generate(engine, requests, hear)));
        Generation { engine: OfProcess::new(engine.clone()), running }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, offshoot_launch::Generation<OwnedRequest>>> {
        Ok(self.running.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits at most `wait` seconds for events and takes those that there are then; `None` once every sample has ended.
    fn take(&self, py: Python<'_>, wait: f64) -> PyResult<Option<Vec<GenerationEvent>>> {
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::ZERO);
        py.detach(|| -> PyResult<Option<Vec<GenerationEvent>>> {
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
    /// raised as this returns. False once every sample has ended.
    fn next_events(&self, py: Python<'_>, wait: f64, into: &Bound<'_, PyList>) -> PyResult<bool> {
        let Some(taken) = self.take(py, wait)? else { return Ok(false) };
        taken.into_iter().try_for_each(|event| into.append(events::sample_event(py, event)?))?;
        Ok(true)
    }

    /// Waits as `next_events` does, for samples that are kept in a table: appends what finished to `into`. Returns the
    /// numbers of the prompts that they are of; None once every sample has ended. Raises what a sample failed of.
    fn next_samples(&self, py: Python<'_>, wait: f64, into: &Samples) -> PyResult<Option<Vec<usize>>> {
        let Some(taken) = self.take(py, wait)? else { return Ok(None) };
        let mut prompts = Vec::new();
        for event in taken {
            match event {
                Ok(Event::Tokens { .. }) => {}
                Ok(Event::Finished { id, finish }) => {
                    prompts.push(id.prompt);
                    into.push(id, finish);
                }
                Ok(Event::Failed { error, .. }) | Err(RefusedPrompt { error, .. }) => return Err(exception(error)),
            }
        }
        Ok(Some(prompts))
    }

    /// Continues the kept stragglers of a prompt, which then end once more; their indices.
    fn resume(&self, py: Python<'_>, prompt: usize) -> PyResult<Vec<usize>> {
        check_ready(self.engine.get()?)?;
        py.detach(|| self.lock()?.resume(prompt).or_raise())
    }

    /// Releases the kept stragglers of a prompt.
    fn release_kept(&self, py: Python<'_>, prompt: usize) -> PyResult<()> {
        py.detach(|| self.lock().map(|mut generation| generation.release_kept(prompt)))
    }

    /// Cancels all samples of a prompt.
    fn cancel_prompt(&self, py: Python<'_>, prompt: usize) -> PyResult<()> {
        py.detach(|| self.lock().map(|mut generation| generation.cancel_prompt(prompt)))
    }
}
