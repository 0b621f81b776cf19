//! Offshoot's errors as Python's exceptions: the sentence stays, the type is the one that a script would catch.

use std::io::ErrorKind;

use offshoot::Error;
use pyo3::PyErr;
use pyo3::exceptions::{
    PyFileExistsError, PyFileNotFoundError, PyKeyboardInterrupt, PyMemoryError, PyOSError, PyPermissionError,
    PyRuntimeError, PyValueError,
};

/// The exception for an error.
pub fn exception(error: Error) -> PyErr {
    let said = error.to_string();
    match &error {
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(said),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(said),
            ErrorKind::AlreadyExists => PyFileExistsError::new_err(said),
            _ => PyOSError::new_err(said),
        },
        Error::Format { path, .. } if !path.exists() => PyFileNotFoundError::new_err(said),
        Error::OutOfPages { .. } | Error::DeviceMemory { .. } | Error::LockedMemory { .. } => {
            PyMemoryError::new_err(said)
        }
        Error::Interrupted => PyKeyboardInterrupt::new_err(said),
        Error::NoDevice { .. }
        | Error::Cuda { .. }
        | Error::Kernel { .. }
        | Error::EngineStopped { .. }
        | Error::Internal(_) => PyRuntimeError::new_err(said),
        Error::Value { what, .. } if what.contains("memory") => PyMemoryError::new_err(said),
        _ => PyValueError::new_err(said),
    }
}

/// `?` on Offshoot's results in functions that Python calls.
pub trait OrRaise<T> {
    fn or_raise(self) -> Result<T, PyErr>;
}

impl<T> OrRaise<T> for offshoot::Result<T> {
    fn or_raise(self) -> Result<T, PyErr> {
        self.map_err(exception)
    }
}
