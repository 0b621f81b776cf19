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
    for (prompt, candidates) in request.prompts.iter().zip(candidates) {
        for drawn in best(&candidates.drawn, request.n) {
            choices.push(choice(request, prompt, drawn, choices.len(), tokenizer));
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

fn choice(
    request: &ProtocolRequest,
    prompt: &EncodedPrompt,
    drawn: &Finish,
    index: usize,
    tokenizer: &Tokenizer,
) -> Value {
    let finish = match drawn.reason {
        FinishReason::Length | FinishReason::ContextFull => "length",
        _ => "stop",
    };
    let shown = request.logprobs.then(|| shown_tokens(prompt, drawn, tokenizer));
    match request.endpoint {
        Endpoint::Completions => {
            let text = if request.echo { format!("{}{}", prompt.text, drawn.text) } else { drawn.text.clone() };
            let logprobs = shown.map(|shown| completion_logprobs(&shown, tokenizer));
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
struct ShownToken<'a> {
    token: TokenId,
    logprob: f32,
    top: &'a [(TokenId, f32)],
    /// Number of characters before it.
    offset: usize,
}

/// The tokens of the text, without those that belong only to the stop string that was cut off.
fn shown_tokens<'a>(prompt: &EncodedPrompt, drawn: &'a Finish, tokenizer: &Tokenizer) -> Vec<ShownToken<'a>> {
    let mut stream = tokenizer.stream(&prompt.tokens);
    let (mut bytes, mut chars) = (0, 0);
    let cut = matches!(drawn.reason, FinishReason::StopString(_));
    let mut shown = Vec::with_capacity(drawn.tokens.len());
    for ((&token, &logprob), top) in drawn.tokens.iter().zip(&drawn.logprobs).zip(&drawn.top) {
        if cut && bytes >= drawn.text.len() {
            break;
        }
        shown.push(ShownToken { token, logprob, top, offset: chars });
        let piece = stream.push(token);
        (bytes, chars) = (bytes + piece.len(), chars + piece.chars().count());
    }
    shown
}

fn completion_logprobs(shown: &[ShownToken<'_>], tokenizer: &Tokenizer) -> Value {
    let rivals = |shown: &ShownToken<'_>| -> Map<String, Value> {
        let mut rivals: Map<String, Value> = Map::new();
        // Most likely first; if several tokens have the same text, the first counts.
        for &(token, logprob) in shown.top.iter().chain([&(shown.token, shown.logprob)]) {
            rivals.entry(token_text(tokenizer, token)).or_insert_with(|| json!(logprob));
        }
        rivals
    };
    json!({
        "tokens": shown.iter().map(|shown| token_text(tokenizer, shown.token)).collect::<Vec<_>>(),
        "token_logprobs": shown.iter().map(|shown| shown.logprob).collect::<Vec<_>>(),
        "top_logprobs": shown.iter().map(rivals).collect::<Vec<_>>(),
        "text_offset": shown.iter().map(|shown| shown.offset).collect::<Vec<_>>(),
    })
}

fn chat_logprobs(shown: &[ShownToken<'_>], tokenizer: &Tokenizer) -> Value {
    let entry = |token: TokenId, logprob: f32| {
        let bytes = tokenizer.token_bytes(token);
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
    };
    let content = shown.iter().map(|shown| {
        let mut entry_of = entry(shown.token, shown.logprob);
        entry_of["top_logprobs"] = shown.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
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
