//! Requests and responses of the OpenAI protocol: a body becomes prompts and sampling parameters, candidates become a
//! response. JSON in, JSON out; files, sockets and the engine are left to the callers.

mod answer;
mod endpoint;
mod fields;
mod messages;
mod official;
mod refusal;
mod request;

pub use answer::{AnswerHead, PromptCandidates, response};
pub use endpoint::Endpoint;
pub use refusal::Refusal;
pub use request::{EncodedPrompt, ProtocolRequest, RequestReader, TextPrompt};
