//! What the readers of traces share: the lines of a text, and the limit of lengths. Each reader says what a line is.

use std::path::Path;

use offshoot_core::error::{Error, Result};

/// Longest prompt or answer, in tokens; keeps sums of lengths exact.
pub(super) const MOST_TOKENS: u64 = 1 << 24;

/// What `read` makes of each line of `text` that is not blank, with its number from 1.
pub(super) fn of_lines<T>(path: &Path, text: &str, read: impl Fn(usize, &str) -> Result<T>) -> Result<Vec<T>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    at_least_one(path, lines.map(|(line, number)| read(number, line)).collect::<Result<_>>()?)
}

pub(super) fn at_least_one<T>(path: &Path, requests: Vec<T>) -> Result<Vec<T>> {
    match requests.is_empty() {
        true => Err(Error::format(path, "expected at least one request, found none")),
        false => Ok(requests),
    }
}
