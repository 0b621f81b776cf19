//! The answer to a request that scores continuations of its prompts (`choices`): for each continuation its
//! log-probability, by token and as a whole, and whether the model would write it greedily.

use std::borrow::Cow;

use super::choice::{ChatMessage, Choice, ChoiceText, EchoedText, PromptFields, Score, VersionFields};
use super::endpoint::Endpoint;
use super::kept::RecordFields;
use super::logprobs::{ChoiceLogprobs, ShownToken};
use super::request::{EncodedChoice, EncodedPrompt, ProtocolRequest};
use super::shown::TokenPlacer;
use offshoot_engine::{Finish, TokenRecord};
use offshoot_text::Tokenizer;

/// A scored continuation: a choice with `score`, whose text or message is the continuation. `scored`: its last tokens
/// are the continuation's.
pub fn scored_choice<'a>(
    request: &ProtocolRequest,
    prompt: &'a EncodedPrompt,
    choice: &'a EncodedChoice,
    scored: &'a Finish,
    index: usize,
    tokenizer: &'a Tokenizer,
) -> Choice<'a> {
    let count = choice.tokens.len();
    let own = || scored.records.of_tokens(scored.records.len() - count, choice.tokens.iter().copied());
    let is_greedy = own().all(|record| record.top.first().is_some_and(|top| top.0 == record.token));
    let logprob: f64 = own().map(|record| f64::from(record.logprob)).sum();
    let score = Score {
        logprob,
        logprob_per_token: logprob / count as f64,
        // A continuation of special tokens alone has no text.
        logprob_per_byte: logprob / choice.text.len().max(1) as f64,
        tokens: count,
        bytes: choice.text.len(),
        is_greedy,
    };
    let most = request.params.top_logprobs.unwrap_or(0);
    let mut placer = TokenPlacer::new(&prompt.tokens, true, 0, tokenizer);
    let shown = |TokenRecord { token, logprob, top, .. }: TokenRecord<'a>| {
        let (top, offset) = (&top[..top.len().min(most)], placer.place(token));
        ShownToken { token, logprob: Some(logprob), top, offset }
    };
    let shown = own().map(shown);
    let own: Cow<str> = choice.text.as_str().into();
    let (text, prompt_fields) = match request.endpoint {
        Endpoint::Completions => {
            let fields = PromptFields::new(request, prompt, None, tokenizer);
            (ChoiceText::Completion { text: EchoedText { echoed: "", own } }, fields)
        }
        Endpoint::Chat => {
            let (role, content, refusal) = (Some("assistant"), Some(Some(own)), Some(None));
            let message = ChatMessage { role, content, refusal, reasoning_content: None, tool_calls: Vec::new() };
            (ChoiceText::Chat { message }, PromptFields::default())
        }
    };
    Choice {
        index,
        text,
        logprobs: Some(ChoiceLogprobs::new(request, prompt, None, shown, tokenizer)),
        finish_reason: Some("stop"),
        stop_reason: None,
        score: Some(score),
        prompt: prompt_fields,
        token_ids: request.return_token_ids.then_some((&*choice.tokens).into()),
        versions: VersionFields::default(),
        records: RecordFields::default(),
        routed_experts: None,
        branch: None,
    }
}
