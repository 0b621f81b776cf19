//! Requests and answers in the words of the OpenAI protocol. `batch` answers a file of them.

pub mod batch;
