//! Strings that stand in a text as they are, without the quotes and escapes of JSON, as terminals of a grammar. All
//! that a schema says of strings holds for them; what can't be held is an error.

use serde_json::Value;

use super::formats::format_texts;
use super::grammar::{Unheld, quoted};
use super::pattern::{ANY_TEXT, found_in, without};
use super::schema::SchemaPart;

/// Schemas within each other that are looked at.
const DEEPEST: usize = 32;

/// Keywords that may refuse a string, and that no terminal holds.
const UNHELD: [&str; 6] = ["not", "if", "then", "else", "$dynamicRef", "$recursiveRef"];

/// The expression of a terminal whose texts are the strings that a schema accepts and that do not have `end`, which
/// stands behind them.
pub(super) fn raw_text(part: SchemaPart<'_>, end: &str) -> Result<String, Unheld> {
    let texts = match strings(part, end, 0)? {
        Strings::Any => ANY_TEXT.to_owned(),
        Strings::Of(texts) => texts,
        Strings::None => return Err(Unheld::keyword("type")),
    };
    Ok(format!("({texts} & {})", without(end)))
}

/// Strings that a schema accepts.
enum Strings {
    Any,
    /// The texts of this expression.
    Of(String),
    None,
}

fn strings(part: SchemaPart<'_>, end: &str, depth: usize) -> Result<Strings, Unheld> {
    let fields = match part.schema {
        Value::Object(fields) => fields,
        Value::Bool(false) => return Ok(Strings::None),
        _ => return Ok(Strings::Any),
    };
    if depth > DEEPEST {
        return Err(Unheld::new("a schema that names itself"));
    }
    let allows_strings = match fields.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    };
    if !allows_strings {
        return Ok(Strings::None);
    }
    if let Some(keyword) = UNHELD.iter().find(|keyword| fields.contains_key(**keyword)) {
        return Err(Unheld::keyword(keyword));
    }
    // What holds together.
    let mut joined: Vec<String> = Vec::new();
    if let Some(values) = part.values() {
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        if let Some(text) = texts.iter().find(|text| text.contains(end)) {
            return Err(Unheld::new(format!("the text {text:?}, which has {end:?} in it")));
        }
        let texts: Vec<String> = texts.into_iter().map(quoted).collect();
        if texts.is_empty() {
            return Ok(Strings::None);
        }
        joined.push(format!("({})", texts.join(" | ")));
    }
    if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
        joined.push(found_in(pattern).ok_or_else(|| Unheld::new(format!("the `pattern` {pattern:?}")))?);
    }
    joined.extend(fields.get("format").and_then(Value::as_str).and_then(format_texts));
    let count = |key: &str| fields.get(key).and_then(Value::as_u64);
    match (count("minLength"), count("maxLength")) {
        (None | Some(0), None) => {}
        (least, None) => joined.push(format!("/(?s:.{{{},}})/", least.unwrap_or(0))),
        (least, Some(most)) => joined.push(format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0))),
    }
    let mut others: Vec<Strings> = Vec::new();
    if let Some(reference) = fields.get("$ref") {
        let named = part.referred(reference).ok_or_else(|| Unheld::keyword("$ref"))?;
        others.push(strings(named, end, depth + 1)?);
    }
    for schema in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        others.push(strings(part.part(schema), end, depth + 1)?);
    }
    for key in ["anyOf", "oneOf"] {
        let Some(options) = fields.get(key).and_then(Value::as_array) else { continue };
        let options = options.iter().map(|schema| strings(part.part(schema), end, depth + 1));
        let options: Vec<Strings> = options.collect::<Result<_, _>>()?;
        let options: Vec<Strings> = options.into_iter().filter(|option| !matches!(option, Strings::None)).collect();
        if key == "oneOf" && options.len() > 1 {
            return Err(Unheld::keyword(key));
        }
        others.push(any_of(options));
    }
    for other in others {
        match other {
            Strings::Any => {}
            Strings::Of(texts) => joined.push(texts),
            Strings::None => return Ok(Strings::None),
        }
    }
    Ok(match joined.len() {
        0 => Strings::Any,
        _ => Strings::Of(format!("({})", joined.join(" & "))),
    })
}

/// The strings of at least one of several.
fn any_of(options: Vec<Strings>) -> Strings {
    let mut texts = Vec::new();
    for option in options {
        match option {
            Strings::Any => return Strings::Any,
            Strings::Of(option) => texts.push(option),
            Strings::None => {}
        }
    }
    match texts.is_empty() {
        true => Strings::None,
        false => Strings::Of(format!("({})", texts.join(" | "))),
    }
}
