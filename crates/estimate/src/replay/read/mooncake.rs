//! Mooncake's traces (FAST '25): one JSON object per line, with `timestamp` (ms), `input_length`, `output_length` and
//! `hash_ids`: a name for each 512 tokens of the prompt, equal if these and all earlier tokens are equal.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::super::job::{ReplayJob, ReplayRequest};
use super::super::prompt::{TextRun, TracePrompt};
use super::lines::{MOST_TOKENS, of_lines};
use offshoot_core::error::{Error, Result};

const HASHED_TOKENS: u64 = 512;

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// The requests of `text`, the content of `path`. Blank lines are skipped.
pub fn read(path: &Path, text: &str) -> Result<ReplayJob> {
    of_lines(path, text, |number, line| request(path, number, line)).map(ReplayJob::new)
}

fn request(path: &Path, number: usize, line: &str) -> Result<ReplayRequest> {
    let line: MooncakeLine =
        serde_json::from_str(line).map_err(|fault| Error::format(path, format!("line {number}: {fault}")))?;
    let wrong = |field: &str, expected: String, found: String| {
        Error::field(path, format!("line {number}: {field}"), expected, found)
    };
    for (field, length) in [("input_length", line.input_length), ("output_length", line.output_length)] {
        if !(1..=MOST_TOKENS).contains(&length) {
            return Err(wrong(field, format!("a number from 1 to {MOST_TOKENS}"), length.to_string()));
        }
    }
    let named = line.input_length.div_ceil(HASHED_TOKENS);
    if line.hash_ids.len() as u64 != named {
        let expected = format!("{named} names for {} tokens, one for each {HASHED_TOKENS}", line.input_length);
        return Err(wrong("hash_ids", expected, line.hash_ids.len().to_string()));
    }
    let arrival = Duration::try_from_secs_f64(line.timestamp / 1e3)
        .map_err(|_| wrong("timestamp", "milliseconds from 0 up".to_owned(), line.timestamp.to_string()))?;
    let mut left = line.input_length as usize;
    let run = |text: u64| {
        let tokens = left.min(HASHED_TOKENS as usize);
        left -= tokens;
        TextRun { text, tokens }
    };
    let prompt = TracePrompt::Runs(line.hash_ids.into_iter().map(run).collect());
    Ok(ReplayRequest { prompt, arrival, samples: 1, output: line.output_length as usize })
}
