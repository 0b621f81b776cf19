//! Reads a request into the engine's terms: prompts as tokens, sampling parameters, and what to report. All errors of a
//! request are found here: those of its fields when it is read, those of its prompts' tokens when it is encoded.

use serde_json::{Map, Value};

use super::endpoint::Endpoint;
use super::fields::{BodyFields, brief};
use super::refusal::Refusal;
use super::{messages, official};
use crate::engine::{EngineFacts, SamplingParams, Stop};
use crate::error::Error;
use crate::ids::TokenId;
use crate::launch::{OutputTokens, check_path};
use crate::model::ModelConfig;
use crate::tokenizer::{AddSpecial, ChatOptions, LongBeginning, Tokenizer};

/// OpenAI's default for completions; a chat without a limit uses all of the context and memory.
const COMPLETION_TOKENS: usize = 16;
/// Most choices per prompt.
const MOST_CHOICES: u64 = 100_000;
/// Most alternatives reported per token, as in OpenAI's chat.
const MOST_LOGPROBS: u64 = 20;

/// A request; `P`: its prompts, in tokens or, before they are encoded, as text.
pub struct ProtocolRequest<P = EncodedPrompt> {
    pub endpoint: Endpoint,
    /// The model's name in the request, else its own.
    pub model: String,
    pub prompts: Vec<P>,
    /// Choices of each prompt.
    pub n: usize,
    /// Candidates sampled per prompt; the best `n` are returned. 0 if only the prompt is wanted, which `echo` allows.
    pub best_of: usize,
    pub seed: u64,
    /// Whether each choice's text (and its log-probabilities) starts with the prompt.
    pub echo: bool,
    pub logprobs: bool,
    pub params: SamplingParams,
}

pub struct EncodedPrompt {
    pub tokens: Vec<TokenId>,
    pub text: String,
    pub stop: Stop,
    /// Whether the request sets no token limit, so that only the context and the memory limit it.
    pub is_unlimited: bool,
}

/// A prompt that is not encoded yet.
pub struct TextPrompt {
    pub text: String,
    content: PromptContent,
    /// Its token limit is the request's, if there is one.
    stop: Stop,
    /// Whether the request sets no token limit.
    is_unlimited: bool,
}

/// What a prompt's tokens are computed from.
enum PromptContent {
    /// The text, with these special tokens around it.
    Text(AddSpecial),
    Tokens(Vec<TokenId>),
}

/// Most special tokens around a text.
const SPECIAL_TOKENS: usize = 8;

impl<P> ProtocolRequest<P> {
    /// With log-probabilities, each prompt that is echoed takes a branch of its own.
    pub fn branches(&self) -> usize {
        self.prompts.len() * (self.best_of + usize::from(self.prompt_logprobs().is_some()))
    }

    /// Whether the prompts are scored, with so many of the likeliest tokens in each one's place.
    pub fn prompt_logprobs(&self) -> Option<usize> {
        self.params.top_logprobs.filter(|_| self.echo)
    }
}

impl TextPrompt {
    /// Upper bound on the prompt's tokens. Only a tokenizer that replaces characters by longer ones exceeds it.
    pub fn most_tokens(&self) -> usize {
        match &self.content {
            PromptContent::Text(_) => self.text.len() + SPECIAL_TOKENS,
            PromptContent::Tokens(tokens) => tokens.len(),
        }
    }

    /// Output tokens of `samples` samples, for a model with `context` positions. The prompt's tokens are not subtracted
    /// from the context, because they are not known before it is encoded.
    pub fn draws(&self, samples: usize, context: usize) -> OutputTokens {
        let most = self.stop.max_tokens.min(context);
        OutputTokens { most: samples as u64 * most as u64, is_exact: self.stop.is_exact() }
    }
}

impl ProtocolRequest<TextPrompt> {
    /// Most tokens that its branches hold, for a model with `context` positions.
    pub fn most_tokens(&self, context: usize) -> usize {
        let of = |prompt: &TextPrompt| {
            let drawn = prompt.stop.max_tokens.min(context);
            let given = prompt.most_tokens().min(context) * (1 + usize::from(self.prompt_logprobs().is_some()));
            given + self.best_of.saturating_mul(drawn)
        };
        self.prompts.iter().map(of).fold(0, usize::saturating_add)
    }
}

impl ProtocolRequest {
    /// Limits the samples of prompts without a token limit to the memory for keys and values.
    ///
    /// # Errors
    ///
    /// A choice does not fit into the memory even when it runs alone.
    pub fn fit_paths(&mut self, facts: &EngineFacts) -> Result<(), Refusal> {
        for EncodedPrompt { tokens, stop, is_unlimited, .. } in &mut self.prompts {
            if *is_unlimited {
                let most = facts.most_sampled(tokens.len()).max(stop.min_tokens);
                stop.max_tokens = stop.max_tokens.min(most);
            }
            check_path(facts, || "a prompt".to_owned(), tokens.len(), stop.max_tokens)
                .map_err(|error| Refusal::new("out_of_memory", error.to_string()))?;
        }
        Ok(())
    }
}

