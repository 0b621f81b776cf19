//! Writes responses in OpenAI's format for completions and chats. Pure data: candidates in, JSON out.

use serde_json::{Map, Value, json};

use super::endpoint::Endpoint;
use super::request::{EncodedPrompt, ProtocolRequest};
use crate::engine::{Finish, FinishReason};
use crate::ids::TokenId;
use crate::tokenizer::Tokenizer;

/// The candidates of one prompt.
pub struct PromptCandidates {
    /// By index.
    pub drawn: Vec<Finish>,
    /// The log-probabilities of its own tokens, without the first, if the request wants them.
    pub scored: Option<Finish>,
    /// Length in tokens of the prefix shared with an earlier prompt of the job.
    pub shared: usize,
}

/// The header fields of a response.
pub struct AnswerHead<'a> {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub system_fingerprint: &'a str,
}

/// The response to a request; `candidates`: one element per prompt.
pub fn response(
    request: &ProtocolRequest,
    candidates: &[PromptCandidates],
    head: AnswerHead<'_>,
    tokenizer: &Tokenizer,
) -> Value {
    let mut choices = Vec::new();
    let nothing = Finish::empty(FinishReason::Length);
    for (prompt, candidates) in request.prompts.iter().zip(candidates) {
        let texts = match request.best_of {
            0 => vec![&nothing; request.n],
            _ => best(&candidates.drawn, request.n),
        };
        for drawn in texts {
            let scored = candidates.scored.as_ref();
            choices.push(choice(request, EchoedPrompt { prompt, scored }, drawn, choices.len(), tokenizer));
        }
    }
    let sum = |of: &dyn Fn((&EncodedPrompt, &PromptCandidates)) -> usize| -> usize {
        request.prompts.iter().zip(candidates).map(of).sum()
    };
    let given = sum(&|(prompt, _)| prompt.tokens.len());
    let drawn = sum(&|(_, candidates)| candidates.drawn.iter().map(|drawn| drawn.tokens.len()).sum());
    let object = match request.endpoint {
        Endpoint::Completions => "text_completion",
        Endpoint::Chat => "chat.completion",
    };
    json!({
        "id": head.id,
        "object": object,
        "created": head.created,
        "model": request.model,
        "system_fingerprint": head.system_fingerprint,
        "choices": choices,
        "usage": {
            "prompt_tokens": given,
            "completion_tokens": drawn,
            "total_tokens": given + drawn,
            "prompt_tokens_details": { "cached_tokens": sum(&|(_, candidates)| candidates.shared) },
        },
    })
}

/// The `n` candidates with the largest mean log-probability per token, best first, of equal ones the first; all in
/// order if there are at most `n`.
fn best(drawn: &[Finish], n: usize) -> Vec<&Finish> {
    let mut best: Vec<&Finish> = drawn.iter().collect();
    if best.len() > n {
        let mean = |drawn: &Finish| drawn.logprob / drawn.tokens.len().max(1) as f64;
        best.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        best.truncate(n);
    }
    best
}

/// A prompt, and its log-probabilities if they are shown.
#[derive(Clone, Copy)]
struct EchoedPrompt<'a> {
    prompt: &'a EncodedPrompt,
    scored: Option<&'a Finish>,
}

fn choice(
    request: &ProtocolRequest,
    EchoedPrompt { prompt, scored }: EchoedPrompt<'_>,
    drawn: &Finish,
    index: usize,
    tokenizer: &Tokenizer,
) -> Value {
    let finish = match drawn.reason {
        FinishReason::Length | FinishReason::ContextFull => "length",
        _ => "stop",
    };
    let begin = if request.echo { prompt.text.chars().count() } else { 0 };
    let shown = request.logprobs.then(|| shown_tokens(prompt, drawn, begin, tokenizer));
    match request.endpoint {
        Endpoint::Completions => {
            let text = if request.echo { format!("{}{}", prompt.text, drawn.text) } else { drawn.text.clone() };
            let echoed = scored.map_or_else(Vec::new, |scored| echoed_tokens(prompt, scored, tokenizer));
            let logprobs = shown.map(|shown| completion_logprobs(&[echoed, shown].concat(), tokenizer));
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
        }
        Endpoint::Chat => {
            let logprobs = shown.map(|shown| chat_logprobs(&shown, tokenizer));
            let message = json!({ "role": "assistant", "content": drawn.text, "refusal": null });
            json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
        }
    }
}

