//! What a generation or a tree tells Python: finishes and tokens as tuples, which the Python half turns into its own
//! objects.

use offshoot::engine::{Finish, FinishReason, SampledToken};
use offshoot::ids::TokenId;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Why a sample ended, in OpenAI's words.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopString(_) | FinishReason::StopToken(_) | FinishReason::EndOfText | FinishReason::Given => {
            "stop"
        }
        FinishReason::Length | FinishReason::ContextFull => "length",
        FinishReason::Cancelled => "abort",
        FinishReason::Failed => "error",
    }
}

/// The same, and the stop string or stop token that did it.
pub fn reason<'py>(py: Python<'py>, reason: &FinishReason) -> PyResult<(&'static str, Bound<'py, PyAny>)> {
    let stop = match reason {
        FinishReason::StopString(text) => text.into_pyobject(py)?.into_any(),
        FinishReason::StopToken(token) => token.0.into_pyobject(py)?.into_any(),
        _ => py.None().into_bound(py),
    };
    Ok((finish_reason(reason), stop))
}

fn ids<'py>(py: Python<'py>, tokens: &[TokenId]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, tokens.iter().map(|token| token.0))
}

fn tops<'py>(py: Python<'py>, top: &[Vec<(TokenId, f32)>]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, top.iter().map(|top| top.iter().map(|&(token, logprob)| (token.0, logprob)).collect::<Vec<_>>()))
}

/// (finish reason, stop reason, token ids, text, log-probability, log-probabilities, likeliest tokens, stop token).
/// The stop token, which is among neither the tokens nor the text: (id, log-probability, likeliest tokens) or None.
pub fn finish<'py>(py: Python<'py>, finish: &Finish) -> PyResult<Bound<'py, PyTuple>> {
    let (finish_reason, stop_reason) = reason(py, &finish.reason)?;
    let stop_token = finish.stop_token.as_ref().map(|stop| {
        (stop.token.0, stop.logprob, stop.top.iter().map(|&(token, logprob)| (token.0, logprob)).collect::<Vec<_>>())
    });
    (
        finish_reason,
        stop_reason,
        ids(py, &finish.tokens)?,
        &finish.text,
        finish.logprob,
        PyList::new(py, &finish.logprobs)?,
        tops(py, &finish.top)?,
        stop_token,
    )
        .into_pyobject(py)
}

/// (token ids, text, log-probabilities, likeliest tokens) of tokens that were sampled.
pub fn tokens<'py>(py: Python<'py>, tokens: &[SampledToken], text: &str) -> PyResult<Bound<'py, PyTuple>> {
    let top: Vec<Vec<(TokenId, f32)>> = tokens.iter().map(|token| token.top.clone()).collect();
    let logprobs: Vec<f32> = tokens.iter().map(|token| token.logprob).collect();
    let own: Vec<TokenId> = tokens.iter().map(|token| token.token).collect();
    (ids(py, &own)?, text, PyList::new(py, logprobs)?, tops(py, &top)?).into_pyobject(py)
}
