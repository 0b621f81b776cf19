//! Reads the body of a request for values: the fields that all endpoints have, and the texts of those that take one
//! text at a time, as strings, tokens or chats. Pairs are read in `pairs`.

use serde_json::{Map, Value};

use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use offshoot_text::AddSpecial;

use super::super::chat::ChatText;
use super::super::fields::{BodyFields, brief, token_id};
use super::super::limits::ProtocolLimits;
use super::super::reader::{RequestReader, priority, salt};
use super::super::refusal::{Refusal, RefusalKind};
use super::super::request::PromptContent;
use super::super::user_texts::UserTexts;
use super::PoolingEndpoint;
use super::encoding::Encoding;
use super::model::{PoolingModel, PoolingTask, ScorerValues, UsualReads};
use super::request::{PoolingRequest, TextToRead, VectorKind, Wish};

/// vLLM's fields that change nothing here.
const IGNORED: [&str; 1] = ["user"];

/// How many tokens of a text are kept, and which.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    None,
    First(usize),
    Last(usize),
}

impl RequestReader<'_> {
    /// Reads a request for values of `model`, and encodes its texts.
    ///
    /// # Errors
    ///
    /// A field is wrong or unknown, the model has no such values, or a text does not fit the model's context.
    pub fn read_pooling(
        &self,
        endpoint: PoolingEndpoint,
        body: &Map<String, Value>,
        model: PoolingModel<'_>,
    ) -> Result<PoolingRequest, Refusal> {
        let mut fields = BodyFields::new(body);
        fields.unpack("extra_body")?;
        refuse_removed(&mut fields)?;
        let (name, adapter) = self.model(&mut fields)?;
        if adapter.is_some() {
            return Err(Refusal::out_of_place("model", "as an adapter here: adapters change what is sampled"));
        }
        let (texts, wish) = match endpoint {
            PoolingEndpoint::Score | PoolingEndpoint::Rerank => self.pairs(endpoint, &mut fields, model)?,
            PoolingEndpoint::Pooling => self.pooled(&mut fields, model)?,
            PoolingEndpoint::Classify => self.classified(&mut fields, model)?,
            PoolingEndpoint::Embeddings => self.embedded(&mut fields, model)?,
        };
        let request = PoolingRequest {
            model: name,
            texts,
            priority: priority(&mut fields, self.limits.priority)?.unwrap_or(self.priority),
            salt: salt(&mut fields)?,
            request_id: fields.text("request_id")?,
            wish,
        };
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        fields.refuse("mm_processor_kwargs", is_empty)?;
        fields.refuse("media_io_kwargs", is_empty)?;
        fields.refuse("padding", |value| value == "do_not_pad")?;
        fields.ignore(&IGNORED);
        fields.finish()?;
        Ok(request)
    }

    /// `/pooling`.
    fn pooled(&self, fields: &mut BodyFields, model: PoolingModel<'_>) -> Result<(Vec<TextToRead>, Wish), Refusal> {
        let usual = model.usual_task();
        let task = fields.word("task", &PoolingTask::WORDS)?.unwrap_or(usual);
        let has_classes = |task| matches!(task, PoolingTask::Classify | PoolingTask::TokenClassify);
        if has_classes(task) != has_classes(usual) {
            let expected = format!("\"{}\", as this model has no others", usual.word());
            return Err(Refusal::value("task", &expected, &format!("\"{}\"", task.word())));
        }
        fields.refuse("dimensions", |_| false)?;
        let activates = fields.choice("use_activation")?;
        let encoding = Encoding::take(fields)?;
        let texts = self.texts(fields)?;
        match model {
            PoolingModel::Scorer(scorer, _) => {
                let each = task == PoolingTask::TokenClassify;
                let reads = match (each, &scorer.reads) {
                    (false, _) => &UsualReads::End,
                    (true, UsualReads::End) => &UsualReads::EachToken,
                    (true, each) => each,
                };
                let read = |tokens| scorer_text(tokens, scorer, reads, self.tokenizer);
                let texts = numbered("input", texts.into_iter().map(read))?;
                let activates = activates.unwrap_or(scorer.columns.activates);
                Ok((texts, Wish::Rows { each, activates, encoding }))
            }
            PoolingModel::Embedder(embedder) => {
                let normalises = activates.unwrap_or(embedder.normalises);
                let texts = texts.into_iter().map(text_end).collect();
                Ok((texts, Wish::Vectors { kind: VectorKind::Pooling, normalises, encoding }))
            }
        }
    }

    /// `/classify`.
    fn classified(&self, fields: &mut BodyFields, model: PoolingModel<'_>) -> Result<(Vec<TextToRead>, Wish), Refusal> {
        let PoolingModel::Scorer(scorer, form) = model else {
            return Err(no_such_values("this model makes vectors of texts, and has no classes; ask /v1/embeddings"));
        };
        if form.values_steps() {
            return Err(no_such_values(
                "this model values the steps of a text and not the whole of it; ask /pooling for its values, or \
                 /score for a score of all steps",
            ));
        }
        let activates = fields.choice("use_activation")?.unwrap_or(scorer.columns.activates);
        let texts = self.texts(fields)?.into_iter();
        let texts = texts.map(|tokens| scorer_text(tokens, scorer, &UsualReads::End, self.tokenizer));
        Ok((texts.collect::<Result<_, _>>()?, Wish::Classes { activates }))
    }

    /// `/v1/embeddings`.
    fn embedded(&self, fields: &mut BodyFields, model: PoolingModel<'_>) -> Result<(Vec<TextToRead>, Wish), Refusal> {
        let PoolingModel::Embedder(embedder) = model else {
            return Err(no_such_values("this model scores texts, and makes no vectors of them; ask /pooling"));
        };
        if let Some(found) = fields.take("dimensions") {
            let expected = "none: this model does not support Matryoshka embeddings";
            return Err(Refusal::value("dimensions", expected, &brief(&found)));
        }
        let normalises = fields.choice("use_activation")?.unwrap_or(embedder.normalises);
        let encoding = Encoding::take(fields)?;
        let texts = self.texts(fields)?.into_iter().map(text_end).collect();
        Ok((texts, Wish::Vectors { kind: VectorKind::Embedding, normalises, encoding }))
    }

    /// The tokens of each of `input`, or of the chat or chats `messages`.
    fn texts(&self, fields: &mut BodyFields) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let cut = self.cut(fields)?;
        let users = self.user_texts(fields)?;
        match (fields.take("input"), fields.take("messages")) {
            (Some(input), None) => self.inputs(fields, &input, users, cut),
            (None, Some(messages)) => self.chats_to_read(fields, messages, users, cut),
            (None, None) => {
                let found =
                    others(fields).map_or_else(|| "neither".to_owned(), |others| format!("neither, but {others}"));
                Err(Refusal::value("input", "texts in `input`, or a chat in `messages`", &found))
            }
            (Some(_), Some(_)) => Err(Refusal::value("input", "either `input`, or a chat in `messages`", "both")),
        }
    }

    /// `input`: a text, texts, a list of tokens or lists of tokens.
    fn inputs(
        &self,
        fields: &mut BodyFields,
        input: &Value,
        users: UserTexts<'_>,
        cut: Cut,
    ) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let special = match fields.choice("add_special_tokens")? {
            Some(false) => AddSpecial::No,
            _ => AddSpecial::Yes,
        };
        let expected = "a string, a list of strings, a list of token ids or a list of such lists, none of them empty";
        let wrong = || Refusal::value("input", expected, &brief(input));
        let text = |value: &Value| {
            let text = value.as_str().ok_or_else(wrong)?;
            let content = users.prompt("input", text, special)?;
            self.kept_tokens("input", text, &content, cut)
        };
        let ids = |value: &Value| {
            let ids: Option<Vec<TokenId>> = value.as_array().ok_or_else(wrong)?.iter().map(token_id).collect();
            self.kept_tokens("input", "", &PromptContent::Tokens(ids.ok_or_else(wrong)?), cut)
        };
        match input {
            Value::String(_) => Ok(vec![text(input)?]),
            Value::Array(list) => {
                let is_one = list.first().is_some_and(Value::is_number);
                ProtocolLimits::check("input", self.limits.prompts, if is_one { 1 } else { list.len() }, "texts")?;
                match list.first() {
                    Some(Value::String(_)) => numbered("input", list.iter().map(text)),
                    Some(Value::Array(_)) => numbered("input", list.iter().map(ids)),
                    Some(_) => Ok(vec![ids(input)?]),
                    None => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }

    /// `messages`: a chat, or a list of chats. They are rendered as they stand, without the assistant's next turn.
    fn chats_to_read(
        &self,
        fields: &mut BodyFields,
        messages: Value,
        users: UserTexts<'_>,
        cut: Cut,
    ) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let special = match fields.choice("add_special_tokens")? {
            Some(true) => AddSpecial::Yes,
            _ => AddSpecial::No,
        };
        fields.put_usual("add_generation_prompt", false.into());
        let are_several = messages.as_array().and_then(|list| list.first()).is_some_and(Value::is_array);
        let chats = match messages {
            Value::Array(chats) if are_several => chats,
            one => vec![one],
        };
        ProtocolLimits::check("messages", self.limits.prompts, chats.len(), "chats")?;
        let reader = self.chats(users);
        let mut read = Vec::with_capacity(chats.len());
        let mut left = None;
        for chat in chats {
            // Each is rendered by the same fields.
            let mut own = fields.clone();
            let ChatText { text, hidden, .. } = reader.take(&mut own, Some(chat), false)?;
            let content = PromptContent::of_chat(hidden, special);
            read.push(self.kept_tokens("messages", &text, &content, cut)?);
            left = Some(own);
        }
        if let Some(left) = left {
            *fields = left;
        }
        Ok(read)
    }

    /// `truncate_prompt_tokens` and `truncation_side`: the tokens of each text that are kept. As in vLLM, these are its
    /// first ones unless the request asks for the last.
    pub(super) fn cut(&self, fields: &mut BodyFields) -> Result<Cut, Refusal> {
        let keeps_last = fields.word("truncation_side", &[("left", true), ("right", false)])?.unwrap_or(false);
        let most = match fields.whole("truncate_prompt_tokens")? {
            None => return Ok(Cut::None),
            Some(-1) => self.config.context,
            Some(given) => {
                let expected = "a number of tokens from 1 up, or -1 for as many as fit";
                let wrong = || Refusal::value("truncate_prompt_tokens", expected, &given.to_string());
                usize::try_from(given).ok().filter(|&most| most > 0).ok_or_else(wrong)?
            }
        };
        Ok(if keeps_last { Cut::Last(most) } else { Cut::First(most) })
    }

    /// The tokens of a text of `field` that are read.
    pub(super) fn kept_tokens(
        &self,
        field: &str,
        text: &str,
        content: &PromptContent,
        cut: Cut,
    ) -> Result<Vec<TokenId>, Refusal> {
        let refuse = |error: Error| Refusal::of(&error).about(field);
        let tokens = match cut {
            Cut::Last(most) => content.last_tokens(text, most, self.tokenizer).map_err(refuse)?,
            Cut::First(most) => content.first_tokens(text, most, self.tokenizer).map_err(refuse)?,
            Cut::None => {
                self.check_length(field, "the text", text)?;
                content.tokens(text, self.tokenizer).map_err(refuse)?
            }
        };
        self.check_tokens(field, &tokens)?;
        self.check_room(field, &tokens)?;
        Ok(tokens)
    }

    /// Refuses texts that do not fit the context, or have no tokens.
    pub(super) fn check_room(&self, field: &str, tokens: &[TokenId]) -> Result<(), Refusal> {
        let context = self.config.context.min(self.limits.prompt_tokens);
        match tokens.len() {
            0 => Err(Refusal::value(field, "at least one token", "none")),
            tokens if tokens > context => {
                let what = "a text".to_owned();
                Err(Refusal::of(&Error::ContextTooLong { what, tokens, context }).about(field))
            }
            _ => Ok(()),
        }
    }
}

