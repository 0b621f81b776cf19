//! Reads a request's body into a [`ProtocolRequest`]. All errors of a request are found here: those of its fields when
//! it is read, those of its prompts' tokens when it is encoded (`encode`).

use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::answer_form::AnswerForm;
use super::chat::{ChatReader, ChatText};
use super::confidence::RequestedConfidence;
use super::endpoint::Endpoint;
use super::fields::{BodyFields, brief, token_id};
use super::form;
use super::limits::ProtocolLimits;
use super::messages::check_calls;
use super::models::ModelNames;
use super::official;
use super::refusal::Refusal;
use super::request::{
    ChoiceContent, Keep, MostKept, PromptContent, ProtocolRequest, Reasoning, RequestSeed, StreamOptions, TextPrompt,
};
use super::tools::RequestedTools;
use super::user_texts::{SPECIAL_TEXTS, UserTexts};
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_engine::{KeptForm, LogprobsMode, Priority, Records, SamplingParams, Stop};
use offshoot_form::FormBegin;
use offshoot_kv::CacheSalt;
use offshoot_model::ModelConfig;
use offshoot_text::reasoning::{ContentStart, TextStart};
use offshoot_text::{AddSpecial, SpecialText, Tokenizer};

/// OpenAI's default for completions; a chat without a limit uses all of the context and memory.
const COMPLETION_TOKENS: usize = 16;

/// Reads requests to one model.
#[derive(Clone, Copy)]
pub struct RequestReader<'a> {
    pub tokenizer: &'a Tokenizer,
    pub config: &'a ModelConfig,
    /// What the model is called in answers to requests that do not name it.
    pub model: &'a str,
    /// What requests may call it, or an adapter of it.
    pub names: &'a dyn ModelNames,
    /// Seed of requests without one.
    pub seed: u64,
    pub limits: &'a ProtocolLimits,
    /// What happens to the reasoning in chats that do not say.
    pub reasoning: Reasoning,
    /// Whose log-probabilities are returned to requests that do not say.
    pub logprobs_mode: LogprobsMode,
    /// Priority of requests that do not say.
    pub priority: Priority,
    /// Whether the experts of each token are kept; requests that do not say are then told them.
    pub keeps_routes: bool,
}

/// A prompt as the request writes it.
struct WrittenPrompt {
    text: String,
    content: PromptContent,
    start: TextStart,
    content_start: ContentStart,
    /// The assistant's message that a chat goes on with.
    continued: Option<String>,
    /// What becomes of calls in the answer.
    tools: RequestedTools,
}

