//! Why a request is not answered, as the code and message of an `error`.

use crate::error::Error;

/// Why one request is not answered.
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

    /// For a field that holds something else than it must.
    pub fn value(field: &str, expected: &str, found: &str) -> Self {
        Refusal::new("invalid_value", format!("`{field}`: expected {expected}, found {found}"))
    }

    /// What the engine says of one request.
    pub fn of(error: &Error) -> Self {
        let code = match error {
            Error::ContextTooLong { .. } => "context_length_exceeded",
            Error::OutOfPages { .. } => "out_of_memory",
            _ => "invalid_value",
        };
        Refusal::new(code, error.to_string())
    }
}
