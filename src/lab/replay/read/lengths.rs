//! Traces of lengths alone, as RelayAttention's: `prompt,answer` a line, or a JSON array of prompts' lengths, each answered by
//! one token. Nothing is shared in them.

use std::path::Path;
use std::time::Duration;

use super::super::job::{Job, Request};
use super::super::prompt::{Prompt, Run};
use super::super::synthetic::Lengths;
use super::{MOST_TOKENS, none, text};
use crate::error::{Error, Result};

/// The lengths in a `.csv` (no header) or a `.json` file. Blank lines are skipped.
pub fn read_lengths(path: &Path) -> Result<Vec<Lengths>> {
    let text = text(path)?;
    let lengths = match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        true => prompts(path, &text)?,
        false => {
            let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
            lines.map(|(line, number)| pair(path, number, line)).collect::<Result<_>>()?
        }
    };
    if lengths.is_empty() { Err(none(path)) } else { Ok(lengths) }
}

fn pair(path: &Path, number: usize, line: &str) -> Result<Lengths> {
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
    Ok(Lengths { prompt: length("prompt", prompt)?, output: length("answer", answer)? })
}

fn prompts(path: &Path, text: &str) -> Result<Vec<Lengths>> {
    let lengths: Vec<u64> = serde_json::from_str(text).map_err(|fault| Error::format(path, fault.to_string()))?;
    let length = |(number, &length): (usize, &u64)| match (1..=MOST_TOKENS).contains(&length) {
        true => Ok(Lengths { prompt: length as usize, output: 1 }),
        false => {
            let expected = format!("a number from 1 to {MOST_TOKENS}");
            Err(Error::field(path, format!("[{number}]"), expected, length.to_string()))
        }
    };
    lengths.iter().enumerate().map(length).collect()
}

/// A request for each, all at once.
pub fn job(lengths: &[Lengths]) -> Job {
    let request = |(text, &Lengths { prompt, output }): (u64, &Lengths)| Request {
        prompt: Prompt::Runs(vec![Run { text, tokens: prompt }]),
        arrival: Duration::ZERO,
        samples: 1,
        output,
    };
    Job::new((0..).zip(lengths).map(request).collect())
}