/// Reads requests to one model.
pub struct RequestReader<'a> {
    pub tokenizer: &'a Tokenizer,
    pub config: &'a ModelConfig,
    /// What the model is called in answers to requests that do not name it.
    pub model: &'a str,
    /// Seed of requests without one.
    pub seed: u64,
}

impl RequestReader<'_> {
    /// Reads a request without encoding its prompts.
    pub fn read(&self, endpoint: Endpoint, body: &Map<String, Value>) -> Result<ProtocolRequest<TextPrompt>, Refusal> {
        let mut fields = BodyFields::new(body);
        let model = fields.text("model")?.unwrap_or_else(|| self.model.to_owned());
        let prompts = match endpoint {
            Endpoint::Completions => self.prompts(&mut fields)?,
            Endpoint::Chat => vec![self.chat(&mut fields)?],
        };
        let n = fields.count("n", 1, MOST_CHOICES)?.unwrap_or(1);
        let best_of = fields.count("best_of", n as u64, MOST_CHOICES)?.unwrap_or(n);
        let seed = fields.seed("seed")?.unwrap_or(self.seed);
        let echo = endpoint == Endpoint::Completions && fields.flag("echo")?;
        let top_logprobs = self.logprobs(endpoint, &mut fields)?;
        let params = SamplingParams { top_logprobs, ..params(&mut fields)? };
        let (most_tokens, stop) = stop(&mut fields, if echo { 0 } else { 1 })?;
        official::take(&mut fields)?;
        fields.finish()?;
        let best_of = if most_tokens == Some(0) { 0 } else { best_of };
        params.check(self.config.vocab).map_err(|error| Refusal::of(&error))?;
        let default = match endpoint {
            Endpoint::Completions => COMPLETION_TOKENS,
            Endpoint::Chat => usize::MAX,
        };
        let stop = Stop { max_tokens: most_tokens.unwrap_or(default).max(1), ..stop };
        let is_unlimited = most_tokens.is_none() && endpoint == Endpoint::Chat;
        let prompt = |(text, content)| TextPrompt { text, content, stop: stop.clone(), is_unlimited };
        let prompts = prompts.into_iter().map(prompt).collect();
        let logprobs = top_logprobs.is_some();
        Ok(ProtocolRequest { endpoint, model, prompts, n, best_of, seed, echo, logprobs, params })
    }

    /// The request with its prompts in tokens.
    pub fn encode(&self, request: ProtocolRequest<TextPrompt>) -> Result<ProtocolRequest, Refusal> {
        let ProtocolRequest { endpoint, model, prompts, n, best_of, seed, echo, logprobs, params } = request;
        let encode = |prompt| self.encode_prompt(endpoint, prompt);
        let prompts = prompts.into_iter().map(encode).collect::<Result<_, _>>()?;
        Ok(ProtocolRequest { endpoint, model, prompts, n, best_of, seed, echo, logprobs, params })
    }

    /// `prompt`: a text, texts, a list of tokens or lists of tokens.
    fn prompts(&self, fields: &mut BodyFields) -> Result<Vec<(String, PromptContent)>, Refusal> {
        let special = match fields.take("add_special_tokens") {
            None | Some(Value::Bool(true)) => AddSpecial::Yes,
            Some(Value::Bool(false)) => AddSpecial::No,
            Some(other) => return Err(Refusal::value("add_special_tokens", "true or false", &brief(&other))),
        };
        let expected = "a string, a list of strings, a list of token ids or a list of such lists";
        let Some(prompt) = fields.take("prompt") else {
            return Err(Refusal::value("prompt", expected, "nothing"));
        };
        let wrong = || Refusal::value("prompt", expected, &brief(&prompt));
        let text = |value: &Value| -> Result<(String, PromptContent), Refusal> {
            let text = value.as_str().ok_or_else(wrong)?;
            Ok((text.to_string(), PromptContent::Text(special)))
        };
        let ids = |value: &Value| -> Result<(String, PromptContent), Refusal> {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
            let list = value.as_array().ok_or_else(wrong)?;
            let tokens: Vec<TokenId> =
                list.iter().map(|value| id(value).ok_or_else(wrong)).collect::<Result<_, _>>()?;
            Ok((self.tokenizer.decode(&tokens), PromptContent::Tokens(tokens)))
        };
        match &prompt {
            Value::String(_) => Ok(vec![text(&prompt)?]),
            Value::Array(list) => match list.first() {
                Some(Value::String(_)) => list.iter().map(text).collect(),
                Some(Value::Array(_)) => list.iter().map(ids).collect(),
                Some(_) => Ok(vec![ids(&prompt)?]),
                None => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    fn chat(&self, fields: &mut BodyFields) -> Result<(String, PromptContent), Refusal> {
        let messages = messages::read(fields.take("messages"))?;
        let options = ChatOptions { variables: fields.object("chat_template_kwargs")?, ..ChatOptions::default() };
        let text = self.tokenizer.chat_with(&messages, &options).map_err(|error| Refusal::of(&error))?;
        Ok((text, PromptContent::Text(AddSpecial::No)))
    }

    /// Number of alternatives reported per token; `None`: no log-probabilities are reported.
    fn logprobs(&self, endpoint: Endpoint, fields: &mut BodyFields) -> Result<Option<usize>, Refusal> {
        match endpoint {
            Endpoint::Completions => fields.count("logprobs", 0, MOST_LOGPROBS),
            Endpoint::Chat => {
                let (asked, top) = (fields.flag("logprobs")?, fields.count("top_logprobs", 0, MOST_LOGPROBS)?);
                match (asked, top) {
                    (false, Some(top)) if top > 0 => {
                        Err(Refusal::value("top_logprobs", "`logprobs`: true beside it", "none"))
                    }
                    (asked, top) => Ok(asked.then(|| top.unwrap_or(0))),
                }
            }
        }
    }

    fn encode_prompt(&self, endpoint: Endpoint, prompt: TextPrompt) -> Result<EncodedPrompt, Refusal> {
        let TextPrompt { text, content, stop, is_unlimited } = prompt;
        let field = if endpoint == Endpoint::Chat { "messages" } else { "prompt" };
        let tokens = match content {
            PromptContent::Text(special) => {
                let beyond = self.tokenizer.beginning_beyond(&text, self.config.context);
                if let Some(LongBeginning { bytes, tokens }) = beyond.map_err(|error| Refusal::of(&error))? {
                    let (what, context) = (format!("the beginning ({bytes} bytes) of the prompt"), self.config.context);
                    return Err(Refusal::of(&Error::ContextTooLong { what, tokens, context }).about(field));
                }
                self.tokenizer.encode(&text, special).map_err(|error| Refusal::of(&error))?
            }
            PromptContent::Tokens(tokens) => tokens,
        };
        let context = self.config.context;
        if tokens.is_empty() {
            return Err(Refusal::value("prompt", "at least one token", "none"));
        }
        if let Some(token) = tokens.iter().find(|token| token.ix() >= self.config.vocab) {
            let expected = format!("tokens below {}", self.config.vocab);
            return Err(Refusal::value("prompt", &expected, &token.to_string()));
        }
        if tokens.len() >= context {
            let what = format!("the prompt has {} tokens; the model's context is {context}", tokens.len());
            return Err(Refusal::new("context_length_exceeded", what).about(field));
        }
        let stop = Stop { max_tokens: stop.max_tokens.min(context - tokens.len()), ..stop };
        stop.check(self.config.vocab).map_err(|error| Refusal::of(&error))?;
        Ok(EncodedPrompt { tokens, text, stop, is_unlimited })
    }
}

fn params(fields: &mut BodyFields) -> Result<SamplingParams, Refusal> {
    let default = SamplingParams::default();
    // vLLM's clients send -1 or 0 for "all".
    let top_k = match fields.whole("top_k")? {
        None | Some(-1 | 0) => None,
        Some(k) => Some(u32::try_from(k).map_err(|_| Refusal::value("top_k", "a number from -1 up", &k.to_string()))?),
    };
    Ok(SamplingParams {
        temperature: fields.real("temperature")?.unwrap_or(default.temperature),
        top_k,
        top_p: fields.real("top_p")?.unwrap_or(default.top_p),
        min_p: fields.real("min_p")?.unwrap_or(default.min_p),
        repetition_penalty: fields.real("repetition_penalty")?.unwrap_or(default.repetition_penalty),
        frequency_penalty: fields.real("frequency_penalty")?.unwrap_or(default.frequency_penalty),
        presence_penalty: fields.real("presence_penalty")?.unwrap_or(default.presence_penalty),
        logit_bias: fields.biases("logit_bias")?.into_iter().map(|(id, bias)| (TokenId(id), bias)).collect(),
        top_logprobs: None,
    })
}

/// The limit of tokens, if any, which is at least `least`, and the other stop conditions.
fn stop(fields: &mut BodyFields, least: u64) -> Result<(Option<usize>, Stop), Refusal> {
    let limit = u64::from(u32::MAX);
    let older = fields.count("max_tokens", least, limit)?;
    let most_tokens = fields.count("max_completion_tokens", least, limit)?.or(older);
    let stop = Stop {
        max_tokens: usize::MAX,
        min_tokens: fields.count("min_tokens", 0, limit)?.unwrap_or(0),
        strings: fields.texts("stop")?,
        tokens: fields.token_ids("stop_token_ids")?.into_iter().map(TokenId).collect(),
        ignore_eos: fields.flag("ignore_eos")?,
        include_stop: fields.flag("include_stop_str_in_output")?,
    };
    Ok((most_tokens, stop))
}