impl RequestReader<'_> {
    /// In chats that do not say. Of answers in channels only the final one is content, and only what has the form is,
    /// of one that is asked for.
    fn usual_reasoning(&self, form: Option<&AnswerForm>) -> Reasoning {
        let is_behind = form.is_some_and(|form| *form.begin() != FormBegin::AtOnce);
        if self.tokenizer.has_channels() || is_behind { Reasoning::Split } else { self.reasoning }
    }

    /// Reads a request without encoding its prompts.
    pub fn read(&self, endpoint: Endpoint, body: &Map<String, Value>) -> Result<ProtocolRequest<TextPrompt>, Refusal> {
        let limits = self.limits;
        let mut fields = BodyFields::new(body);
        // openai-python's argument, which clients that write their own bodies send as it stands.
        fields.unpack("extra_body")?;
        // NVIDIA's extensions, among them vLLM's older fields.
        fields.unpack("nvext")?;
        let (model, adapter) = self.model(&mut fields)?;
        let (keep, parent) = self.branches(&mut fields)?;
        let texts = self.user_texts(&mut fields)?;
        let mut prompts = match endpoint {
            Endpoint::Completions => self.prompts(&mut fields, texts, parent.is_some())?,
            Endpoint::Chat => vec![self.chat(&mut fields, texts, parent.is_some())?],
        };
        ProtocolLimits::check("prompt", limits.prompts, prompts.len(), "prompts")?;
        let requested_form = form::take(&mut fields)?;
        // A chat has one prompt, and completions begin with their content and call nothing.
        let begin = prompts.first().map(|prompt| prompt.content_start).unwrap_or_default();
        let RequestedTools { calls, demand, may_call } =
            prompts.first_mut().map(|prompt| std::mem::take(&mut prompt.tools)).unwrap_or_default();
        let form = match (calls.clone().zip(demand), requested_form) {
            // An answer that must call has no content that another form could hold.
            (Some((calls, demand)), _) => Some(AnswerForm::of_calls(calls, demand, begin.into())),
            (None, Some(requested)) if may_call => Some(AnswerForm::of_either(calls.clone(), requested, begin.into())?),
            (None, Some(requested)) => Some(AnswerForm::of_field(requested, begin.into())),
            (None, None) => None,
        };
        // A form says where its text may end, and a cut one would lack it.
        let ends_itself = form.is_some();
        let n = fields.count("n", 1, limits.n as u64)?.unwrap_or(1);
        let best_of = fields.count("best_of", n as u64, limits.n as u64)?.unwrap_or(n);
        let min_finished = fields.count("min_finished", 1, n as u64)?.and_then(NonZeroUsize::new);
        let seed = fields.seed("seed")?.map_or(RequestSeed::Callers(self.seed), RequestSeed::Own);
        let echoes = fields.flag("echo")?;
        let echo = echoes && endpoint == Endpoint::Completions;
        let (top_logprobs, prompt_logprobs) = self.logprobs(endpoint, &mut fields)?;
        let bad_words = self.bad_words(&mut fields)?;
        let kept = fields.word("return_kept", &KeptForm::WORDS)?;
        let confidence = RequestedConfidence::take(&mut fields)?;
        let records = Records {
            entropy: fields.flag("return_entropy")?,
            confidence: confidence.top,
            ..kept.map_or_else(Records::default, KeptForm::records)
        };
        let logprobs_mode = fields.word("logprobs_mode", &LogprobsMode::WORDS)?.unwrap_or(self.logprobs_mode);
        let routes = self.routes(&mut fields)?;
        let asked = SamplingParams { routes: routes.is_some(), ..params(&mut fields)? };
        let params = SamplingParams { top_logprobs, bad_words, logprobs_mode, records, ..asked };
        ProtocolLimits::check("logit_bias", limits.logit_bias, params.logit_bias.len(), "tokens")?;
        let skips_special = fields.choice("skip_special_tokens")?.unwrap_or(true);
        let (most_tokens, stop) = self.stop(endpoint, ends_itself, &mut fields)?;
        let stop = Stop { show_special: !skips_special, confidence: confidence.stop, ..stop };
        let choices = self.choices(&mut fields, texts)?;
        let most_kept = self.most_kept(&mut fields, most_tokens.or(usual_tokens(endpoint)).unwrap_or(1))?;
        if most_kept.is_some() && (parent.is_some() || !choices.is_empty()) {
            let beside = if parent.is_some() { "beside `parent`" } else { "beside `choices`" };
            return Err(Refusal::out_of_place("truncate_prompt_tokens", beside));
        }
        let prompts = text_prompts(endpoint, prompts, most_tokens, stop, choices.clone().into()).into_iter();
        let prompts =
            prompts.map(|prompt| TextPrompt { repeated: prompt.repeated.filter(|_| echoes), most_kept, ..prompt });
        let samples_nothing = most_tokens == Some(0) || !choices.is_empty();
        let computes_prompts_alone = samples_nothing && choices.is_empty() && keep.is_none() && parent.is_none();
        let request = ProtocolRequest {
            endpoint,
            model,
            adapter,
            prompts: prompts.collect(),
            n,
            best_of: if samples_nothing { 0 } else { best_of },
            min_finished,
            computes_prompts_alone,
            seed,
            echo,
            logprobs: top_logprobs.is_some(),
            prompt_logprobs,
            reasoning: match endpoint {
                Endpoint::Chat => {
                    let usual = || self.usual_reasoning(form.as_ref());
                    fields.word("reasoning", &Reasoning::WORDS)?.unwrap_or_else(usual)
                }
                Endpoint::Completions => Reasoning::Keep,
            },
            params,
            calls,
            form,
            stream: self.stream(&mut fields)?,
            skips_special,
            return_token_ids: fields.flag("return_token_ids")?,
            kept,
            shows_confidence: confidence.is_shown,
            routes,
            ids_as_tokens: fields.flag("return_tokens_as_token_ids")?,
            priority: priority(&mut fields, limits.priority)?.unwrap_or(self.priority),
            timeout: fields.seconds("timeout", limits.seconds)?,
            keep,
            parent,
            salt: salt(&mut fields)?,
            request_id: fields.text("request_id")?,
            return_weight_versions: fields.flag("return_weight_versions")?,
        };
        official::take(&mut fields)?;
        fields.finish()?;
        self.check_sampling(&request).map_err(|error| Refusal::of(&error))?;
        self.check_together(&request)?;
        Ok(request)
    }

    /// `return_routed_experts` and `routed_experts_prompt_start`: the first token whose experts are told, if some are.
    fn routes(&self, fields: &mut BodyFields) -> Result<Option<usize>, Refusal> {
        let asks = fields.choice("return_routed_experts")?;
        let start = fields.count("routed_experts_prompt_start", 0, u64::from(u32::MAX))?.unwrap_or(0);
        let without = "this server was started without a record of experts";
        match (self.keeps_routes, asks, start) {
            (false, Some(true), _) => {
                Err(Refusal::value("return_routed_experts", &format!("false: {without}"), "true"))
            }
            (false, _, 1..) => {
                Err(Refusal::value("routed_experts_prompt_start", &format!("0: {without}"), &start.to_string()))
            }
            (keeps, asks, start) => Ok(asks.unwrap_or(keeps).then_some(start)),
        }
    }

    /// Checks how tokens are sampled, and when samples end.
    fn check_sampling(&self, request: &ProtocolRequest<TextPrompt>) -> offshoot_core::error::Result<()> {
        let ModelConfig { vocab, eos, .. } = self.config;
        request.params.check(*vocab)?;
        // All prompts of a request have the same.
        request.prompts.first().map_or(Ok(()), |prompt| prompt.stop.check_beside(&request.params, *vocab, eos))
    }

    /// Refuses fields that do not go together, and more branches than allowed.
    fn check_together(&self, request: &ProtocolRequest<TextPrompt>) -> Result<(), Refusal> {
        let scores = request.prompts.iter().any(|prompt| !prompt.choices.is_empty());
        let form = request.form.as_ref().map(AnswerForm::field);
        let refused = [
            (scores && form.is_some(), form.unwrap_or_default(), "beside `choices`, which are scored, not sampled"),
            (scores && request.n > 1, "n", "beside `choices`, which are scored, not sampled"),
            (scores && request.echo, "echo", "beside `choices`"),
            (scores && request.prompt_logprobs.is_some(), "prompt_logprobs", "beside `choices`"),
            (scores && request.stream.is_some(), "stream", "beside `choices`"),
            (scores && request.kept.is_some(), "return_kept", "beside `choices`, which are scored, not sampled"),
            (
                scores && request.params.records.entropy,
                "return_entropy",
                "beside `choices`, which are scored, not sampled",
            ),
            (
                scores && request.shows_confidence,
                "return_confidence",
                "beside `choices`, which are scored, not sampled",
            ),
            (
                request.min_finished.is_some() && request.best_of > request.n,
                "best_of",
                "beside `min_finished`: the best candidates are known only when all have ended",
            ),
            (
                request.stream.is_some() && request.best_of > request.n,
                "best_of",
                "beside `stream`: the best candidates are known only when all have ended",
            ),
            (
                request.keep.is_some() && request.best_of > request.n,
                "best_of",
                "beside `keep`: candidates that are not returned could not be released",
            ),
            (
                request.keep.is_some() && !scores && request.best_of == 0 && request.n > 1,
                "n",
                "beside `keep` and `max_tokens` 0: the prompt is kept, once",
            ),
            (request.stream.is_some() && request.prompt_logprobs.is_some(), "prompt_logprobs", "beside `stream`"),
            (request.parent.is_some() && request.echo, "echo", "beside `parent`"),
            (request.parent.is_some() && request.prompt_logprobs.is_some(), "prompt_logprobs", "beside `parent`"),
        ];
        if let Some((_, field, place)) = refused.into_iter().find(|&(is_refused, ..)| is_refused) {
            return Err(Refusal::out_of_place(field, place));
        }
        let branches = request.branches();
        match branches <= self.limits.branches {
            true => Ok(()),
            false => {
                let expected = format!("at most {} candidates of all prompts together", self.limits.branches);
                Err(Refusal::value("n", &expected, &branches.to_string()))
            }
        }
    }

    /// `model`: what the answer calls it, and the adapter that it names.
    pub(super) fn model(&self, fields: &mut BodyFields) -> Result<(String, Option<AdapterVersion>), Refusal> {
        let Some(model) = fields.text("model")? else { return Ok((self.model.to_owned(), None)) };
        let adapter = self.names.adapter_of(&model)?;
        Ok((model, adapter))
    }

    /// `keep`, `keep_seconds` and `parent`.
    fn branches(&self, fields: &mut BodyFields) -> Result<(Option<Keep>, Option<String>), Refusal> {
        let (keeps, time_to_live) = (fields.flag("keep")?, fields.seconds("keep_seconds", self.limits.seconds)?);
        let parent = fields.text("parent")?;
        match (keeps, time_to_live, &parent) {
            (true, ..) if !self.limits.keeps => {
                Err(Refusal::out_of_place("keep", "here: only a server keeps branches"))
            }
            (.., Some(_)) if !self.limits.keeps => {
                Err(Refusal::out_of_place("parent", "here: only a server keeps branches"))
            }
            (false, Some(_), _) => Err(Refusal::value("keep_seconds", "`keep`: true beside it", "none")),
            _ => Ok((keeps.then_some(Keep { time_to_live }), parent)),
        }
    }

    /// `prompt`: a text, texts, a list of tokens or lists of tokens. Behind a branch, at most one, which may be empty.
    fn prompts(
        &self,
        fields: &mut BodyFields,
        texts: UserTexts<'_>,
        follows_branch: bool,
    ) -> Result<Vec<WrittenPrompt>, Refusal> {
        let special = match fields.choice("add_special_tokens")? {
            Some(false) => AddSpecial::No,
            _ if follows_branch => AddSpecial::No,
            _ => AddSpecial::Yes,
        };
        let expected = "a string, a list of strings, a list of token ids or a list of such lists";
        let Some(prompt) = fields.take("prompt") else {
            return match follows_branch {
                true => Ok(vec![written(String::new(), PromptContent::Tokens(Vec::new()))]),
                false => Err(Refusal::value("prompt", expected, "nothing")),
            };
        };
        let wrong = || Refusal::value("prompt", expected, &brief(&prompt));
        let text = |value: &Value| -> Result<WrittenPrompt, Refusal> {
            let text = value.as_str().ok_or_else(wrong)?;
            let content = texts.prompt("prompt", text, special)?;
            Ok(written(text.to_string(), content))
        };
        let ids = |value: &Value| -> Result<WrittenPrompt, Refusal> {
            let list = value.as_array().ok_or_else(wrong)?;
            let tokens: Vec<TokenId> =
                list.iter().map(|value| token_id(value).ok_or_else(wrong)).collect::<Result<_, _>>()?;
            Ok(written(self.tokenizer.decode(&tokens), PromptContent::Tokens(tokens)))
        };
        let prompts: Vec<WrittenPrompt> = match &prompt {
            Value::String(_) => vec![text(&prompt)?],
            Value::Array(list) => match list.first() {
                Some(Value::String(_)) => list.iter().map(text).collect::<Result<_, _>>()?,
                Some(Value::Array(_)) => list.iter().map(ids).collect::<Result<_, _>>()?,
                Some(_) => vec![ids(&prompt)?],
                None if follows_branch => vec![ids(&prompt)?],
                None => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        match follows_branch && prompts.len() > 1 {
            true => Err(Refusal::value("prompt", "one prompt behind `parent`", &prompts.len().to_string())),
            false => Ok(prompts),
        }
    }

    fn chat(
        &self,
        fields: &mut BodyFields,
        texts: UserTexts<'_>,
        follows_branch: bool,
    ) -> Result<WrittenPrompt, Refusal> {
        let messages = fields.take("messages");
        // What follows a branch may answer its calls.
        if let Some(messages) = messages.as_ref().filter(|_| !follows_branch) {
            check_calls(messages, !fields.is_false("continue_final_message"))?;
        }
        let ChatText { text, hidden, continued, start, content: content_start, tools } =
            self.chats(texts).take(fields, messages, follows_branch)?;
        // The template writes its own.
        let special = match fields.choice("add_special_tokens")? {
            Some(true) if !follows_branch => AddSpecial::Yes,
            _ => AddSpecial::No,
        };
        let content = match text.is_empty() {
            true => PromptContent::Tokens(Vec::new()),
            false => PromptContent::of_chat(hidden, special),
        };
        Ok(WrittenPrompt { text, content, start, content_start, continued, tools })
    }

    /// Reads chats of these texts.
    pub(super) fn chats<'t>(&self, texts: UserTexts<'t>) -> ChatReader<'t> {
        ChatReader { texts, takes_template: self.limits.templates }
    }

    /// What becomes of the request's texts, by `special_tokens_in_text`, which may only narrow what the caller allows.
    pub(super) fn user_texts(&self, fields: &mut BodyFields) -> Result<UserTexts<'_>, Refusal> {
        let usual = self.limits.special_text;
        let words = if usual == SpecialText::Allow { &SPECIAL_TEXTS[..] } else { &SPECIAL_TEXTS[1..] };
        let special = fields.word("special_tokens_in_text", words)?.unwrap_or(usual);
        Ok(UserTexts { tokenizer: self.tokenizer, special })
    }

    /// `truncate_prompt_tokens`: the number of the prompt's last tokens that are kept; -1: as many as the context holds
    /// beside those that are sampled.
    fn most_kept(&self, fields: &mut BodyFields, sampled: usize) -> Result<Option<MostKept>, Refusal> {
        match fields.whole("truncate_prompt_tokens")? {
            None => Ok(None),
            Some(-1) => Ok(Some(MostKept::Beside(sampled))),
            Some(given) => match usize::try_from(given).ok().filter(|&most| most > 0) {
                // More than the context holds need not be encoded to be refused.
                Some(most) => Ok(Some(MostKept::Tokens(most.min(self.config.context + 1)))),
                None => {
                    let expected = "a number of tokens from 1 up, or -1 for as many as fit";
                    Err(Refusal::value("truncate_prompt_tokens", expected, &given.to_string()))
                }
            },
        }
    }

    /// Number of alternatives reported per token, and per token of the prompt; `None`: no log-probabilities are
    /// reported.
    fn logprobs(&self, endpoint: Endpoint, fields: &mut BodyFields) -> Result<(Option<usize>, Option<usize>), Refusal> {
        let most = self.limits.top_logprobs as u64;
        let own = match endpoint {
            Endpoint::Completions => fields.count("logprobs", 0, most)?,
            Endpoint::Chat => {
                let (asked, top) = (fields.flag("logprobs")?, fields.count("top_logprobs", 0, most)?);
                match (asked, top) {
                    (false, Some(top)) if top > 0 => {
                        return Err(Refusal::value("top_logprobs", "`logprobs`: true beside it", "none"));
                    }
                    (asked, top) => asked.then(|| top.unwrap_or(0)),
                }
            }
        };
        Ok((own, fields.count_or_flag("prompt_logprobs", 0, most)?))
    }

    /// `bad_words`, in tokens.
    fn bad_words(&self, fields: &mut BodyFields) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let words = fields.words("bad_words")?;
        ProtocolLimits::check("bad_words", self.limits.bad_words, words.len(), "words")?;
        let longest = words.iter().map(String::len).max().unwrap_or(0);
        ProtocolLimits::check("bad_words", self.limits.stop_bytes, longest, "bytes of a word")?;
        let spelt = words.iter().map(|word| self.tokenizer.spellings(word));
        let spelt = spelt.collect::<offshoot_core::error::Result<Vec<_>>>();
        Ok(spelt.map_err(|error| Refusal::of(&error).about("bad_words"))?.concat())
    }

    /// The limit of tokens, if any (0: nothing is sampled), and the other stop conditions. A text that `ends_itself`
    /// may have what ends the turns of other texts.
    fn stop(
        &self,
        endpoint: Endpoint,
        ends_itself: bool,
        fields: &mut BodyFields,
    ) -> Result<(Option<usize>, Stop), Refusal> {
        let limit = u64::from(u32::MAX);
        let older = fields.count("max_tokens", 0, limit)?;
        let most_tokens = fields.count("max_completion_tokens", 0, limit)?.or(older);
        let (mut strings, mut tokens) = fields.stops("stop")?;
        tokens.extend(fields.token_ids("stop_token_ids")?.unwrap_or_default());
        let ignore_eos = fields.flag("ignore_eos")?;
        ProtocolLimits::check("stop", self.limits.stops, strings.len() + tokens.len(), "strings and tokens")?;
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        ProtocolLimits::check("stop", self.limits.stop_bytes, longest, "bytes of a string")?;
        if endpoint == Endpoint::Chat && !ignore_eos && !ends_itself {
            let own = self.tokenizer.chat_stops().iter().filter(|stop| !strings.contains(stop));
            strings.extend(own.cloned().collect::<Vec<_>>());
        }
        let stop = Stop {
            max_tokens: usize::MAX,
            min_tokens: fields.count("min_tokens", 0, limit)?.unwrap_or(0),
            strings,
            tokens,
            ignore_eos,
            include_stop: fields.flag("include_stop_str_in_output")?,
            show_special: false,
            confidence: None,
        };
        Ok((most_tokens, stop))
    }

    /// `choices`: continuations to score, as strings or as lists of token ids.
    fn choices(&self, fields: &mut BodyFields, texts: UserTexts<'_>) -> Result<Vec<ChoiceContent>, Refusal> {
        let Some(value) = fields.take("choices") else { return Ok(Vec::new()) };
        if self.limits.choices == 0 {
            return Err(Refusal::out_of_place("choices", "here: only a server scores continuations"));
        }
        let wrong = || {
            let expected = "a list of strings, or of lists of token ids, none of them empty";
            Refusal::value("choices", expected, &brief(&value))
        };
        let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(wrong)?;
        ProtocolLimits::check("choices", self.limits.choices, list.len(), "continuations")?;
        let choice = |(index, value): (usize, &Value)| match value {
            Value::String(text) if !text.is_empty() => texts.choice(index, text),
            Value::Array(ids) if !ids.is_empty() => {
                let ids: Option<_> = ids.iter().map(token_id).collect();
                ids.map(ChoiceContent::Tokens).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        };
        list.iter().enumerate().map(choice).collect()
    }

    fn stream(&self, fields: &mut BodyFields) -> Result<Option<StreamOptions>, Refusal> {
        let options = fields.object("stream_options")?;
        if !fields.flag("stream")? {
            return Ok(None);
        }
        if !self.limits.streams {
            return Err(Refusal::out_of_place("stream", "here: answers are written as a whole"));
        }
        let flag = |key: &str| match options.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(Refusal::value(&format!("stream_options.{key}"), "true or false", &brief(other))),
        };
        let known = ["include_usage", "continuous_usage_stats", "include_obfuscation"];
        if let Some(unknown) = options.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(Refusal::unknown(&format!("stream_options.{unknown}")));
        }
        let options =
            StreamOptions { include_usage: flag("include_usage")?, continuous_usage: flag("continuous_usage_stats")? };
        Ok(Some(options))
    }
}

