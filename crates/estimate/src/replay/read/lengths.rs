//! Traces of lengths only, such as RelayAttention's: `prompt,answer` per line, or a JSON array of prompt lengths, each
//! with an answer of one token. Nothing is shared.

use std::path::Path;
use std::time::Duration;

use super::super::job::{ReplayJob, ReplayRequest};
use super::super::prompt::{TextRun, TracePrompt};
use super::super::synthetic::RequestLengths;
use super::{MOST_TOKENS, at_least_one, of_lines};
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
    let length = |field: &str, text: &str| match text.parse() {
        Ok(length) if (1..=MOST_TOKENS).contains(&length) => Ok(length as usize),
        _ => {
            let expected = format!("a number from 1 to {MOST_TOKENS}");
            Err(Error::field(path, format!("line {number}: {field}"), expected, format!("{text:?}")))
        }
    };
    Ok(RequestLengths { prompt: length("prompt", prompt)?, output: length("answer", answer)? })
}

fn prompts(path: &Path, text: &str) -> Result<Vec<RequestLengths>> {
    let lengths: Vec<u64> = serde_json::from_str(text).map_err(|fault| Error::format(path, fault.to_string()))?;
    let length = |(number, &length): (usize, &u64)| match (1..=MOST_TOKENS).contains(&length) {
        true => Ok(RequestLengths { prompt: length as usize, output: 1 }),
        false => {
            let expected = format!("a number from 1 to {MOST_TOKENS}");
            Err(Error::field(path, format!("[{number}]"), expected, length.to_string()))
        }
    };
    lengths.iter().enumerate().map(length).collect()
}

/// One request per pair of lengths; all arrive at once.
pub fn job(lengths: &[RequestLengths]) -> ReplayJob {
    let request = |(text, &RequestLengths { prompt, output }): (u64, &RequestLengths)| ReplayRequest {
        prompt: TracePrompt::Runs(vec![TextRun { text, tokens: prompt }]),
        arrival: Duration::ZERO,
        samples: 1,
        output,
    };
    ReplayJob::new((0..).zip(lengths).map(request).collect())
}
