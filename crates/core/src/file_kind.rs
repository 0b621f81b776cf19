//! Which of two JSON files a text is: a task file, which may have comments, or requests in OpenAI's Batch format. Each
//! reader names the other in its error. What a task or a request means is left to those readers.

use serde_json::{Map, Value};

/// Whether the first line that is not blank is a request in OpenAI's Batch format.
pub fn begins_with_request(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.and_then(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    first.is_some_and(|line| ["custom_id", "url", "body"].iter().any(|key| line.contains_key(*key)))
}

/// Whether `text` is a task file, for the error messages of commands that expect another file.
pub fn is_task(text: &str) -> bool {
    let task = || serde_json::from_str::<Map<String, Value>>(&strip_comments(text)).ok();
    !begins_with_request(text) && task().is_some_and(|task| task.contains_key("items") && task.contains_key("prompt"))
}

/// Replaces `//` comments, and commas before a closing bracket, outside strings, by spaces, so that lines and columns
/// stay the same.
pub fn strip_comments(text: &str) -> String {
    let mut out: Vec<u8> = text.bytes().collect();
    let (mut at, mut in_string, mut comma) = (0, false, None);
    while at < out.len() {
        match out[at] {
            b'\\' if in_string => at += 1,
            b'"' => (in_string, comma) = (!in_string, None),
            _ if in_string => {}
            b'/' if out.get(at + 1) == Some(&b'/') => {
                while at < out.len() && out[at] != b'\n' {
                    out[at] = b' ';
                    at += 1;
                }
            }
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += 1;
    }
    String::from_utf8(out).expect("whole comments and single ASCII commas were replaced by spaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_last_commas_are_blanked_outside_strings_only() {
        let text = "{ // a \"comment\"\n \"a\": \"http://x, }\", \"b\": [1, 2, // two\n ], \"c\\\"//\": 3,\n}";
        let value: Value = serde_json::from_str(&strip_comments(text)).unwrap();
        assert_eq!(value, serde_json::json!({"a": "http://x, }", "b": [1, 2], "c\"//": 3}));
        assert_eq!(strip_comments(text).len(), text.len());
    }
}
