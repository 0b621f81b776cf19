//! The white space between the parts of JSON: the pattern that a schema has by itself, and a check of one that a schema
//! chooses, whose texts must be JSON still.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};

use crate::trial::Refusal;

/// White space between the parts of JSON, where the schema says nothing else: what compact and indented JSON have. It
/// is bounded, so that a text cannot go on with white space for ever, and has no empty line, at which chats may stop.
const WHITE_SPACE: &str = r"[ \t]{1,4}|\r?\n[ \t]{0,32}";
/// The key of a schema under which llguidance reads its options.
const OPTIONS: &str = "x-guidance";
/// The option that is the pattern of white space.
const PATTERN: &str = "whitespace_pattern";

/// Adds our white space to a schema that does not choose its own.
pub(crate) fn add(schema: &mut Map<String, Value>) -> Result<(), Refusal> {
    let options = schema.entry(OPTIONS).or_insert_with(|| json!({}));
    let Value::Object(options) = options else {
        return Err(Refusal::new(format!("an object as `{OPTIONS}`"), options.to_string()));
    };
    if !options.contains_key(PATTERN) && !options.contains_key("whitespace_flexible") {
        options.insert(PATTERN.to_string(), WHITE_SPACE.into());
    }
    Ok(())
}

/// Refuses a schema whose pattern of white space accepts anything else: the texts would be no JSON.
pub(crate) fn check(schema: &Value) -> Result<(), Refusal> {
    let Some(pattern) = schema.get(OPTIONS).and_then(|options| options[PATTERN].as_str()) else { return Ok(()) };
    // What is no pattern at all is refused as one when it is compiled.
    match regex_syntax::parse(pattern) {
        Ok(parsed) if !is_blank(&parsed) => {
            let found = format!("{pattern:?}");
            Err(Refusal::new(format!("blanks, tabs and line ends alone as `{PATTERN}`"), found))
        }
        _ => Ok(()),
    }
}

/// Whether all texts of a pattern are white space as JSON has it. (A pattern's parser bounds its depth.)
fn is_blank(pattern: &Hir) -> bool {
    let blank = |byte: u8| b" \t\r\n".contains(&byte);
    let of_chars = |from: char, to: char| (from..=to).take(5).all(|c| u8::try_from(c).is_ok_and(blank));
    match pattern.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => literal.0.iter().all(|byte| blank(*byte)),
        HirKind::Class(Class::Unicode(class)) => class.iter().all(|range| of_chars(range.start(), range.end())),
        HirKind::Class(Class::Bytes(class)) => class.iter().all(|range| (range.start()..=range.end()).all(blank)),
        HirKind::Repetition(repeated) => is_blank(&repeated.sub),
        HirKind::Capture(group) => is_blank(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_blank),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_white() {
        let of = |pattern: &str| check(&json!({"type": "object", OPTIONS: {PATTERN: pattern}}));
        for pattern in [WHITE_SPACE, "", " ?", r"[ \t\r\n]*", r"(\n|\r\n)? {0,2}", r"\x20", r"[\t-\n]+"] {
            assert_eq!(of(pattern), Ok(()), "{pattern:?}");
        }
        for pattern in ["x+", r"\s*", "[ a]?", ".", r"[^\n]", " |,", r"\d", "\u{a0}"] {
            let refusal = of(pattern).expect_err(pattern);
            assert_eq!(refusal.expected, "blanks, tabs and line ends alone as `whitespace_pattern`");
            assert_eq!(refusal.found, format!("{pattern:?}"));
        }
        assert_eq!(check(&json!({"type": "object"})), Ok(()));
    }
}
