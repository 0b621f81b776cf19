//! One request to a server, and what can become of it. Whether it is sent again is left to the judge.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use ureq::http::{Response, header};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, Proxy};

use super::options::ServerOptions;
use super::retry_after;
use super::roots::{VARIABLE, roots};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;

/// The most bytes of an answer.
const MOST_BYTES: u64 = 4 << 20;

/// The most characters of a server's own words in an error.
const MOST_SAID: usize = 300;

/// A server.
pub(super) struct Client {
    agent: Agent,
    options: ServerOptions,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server was not reached, or was silent for too long.
    Unreached(String),
    /// It has answered with something else.
    Answered {
        /// What it says.
        why: String,
        /// Whether the same request may succeed later.
        may_pass: bool,
        /// Its status; `None`: its answer is none of HTTP's errors.
        status: Option<u16>,
        /// Whether it is a gateway that answers, as the server behind it does not.
        is_gateway: bool,
        /// When the server asks to be asked again.
        after: Option<Duration>,
    },
}

impl Failure {
    fn refused(why: impl Into<String>) -> Failure {
        Failure::Answered { why: why.into(), may_pass: false, status: None, is_gateway: false, after: None }
    }

    /// `Some`: the same request may succeed later; then, if the server says it, after how long.
    pub fn may_pass(&self) -> Option<Option<Duration>> {
        match self {
            Failure::Unreached(_) => Some(None),
            Failure::Answered { may_pass, after, .. } => may_pass.then_some(*after),
        }
    }
}

impl Client {
    /// # Errors
    ///
    /// The certificates by which the server is to be trusted cannot be read.
    pub fn new(options: ServerOptions) -> Result<Client> {
        let is_safe = options.url.starts_with("https://");
        let roots = roots(if is_safe { std::env::var_os(VARIABLE) } else { None })?;
        let config = Agent::config_builder()
            // A key must not leave for another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(options.timeout))
            .max_idle_connections(options.requests)
            .max_idle_connections_per_host(options.requests)
            .proxy(if is_local(&options.url) { None } else { Proxy::try_from_env() })
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent("offshoot");
        Ok(Client { agent: config.build().new_agent(), options })
    }

    /// What errors call the server.
    pub fn name(&self) -> String {
        format!("the judge's server {}", self.options.url)
    }

    /// Fields of each request's body.
    pub fn request(&self) -> &Map<String, Value> {
        &self.options.request
    }

    /// Asks for a part of the server.
    pub fn get(&self, part: &str) -> Result<Value, Failure> {
        let request = self.agent.get(self.options.address(part));
        let request = match &self.options.key {
            Some(key) => request.header(header::AUTHORIZATION, key.header()),
            None => request,
        };
        self.read(request.call())
    }

    /// Sends fields to a part of the server.
    pub fn post(&self, part: &str, fields: &Value) -> Result<Value, Failure> {
        let request = self.agent.post(self.options.address(part)).content_type("application/json");
        let request = match &self.options.key {
            Some(key) => request.header(header::AUTHORIZATION, key.header()),
            None => request,
        };
        self.read(request.send(fields.to_string()))
    }

    /// The JSON of an answer.
    fn read(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Value, Failure> {
        let mut response = response.map_err(|error| self.unanswered(error))?;
        let status = response.status();
        let after = response.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
        let after = after.and_then(|after| retry_after::wait(after, SystemTime::now()));
        let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
        let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec();
        let body = body.map_err(|error| self.unanswered(error))?;
        let said = |text: &str| shortened(self.hidden(text), MOST_SAID);
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|_| {
                let text = said(&String::from_utf8_lossy(&body));
                Failure::refused(format!("it answers with something else than JSON: {text:?}"))
            });
        }
        if status.is_redirection() {
            let to = said(&location.unwrap_or_else(|| "another address".to_owned()));
            let why = format!("it sends its clients to {to}, which is not followed: name that address if it is right");
            return Err(Failure::refused(why));
        }
        let may_pass = matches!(status.as_u16(), 408 | 409 | 425 | 429) || status.is_server_error();
        let why = format!("it answers with status {}: {}", status.as_u16(), said(&words_of(&body)));
        let status = status.as_u16();
        let is_gateway = matches!(status, 502..=504);
        Err(Failure::Answered { why, may_pass, status: Some(status), is_gateway, after })
    }

    /// The failure of a request without a whole answer.
    fn unanswered(&self, error: ureq::Error) -> Failure {
        match error {
            ureq::Error::BodyExceedsLimit(_) => {
                Failure::refused(format!("its answer has more than {} MiB", MOST_BYTES >> 20))
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::refused(self.hidden(&error.to_string())),
            // What TLS refuses, such as a certificate, it refuses again.
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => self.untrusted(&error),
            ureq::Error::Io(ref inner) if inner.kind() == ErrorKind::InvalidData => self.untrusted(&error),
            ureq::Error::Timeout(_) => {
                Failure::Unreached(format!("it has not answered within {} s", self.options.timeout.as_secs_f64()))
            }
            other => Failure::Unreached(shortened(self.hidden(&other.to_string()), MOST_SAID)),
        }
    }

    fn untrusted(&self, error: &ureq::Error) -> Failure {
        Failure::refused(shortened(self.hidden(&format!("no safe connection: {error}")), MOST_SAID))
    }

    /// An error without the key, should the server have repeated it.
    pub fn hiding(&self, error: Error) -> Error {
        match error {
            Error::Value { what, expected, found } => Error::value(what, expected, self.hidden(&found)),
            other => other,
        }
    }

    fn hidden(&self, text: &str) -> String {
        self.options.key.as_ref().map_or_else(|| text.to_owned(), |key| key.hidden_in(text))
    }
}

/// Whether an address is one of this machine, which no proxy stands before.
pub(super) fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    ["localhost", "127.", "[::1]"].iter().any(|local| host.starts_with(local))
}

/// What a server says in an answer that is an error: its message, or all of it.
fn words_of(body: &[u8]) -> String {
    let message = |value: &Value| {
        let places = ["/error/message", "/message", "/detail", "/error"];
        places.iter().find_map(|place| value.pointer(place)?.as_str().map(str::to_owned))
    };
    let parsed = serde_json::from_slice(body).ok().as_ref().and_then(message);
    let text = parsed.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    match text.trim() {
        "" => "(it says nothing)".to_owned(),
        text => text.to_owned(),
    }
}
