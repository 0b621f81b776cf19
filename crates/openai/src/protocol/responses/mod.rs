//! OpenAI's Responses protocol, as a translation: a request becomes the chat that asks the same, and the chat's sample
//! becomes the items of a response, whole or as events. What a chat means is left to the rest of `protocol`; which
//! responses are kept is left to the server.

mod along;
mod fields;
mod items;
mod messages;
mod output;
mod parts;
mod request;
mod writer;

pub use fields::ChatNames;
pub use messages::Turn;
pub use request::{ResponseCall, ResponseChat};
pub use writer::ResponseWriter;

/// Where responses are asked for.
pub const RESPONSES_PATH: &str = "/v1/responses";
/// The prefix of response ids.
pub const RESPONSE_ID_PREFIX: &str = "resp_";
