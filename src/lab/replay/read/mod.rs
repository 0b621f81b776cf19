//! Recorded traces: Mooncake's (a JSON object a line), lengths of prompt and answer (`N,M` a line), lengths of prompts (a JSON
//! array). What is wrong is said with the line and the field.

mod lengths;
mod mooncake;

use std::path::Path;

use super::job::Job;
use crate::error::{Error, Result};

pub use lengths::read_lengths;

/// Longer than this is no prompt and no answer; it keeps sums of lengths exact.
const MOST_TOKENS: u64 = 1 << 24;

/// The requests of a trace, by the ending of its name: `.jsonl` as Mooncake's, `.csv` and `.json` as lengths. Only Mooncake's
/// say when requests arrive; those of the others arrive all at once.
pub fn read_trace(path: &Path) -> Result<Job> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("jsonl") => mooncake::read(path, &text(path)?),
        Some("csv" | "json") => Ok(lengths::job(&read_lengths(path)?)),
        _ => {
            let expected = "a trace that ends in .jsonl (Mooncake's), .csv (prompt,answer) or .json (prompts' lengths)";
            Err(Error::value("trace", expected, path.display().to_string()))
        }
    }
}

fn text(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

fn none(path: &Path) -> Error {
    Error::format(path, "expected at least one request, found none")
}
