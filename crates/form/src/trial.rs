//! Forms are compiled twice. First a helper process tries the form with a vocabulary of bytes and of the special tokens
//! that it may name: our own executable run again (in a Python process the command `offshoot`), whose memory and CPU
//! time the system limits, so that no schema, pattern or grammar takes more than [`BOUNDS`] or ends the process with
//! its stack. Only a form that passes is compiled here, with the model's vocabulary. A program that has no helper
//! compiles at once; llguidance's limits of work and a deadline bound it there, and memory is bounded by them alone.

use std::borrow::Cow;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use llguidance::TokenParser;
use offshoot_core::bounded::{Bounds, Stopped, Work, is_unbounded};
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endless::has_text;
use crate::grammar::grammar;
use crate::place::placed;
use crate::spec::Form;
use crate::vocabulary::FormVocabulary;

/// What a form may take to compile with a vocabulary of bytes.
const BOUNDS: Bounds = Bounds { bytes: 200 << 20, cpu: Duration::from_millis(500) };

/// Tries a form that came as JSON. The answer is JSON, too: null, or what was expected and found.
pub static TRIAL: Work =
    Work::new("form", |request| serde_json::to_vec(&tried(request)).expect("an optional text is JSON"));

/// A form to be tried, and the tokens that it may name.
#[derive(Serialize, Deserialize)]
struct Request<'a> {
    form: Cow<'a, Form>,
    tokens: Cow<'a, NamedTokens>,
}

/// The tokens of a model that forms may name.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct NamedTokens {
    /// Tokens with a text.
    tokens: usize,
    named: Vec<(TokenId, String)>,
    ends: Vec<TokenId>,
}

fn tried(request: &[u8]) -> Option<(String, String)> {
    /// The vocabularies of the last calls, the latest last. Two, as a program tries forms with the tokens of one model,
    /// mostly, and schemas of tools without any.
    static LAST: Mutex<Vec<(NamedTokens, FormVocabulary)>> = Mutex::new(Vec::new());
    const MOST_LAST: usize = 2;
    let Request { form, tokens } = match serde_json::from_slice(request) {
        Ok(request) => request,
        Err(error) => return Some(("a form".to_string(), error.to_string())),
    };
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = match last.iter().position(|(known, _)| *known == *tokens) {
        Some(at) => last.remove(at),
        None => {
            let tokens = tokens.into_owned();
            let vocabulary = FormVocabulary::of_bytes(tokens.tokens, tokens.named.clone(), tokens.ends.clone());
            (tokens, vocabulary)
        }
    };
    let refusal = parser(&form, &known.1).err();
    last.push(known);
    let excess = last.len().saturating_sub(MOST_LAST);
    last.drain(..excess);
    refusal.map(|refusal| (refusal.expected, refusal.found))
}

/// What a refusal says of the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The form would be refused again.
    Final,
    /// It took too long, which may be the machine's fault.
    Slow,
    /// There was no room for it.
    Busy,
}

/// Why a form is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub expected: String,
    pub found: String,
    pub verdict: Verdict,
}

impl Refusal {
    pub fn new(expected: impl Into<String>, found: impl Into<String>) -> Refusal {
        Refusal { expected: expected.into(), found: found.into(), verdict: Verdict::Final }
    }

    /// Refuses a form that llguidance does not take, with its message.
    pub fn of(message: &str) -> Refusal {
        let found = plain(message);
        let panic = found.strip_prefix("panic: ");
        let found =
            panic.map_or(found.clone(), |panic| format!("one at which the library of grammars fails ({panic})"));
        Refusal::new("one that can be compiled", found)
    }

    /// Refuses a form that takes too much to compile.
    pub fn too_much(why: impl Into<String>) -> Refusal {
        Refusal::new("one that compiles within half a second of CPU time and 200 MiB", why)
    }

    /// Refuses a form for now: too much else is being compiled.
    pub fn later(why: impl Into<String>) -> Refusal {
        Refusal { verdict: Verdict::Busy, ..Refusal::too_much(why) }
    }

    /// The error of a form that is refused.
    pub fn error(self, form: &Form) -> Error {
        match self.verdict {
            Verdict::Final | Verdict::Slow => Error::value(form.kind(), self.expected, self.found),
            Verdict::Busy => Error::busy(form.kind(), format!("{}; try again", self.found)),
        }
    }
}

fn request<'a>(form: &'a Form, vocabulary: &FormVocabulary) -> Request<'a> {
    let (named, ends) = (vocabulary.named.clone(), vocabulary.ends.clone());
    let tokens = NamedTokens { tokens: vocabulary.tokens(), named, ends };
    Request { form: Cow::Borrowed(form), tokens: Cow::Owned(tokens) }
}

