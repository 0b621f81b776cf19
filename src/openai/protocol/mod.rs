//! Requests and answers in the words of the OpenAI protocol: a body becomes prompts and sampling parameters, candidates become a
//! response. JSON comes in and goes out; files, sockets and the engine are left to whoever serves the requests.

mod answer;
mod endpoint;
mod fields;
mod refusal;
mod request;

pub use answer::{AnswerHead, Candidates, response};
pub use endpoint::Endpoint;
pub use refusal::Refusal;
pub use request::{Prompt, Reader, Request};
