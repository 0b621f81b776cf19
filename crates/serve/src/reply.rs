//! HTTP responses: JSON bodies, and refusals in OpenAI's form.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use offshoot_openai::protocol::Refusal;

/// What a handler returns.
pub type Answer = Result<Response, Refused>;

/// A body of JSON.
pub fn json(body: Vec<u8>) -> Response {
    with_type("application/json", Body::from(body))
}

pub fn value(value: &impl Serialize) -> Response {
    json(serde_json::to_vec(value).expect("keys are strings"))
}

/// A text for people.
pub fn text(text: String) -> Response {
    with_type("text/plain; charset=utf-8", Body::from(text))
}

pub fn with_type(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A refusal as a handler returns it: its status, its body and, if the client shall come again, the seconds until then.
pub struct Refused(pub Refusal);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(refusal) = self;
        let mut response = value(&refusal.body());
        *response.status_mut() = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = refusal.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
