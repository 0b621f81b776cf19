//! Tokenizers and chat templates.

#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod growing;
mod jinja;
mod tiktoken;
mod tokenizers;
