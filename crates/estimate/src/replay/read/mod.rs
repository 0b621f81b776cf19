//! Reads recorded traces: Mooncake's (one JSON object per line), lengths of prompt and answer (`N,M` per line), lengths
//! of prompts (a JSON array). Errors name the line and the field.

mod lengths;
mod mooncake;

use std::path::Path;

use super::job::ReplayJob;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;

pub use lengths::read_lengths;

/// Longest prompt or answer, in tokens; keeps sums of lengths exact.
const MOST_TOKENS: u64 = 1 << 24;

/// What `read` makes of each line of `text` that is not blank, with its number from 1.
fn of_lines<T>(path: &Path, text: &str, read: impl Fn(usize, &str) -> Result<T>) -> Result<Vec<T>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    at_least_one(path, lines.map(|(line, number)| read(number, line)).collect::<Result<_>>()?)
}

fn at_least_one<T>(path: &Path, requests: Vec<T>) -> Result<Vec<T>> {
    match requests.is_empty() {
        true => Err(Error::format(path, "expected at least one request, found none")),
        false => Ok(requests),
    }
}

/// Reads a trace by its file extension: `.jsonl` is Mooncake's format, `.csv` and `.json` hold lengths. Only Mooncake's
/// traces have arrival times; the requests of the others arrive all at once.
pub fn read_trace(path: &Path) -> Result<ReplayJob> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("jsonl") => mooncake::read(path, &input::text(path)?),
        Some("csv" | "json") => Ok(lengths::job(&read_lengths(path)?)),
        _ => {
            let expected = "a trace that ends in .jsonl (Mooncake's), .csv (prompt,answer) or .json (prompts' lengths)";
            Err(Error::value("trace", expected, path.display().to_string()))
        }
    }
}
