//! The supported endpoints.

use super::responses::RESPONSES_PATH;

/// The kind of a request: to continue a text, or to write the next message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Completions,
    Chat,
}

impl Endpoint {
    pub const ALL: [Endpoint; 2] = [Endpoint::Completions, Endpoint::Chat];

    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
        }
    }

    /// The prefix of response ids.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Endpoint::Completions => "cmpl-",
            Endpoint::Chat => "chatcmpl-",
        }
    }
}

/// What a line of a batch may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEndpoint {
    Samples(Endpoint),
    Responses,
}

impl BatchEndpoint {
    pub const ALL: [BatchEndpoint; 3] = [
        BatchEndpoint::Samples(Endpoint::Completions),
        BatchEndpoint::Samples(Endpoint::Chat),
        BatchEndpoint::Responses,
    ];

    pub fn path(self) -> &'static str {
        match self {
            BatchEndpoint::Samples(endpoint) => endpoint.path(),
            BatchEndpoint::Responses => RESPONSES_PATH,
        }
    }

    /// The endpoint at `path`; `None`: no such endpoint.
    pub fn at(path: &str) -> Option<BatchEndpoint> {
        BatchEndpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}
