//! Traces of lengths only, such as RelayAttention's: `prompt,answer` per line, or a JSON array of prompt lengths, each
//! with an answer of one token. Nothing is shared.

use std::path::Path;

use super::super::job::ReplayJob;
use super::super::synthetic::{RequestLengths, request};
use super::lines::{MOST_TOKENS, at_least_one, of_lines};
use offshoot_core::error::{Error, Result};
use offshoot_core::input;

/// The lengths in a `.csv` (no header) or a `.json` file. Blank lines are skipped.
pub fn read_lengths(path: &Path) -> Result<Vec<RequestLengths>> {
    let text = input::text(path)?;
    match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        true => at_least_one(path, prompts(path, &text)?),
        false => of_lines(path, &text, |number, line| pair(path, number, line)),
    }
}

fn pair(path: &Path, number: usize, line: &str) -> Result<RequestLengths> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [prompt, answer] = fields[..] else {
        let found = format!("{} fields", fields.len());
        return Err(Error::field(path, format!("line {number}"), "prompt,answer", found));
    };
    let length = |field: &str, text: &str| {
        length(path, format!("line {number}: {field}"), text.parse().ok(), || format!("{text:?}"))
    };
    Ok(RequestLengths { prompt: length("prompt", prompt)?, output: length("answer", answer)? })
}

fn prompts(path: &Path, text: &str) -> Result<Vec<RequestLengths>> {
    let lengths: Vec<u64> = serde_json::from_str(text).map_err(|fault| Error::format(path, fault.to_string()))?;
    let read = |(number, &tokens): (usize, &u64)| {
        let prompt = length(path, format!("[{number}]"), Some(tokens), || tokens.to_string())?;
        Ok(RequestLengths { prompt, output: 1 })
    };
    lengths.iter().enumerate().map(read).collect()
}

fn length(path: &Path, field: String, tokens: Option<u64>, found: impl FnOnce() -> String) -> Result<usize> {
    let tokens = tokens.filter(|tokens| (1..=MOST_TOKENS).contains(tokens)).map(|tokens| tokens as usize);
    tokens.ok_or_else(|| Error::field(path, field, format!("a number from 1 to {MOST_TOKENS}"), found()))
}

/// One request per pair of lengths; all arrive at once.
pub fn job(lengths: &[RequestLengths]) -> ReplayJob {
    let request = |(text, own): (u64, &RequestLengths)| request(&[(text, own.prompt)], own.output);
    ReplayJob::new((0..).zip(lengths).map(request).collect())
}
