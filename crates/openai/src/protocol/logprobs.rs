//! Log-probabilities in OpenAI's format for completions and for chats, and in vLLM's for prompts. Nothing is copied:
//! they are written straight from the engine's results.

use std::borrow::Cow;

use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};

use super::endpoint::Endpoint;
use super::request::{EncodedPrompt, ProtocolRequest};
use super::shown::TokenPlacer;
use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, LogprobsMode, TokenRecord};
use offshoot_text::Tokenizer;

/// A token of a returned text.
#[derive(Clone, Copy)]
pub struct ShownToken<'a> {
    pub token: TokenId,
    /// `None`: nothing is before it, or it is not recorded.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, likeliest first.
    pub top: &'a [(TokenId, f32)],
    /// Number of characters before it.
    pub offset: usize,
}

impl<'a> ShownToken<'a> {
    /// A sampled token with so many characters before it; `mode`: whose log-probability is shown.
    pub fn sampled(record: TokenRecord<'a>, offset: usize, mode: LogprobsMode) -> Self {
        ShownToken { token: record.token, logprob: record.logprob_by(mode), top: record.top, offset }
    }
}

/// The prompt's own tokens, of which `scored` has all but the first; each with at most `most` of the likeliest in its
/// place. Their offsets are those of their texts; special tokens have none.
fn echoed_tokens<'a>(
    prompt: &EncodedPrompt,
    scored: &'a Finish,
    most: usize,
    tokenizer: &Tokenizer,
) -> Vec<ShownToken<'a>> {
    let all = prompt.text.chars().count();
    let mut placer = TokenPlacer::new(&[], true, 0, tokenizer);
    let logprobs = [None].into_iter().chain(scored.logprobs().iter().copied().map(Some));
    let tops = [&[][..]].into_iter().chain((0..).map(|at| scored.records.top(at)));
    let mut shown = Vec::with_capacity(prompt.tokens.len());
    for ((&token, logprob), top) in prompt.tokens.iter().zip(logprobs).zip(tops) {
        let offset = all.min(placer.place(token));
        shown.push(ShownToken { token, logprob, top: &top[..top.len().min(most)], offset });
    }
    shown
}

/// The log-probabilities of a choice.
pub struct ChoiceLogprobs<'a> {
    pub shown: Vec<ShownToken<'a>>,
    pub endpoint: Endpoint,
    pub names: TokenNames<'a>,
}

/// How log-probabilities name a token.
#[derive(Clone, Copy)]
pub struct TokenNames<'a> {
    tokenizer: &'a Tokenizer,
    /// By its id, not by its text.
    by_id: bool,
}

impl<'a> TokenNames<'a> {
    /// A token of a completion.
    fn of(self, token: TokenId) -> Cow<'a, str> {
        if self.by_id { id_text(token) } else { token_text(self.tokenizer, token) }
    }

    /// A token of a chat, which has its bytes beside it.
    fn in_chat(self, token: TokenId) -> Cow<'a, str> {
        if self.by_id { id_text(token) } else { String::from_utf8_lossy(self.tokenizer.token_bytes(token)) }
    }
}

/// A token by its id, as vLLM writes it.
fn id_text(token: TokenId) -> Cow<'static, str> {
    format!("token_id:{token}").into()
}

impl<'a> ChoiceLogprobs<'a> {
    /// Those of `tokens`, behind the prompt's own if the request has it echoed; `scored`: the prompt's.
    pub fn new(
        request: &ProtocolRequest,
        prompt: &EncodedPrompt,
        scored: Option<&'a Finish>,
        tokens: impl Iterator<Item = ShownToken<'a>>,
        tokenizer: &'a Tokenizer,
    ) -> Self {
        let most = request.params.top_logprobs.unwrap_or(0);
        let echoed = scored.filter(|_| request.echo);
        let mut shown = echoed.map_or_else(Vec::new, |scored| echoed_tokens(prompt, scored, most, tokenizer));
        shown.extend(tokens);
        let names = TokenNames { tokenizer, by_id: request.ids_as_tokens };
        ChoiceLogprobs { shown, endpoint: request.endpoint, names }
    }
}

impl Serialize for ChoiceLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (shown, names) = (&*self.shown, self.names);
        let mut fields = serializer.serialize_struct("logprobs", 4)?;
        match self.endpoint {
            Endpoint::Completions => {
                let texts = || shown.iter().map(|shown| names.of(shown.token));
                fields.serialize_field("tokens", &Sequence(texts))?;
                let logprobs = || shown.iter().map(|shown| shown.logprob.map(f64::from));
                fields.serialize_field("token_logprobs", &Sequence(logprobs))?;
                fields
                    .serialize_field("top_logprobs", &Sequence(|| shown.iter().map(|&shown| rivals(shown, names))))?;
                fields.serialize_field("text_offset", &Sequence(|| shown.iter().map(|shown| shown.offset)))?;
            }
            Endpoint::Chat => {
                fields.serialize_field("content", &Sequence(|| shown.iter().map(|&shown| chat_token(shown, names))))?;
                fields.serialize_field("refusal", &None::<()>)?;
            }
        }
        fields.end()
    }
}

