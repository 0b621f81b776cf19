//! Reads recorded traces: Mooncake's (one JSON object per line), lengths of prompt and answer (`N,M` per line), lengths
//! of prompts (a JSON array). Errors name the line and the field.

mod lengths;
mod lines;
mod mooncake;

use std::path::Path;

use super::job::ReplayJob;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;

pub use lengths::read_lengths;

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
