//! What the requests of a file ask for, for whoever plans a job without running it.

use std::path::Path;

use super::request::{Reader, Request};
use super::{Refusal, input};
use crate::error::Result;
use crate::ids::TokenId;
use crate::model::ModelConfig;
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
        match line.call.and_then(|call| reader.read(line.index, &call)) {
            Ok(Request { prompts, best_of, .. }) => asked.extend(prompts.into_iter().map(|prompt| Asked {
                tokens: prompt.tokens,
                samples: best_of,
                most_tokens: prompt.stop.max_tokens,
            })),
            Err(refusal) => refused.push(refusal),
        }
    }
    Ok((asked, refused))
}
