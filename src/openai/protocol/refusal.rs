//! Reasons to refuse a request: the code and message of an `error` object.

use crate::error::Error;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    /// One sentence that names the field.
    pub message: String,
}

impl Refusal {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Refusal { code, message: message.into() }
    }

    /// For a field with an invalid value.
    pub fn value(field: &str, expected: &str, found: &str) -> Self {
        Refusal::new("invalid_value", format!("`{field}`: expected {expected}, found {found}"))
    }

    /// An engine's error about one request.
    pub fn of(error: &Error) -> Self {
        let code = match error {
            Error::ContextTooLong { .. } => "context_length_exceeded",
            Error::OutOfPages { .. } | Error::DeviceMemory { .. } | Error::LockedMemory { .. } => "out_of_memory",
            Error::Internal(_) => "internal_error",
            _ => "invalid_value",
        };
        Refusal::new(code, error.to_string())
    }
}
