//! Answers that stand in a field of JSON: finds the JSON in a text, and the value at a place in it. How answers are
//! compared is left to the vote, patterns and boxes to `eval`.

use serde_json::{Deserializer, Number, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::json::describe;
use offshoot_core::json::digits::without_exponent;
use offshoot_core::json::read_with_digits;
use offshoot_text::reasoning::answer_part;

/// A place in a JSON value, as a JSON pointer (RFC 6901): `/answer` is the key `answer` of an object, `/steps/0/result`
/// the key `result` of the first element of the list `steps`, and the empty pointer the whole value. In keys `~1` is a
/// slash and `~0` a tilde.
///
/// ```
/// use offshoot_search::JsonPointer;
///
/// let pointer = JsonPointer::new("/answer")?;
/// let text = "Here it is:\n```json\n{\"steps\": [3, 4], \"answer\": 12.0}\n```";
/// assert_eq!(pointer.answer(text).as_deref(), Some("12"));
/// assert_eq!(pointer.answer("It is 12."), None);
/// # Ok::<(), offshoot_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer(String);

impl JsonPointer {
    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// It is neither empty nor begins with a slash, or a `~` in it is followed by neither `0` nor `1`.
    pub fn new(pointer: &str) -> Result<JsonPointer> {
        let begins = pointer.is_empty() || pointer.starts_with('/');
        let is_escaped = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        match begins && is_escaped {
            true => Ok(JsonPointer(pointer.to_owned())),
            false => {
                let expected = "a JSON pointer, such as \"/answer\" (in keys `~1` is a slash and `~0` a tilde)";
                Err(Error::value("JSON pointer", expected, describe(&Value::from(pointer))))
            }
        }
    }

    /// The answer in a text: the last of [`answers`](Self::answers) behind its reasoning.
    pub fn answer(&self, text: &str) -> Option<String> {
        self.answers(&answer_part(text)).pop()
    }

    /// The values at this place in the JSON of a text, in the text's order: in the text itself where it is JSON as a
    /// whole, or else in each object and list of JSON that stands in it, in a fence or between other words. JSON in
    /// other JSON does not count by itself, nor does any behind the beginning of JSON that the text's end cuts.
    pub fn answers(&self, text: &str) -> Vec<String> {
        match read_with_digits::<Value>(text.trim()) {
            Ok(value) => self.answer_of(&value).into_iter().collect(),
            Err(_) => values_within(text).iter().filter_map(|value| self.answer_of(value)).collect(),
        }
    }

    /// The value at this place, as [`answer_text`] writes it; `None` if there is none, or null.
    pub fn answer_of(&self, value: &Value) -> Option<String> {
        value.pointer(&self.0).and_then(answer_text)
    }
}

/// A JSON value as an answer that votes compare: strings as they are, all else as JSON in one form: without white
/// space, keys sorted, numbers without exponent and without zeros at their ends. `None` for null, which is no answer.
pub fn answer_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(canonical(other)),
    }
}

/// A value's JSON in one form.
fn canonical(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
        Value::Number(number) => number_answer(number),
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let mut pairs: Vec<(&String, &Value)> = fields.iter().collect();
            pairs.sort_unstable_by_key(|&(key, _)| key);
            let pair = |(key, value): (&String, &Value)| format!("{}:{}", Value::from(key.as_str()), canonical(value));
            format!("{{{}}}", pairs.into_iter().map(pair).collect::<Vec<_>>().join(","))
        }
    }
}

