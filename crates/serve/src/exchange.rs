//! What every HTTP exchange has, whatever its path: an `x-request-id`, and the headers by which browsers let the pages
//! of other origins read an answer (CORS).

use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;

use offshoot_core::error::Error;

use super::random::random_hex;

/// Names a request in its response and in the logs of clients.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Most bytes of a client's own id.
const MOST_OF_ID: usize = 128;

/// Pages of other origins that may read the server's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// `*`: pages of every origin.
    Any,
    /// Pages of this origin, as browsers write it: `https://example.org:8443`.
    One(HeaderValue),
}

impl FromStr for AllowedOrigin {
    type Err = Error;

    fn from_str(text: &str) -> Result<AllowedOrigin, Error> {
        if text == "*" {
            return Ok(AllowedOrigin::Any);
        }
        let wrong = || {
            let expected = "* or an origin as browsers write it, such as https://example.org or http://localhost:3000";
            Error::value("origin", expected, format!("{text:?}"))
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let (scheme, place) = uri.scheme_str().zip(uri.authority()).ok_or_else(wrong)?;
        let as_written = format!("{scheme}://{place}");
        let usual_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        // Browsers write small letters, no user, no usual port, and nothing behind the host; hosts have no patterns.
        let is_plain = as_written == text
            && *text == text.to_ascii_lowercase()
            && !place.as_str().contains(['@', '*'])
            && (place.port().is_none() || place.port_u16().is_some_and(|port| Some(port) != usual_port));
        match is_plain {
            true => HeaderValue::from_str(text).map(AllowedOrigin::One).map_err(|_| wrong()),
            false => Err(wrong()),
        }
    }
}

/// All origins whose pages may read answers; usually none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<AllowedOrigin>);

impl AllowedOrigins {
    pub fn new(origins: Vec<AllowedOrigin>) -> AllowedOrigins {
        AllowedOrigins(origins)
    }

    /// The value of `Access-Control-Allow-Origin` for a page of `origin`; `None`: it may read nothing.
    fn allow(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        self.0.iter().find_map(|allowed| match allowed {
            AllowedOrigin::Any => Some(HeaderValue::from_static("*")),
            AllowedOrigin::One(one) => (one == origin).then(|| origin.clone()),
        })
    }
}

/// Answers preflights, and gives each response its id and what its reader's origin needs.
pub async fn exchange(State(origins): State<Arc<AllowedOrigins>>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let allowed = request.headers().get(ORIGIN).and_then(|origin| origins.allow(origin));
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match is_preflight && allowed.is_some() {
        true => preflight(request.headers()),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    if !origins.0.is_empty() {
        // An answer that was kept for one origin is none for another.
        headers.append(VARY, HeaderValue::from_name(ORIGIN));
    }
    if let Some(allowed) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
    }
    response
}

/// What a browser asks before a request that a page could not make without its leave. It has no key.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// The client's own id, if it is short and visible, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_fit =
        |id: &&HeaderValue| (1..=MOST_OF_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    headers.get(REQUEST_ID).filter(is_fit).cloned().unwrap_or_else(new_request_id)
}

pub fn new_request_id() -> HeaderValue {
    HeaderValue::from_str(&format!("req_{}", random_hex::<16>())).expect("hex digits are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_write_them() {
        for right in ["https://example.org", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abcdef"]
        {
            let one = right.parse::<AllowedOrigin>().unwrap_or_else(|error| panic!("{right}: {error}"));
            assert_eq!(one, AllowedOrigin::One(HeaderValue::from_static(right)));
        }
        assert_eq!("*".parse::<AllowedOrigin>().ok(), Some(AllowedOrigin::Any));
        for wrong in [
            "",
            "example.org",
            "https://example.org/",
            "https://example.org/a",
            "https://Example.org",
            "https://me@example.org",
            "https://example.org:443",
            "http://example.org:80",
            "https://*.example.org",
            "https://exa mple.org",
            "null",
        ] {
            assert!(wrong.parse::<AllowedOrigin>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_id_is_repeated_if_it_can_be() {
        let id = |own: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(own).expect("a header"));
            request_id(&headers)
        };
        for fit in ["a", "7f9c-1", &"x".repeat(128)] {
            assert_eq!(id(fit.as_bytes()), fit);
        }
        for unfit in ["", "a b", "\u{e9}", &"x".repeat(129)] {
            assert!(id(unfit.as_bytes()).to_str().is_ok_and(|made| made.starts_with("req_") && made.len() == 36));
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
