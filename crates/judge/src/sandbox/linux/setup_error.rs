//! Why a candidate's process did not become the program.

use std::io;

/// A failed step before the start of the program.
#[derive(Debug)]
pub(super) struct SetupError {
    pub doing: String,
    pub why: io::Error,
}

pub(super) fn doing<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> SetupError {
    move |why| SetupError { doing: what.into(), why: why.into() }
}
