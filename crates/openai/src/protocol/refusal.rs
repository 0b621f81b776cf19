//! Reasons to refuse a request, in the form of OpenAI's `error` object, and the HTTP status that belongs to each.

use serde_json::{Value, json};

use offshoot_core::error::Error;

/// What kind of refusal it is; its number is the HTTP status, and it decides OpenAI's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RefusalKind {
    /// A field, or the request as a whole, is wrong.
    InvalidRequest = 400,
    /// The key is missing or unknown.
    Unauthorized = 401,
    /// The key does not allow this.
    Forbidden = 403,
    /// There is no such model, path, file, batch or branch.
    NotFound = 404,
    /// The path does not take this method.
    Method = 405,
    /// The request did not arrive, or was not answered, in time.
    Timeout = 408,
    /// The state of the thing that is asked for does not allow this.
    Conflict = 409,
    /// The body is longer than the server takes.
    TooLarge = 413,
    /// The path, with its query, is longer than the server takes.
    PathTooLong = 414,
    /// The body's `Content-Type` is not one that the path takes.
    MediaType = 415,
    /// The body is of the right form, but cannot be processed.
    Unprocessable = 422,
    /// There are too many requests; a later one may be answered.
    TooMany = 429,
    /// The head of the request is longer than the server takes.
    HeadTooLarge = 431,
    /// A bug, or a failing device.
    Internal = 500,
    /// Nothing is answered now: the engine has stopped or the server is shutting down.
    Unavailable = 503,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub code: &'static str,
    /// One sentence that names the field.
    pub message: String,
    /// The field of the request; `None`: the reason is no single field.
    pub param: Option<String>,
    /// After how many seconds the request may be sent again; `None`: not known.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// A refusal of a request that is wrong.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Refusal::of_kind(RefusalKind::InvalidRequest, code, message)
    }

    pub fn of_kind(kind: RefusalKind, code: &'static str, message: impl Into<String>) -> Self {
        Refusal { kind, code, message: message.into(), param: None, retry_after: None }
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
        let message =
            format!("`{field}` is an official field that Offshoot does not support (found {found}); leave it out");
        Refusal::new("unsupported_parameter", message).about(field)
    }

    /// For a field that no request has.
    pub fn unknown(field: &str) -> Self {
        Refusal::new("unknown_parameter", format!("`{field}` is not a field of this request")).about(field)
    }

    /// For a field that is supported, but not `place` ("in a batch", "beside `stream`").
    pub fn out_of_place(field: &str, place: &str) -> Self {
        Refusal::new("unsupported_parameter", format!("`{field}` is not supported {place}")).about(field)
    }

    /// For a body that is not JSON, or no object.
    pub fn not_json(why: &str) -> Self {
        Refusal::new("invalid_json", format!("expected a JSON object as the body, found {why}"))
    }

    /// For a missing or unknown key.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Refusal::of_kind(RefusalKind::Unauthorized, "invalid_api_key", message)
    }

    /// For a model that is not served.
    pub fn model_not_found(model: &str, served: &[String]) -> Self {
        let message = format!("`model`: expected {}, found {model:?}", served.join(" or "));
        Refusal::of_kind(RefusalKind::NotFound, "model_not_found", message).about("model")
    }

    /// For a path, file, batch or branch that does not exist.
    pub fn not_found(what: impl Into<String>) -> Self {
        Refusal::of_kind(RefusalKind::NotFound, "not_found", what)
    }

    /// For a body of more than `most` bytes.
    pub fn too_large(most: usize) -> Self {
        let message = format!("expected a body of at most {most} bytes, found a longer one");
        Refusal::of_kind(RefusalKind::TooLarge, "request_too_large", message)
    }

    /// For a request that finds the queue full.
    pub fn queue_full(waiting: usize, retry_after: u64) -> Self {
        let message = format!("{waiting} requests wait already; try again in {retry_after} s");
        Refusal { code: "queue_full", ..Refusal::rate_limit(message, retry_after) }
    }

    /// For a key that has used up what it may use.
    pub fn rate_limit(message: impl Into<String>, retry_after: u64) -> Self {
        let refusal = Refusal::of_kind(RefusalKind::TooMany, "rate_limit_exceeded", message);
        Refusal { retry_after: Some(retry_after), ..refusal }
    }

    /// For a request whose `timeout` passed before it had an answer; `seconds`: since it arrived.
    pub fn timeout(seconds: f64) -> Self {
        let message = format!("the request was not answered within its `timeout`, {seconds} s after it came");
        Refusal::of_kind(RefusalKind::Timeout, "timeout", message).about("timeout")
    }

    /// For any request while the server shuts down.
    pub fn shutting_down() -> Self {
        Refusal::of_kind(RefusalKind::Unavailable, "shutting_down", "the server is shutting down")
    }

    /// For any request while no weights are loaded.
    pub fn no_weights() -> Self {
        let what = "there are no weights to sample with: they were dropped, or lost in an update that failed; the \
                    request may be sent again after an update of all weights";
        Refusal::of_kind(RefusalKind::Unavailable, "no_weights", what)
    }

    /// An engine's error about one request.
    pub fn of(error: &Error) -> Self {
        if let Error::NoWeights { .. } = error {
            return Refusal::no_weights();
        }
        if let Error::Busy { .. } = error {
            let refusal = Refusal::of_kind(RefusalKind::Unavailable, "busy", error.to_string());
            return Refusal { retry_after: Some(1), ..refusal };
        }
        let (kind, code) = match error {
            Error::ContextTooLong { .. } => (RefusalKind::InvalidRequest, "context_length_exceeded"),
            Error::OutOfPages { .. } | Error::DeviceMemory { .. } | Error::LockedMemory { .. } => {
                (RefusalKind::InvalidRequest, "out_of_memory")
            }
            Error::Internal(_) => (RefusalKind::Internal, "internal_error"),
            Error::EngineStopped { .. } => (RefusalKind::Unavailable, "engine_stopped"),
            _ => (RefusalKind::InvalidRequest, "invalid_value"),
        };
        let refusal = Refusal::of_kind(kind, code, for_clients(error));
        match error {
            Error::Value { what, .. } if is_field(what) => refusal.about(what),
            _ => refusal,
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind as u16
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let kind = match self.kind {
            RefusalKind::TooMany => "rate_limit_error",
            RefusalKind::Internal | RefusalKind::Unavailable => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

/// Whether an error is about what a request calls so.
fn is_field(what: &str) -> bool {
    what.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// The error's sentence for clients: without the paths of files, which are not their concern, and with OpenAI's words
/// where clients look for them.
fn for_clients(error: &Error) -> String {
    match error {
        // By these words litellm, and so NeMo-Skills, knows that a shorter prompt may be answered.
        Error::ContextTooLong { what, tokens, context } => {
            format!("This model's maximum context length is {context} tokens; {what} has {tokens}")
        }
        Error::Format { what, .. } => what.clone(),
        Error::Field { field, expected, found, .. } => format!("`{field}`: expected {expected}, found {found}"),
        Error::Io { doing, source, .. } => format!("cannot {doing} a file: {source}"),
        Error::Value { what, expected, found } if is_field(what) => {
            format!("`{what}`: expected {expected}, found {found}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_now_may_be_sent_again() {
        let refusal = Refusal::of(&Error::busy("JSON schema", "4 other forms are being compiled; try again"));
        assert_eq!((refusal.status(), refusal.code, refusal.retry_after), (503, "busy", Some(1)));
        assert_eq!(refusal.message, "JSON schema: 4 other forms are being compiled; try again");
        assert_eq!(refusal.body()["error"]["type"], "server_error");
    }
}
