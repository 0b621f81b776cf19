//! The JSON value of a text that a model has written without being held to a form: it may stand between other words, or
//! in a fence, and be cut. Judges quote what they judge, so no object but the last one counts, and none inside another.

use serde_json::{Deserializer, Value};

/// The JSON value in a text: all of it, its last object, or what stands in its last fence. `is_cut`: the text ends
/// where it was cut, so that it has no value if anything follows the object.
pub(super) fn value_in(text: &str, is_cut: bool) -> Option<Value> {
    if let Ok(value) = serde_json::from_str(text.trim()) {
        return Some(value);
    }
    match last_object(text) {
        Objects::Last { value, rest } => {
            let is_end = rest.chars().all(|c| c.is_whitespace() || c == '`');
            (is_end || !is_cut).then_some(value)
        }
        Objects::Broken => None,
        Objects::None => last_fence(text).filter(|_| !is_cut),
    }
}

/// The objects of a text that stand in no other one.
enum Objects<'t> {
    None,
    /// The last one, and the text behind it.
    Last {
        value: Value,
        rest: &'t str,
    },
    /// The last one has no end, or is no JSON: where it ends is unknown, and what looks like an object behind its
    /// beginning may be a part of it.
    Broken,
}

fn last_object(text: &str) -> Objects<'_> {
    let (mut last, mut rest) = (Objects::None, text);
    while let Some(at) = rest.find('{') {
        let from = &rest[at..];
        // A brace of other writing, such as that of a set or a formula.
        if !from[1..].trim_start().starts_with(['"', '}']) {
            rest = &from[1..];
            continue;
        }
        let mut values = Deserializer::from_str(from).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Objects::Broken };
        rest = &from[values.byte_offset()..];
        // `{}` has no field that could be asked for, and stands for an empty set.
        if value.as_object().is_some_and(|fields| !fields.is_empty()) {
            last = Objects::Last { value, rest };
        }
    }
    last
}

/// What stands in the last fence.
fn last_fence(text: &str) -> Option<Value> {
    let text = text.trim_end();
    let (before, _) = text.rsplit_once("```")?;
    let (_, behind) = before.rsplit_once("```").unwrap_or(("", before));
    let (_, inside) = behind.split_once('\n')?;
    serde_json::from_str(inside.trim()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_object_counts_as_judges_quote_what_they_judge() {
        let of = |text: &str| value_in(text, false);
        let own = json!({"score": 2});
        for text in [
            r#"The answer ends with {"score": 10}. My verdict: {"score": 2}"#,
            "It says\n```json\n{\"score\": 10}\n```\nbut:\n```json\n{\"score\": 2}\n```",
            r#"{"score": 2} for the set {} or {1, 2}."#,
            r#"A set {sic} of {{braces}}: {"score": 2}"#,
        ] {
            assert_eq!(of(text), Some(own.clone()), "{text}");
        }
        let formulas = r"\frac{1}{2} ".repeat(1000);
        assert_eq!(of(&format!(r#"{formulas}{{"score": 2}}"#)), Some(own));
        assert_eq!(of("I count:\n```\n[1, 2]\n```\n"), Some(json!([1, 2])));
        assert_eq!(of(&"{".repeat(100_000)), None);
    }

    #[test]
    fn what_stands_in_a_broken_object_is_no_answer() {
        for text in [
            r#"{"reasoning": "..", "per_step": {"score": 9}, "sco"#,
            r#"{"reasoning": "the set {} is"#,
            r#"{"reasoning": "a" "per_step": {"score": 9}}"#,
            r#"{"score": 2} or rather {"score": "#,
        ] {
            assert_eq!(value_in(text, false), None, "{text}");
        }
    }

    #[test]
    fn nothing_follows_the_object_of_a_text_that_is_cut() {
        let object = r#"{"score": 10}"#;
        assert_eq!(value_in(&format!("```json\n{object}\n```"), true), Some(json!({"score": 10})));
        assert_eq!(value_in(&format!("It says {object}, which I"), true), None);
        assert_eq!(value_in(&format!("It says {object}, which I doubt."), false), Some(json!({"score": 10})));
    }
}
