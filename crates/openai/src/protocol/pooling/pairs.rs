//! Reads the pairs of `/score` and `/rerank`: questions and answers, or queries and documents. A scorer reads a pair in
//! its own form, unless its chat template knows the roles `query` and `document`; an embedder reads both apart.

use serde_json::{Map, Value};

use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use offshoot_score::ResolvedForm;
use offshoot_text::{AddSpecial, ChatOptions, Message, SpecialText};

use super::super::fields::{BodyFields, brief};
use super::super::limits::ProtocolLimits;
use super::super::reader::RequestReader;
use super::super::refusal::Refusal;
use super::super::request::PromptContent;
use super::super::user_texts::UserTexts;
use super::PoolingEndpoint;
use super::model::{PoolingModel, ScorerValues};
use super::reader::{Cut, index, no_such_values, numbered, text_end};
use super::request::{PairScores, Ranking, TextToRead, Wish};

/// The fields by which requests name the first and the second texts of their pairs.
const NAMES: [(&str, &str); 4] =
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")];

/// The texts of pairs, and the fields that have them.
struct PairTexts {
    fields: (&'static str, &'static str),
    first: Vec<String>,
    second: Vec<String>,
}

impl PairTexts {
    /// Each pair: one first text is that of all second ones.
    fn pairs(&self) -> impl ExactSizeIterator<Item = (&String, &String)> {
        let first = |ix: usize| &self.first[if self.first.len() == 1 { 0 } else { ix }];
        self.second.iter().enumerate().map(move |(ix, second)| (first(ix), second))
    }
}

