//! Requests and responses of the OpenAI protocol: a body becomes prompts and sampling parameters, candidates become a
//! response. JSON in, JSON out; files, sockets and the engine are left to the callers.

mod answer;
mod answer_form;
mod chat;
mod choice;
mod chunks;
mod confidence;
mod encode;
mod endpoint;
mod fields;
pub mod files;
mod form;
mod kept;
mod limits;
mod logprobs;
mod messages;
mod models;
mod official;
mod pooling;
mod reader;
mod refusal;
mod request;
mod responses;
mod scores;
mod shown;
pub mod sse;
#[cfg(test)]
mod tests;
mod token_answer;
mod tokens;
mod tools;
mod user_texts;
mod weight_labels;

pub use answer::{AnswerHead, PromptCandidates, PromptResults, PromptTokensDetails, Response, Usage, response};
pub use answer_form::{AnswerForm, CallGrammars};
pub use chat::{beginning as chat_beginning, chat_prompt, chat_tokens};
pub use chunks::ChunkWriter;
pub use endpoint::{BatchEndpoint, Endpoint};
pub use fields::{BodyFields, parse_body};
pub use limits::ProtocolLimits;
pub use models::{AnyName, ModelNames, ServedAdapter, ServedModel};
pub use pooling::{
    EmbedderValues, PoolingEndpoint, PoolingHead, PoolingModel, PoolingRequest, ScorerValues, TextToRead, TextValues,
};
pub use reader::RequestReader;
pub use refusal::{Refusal, RefusalKind};
pub use request::{
    EncodedChoice, EncodedPrompt, Keep, ProtocolRequest, Reasoning, RequestSeed, StreamOptions, TextPrompt,
};
pub use responses::{ChatNames, RESPONSE_ID_PREFIX, RESPONSES_PATH, ResponseCall, ResponseChat, ResponseWriter, Turn};
pub use token_answer::{ExpertIds, SKYRL_PATH, TOKENS_PATH, TokenAnswer};
pub use tokens::tokenizer_info;
