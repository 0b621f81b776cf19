//! What a generation or a tree tells Python, as frozen objects: finishes, tokens that were sampled, and how samples and
//! nodes end.

use std::num::NonZeroU32;

use offshoot::{Finish, FinishReason, TokenId};
use offshoot_engine::Event;
use offshoot_launch::{GenerationEvent, RefusedPrompt};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::exception;

/// Why a sample ended, in OpenAI's words.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopString(_) | FinishReason::StopToken(_) | FinishReason::EndOfText | FinishReason::Given => {
            "stop"
        }
        FinishReason::Length | FinishReason::ContextFull => "length",
        FinishReason::Cancelled | FinishReason::Aborted => "abort",
        FinishReason::Failed => "error",
    }
}

/// The stop string or stop token that ended a sample.
pub fn stop_reason(py: Python<'_>, reason: &FinishReason) -> PyResult<Option<Py<PyAny>>> {
    Ok(match reason {
        FinishReason::StopString(text) => Some(text.into_pyobject(py)?.into_any().unbind()),
        FinishReason::StopToken(token) => Some(token.0.into_pyobject(py)?.into_any().unbind()),
        _ => None,
    })
}

fn ids(py: Python<'_>, tokens: impl ExactSizeIterator<Item = TokenId>) -> PyResult<Py<PyList>> {
    Ok(PyList::new(py, tokens.map(|token| token.0))?.unbind())
}

fn floats(py: Python<'_>, values: impl ExactSizeIterator<Item = f32>) -> PyResult<Py<PyList>> {
    Ok(PyList::new(py, values)?.unbind())
}

/// The likeliest tokens in the place of one, each with its log-probability.
fn top(py: Python<'_>, top: &[(TokenId, f32)]) -> PyResult<Py<PyList>> {
    Ok(PyList::new(py, top.iter().map(|&(token, logprob)| (token.0, logprob)))?.unbind())
}

fn tops<'t>(py: Python<'_>, tops: impl ExactSizeIterator<Item = &'t Vec<(TokenId, f32)>>) -> PyResult<Py<PyList>> {
    let lists = tops.map(|each| top(py, each)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, lists)?.unbind())
}

/// A token with its log-probability, its rank and the likeliest ones in its place.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct SampledToken {
    id: u32,
    logprob: f32,
    rank: Option<u32>,
    top: Py<PyList>,
}

/// What was sampled or scored, whole. `stop_token`, which ended it, is among neither the tokens nor the text.
#[pyclass(frozen, get_all, name = "Finish", module = "offshoot._offshoot")]
pub struct NativeFinish {
    finish_reason: &'static str,
    stop_reason: Option<Py<PyAny>>,
    token_ids: Py<PyList>,
    text: String,
    logprob: f64,
    logprobs: Py<PyList>,
    ranks: Py<PyList>,
    tops: Py<PyList>,
    stop_token: Option<Py<SampledToken>>,
}

impl NativeFinish {
    pub fn new(py: Python<'_>, finish: &Finish) -> PyResult<Py<NativeFinish>> {
        let sampled = |stop: &offshoot::SampledToken| {
            let (id, logprob, rank) = (stop.token.0, stop.logprob, stop.rank.map(NonZeroU32::get));
            Py::new(py, SampledToken { id, logprob, rank, top: top(py, &stop.top)? })
        };
        let finish = NativeFinish {
            finish_reason: finish_reason(&finish.reason),
            stop_reason: stop_reason(py, &finish.reason)?,
            token_ids: ids(py, finish.tokens.iter().copied())?,
            text: finish.text.clone(),
            logprob: finish.logprob,
            logprobs: floats(py, finish.logprobs.iter().copied())?,
            ranks: PyList::new(py, finish.ranks.iter().map(|rank| rank.map(NonZeroU32::get)))?.unbind(),
            tops: tops(py, finish.top.iter())?,
            stop_token: finish.stop_token.as_ref().map(sampled).transpose()?,
        };
        Py::new(py, finish)
    }
}

/// Tokens of a sample, as they are sampled.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct SampleTokens {
    prompt: usize,
    sample: usize,
    token_ids: Py<PyList>,
    text: String,
    logprobs: Py<PyList>,
}

/// A sample has ended.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct SampleFinished {
    prompt: usize,
    sample: usize,
    finish: Py<NativeFinish>,
}

/// A sample has failed, or its whole prompt was refused: then `sample` is None.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct SampleFailed {
    prompt: usize,
    sample: Option<usize>,
    error: Py<PyBaseException>,
}

/// An event of a generation as Python's object.
pub fn sample_event(py: Python<'_>, event: GenerationEvent) -> PyResult<Bound<'_, PyAny>> {
    let failed = |prompt, sample, error| {
        let error = exception(error).into_value(py);
        Bound::new(py, SampleFailed { prompt, sample, error }).map(Bound::into_any)
    };
    match event {
        Ok(Event::Tokens { id, tokens, text, .. }) => {
            let event = SampleTokens {
                prompt: id.prompt,
                sample: id.sample,
                token_ids: ids(py, tokens.iter().map(|token| token.token))?,
                text,
                logprobs: floats(py, tokens.iter().map(|token| token.logprob))?,
            };
            Bound::new(py, event).map(Bound::into_any)
        }
        Ok(Event::Finished { id, finish }) => {
            let finish = NativeFinish::new(py, &finish)?;
            let event = SampleFinished { prompt: id.prompt, sample: id.sample, finish };
            Bound::new(py, event).map(Bound::into_any)
        }
        Ok(Event::Failed { id, error }) => failed(id.prompt, Some(id.sample), error),
        Err(RefusedPrompt { prompt, error }) => failed(prompt, None, error),
    }
}