/// Has a helper process compile the form, where the program has one.
///
/// # Errors
///
/// The form takes more than [`BOUNDS`], or is refused.
pub(crate) fn try_form(form: &Form, vocabulary: &FormVocabulary) -> Result<(), Refusal> {
    if is_unbounded() { Ok(()) } else { call_trial(form, vocabulary) }
}

/// Refuses a schema that is to stand in a grammar among others, if it takes more than [`BOUNDS`] or has no text. The
/// grammar as a whole would tell neither which schema it is, nor that it has no text where another one has. Only a
/// schema with references can need itself without end, so others are left to the grammar's own trial.
///
/// # Errors
///
/// As above, or it is refused.
pub(crate) fn try_schema_alone(schema: &Value) -> Result<(), Refusal> {
    if has_reference(schema) { try_schema(schema) } else { Ok(()) }
}

/// Refuses a schema as one of JSON would be refused that is all of a text.
///
/// # Errors
///
/// It takes more than [`BOUNDS`], or is refused.
pub(crate) fn try_schema(schema: &Value) -> Result<(), Refusal> {
    /// Schemas name no tokens of a model.
    static BYTES: LazyLock<FormVocabulary> = LazyLock::new(|| FormVocabulary::of_bytes(0, Vec::new(), Vec::new()));
    call_trial(&Form::Json(schema.clone()), &BYTES)
}

fn has_reference(schema: &Value) -> bool {
    const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
    match schema {
        Value::Array(items) => items.iter().any(has_reference),
        Value::Object(fields) => {
            fields.iter().any(|(key, value)| REFERENCES.contains(&key.as_str()) || has_reference(value))
        }
        _ => false,
    }
}

/// Has a helper process compile the form; this one, where the program has no helper.
fn call_trial(form: &Form, vocabulary: &FormVocabulary) -> Result<(), Refusal> {
    let request = serde_json::to_vec(&request(form, vocabulary)).expect("a form is JSON");
    match TRIAL.call(BOUNDS, &request) {
        Ok(answer) => match serde_json::from_slice(&answer).expect("a trial answers in JSON") {
            None::<(String, String)> => Ok(()),
            Some((expected, found)) => Err(Refusal::new(expected, found)),
        },
        Err(stopped @ Stopped::NoHelper(_)) => Err(Refusal::later(stopped.to_string())),
        Err(stopped) => Err(Refusal::too_much(stopped.to_string())),
    }
}

/// The matcher of a form, at its beginning.
pub(crate) fn parser(form: &Form, vocabulary: &FormVocabulary) -> Result<TokenParser, Refusal> {
    let made = vocabulary.factory.create_parser(grammar(form)?);
    let mut parser = made.map_err(|error| match (Refusal::of(&format!("{error:#}")), form) {
        (refusal, Form::Json(schema)) => placed(refusal, schema),
        (refusal, _) => refusal,
    })?;
    parser.start_without_prompt();
    match has_text(parser.parser.grammar()) {
        true => Ok(parser),
        false => Err(Refusal::new("one that some text has", "one whose texts would go on without end")),
    }
}

/// llguidance's message in one line, without the state of its parser.
pub(crate) fn plain(message: &str) -> String {
    let end = ["<non-verbose/>", "<backtrace>", "<state>"].iter().filter_map(|mark| message.find(mark)).min();
    message[..end.unwrap_or(message.len())].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(form: &Form) -> Option<(String, String)> {
        let named = vec![(TokenId(700), "<|call|>".to_string()), (TokenId(701), "<|end|>".to_string())];
        let vocabulary = FormVocabulary::of_bytes(1000, named, vec![TokenId(701)]);
        let request = serde_json::to_vec(&request(form, &vocabulary)).unwrap();
        tried(&request)
    }

    #[test]
    fn a_trial_knows_the_special_tokens_of_the_model() {
        assert_eq!(answer(&Form::Lark("start: <|call|> /a+/ <[700]>".to_string())), None);
        let unknown = answer(&Form::Lark("start: <|nothing|>".to_string())).expect("no such token");
        assert!(unknown.1.contains("unknown special token"), "{unknown:?}");
        assert_eq!(answer(&Form::Json(json!({"type": "object"}))), None);
        assert!(answer(&Form::Regex("(".to_string())).is_some());
    }

    #[test]
    fn messages_are_one_line_without_the_parsers_state() {
        assert_eq!(plain("bad\n  thing\n<state>\nTokens"), "bad thing");
        assert!(Refusal::of("panic: index\n<backtrace>\n1").found.contains("fails (index)"));
    }
}
