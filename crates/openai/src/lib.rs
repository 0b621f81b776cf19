//! The OpenAI protocol: `protocol` reads requests and writes responses, `batch` answers a file of requests.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod batch;
pub mod protocol;
