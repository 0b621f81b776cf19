//! Reads the prompts of a batch file, for commands that plan a job without running it.

use std::path::Path;

use super::input::{self, Call, DEFAULT_MOST_OF_LINE};
use super::request::{self, CallRequest};
use crate::protocol::Refusal;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_model::ModelConfig;
use offshoot_text::Tokenizer;

/// A prompt of a request.
pub struct BatchPrompt {
    pub tokens: Vec<TokenId>,
    /// Candidates sampled from it.
    pub samples: usize,
    /// Most tokens per candidate.
    pub most_tokens: usize,
}

/// The prompts of all requests in `path`, in order, and the refusals of requests that cannot be answered.
pub fn read_prompts(
    path: &Path,
    tokenizer: &Tokenizer,
    config: &ModelConfig,
) -> Result<(Vec<BatchPrompt>, Vec<Refusal>)> {
    let reader = request::reader(tokenizer, config, "", 0);
    let (mut asked, mut refused) = (Vec::new(), Vec::new());
    for line in input::read(path, DEFAULT_MOST_OF_LINE)? {
        let read = |call: Call| {
            call.encoded(&reader).map_err(|refusal| {
                let message = format!("{} (request {:?})", refusal.message, call.custom_id);
                Refusal { message, ..refusal }
            })
        };
        match line.call.and_then(read) {
            Ok(CallRequest { request, .. }) => asked.extend(request.prompts.iter().map(|prompt| BatchPrompt {
                tokens: prompt.tokens.clone(),
                samples: request.best_of.max(1),
                most_tokens: prompt.stop.max_tokens,
            })),
            Err(refusal) => refused.push(refusal),
        }
    }
    Ok((asked, refused))
}
