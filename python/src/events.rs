//! What a generation or a tree tells Python, as frozen objects: finishes, tokens that were sampled, and how samples and
//! nodes end.

use std::num::NonZeroU32;

use offshoot::{Error, Finish, FinishReason, TokenId};
use offshoot_engine::{Drawn, Event, KeptForm, TokenRecord, TokenRoutes};
use offshoot_launch::{GenerationEvent, RefusedPrompt};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::exception;

/// Why a sample ended, in OpenAI's words.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopString(_) | FinishReason::StopToken(_) | FinishReason::EndOfText | FinishReason::Given => {
            "stop"
        }
        FinishReason::Length | FinishReason::ContextFull | FinishReason::OutOfTime => "length",
        FinishReason::Cancelled | FinishReason::Aborted => "abort",
        FinishReason::LowConfidence => "low_confidence",
        FinishReason::DeadEnd => "dead_end",
        FinishReason::FormLimit => "form_limit",
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

fn tops<'t>(py: Python<'_>, tops: impl ExactSizeIterator<Item = &'t [(TokenId, f32)]>) -> PyResult<Py<PyList>> {
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

/// What is recorded of sampled tokens beside their log-probabilities under the model. Each list has an entry for each
/// token; to ask for one that is not recorded of all of them is an error, so that no entry stands for another token.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct SampleRecords {
    tokens: usize,
    /// Empty where it is recorded of no token, like `entropies`.
    drawn: Vec<Option<Drawn>>,
    entropies: Vec<Option<f32>>,
    confidences: Vec<Option<f32>>,
    /// Whether the form allowed no other token in each one's place; empty where none was forced.
    forced: Vec<bool>,
}

impl SampleRecords {
    fn new<'r>(records: impl Iterator<Item = TokenRecord<'r>> + Clone) -> SampleRecords {
        let has_drawn = records.clone().any(|record| record.drawn.is_some());
        let has_entropy = records.clone().any(|record| record.entropy.is_some());
        let has_confidence = records.clone().any(|record| record.confidence.is_some());
        let has_forced = records.clone().any(|record| record.forced);
        let drawn = || records.clone().map(|record| record.drawn.cloned()).collect();
        let entropies = || records.clone().map(|record| record.entropy).collect();
        let confidences = || records.clone().map(|record| record.confidence).collect();
        SampleRecords {
            tokens: records.clone().count(),
            drawn: if has_drawn { drawn() } else { Vec::new() },
            forced: if has_forced { records.clone().map(|record| record.forced).collect() } else { Vec::new() },
            entropies: if has_entropy { entropies() } else { Vec::new() },
            confidences: if has_confidence { confidences() } else { Vec::new() },
        }
    }

    /// Of each token what `of` makes of its entry in `column`, which is called `what` in an error.
    fn each<'r, R, T>(&self, column: &'r [Option<R>], what: &str, of: impl Fn(&'r R) -> T) -> PyResult<Vec<T>> {
        let entry = |at: usize| {
            let missing = || exception(Error::Internal(format!("sampled token {at} has no record of {what}")));
            column.get(at).and_then(Option::as_ref).map(&of).ok_or_else(missing)
        };
        (0..self.tokens).map(entry).collect()
    }

    fn each_drawn<'r, T>(&'r self, of: impl Fn(&'r Drawn) -> T) -> PyResult<Vec<T>> {
        self.each(&self.drawn, "the distribution that it was drawn from", of)
    }
}

#[pymethods]
impl SampleRecords {
    /// Log-probabilities under the distributions that the tokens were drawn from.
    fn logprobs(&self) -> PyResult<Vec<f32>> {
        self.each_drawn(|drawn| drawn.logprob)
    }

    /// How many tokens each was drawn from.
    fn counts(&self) -> PyResult<Vec<u32>> {
        self.each_drawn(|drawn| drawn.kept)
    }

    /// The smallest score of those.
    fn lowest(&self) -> PyResult<Vec<f32>> {
        self.each_drawn(|drawn| drawn.lowest)
    }

    /// Their ids; None for sets that are too large to be listed.
    fn ids(&self) -> PyResult<Vec<Option<Vec<u32>>>> {
        self.each_drawn(|drawn| Some(drawn.ids.as_ref()?.iter().map(|id| id.0).collect()))
    }

    /// Their ids as bytes of bit sets; None as `ids`.
    fn masks<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        self.each_drawn(|drawn| Some(PyBytes::new(py, &KeptForm::mask(drawn.ids.as_ref()?))))
    }

    /// Whether the form of the text allowed no other token in each one's place.
    fn forced(&self) -> Vec<bool> {
        if self.forced.is_empty() { vec![false; self.tokens] } else { self.forced.clone() }
    }

    /// Entropies of the model's distribution in the tokens' places, in nats.
    fn entropies(&self) -> PyResult<Vec<f32>> {
        self.each(&self.entropies, "the entropy in its place", |&entropy| entropy)
    }

    /// The model's confidences in the tokens' places, in nats.
    fn confidences(&self) -> PyResult<Vec<f32>> {
        self.each(&self.confidences, "the model's confidence in its place", |&confidence| confidence)
    }
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
    /// Of all sampled tokens, the one that ended it included.
    records: Py<SampleRecords>,
    /// The ids of the experts of all tokens but the last, as bytes; their shape: tokens, layers and experts chosen for
    /// a token; and the bytes of an id, 1 or 2. None where they were not asked for.
    routed_experts: Option<(Py<PyBytes>, [usize; 3], usize)>,
    /// Versions of weights, each with the number of the first token that was sampled or scored under it.
    weights: Vec<(u64, usize)>,
    /// Versions of adapters, likewise; empty without one.
    adapters: Vec<(u64, usize)>,
}

impl NativeFinish {
    pub fn new(py: Python<'_>, finish: &Finish) -> PyResult<Py<NativeFinish>> {
        let sampled = |stop: &offshoot::SampledToken| {
            let (id, logprob, rank) = (stop.token.0, stop.logprob, stop.rank.map(NonZeroU32::get));
            Py::new(py, SampledToken { id, logprob, rank, top: top(py, &stop.top)? })
        };
        let experts =
            |routes: &TokenRoutes| (PyBytes::new(py, &routes.bytes(0)).unbind(), routes.shape(), routes.id_bytes());
        let finish = NativeFinish {
            finish_reason: finish_reason(&finish.reason),
            stop_reason: stop_reason(py, &finish.reason)?,
            token_ids: ids(py, finish.tokens.iter().copied())?,
            text: finish.text.clone(),
            logprob: finish.logprob,
            logprobs: floats(py, finish.logprobs().iter().copied())?,
            ranks: PyList::new(py, finish.records.ranks().iter().map(|rank| rank.map(NonZeroU32::get)))?.unbind(),
            tops: tops(py, (0..finish.records.len()).map(|at| finish.records.top(at)))?,
            stop_token: finish.stop_token.as_ref().map(sampled).transpose()?,
            records: Py::new(py, SampleRecords::new(finish.sampled_records()))?,
            routed_experts: finish.routes.as_ref().map(experts),
            weights: finish.weights.iter().map(|span| (span.version.0, span.from)).collect(),
            adapters: finish.adapters.iter().map(|span| (span.version.0, span.from)).collect(),
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
    records: Py<SampleRecords>,
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
                records: Py::new(py, SampleRecords::new(tokens.iter().map(TokenRecord::of)))?,
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