impl RequestReader<'_> {
    /// `/score` and `/rerank`.
    pub(super) fn pairs(
        &self,
        endpoint: PoolingEndpoint,
        fields: &mut BodyFields,
        model: PoolingModel<'_>,
    ) -> Result<(Vec<TextToRead>, Wish), Refusal> {
        let mut texts = match endpoint {
            PoolingEndpoint::Rerank => reranked(fields)?,
            _ => scored(fields)?,
        };
        ProtocolLimits::check(texts.fields.0, self.limits.prompts, texts.first.len(), "texts")?;
        ProtocolLimits::check(texts.fields.1, self.limits.prompts, texts.second.len(), "texts")?;
        check_lengths(&texts)?;
        let most = fields.count("top_n", 0, u64::from(u32::MAX))?.filter(|&most| most > 0);
        let documents = (endpoint == PoolingEndpoint::Rerank).then(|| texts.second.clone());
        let ranking = documents.map(|documents| Ranking { most: most.unwrap_or(documents.len()), documents });
        if ranking.is_none() && most.is_some() {
            return Err(Refusal::out_of_place("top_n", "here: /rerank has it"));
        }
        self.shorten(fields, "max_tokens_per_query", &mut texts.first)?;
        self.shorten(fields, "max_tokens_per_doc", &mut texts.second)?;
        let activates = fields.choice("use_activation")?;
        let cut = self.cut(fields)?;
        let users = self.user_texts(fields)?;
        let mut variables = fields.object("chat_template_kwargs")?;
        if let Some(instruction) = fields.text("instruction")? {
            variables.entry("instruction").or_insert(instruction.into());
        }
        let (read, pairs) = match model {
            PoolingModel::Embedder(_) => {
                refuse_variables(&variables)?;
                let one = |field: &str, text: &String| {
                    let content = users.prompt(field, text, AddSpecial::Yes)?;
                    Ok(text_end(self.kept_tokens(field, text, &content, cut)?))
                };
                let all = |field, texts: &[String]| numbered(field, texts.iter().map(|text| one(field, text)));
                let mut read = all(texts.fields.0, &texts.first)?;
                read.append(&mut all(texts.fields.1, &texts.second)?);
                (read, PairScores::Cosine { queries: texts.first.len() })
            }
            PoolingModel::Scorer(scorer, form) if self.has_pair_template() => {
                if !has_one_value(scorer, form) {
                    return Err(no_such_values(
                        "this model has several values for a pair, and no score; ask /classify",
                    ));
                }
                let one =
                    |(first, second): (&String, &String)| self.pair_by_template(first, second, &variables, users, cut);
                let read = numbered("documents", texts.pairs().map(one))?;
                (read, PairScores::Value { activates: activates.unwrap_or(scorer.columns.activates) })
            }
            PoolingModel::Scorer(scorer, form) => {
                refuse_variables(&variables)?;
                if !matches!(cut, Cut::None) {
                    let place = "here: pairs are read whole; `max_tokens_per_doc` shortens their texts";
                    return Err(Refusal::out_of_place("truncate_prompt_tokens", place));
                }
                self.pairs_by_form(&texts, scorer, form, activates)?
            }
        };
        Ok((read, Wish::Scores { pairs, ranking }))
    }

    /// Whether the chat template is one of pairs.
    fn has_pair_template(&self) -> bool {
        let source = self.tokenizer.chat_template().unwrap_or_default();
        let names = |role: &str| ['\'', '"'].iter().any(|quote| source.contains(&format!("{quote}{role}{quote}")));
        names("query") && names("document")
    }

    /// A pair as a chat of a query and a document.
    fn pair_by_template(
        &self,
        query: &str,
        document: &str,
        variables: &Map<String, Value>,
        users: UserTexts<'_>,
        cut: Cut,
    ) -> Result<TextToRead, Refusal> {
        let mut turns = vec![Message::new("query", query), Message::new("document", document)];
        let mut options = ChatOptions { variables: variables.clone(), ..ChatOptions::default() };
        users.hide(&mut turns, &mut options)?;
        let rendered = self.tokenizer.chat_with(&turns, &options).map_err(|error| Refusal::of(&error))?;
        users.check_joined(&rendered)?;
        let hidden = (users.special != SpecialText::Allow).then(|| rendered.clone());
        let content = PromptContent::of_chat(hidden, AddSpecial::No);
        Ok(text_end(self.kept_tokens("documents", &rendered, &content, cut)?))
    }

    /// Pairs as questions and answers in the scorer's form.
    fn pairs_by_form(
        &self,
        texts: &PairTexts,
        scorer: &ScorerValues,
        form: &ResolvedForm,
        activates: Option<bool>,
    ) -> Result<(Vec<TextToRead>, PairScores), Refusal> {
        let (first, second) = texts.fields;
        let one = |(question, answer): (&String, &String)| {
            self.check_length(first, "the text", question)?;
            self.check_length(second, "the text", answer)?;
            let one = form.render(&[Message::user(question)], &[answer]);
            let one = one.map_err(|error| Refusal::of(&error).about(second))?;
            self.check_room(second, &one.tokens)?;
            Ok(one)
        };
        let rendered = numbered(second, texts.pairs().map(one))?;
        let read = rendered.iter().map(|pair| TextToRead {
            tokens: pair.tokens.clone(),
            at: pair.reads.iter().map(|place| index(place.at)).collect(),
        });
        let read = read.collect();
        match (has_one_value(scorer, form), activates) {
            (true, _) => {
                let activates = activates.unwrap_or(scorer.columns.activates);
                Ok((read, PairScores::Value { activates }))
            }
            (false, Some(false)) => {
                let place = "as false here: the score is made of several values by the model's form";
                Err(Refusal::out_of_place("use_activation", place))
            }
            (false, _) => Ok((read, PairScores::Form(rendered))),
        }
    }

    /// Cuts each text behind so many tokens, if the request asks for it.
    fn shorten(&self, fields: &mut BodyFields, field: &str, texts: &mut [String]) -> Result<(), Refusal> {
        let most = fields.count(field, 0, self.config.context.saturating_sub(1) as u64)?;
        let Some(most) = most.filter(|&most| most > 0) else { return Ok(()) };
        for text in texts {
            self.shorten_one(text, most).map_err(|error| Refusal::of(&error).about(field))?;
        }
        Ok(())
    }

    /// Cuts a text at a character, so that it has at most so many tokens.
    fn shorten_one(&self, text: &mut String, most: usize) -> Result<(), Error> {
        loop {
            let tokens = self.tokenizer.encode(text, AddSpecial::No)?;
            if tokens.len() <= most {
                return Ok(());
            }
            let bytes = |tokens: &[TokenId]| tokens.iter().map(|token| self.tokenizer.token_bytes(*token).len()).sum();
            let kept: usize = bytes(&tokens[..most]);
            // A cut text may be encoded otherwise: one that is not shorter yet loses its last character.
            let end = kept.min(text.len().saturating_sub(1));
            text.truncate((0..=end).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0));
        }
    }
}