/// The likeliest tokens in place of a token, and itself, by text, likeliest first; of several with the same text the
/// first counts. `None`: nothing is before the token.
fn rivals<'a>(shown: ShownToken<'a>, names: TokenNames<'a>) -> Option<impl Serialize + use<'a>> {
    let (own, top) = ((shown.token, shown.logprob?), shown.top);
    Some(Map(move || {
        let mut rivals: Vec<(Cow<str>, f64)> = Vec::with_capacity(top.len() + 1);
        for &(token, logprob) in top.iter().chain([&own]) {
            let text = names.of(token);
            if rivals.iter().all(|(other, _)| *other != text) {
                rivals.push((text, f64::from(logprob)));
            }
        }
        rivals
    }))
}

/// A token of a chat; without the likeliest tokens in its place if it is itself one of those.
#[derive(Serialize)]
struct ChatToken<'a, R> {
    token: Cow<'a, str>,
    logprob: Option<f64>,
    bytes: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<R>,
}

impl<'a, R> ChatToken<'a, R> {
    fn new(token: TokenId, logprob: Option<f32>, top_logprobs: Option<R>, names: TokenNames<'a>) -> Self {
        let bytes = names.tokenizer.token_bytes(token);
        ChatToken { token: names.in_chat(token), logprob: logprob.map(f64::from), bytes, top_logprobs }
    }
}

fn chat_token<'a>(shown: ShownToken<'a>, names: TokenNames<'a>) -> impl Serialize + use<'a> {
    let rival = move |&(token, logprob)| ChatToken::<()>::new(token, Some(logprob), None, names);
    let rivals = Sequence(move || shown.top.iter().map(rival));
    ChatToken::new(shown.token, shown.logprob, Some(rivals), names)
}

/// `prompt_logprobs`, as vLLM writes them: for each token of the prompt but the first, an object of token ids, its own
/// first.
#[derive(Clone, Copy)]
pub struct PromptLogprobs<'a> {
    pub prompt: &'a EncodedPrompt,
    pub scored: &'a Finish,
    /// How many of the likeliest tokens are shown.
    pub top: usize,
    pub tokenizer: &'a Tokenizer,
}

#[derive(Serialize)]
struct RankedToken<'a> {
    logprob: f64,
    /// From 1.
    rank: Option<usize>,
    decoded_token: Cow<'a, str>,
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ranked = |token: TokenId, logprob: f32, rank: Option<usize>| RankedToken {
            logprob: f64::from(logprob),
            rank,
            decoded_token: String::from_utf8_lossy(self.tokenizer.token_bytes(token)),
        };
        let entry = |at: usize| {
            let own = self.prompt.tokens[at + 1];
            let record = self.scored.records.get(at, own).expect("every token of the prompt but the first is scored");
            let TokenRecord { logprob, top, .. } = record;
            Map(move || {
                let rank = record.rank.map(|rank| rank.get() as usize);
                let rivals = top.iter().take(self.top).enumerate().filter(move |(_, (token, _))| *token != own);
                let rivals =
                    rivals.map(move |(rank, &(token, logprob))| (token.0, ranked(token, logprob, Some(rank + 1))));
                [(own.0, ranked(own, logprob, rank))].into_iter().chain(rivals)
            })
        };
        let entries = || [None].into_iter().chain((0..self.scored.records.len()).map(|at| Some(entry(at))));
        Sequence(entries).serialize(serializer)
    }
}

/// A JSON list of what an iterator gives.
struct Sequence<F>(F);

impl<F: Fn() -> I, I: IntoIterator<Item: Serialize>> Serialize for Sequence<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A JSON object of what an iterator gives.
struct Map<F>(F);

impl<F: Fn() -> I, I: IntoIterator<Item = (K, V)>, K: Serialize, V: Serialize> Serialize for Map<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in (self.0)() {
            map.serialize_entry(&key, &value)?;
        }
        map.end()
    }
}

/// A token as text; if it is only part of a character, its bytes in OpenAI's notation.
pub fn token_text(tokenizer: &Tokenizer, token: TokenId) -> Cow<'_, str> {
    let bytes = tokenizer.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => bytes.iter().fold("bytes:".to_string(), |text, byte| format!("{text}\\x{byte:02x}")).into(),
    }
}
