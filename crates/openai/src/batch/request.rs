//! The request of one input line: the call in the engine's terms. Until its prompts are encoded, only an outline of the
//! request is kept; then its call is read again.

use super::input::Call;
use crate::protocol::{AnyName, ProtocolLimits, ProtocolRequest, Reasoning, Refusal, RequestReader, TextPrompt};
use offshoot_engine::{LogprobsMode, Priority};
use offshoot_launch::{OutputTokens, TextKey};
use offshoot_model::ModelConfig;
use offshoot_text::Tokenizer;

/// Reads the requests of a file; `seed`: that of requests without one.
pub fn reader<'a>(tokenizer: &'a Tokenizer, config: &'a ModelConfig, model: &'a str, seed: u64) -> RequestReader<'a> {
    RequestReader {
        tokenizer,
        config,
        model,
        names: &AnyName,
        seed,
        limits: &ProtocolLimits::BATCH,
        reasoning: Reasoning::Keep,
        logprobs_mode: LogprobsMode::default(),
        priority: Priority::default(),
        keeps_routes: false,
    }
}

/// What is known of a request before its prompts are encoded.
pub struct RequestOutline {
    /// Index of its line.
    pub line: usize,
    pub branches: usize,
    /// Most tokens that its branches hold.
    pub most_tokens: usize,
    /// One for each of its prompts.
    pub prompts: Vec<PromptOutline>,
}

/// What decides when a prompt starts.
pub struct PromptOutline {
    pub key: TextKey,
    pub draws: OutputTokens,
}

impl RequestOutline {
    /// # Errors
    ///
    /// Every error of a request except those found when its prompts are encoded.
    pub fn read(reader: &RequestReader, line: usize, call: &Call) -> Result<RequestOutline, Refusal> {
        let request = reader.read(call.endpoint, &call.body)?;
        let context = reader.config.context;
        let outline = |prompt: &TextPrompt| {
            let draws = prompt.draws(request.best_of, context);
            PromptOutline { key: TextKey::of(&prompt.text), draws }
        };
        Ok(RequestOutline {
            line,
            branches: request.branches(),
            most_tokens: request.most_tokens(context),
            prompts: request.prompts.iter().map(outline).collect(),
        })
    }
}

impl Call {
    /// The request with its prompts in tokens.
    pub fn encoded(&self, reader: &RequestReader) -> Result<ProtocolRequest, Refusal> {
        reader.encode(reader.read(self.endpoint, &self.body)?)
    }
}
