//! Reasons to refuse a request, in the form of OpenAI's `error` object.

use serde_json::{Value, json};

use crate::error::Error;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    /// One sentence that names the field.
    pub message: String,
    /// The field of the request; `None`: the reason is no single field.
    pub param: Option<String>,
}

const INTERNAL: &str = "internal_error";

impl Refusal {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Refusal { code, message: message.into(), param: None }
    }

    /// The same refusal, because of this field.
    pub fn about(self, param: impl Into<String>) -> Self {
        Refusal { param: Some(param.into()), ..self }
    }

    /// For a field with an invalid value.
    pub fn value(field: &str, expected: &str, found: &str) -> Self {
        Refusal::new("invalid_value", format!("`{field}`: expected {expected}, found {found}")).about(field)
    }

    /// For a field of OpenAI's that is not supported.
    pub fn unsupported(field: &str, found: &str) -> Self {
        let message = format!("`{field}` is an official field that Offshoot does not support (found {found})");
        Refusal::new("unsupported_parameter", message).about(field)
    }

    /// An engine's error about one request.
    pub fn of(error: &Error) -> Self {
        let code = match error {
            Error::ContextTooLong { .. } => "context_length_exceeded",
            Error::OutOfPages { .. } | Error::DeviceMemory { .. } | Error::LockedMemory { .. } => "out_of_memory",
            Error::Internal(_) => INTERNAL,
            _ => "invalid_value",
        };
        let refusal = Refusal::new(code, error.to_string());
        let is_field = |what: &str| what.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        match error {
            Error::Value { what, .. } if is_field(what) => refusal.about(what),
            _ => refusal,
        }
    }

    /// The status with which a server would answer.
    pub fn status(&self) -> u16 {
        if self.code == INTERNAL { 500 } else { 400 }
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let kind = if self.code == INTERNAL { "server_error" } else { "invalid_request_error" };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}
