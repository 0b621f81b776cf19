//! Standard output and standard error. What a command prints can fail (a full disk, a pipe that was closed): that is an error
//! like any other here, never a panic. What is said on the side, on standard error, never fails. And what a command writes to
//! files: no two processes write to the same. Drawings are written by `svg`.

mod progress;
pub mod svg;

pub use progress::Progress;

use std::fmt::Display;
use std::fs::{File, TryLockError};
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

/// A line on standard error; lost where nobody can hear it.
pub fn aside(text: impl Display) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// What `--resume` says where there is nothing to go on with.
pub fn starting_afresh(place: &Path) {
    aside(format_args!("{}: nothing to go on with yet: starting afresh", place.display()));
}

/// Has `file`, which is at `path`, for this process alone as long as it is open.
///
/// # Errors
/// Another process has it. Not every file system can lock; then nobody is kept out.
pub fn lock(path: &Path, file: &File) -> Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::format(path, "another process is writing to it")),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Whether printing failed because the reader has gone (`offshoot check … | head`), which is nobody's mistake.
pub fn reader_has_gone(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path.as_os_str() == STANDARD_OUTPUT && source.kind() == ErrorKind::BrokenPipe)
}
