//! Writes to standard output and standard error. A failure of standard output (a full disk, a closed pipe) is an error
//! like any other, never a panic; messages on standard error never fail. `files` claims and replaces
//! output files, `svg` writes drawings.

pub mod files;
mod progress;
pub mod svg;

pub use progress::{Bar, BarKind, Progress, Stage, draw_bars};

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::error::{Error, Result};

const STANDARD_OUTPUT: &str = "standard output";

/// Prints `text` as it is.
pub fn text(text: impl Display) -> Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(Error::io(STANDARD_OUTPUT, "write"))
}

/// Prints `text` and ends the line.
pub fn line(text: impl Display) -> Result<()> {
    self::text(format_args!("{text}\n"))
}

/// Prints a line on standard error; failures are ignored.
pub fn aside(text: impl Display) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Prints the message of `--resume` if there is nothing to continue.
pub fn starting_afresh(place: &Path) {
    aside(format_args!("{}: nothing to continue; starting from the beginning", place.display()));
}

/// Whether printing failed because the reader closed the pipe (`offshoot check … | head`), which is not an error of the
/// user.
pub fn reader_has_gone(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path.as_os_str() == STANDARD_OUTPUT && source.kind() == ErrorKind::BrokenPipe)
}
