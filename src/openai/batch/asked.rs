//! What the requests of a file ask for, for whoever plans a job without running it.

use std::path::Path;

use super::input::{self, Call};
use super::request::LineRequest;
use crate::error::Result;
use crate::ids::TokenId;
use crate::model::ModelConfig;
use crate::openai::protocol::{Reader, Refusal};
use crate::tokenizer::Tokenizer;

/// A prompt of a request.
pub struct Asked {
    pub tokens: Vec<TokenId>,
    /// Candidates drawn from it.
    pub samples: usize,
    /// Tokens that each may have.
    pub most_tokens: usize,
}

/// The prompts of all requests in `path`, in their order, and why others cannot be answered.
pub fn asked(path: &Path, tokenizer: &Tokenizer, config: &ModelConfig) -> Result<(Vec<Asked>, Vec<Refusal>)> {
    let reader = Reader { tokenizer, config, seed: 0 };
    let (mut asked, mut refused) = (Vec::new(), Vec::new());
    for line in input::read(path)? {
        let read = |call: Call| {
            LineRequest::read(&reader, line.index, &call).map_err(|refusal| of_request(refusal, &call.custom_id))
        };
        match line.call.and_then(read) {
            Ok(request) => asked.extend(request.prompts.iter().map(|prompt| Asked {
                tokens: prompt.tokens.clone(),
                samples: request.best_of,
                most_tokens: prompt.stop.max_tokens,
            })),
            Err(refusal) => refused.push(refusal),
        }
    }
    Ok((asked, refused))
}

fn of_request(refusal: Refusal, custom_id: &str) -> Refusal {
    Refusal { message: format!("request {custom_id:?}: {}", refusal.message), ..refusal }
}
