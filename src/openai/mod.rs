//! The OpenAI protocol. `protocol` reads requests and writes answers in its words, `batch` answers a file of requests.

pub mod batch;
pub mod protocol;
