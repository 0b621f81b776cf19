//! The supported endpoints.

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

    /// The endpoint at `path`; `None`: no such endpoint.
    pub fn at(path: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    /// The prefix of response ids.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Endpoint::Completions => "cmpl-",
            Endpoint::Chat => "chatcmpl-",
        }
    }
}
