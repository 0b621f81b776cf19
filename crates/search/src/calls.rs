//! Answers that are calls of tools: a vote over what models call. Finding the calls in a text is `tools`' part.

use serde_json::{Value, json};

use crate::pointer::{JsonPointer, answer_text};
use offshoot_text::tools::calls_of;

/// Finds the answer of a text in its calls of tools, in whatever form its model writes them. A call is
/// `{"name": …, "arguments": …}`. A text without calls, or with one whose arguments are no JSON, has no answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalledTools {
    /// The place of the answer in a call; `None`: the call is the answer.
    pub pointer: Option<JsonPointer>,
}

impl CalledTools {
    /// The answer in a text: all of its calls, one as it is and several as a list; or, at the pointer, the value in the
    /// last call that has one.
    pub fn answer(&self, text: &str) -> Option<String> {
        let mut calls = calls(text)?;
        match &self.pointer {
            Some(_) => self.each(&calls).pop(),
            None if calls.len() == 1 => answer_text(&calls.pop()?),
            None => answer_text(&Value::Array(calls)),
        }
    }

    /// The answers in a text, one of each call, or of each that has a value at the pointer.
    pub fn answers(&self, text: &str) -> Vec<String> {
        calls(text).map(|calls| self.each(&calls)).unwrap_or_default()
    }

    fn each(&self, calls: &[Value]) -> Vec<String> {
        let answer = |call: &Value| match &self.pointer {
            Some(pointer) => pointer.answer_of(call),
            None => answer_text(call),
        };
        calls.iter().filter_map(answer).collect()
    }
}

/// The calls of a text, at least one.
fn calls(text: &str) -> Option<Vec<Value>> {
    let call = |call: offshoot_text::tools::ToolCall| {
        let arguments: Value = call.value()?;
        Some(json!({ "name": call.name, "arguments": arguments }))
    };
    let calls: Vec<Value> = calls_of(text).into_iter().map(call).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pointer: &str) -> CalledTools {
        CalledTools { pointer: Some(JsonPointer::new(pointer).expect("a pointer")) }
    }

    #[test]
    fn calls_are_answers_whatever_their_form() {
        let call = r#"{"name": "weather", "arguments": {"days": 2.0, "city": "Oslo"}}"#;
        let hermes = &format!("Let me see.\n<tool_call>\n{call}\n</tool_call>");
        let same = r#"{"arguments":{"city":"Oslo","days":2},"name":"weather"}"#;
        let all = CalledTools::default();
        assert_eq!(all.answer(hermes).as_deref(), Some(same));
        let mistral = r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]"#;
        assert_eq!(all.answer(mistral).as_deref(), Some(same));
        let tagged = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2.0\n\
                      </parameter>\n</function>\n</tool_call>";
        assert_eq!(all.answer(tagged).as_deref(), Some(same));
        let glm = "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>city</arg_key>\n\
                   <arg_value>Oslo</arg_value>\n</tool_call>";
        assert_eq!(all.answer(glm).as_deref(), Some(same));
        assert_eq!(at("/arguments/city").answer(hermes).as_deref(), Some("Oslo"));
        assert_eq!(at("/name").answer(mistral).as_deref(), Some("weather"));
        assert_eq!(at("/arguments/country").answer(hermes), None);
        assert_eq!((all.answer("It rains in Oslo."), all.answers("")), (None, Vec::new()));
    }

    #[test]
    fn several_calls_are_a_list_or_one_by_one() {
        let call =
            |city: &str| format!("<tool_call>{{\"name\": \"w\", \"arguments\": {{\"city\": \"{city}\"}}}}</tool_call>");
        let text = call("Oslo") + &call("Rome");
        let one = |city: &str| format!(r#"{{"arguments":{{"city":"{city}"}},"name":"w"}}"#);
        let all = CalledTools::default();
        assert_eq!(all.answer(&text), Some(format!("[{},{}]", one("Oslo"), one("Rome"))));
        assert_eq!(all.answers(&text), [one("Oslo"), one("Rome")]);
        assert_eq!(at("/arguments/city").answer(&text).as_deref(), Some("Rome"));
        assert_eq!(at("/arguments/city").answers(&text), ["Oslo", "Rome"]);
    }
}