/// A number as an answer that votes compare: without exponent and without zeros at its end.
pub fn number_answer(number: &Number) -> String {
    let text = without_exponent(number);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The objects and lists of JSON that stand in a text, outermost ones only, up to the first that the text's end cuts.
fn values_within(text: &str) -> Vec<Value> {
    let (mut values, mut from) = (Vec::new(), 0);
    while let Some(at) = text[from..].find(['{', '[']).map(|at| from + at) {
        let mut stream = Deserializer::from_str(&text[at..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                let end = at + stream.byte_offset();
                // With the digits of long numbers, where there are any.
                values.push(read_with_digits(&text[at..end]).unwrap_or(value));
                from = end;
            }
            Some(Err(error)) if error.is_eof() => break,
            // Brackets of prose. serde_json gives up 128 levels deep, which bounds what is read again.
            Some(Err(_)) | None => from = at + 1,
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn answer(pointer: &str, text: &str) -> Option<String> {
        JsonPointer::new(pointer).expect("a pointer").answer(text)
    }

    #[test]
    fn the_json_may_be_the_text_or_stand_in_it() {
        let cases = [
            (r#"{"answer": "Paris", "why": "it is"}"#, Some("Paris")),
            (" \n{\"answer\": \"Paris\"}\n", Some("Paris")),
            ("So:\n```json\n{\"answer\": \"Paris\"}\n```\nDone.", Some("Paris")),
            (r#"First {"answer": "Rome"}, no, {"answer": "Paris"}."#, Some("Paris")),
            (r#"See [1] and {x}: {"answer": "Paris"} (as {"note": 2})"#, Some("Paris")),
            (r#"<think>{"answer": "Rome"}</think>{"answer": "Paris"}"#, Some("Paris")),
            (r#"<think>{"answer": "Rome"}"#, None),
            ("Paris", None),
            (r#"{"city": "Paris"}"#, None),
            (r#"{"answer": null}"#, None),
            // Cut by the limit of tokens: what is inside is not the answer.
            (r#"{"why": {"answer": "Rome"}, "answer": "Par"#, None),
            (r#"{"answer": "Paris"} and {"answer": "Ro"#, Some("Paris")),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(answer("/answer", text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn pointers_go_into_lists_and_through_slashes() {
        let text = r#"{"steps": [{"result": 1}, {"result": 7}], "a/b": {"~": true}}"#;
        let cases = [
            ("/steps/1/result", Some("7")),
            ("/steps/2/result", None),
            ("/steps/01/result", None),
            ("/a~1b/~0", Some("true")),
            ("/steps/0", Some(r#"{"result":1}"#)),
        ];
        for (pointer, expected) in cases {
            assert_eq!(answer(pointer, text).as_deref(), expected, "{pointer}");
        }
        assert_eq!(answer("", " 4.50 ").as_deref(), Some("4.5"), "the whole text may be a number");
        for wrong in ["answer", "#/answer", "/a~b", "/a~", "$.answer"] {
            let error = JsonPointer::new(wrong).expect_err(wrong).to_string();
            assert!(error.contains("a JSON pointer, such as \"/answer\"") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn equal_values_are_one_answer() {
        let same = [
            [r#"{"b": 1, "a": [1.0, 2e1]}"#, r#"{"a":[1,20],"b":1.00}"#],
            ["-0.0", "0"],
            ["1.50", "15e-1"],
            [r#"{"x": "\u00e9"}"#, r#"{"x":"é"}"#],
        ];
        for [one, other] in same {
            assert_eq!(answer("", one), answer("", other), "{one} {other}");
        }
        let apart = [["1", "true"], ["[1]", "[[1]]"], [r#"["1"]"#, "[1]"], ["1e25", "1e26"]];
        for [one, other] in apart {
            assert_ne!(answer("", one), answer("", other), "{one} {other}");
        }
        // More digits than a double has.
        let digits = "123456789012345678901234567890";
        assert_eq!(answer("/n", &format!(r#"{{"n": {digits}}}"#)).as_deref(), Some(digits));
        assert_eq!(answer("/n", &format!(r#"so {{"n": {digits}}}"#)).as_deref(), Some(digits));
    }

    #[test]
    fn brackets_without_end_are_read_in_time() {
        for text in ["[".repeat(20_000) + "x", r#"{"a":"#.repeat(20_000) + "x", "[{".repeat(20_000)] {
            assert_eq!(answer("/answer", &text), None);
        }
    }

    proptest! {
        #[test]
        fn a_value_is_found_between_any_words(before in "[^\\[{]{0,20}", after in "[^\\[{]{0,20}", n in any::<i64>()) {
            let object = json!({"why": "because", "answer": n});
            let text = format!("{before}{object}{after}");
            let found = JsonPointer::new("/answer").expect("a pointer").answers(&text);
            prop_assert_eq!(found, [n.to_string()], "{}", text);
        }
    }
}
