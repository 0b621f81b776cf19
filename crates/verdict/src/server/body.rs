//! A question as the body of a request.

use serde_json::{Map, Value, json};

use crate::question::{JudgePrompt, Question, WantedAnswer};
use offshoot_core::error::{Error, Result};

/// How many of the likeliest tokens a server is asked for: the most that servers give.
const TOP: usize = 20;

/// The fields that bound an answer, of which a request has at least one.
pub(super) const LIMITS: [&str; 2] = ["max_completion_tokens", "max_tokens"];

/// A request.
#[derive(Debug, PartialEq)]
pub(super) struct Body {
    /// The part of the server that takes it.
    pub part: &'static str,
    /// Its fields.
    pub fields: Value,
}

/// The request of a question. `request`: fields that are added or take the place of others; null takes one away.
///
/// # Errors
///
/// A word begins another one, so that a server's tokens do not tell them apart.
pub(super) fn of(question: &Question, model: &str, request: &Map<String, Value>) -> Result<Body> {
    let is_chat = matches!(question.prompt, JudgePrompt::Chat { .. });
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    set("model", model.into());
    match &question.prompt {
        JudgePrompt::Text(text) => set("prompt", text.as_str().into()),
        JudgePrompt::Chat { messages, .. } => set("messages", json!(messages)),
    };
    set("temperature", 0.into());
    set("seed", 0.into());
    match &question.answer {
        WantedAnswer::Words(words) => {
            check_different(words)?;
            set("max_tokens", 1.into());
            if is_chat {
                set("logprobs", true.into());
                set("top_logprobs", TOP.into());
            } else {
                set("logprobs", TOP.into());
            }
        }
        WantedAnswer::Json { schema, max_tokens } => {
            set("max_tokens", (*max_tokens).into());
            let mut format = json!({"name": "verdict", "schema": schema});
            if is_strict(schema) {
                format["strict"] = true.into();
            }
            set("response_format", json!({"type": "json_schema", "json_schema": format}));
        }
    }
    for (name, value) in request {
        match value {
            Value::Null => _ = fields.shift_remove(name),
            value => _ = fields.insert(name.clone(), value.clone()),
        }
    }
    if matches!(question.answer, WantedAnswer::Words(_)) {
        // Whatever the field is called that bounds an answer: a word is read from one token.
        for limit in LIMITS {
            fields.get_mut(limit).into_iter().for_each(|most| *most = 1.into());
        }
    }
    Ok(Body { part: if is_chat { "chat/completions" } else { "completions" }, fields: fields.into() })
}

/// Whether all objects of a schema name all of their fields, and demand them: servers refuse others as strict ones.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(keys) => {
            let is_of_objects = keys.get("type") == Some(&json!("object")) || keys.contains_key("properties");
            let required = keys.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let fields = keys.get("properties").and_then(Value::as_object);
            let names_all = fields.is_some_and(|fields| fields.keys().all(|name| required.contains(&json!(name))));
            let is_closed = keys.get("additionalProperties") == Some(&json!(false));
            (!is_of_objects || names_all && is_closed) && keys.values().all(is_strict)
        }
        Value::Array(values) => values.iter().all(is_strict),
        _ => true,
    }
}