/// The fields that are left and have texts: perhaps what the request means, by another name.
fn others(fields: &BodyFields) -> Option<String> {
    const ELSEWHERE: [&str; 5] = ["request_id", "cache_salt", "user", "padding", "chat_template"];
    let names = fields.with_texts().filter(|name| !ELSEWHERE.contains(name)).map(|name| format!("`{name}`"));
    Some(names.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
}

/// What becomes of the texts of `field`. The refusal of one of several says its number, from 0.
pub(super) fn numbered<T>(
    field: &str,
    texts: impl ExactSizeIterator<Item = Result<T, Refusal>>,
) -> Result<Vec<T>, Refusal> {
    let several = texts.len() > 1;
    let named = |(ix, text): (usize, Result<T, Refusal>)| {
        text.map_err(|refusal| match several {
            true => Refusal { message: format!("{field}[{ix}]: {}", refusal.message), ..refusal },
            false => refusal,
        })
    };
    texts.enumerate().map(named).collect()
}

/// Fields that vLLM had.
fn refuse_removed(fields: &mut BodyFields) -> Result<(), Refusal> {
    if fields.take("normalize").is_some() {
        let what = "`normalize` was removed from vLLM's protocol; send `use_activation`";
        return Err(Refusal::new("unsupported_parameter", what).about("normalize"));
    }
    Ok(())
}

/// For an endpoint that the model has nothing for.
pub(super) fn no_such_values(what: &str) -> Refusal {
    Refusal::of_kind(RefusalKind::NotFound, "not_found", what).about("model")
}

/// A text that is read where a scorer's values stand.
fn scorer_text(
    tokens: Vec<TokenId>,
    scorer: &ScorerValues,
    reads: &UsualReads,
    tokenizer: &offshoot_text::Tokenizer,
) -> Result<TextToRead, Refusal> {
    match reads {
        UsualReads::End => {
            // As transformers has it, a classifier reads the last token that is no padding.
            let is_padding = |token: &TokenId| Some(*token) == scorer.padding;
            let kept = tokens.iter().rposition(|token| !is_padding(token)).map_or(tokens.len(), |last| last + 1);
            Ok(text_end(tokens[..kept].to_vec()))
        }
        UsualReads::EachToken => {
            let at = (0..tokens.len()).map(index).collect();
            Ok(TextToRead { tokens, at })
        }
        UsualReads::EachStep(end) => {
            let places = end.places(&tokens, tokenizer);
            let Some(last) = places.last() else {
                let shown = end.shown(tokenizer);
                let expected = format!("{shown:?} behind each step of a text, where this model has its values");
                return Err(Refusal::value("input", &expected, "none"));
            };
            let kept = tokens[..=*last].to_vec();
            Ok(TextToRead { tokens: kept, at: places.into_iter().map(index).collect() })
        }
    }
}

/// A text that is read at its end.
pub(super) fn text_end(tokens: Vec<TokenId>) -> TextToRead {
    let at = vec![index(tokens.len().saturating_sub(1))];
    TextToRead { tokens, at }
}

/// Texts fit a context, which is less than this.
pub(super) fn index(at: usize) -> u32 {
    u32::try_from(at).expect("texts that fit the context have fewer tokens")
}
