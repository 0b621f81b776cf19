//! What all traces must keep to.

use std::path::Path;

use offshoot_core::error::Error;

/// Longest prompt or answer, in tokens; keeps sums of lengths exact.
pub const MOST_TOKENS: u64 = 1 << 24;

pub fn none(path: &Path) -> Error {
    Error::format(path, "expected at least one request, found none")
}