/// Refuses words of which one begins another one, or is nothing but spaces: a server's tokens do not tell them apart.
pub(super) fn check_different(words: &[String]) -> Result<()> {
    let begun = |at: usize| {
        let word = words[at].trim_start();
        (0..words.len()).find(|&other| other != at && words[other].trim_start().starts_with(word))
    };
    match (0..words.len()).find_map(|at| Some((at, begun(at)?))) {
        None => Ok(()),
        Some((at, other)) => {
            let expected = "words of which none begins another one, spaces before them aside (or a JSON answer)";
            Err(Error::value(
                "words for the judge's server",
                expected,
                format!("{:?} and {:?}", words[at], words[other]),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use offshoot_text::{ChatOptions, Message};

    use super::*;
    use crate::answer::{AnswerRule, ScoreField};

    fn chat() -> JudgePrompt {
        JudgePrompt::Chat { messages: vec![Message::user("Is it right?")], options: ChatOptions::default() }
    }

    fn words(words: [&str; 2]) -> WantedAnswer {
        WantedAnswer::Words(words.map(str::to_owned).into())
    }

    #[test]
    fn requests_ask_for_the_answer_alone() {
        let of = |prompt: JudgePrompt, answer: WantedAnswer| {
            super::of(&Question { prompt, answer }, "m", &Map::new()).unwrap()
        };
        let messages = json!([{"role": "user", "content": "Is it right?"}]);
        let chat_words = json!({"model": "m", "messages": messages, "temperature": 0, "seed": 0, "max_tokens": 1,
            "logprobs": true, "top_logprobs": 20});
        assert_eq!(of(chat(), words(["yes", "no"])), Body { part: "chat/completions", fields: chat_words });
        let text_words =
            json!({"model": "m", "prompt": "Right?", "temperature": 0, "seed": 0, "max_tokens": 1, "logprobs": 20});
        let text = || JudgePrompt::Text("Right?".to_owned());
        assert_eq!(of(text(), words([" yes", " no"])), Body { part: "completions", fields: text_words });
        let schema = json!({"type": "object"});
        let answer = WantedAnswer::Json { schema: Arc::new(schema.clone()), max_tokens: 64 };
        let format = json!({"type": "json_schema",
            "json_schema": {"name": "verdict", "schema": schema}});
        let json = json!({"model": "m", "messages": messages, "temperature": 0, "seed": 0, "max_tokens": 64,
            "response_format": format});
        assert_eq!(of(chat(), answer), Body { part: "chat/completions", fields: json });
    }

    #[test]
    fn a_schema_is_strict_if_servers_take_it_as_such() {
        let own = ScoreField::new("/score", (0.0, 1.0), None, 8).unwrap();
        let WantedAnswer::Json { schema, .. } = AnswerRule::Score(own).wanted() else { panic!("it is JSON") };
        assert!(is_strict(&schema));
        let score = json!({"score": {"type": "number"}});
        for (schema, strict) in [
            (json!({"type": "object", "properties": score}), false),
            (json!({"type": "object", "properties": score, "additionalProperties": false}), false),
            (json!({"type": "object", "properties": score, "required": ["score"]}), false),
            (json!({"properties": score, "required": ["score"], "additionalProperties": false}), true),
            (json!({"type": "array", "items": {"type": "object"}}), false),
            (json!({"enum": ["A", "B"]}), true),
        ] {
            assert_eq!(is_strict(&schema), strict, "{schema}");
        }
    }

    #[test]
    fn the_user_s_fields_take_the_place_of_others() {
        let request = json!({"max_tokens": null, "max_completion_tokens": 512, "temperature": 1, "seed": null});
        let fields = |answer: WantedAnswer| {
            let question = Question { prompt: chat(), answer };
            super::of(&question, "m", request.as_object().unwrap()).unwrap().fields
        };
        let json = fields(WantedAnswer::Json { schema: Arc::new(json!({"type": "object"})), max_tokens: 64 });
        assert_eq!((json.get("max_tokens"), json.get("seed")), (None, None));
        assert_eq!((&json["max_completion_tokens"], &json["temperature"]), (&json!(512), &json!(1)));
        // A limit of answers in JSON is none of words, which are read from one token.
        let words = fields(words(["yes", "no"]));
        assert_eq!((words.get("max_tokens"), &words["max_completion_tokens"]), (None, &json!(1)));
    }

    #[test]
    fn words_that_a_server_cannot_tell_apart_are_refused() {
        for pair in [["A", " A"], [" ", "B"], ["10", "1"]] {
            let question = Question { prompt: chat(), answer: words(pair) };
            let error = super::of(&question, "m", &Map::new()).unwrap_err().to_string();
            assert!(error.contains("none begins another one") && error.contains(pair[0]), "{error}");
        }
    }
}
