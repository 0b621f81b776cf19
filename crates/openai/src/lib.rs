//! The OpenAI protocol: `protocol` reads requests and writes responses, `batch` answers a file of requests.

pub mod batch;
pub mod protocol;
