//! A job in parts of about equal work, for processes that share no memory: the planner's own cut of the job's prefix
//! tree, with what it costs.

use offshoot_kv::{PromptTree, TokenCosts, tokens_in_batches};
use offshoot_launch::TextKey;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::params::token_ids;

/// A part of a job: its prompts by index, depth-first, their distinct tokens, expected sampled tokens, and work.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct PromptPart {
    prompts: Vec<u32>,
    prompt_tokens: u64,
    output_tokens: u64,
    work: u64,
}

/// A job in parts, and the distinct prompt tokens of all of them together.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct PromptParts {
    parts: Vec<Py<PromptPart>>,
    distinct_tokens: u64,
}

/// Cuts prompts into parts. `outputs`: expected sampled tokens of each prompt, over all its samples.
#[pyfunction]
pub fn prompt_parts(py: Python<'_>, prompts: Vec<Vec<u32>>, outputs: Vec<u64>, parts: usize) -> PyResult<PromptParts> {
    if parts == 0 || outputs.len() != prompts.len() {
        let found = format!("{parts} parts, {} outputs of {} prompts", outputs.len(), prompts.len());
        return Err(PyValueError::new_err(format!(
            "parts: expected at least 1 and an output for each prompt, found {found}"
        )));
    }
    let cut = py.detach(|| {
        let prompts: Vec<_> = prompts.into_iter().map(token_ids).collect();
        PromptTree::new(&prompts[..]).parts(&outputs, TokenCosts::default(), parts)
    });
    let part = |part: offshoot_kv::PromptPart| {
        let offshoot_kv::PromptPart { prompts, prompt_tokens, output_tokens, work, .. } = part;
        Py::new(py, PromptPart { prompts, prompt_tokens, output_tokens, work })
    };
    let parts = cut.parts.into_iter().map(part).collect::<PyResult<_>>()?;
    Ok(PromptParts { parts, distinct_tokens: cut.distinct_tokens })
}

/// Prompt tokens that processes compute which take the prompts in batches of `size`, in the order in which they come.
#[pyfunction]
pub fn batch_tokens(py: Python<'_>, prompts: Vec<Vec<u32>>, size: usize) -> PyResult<u64> {
    if size == 0 {
        return Err(PyValueError::new_err("size: expected a number from 1 up, found 0"));
    }
    let prompts: Vec<_> = prompts.into_iter().map(token_ids).collect();
    Ok(py.detach(|| tokens_in_batches(&prompts[..], size)))
}

/// Numbers in place of a text's tokens, where no tokenizer is at hand: texts that begin alike have numbers that do.
#[pyfunction]
pub fn text_keys(texts: Vec<String>) -> Vec<Vec<u32>> {
    texts.iter().map(|text| TextKey::of(text).as_ref().iter().map(|token| token.0).collect()).collect()
}