/// Whether a score is the one number that the model has for a whole text, so that a request can have it with and
/// without the activation.
fn has_one_value(scorer: &ScorerValues, form: &ResolvedForm) -> bool {
    !form.values_steps() && scorer.columns.count == 1
}

/// The texts of `/rerank`.
fn reranked(fields: &mut BodyFields) -> Result<PairTexts, Refusal> {
    let query = fields.take("query").ok_or_else(|| Refusal::value("query", "a text", "nothing"))?;
    let documents =
        fields.take("documents").ok_or_else(|| Refusal::value("documents", "a list of texts", "nothing"))?;
    Ok(PairTexts {
        fields: ("query", "documents"),
        first: vec![text("query", &query)?],
        second: list("documents", &documents)?,
    })
}

/// The texts of `/score`, by whichever names they have.
fn scored(fields: &mut BodyFields) -> Result<PairTexts, Refusal> {
    for (first, second) in NAMES {
        let mut own = fields.clone();
        if let (Some(firsts), Some(seconds)) = (own.take(first), own.take(second)) {
            *fields = own;
            let (firsts, seconds) = (list(first, &firsts)?, list(second, &seconds)?);
            return Ok(PairTexts { fields: (first, second), first: firsts, second: seconds });
        }
    }
    let names = NAMES.map(|(first, second)| format!("`{first}` and `{second}`")).join(", or ");
    Err(Refusal::value("queries", &names, "no such two"))
}

/// A text, or a list of texts.
fn list(field: &str, value: &Value) -> Result<Vec<String>, Refusal> {
    match value {
        Value::Array(list) => list.iter().map(|value| text(field, value)).collect(),
        one => Ok(vec![text(field, one)?]),
    }
}

/// A text, or an object whose `content` is a list of parts of text.
fn text(field: &str, value: &Value) -> Result<String, Refusal> {
    let part = |part: &Value| part["text"].as_str().filter(|_| part["type"] == "text").map(str::to_owned);
    let found = match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => match object.get("content") {
            Some(Value::Array(parts)) => parts.iter().map(part).collect::<Option<Vec<_>>>().map(|parts| parts.concat()),
            _ => None,
        },
        _ => None,
    };
    let expected = "texts: strings, or objects with `content`, a list of parts of text";
    found.ok_or_else(|| Refusal::value(field, expected, &brief(value)))
}

fn check_lengths(texts: &PairTexts) -> Result<(), Refusal> {
    let (first, second) = texts.fields;
    match (texts.first.len(), texts.second.len()) {
        (0, _) => Err(Refusal::value(first, "at least one text", "none")),
        (_, 0) => Err(Refusal::value(second, "at least one text", "none")),
        (1, _) => Ok(()),
        (firsts, seconds) if firsts == seconds => Ok(()),
        (firsts, seconds) => {
            let expected = format!("as many texts as `{first}` has ({firsts}), or one there (1:1, 1:N or N:N)");
            Err(Refusal::value(second, &expected, &seconds.to_string()))
        }
    }
}

/// Variables of a template that there is not.
fn refuse_variables(variables: &Map<String, Value>) -> Result<(), Refusal> {
    match variables.keys().next() {
        None => Ok(()),
        Some(name) => {
            let field = if name == "instruction" { "instruction" } else { "chat_template_kwargs" };
            let place = "here: the model has no chat template with a query and a document";
            Err(Refusal::out_of_place(field, place))
        }
    }
}