/// A token of a returned text.
#[derive(Clone, Copy)]
struct ShownToken<'a> {
    token: TokenId,
    /// `None`: nothing is before it.
    logprob: Option<f32>,
    top: &'a [(TokenId, f32)],
    /// Number of characters before it.
    offset: usize,
}

/// The prompt's own tokens. Their offsets are those of their texts; special tokens have none.
fn echoed_tokens<'a>(prompt: &EncodedPrompt, scored: &'a Finish, tokenizer: &Tokenizer) -> Vec<ShownToken<'a>> {
    let (mut stream, mut chars, all) = (tokenizer.stream(&[]), 0, prompt.text.chars().count());
    let logprobs = [None].into_iter().chain(scored.logprobs.iter().copied().map(Some));
    let tops = [&[][..]].into_iter().chain(scored.top.iter().map(Vec::as_slice)).chain(std::iter::repeat(&[][..]));
    let shown = |((&token, logprob), top)| {
        let shown = ShownToken { token, logprob, top, offset: all.min(chars) };
        chars += stream.push(token).chars().count();
        shown
    };
    prompt.tokens.iter().zip(logprobs).zip(tops).map(shown).collect()
}

/// The tokens of the sampled text, without those that belong only to the stop string that was cut off; `begin`: the
/// characters before it.
fn shown_tokens<'a>(
    prompt: &EncodedPrompt,
    drawn: &'a Finish,
    begin: usize,
    tokenizer: &Tokenizer,
) -> Vec<ShownToken<'a>> {
    let mut stream = tokenizer.stream(&prompt.tokens);
    let (mut bytes, mut chars) = (0, begin);
    let cut = matches!(drawn.reason, FinishReason::StopString(_));
    let mut shown = Vec::with_capacity(drawn.tokens.len());
    for ((&token, &logprob), top) in drawn.tokens.iter().zip(&drawn.logprobs).zip(&drawn.top) {
        if cut && bytes >= drawn.text.len() {
            break;
        }
        shown.push(ShownToken { token, logprob: Some(logprob), top, offset: chars });
        let piece = stream.push(token);
        (bytes, chars) = (bytes + piece.len(), chars + piece.chars().count());
    }
    shown
}

fn completion_logprobs(shown: &[ShownToken<'_>], tokenizer: &Tokenizer) -> Value {
    let rivals = |shown: &ShownToken<'_>| -> Option<Map<String, Value>> {
        let own = (shown.token, shown.logprob?);
        let mut rivals: Map<String, Value> = Map::new();
        // Most likely first; if several tokens have the same text, the first counts.
        for &(token, logprob) in shown.top.iter().chain([&own]) {
            rivals.entry(token_text(tokenizer, token)).or_insert_with(|| json!(logprob));
        }
        Some(rivals)
    };
    json!({
        "tokens": shown.iter().map(|shown| token_text(tokenizer, shown.token)).collect::<Vec<_>>(),
        "token_logprobs": shown.iter().map(|shown| shown.logprob).collect::<Vec<_>>(),
        "top_logprobs": shown.iter().map(rivals).collect::<Vec<_>>(),
        "text_offset": shown.iter().map(|shown| shown.offset).collect::<Vec<_>>(),
    })
}

fn chat_logprobs(shown: &[ShownToken<'_>], tokenizer: &Tokenizer) -> Value {
    let entry = |token: TokenId, logprob: Option<f32>| {
        let bytes = tokenizer.token_bytes(token);
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
    };
    let content = shown.iter().map(|shown| {
        let mut entry_of = entry(shown.token, shown.logprob);
        entry_of["top_logprobs"] = shown.top.iter().map(|&(token, logprob)| entry(token, Some(logprob))).collect();
        entry_of
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// A token as text; if it is only part of a character, its bytes in OpenAI's notation.
fn token_text(tokenizer: &Tokenizer, token: TokenId) -> String {
    let bytes = tokenizer.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes.iter().fold("bytes:".to_string(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}