fn written(text: String, content: PromptContent) -> WrittenPrompt {
    let (start, content_start) = (TextStart::default(), ContentStart::default());
    WrittenPrompt { text, content, start, content_start, continued: None, tools: RequestedTools::default() }
}

/// The limit of tokens of a request that sets none, if there is one.
fn usual_tokens(endpoint: Endpoint) -> Option<usize> {
    (endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS)
}

/// The prompts, each with the request's stop conditions and continuations.
fn text_prompts(
    endpoint: Endpoint,
    written: Vec<WrittenPrompt>,
    most_tokens: Option<usize>,
    stop: Stop,
    choices: Arc<[ChoiceContent]>,
) -> Vec<TextPrompt> {
    let most_tokens = most_tokens.or(usual_tokens(endpoint));
    let stop = Stop { max_tokens: most_tokens.unwrap_or(usize::MAX).max(1), ..stop };
    let is_unlimited = most_tokens.is_none();
    let prompt = |WrittenPrompt { text, content, start, continued: repeated, .. }| {
        let (stop, choices) = (stop.clone(), choices.clone());
        TextPrompt { text, content, stop, is_unlimited, start, repeated, most_kept: None, choices }
    };
    written.into_iter().map(prompt).collect()
}

/// `cache_salt`, as vLLM has it.
pub(super) fn salt(fields: &mut BodyFields) -> Result<Option<CacheSalt>, Refusal> {
    let Some(salt) = fields.text("cache_salt")? else { return Ok(None) };
    if salt.is_empty() {
        return Err(Refusal::value("cache_salt", "a string that is not empty", "an empty one"));
    }
    let hash = blake3::hash(salt.as_bytes());
    Ok(hash.as_bytes().first_chunk().copied().map(CacheSalt))
}

pub(super) fn priority(fields: &mut BodyFields, least: i32) -> Result<Option<Priority>, Refusal> {
    let Some(given) = fields.whole("priority")? else { return Ok(None) };
    let range = format!("a whole number from {least} to {}", i32::MAX);
    let wrong = || Refusal::value("priority", &range, &given.to_string());
    let priority = i32::try_from(given).ok().filter(|&priority| priority >= least).ok_or_else(wrong)?;
    Ok(Some(Priority(priority)))
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
        allowed: fields.token_ids("allowed_token_ids")?,
        form: None,
        bad_words: Vec::new(),
        top_logprobs: None,
        logprobs_mode: LogprobsMode::default(),
        records: Records::default(),
        routes: false,
    })
}
