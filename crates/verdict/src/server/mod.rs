//! A judge that is a model behind a server of the OpenAI protocol.

mod options;

pub use options::{JudgeKey, ServerOptions};
