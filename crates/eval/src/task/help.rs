//! `offshoot help task`: every key of a task file, from the schema that also checks it; and the schema itself, for
//! editors.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::SCHEMA;
use crate::source::schema::{inside, is_of, is_required, properties};
use offshoot_core::setting::SET;

/// Columns of the text.
const WIDTH: usize = 100;
const INDENT: &str = "    ";

/// The JSON Schema of a task file.
pub fn schema() -> String {
    format!("{:#}\n", SCHEMA.root())
}

/// All keys with type, default and meaning.
pub fn text() -> String {
    let mut page = HelpText { text: String::new(), explained: HashMap::new() };
    page.lines("", "", &described(SCHEMA.root()));
    page.text.push_str(&format!(
        "\nKeys by dotted path, as in {SET} KEY=VALUE; `[]` is an element of a list, `NAME` a name of yours.\n\n"
    ));
    page.keys_in("", SCHEMA.root());
    page.text
}

struct HelpText {
    text: String,
    /// The place where each definition was explained.
    explained: HashMap<String, String>,
}

impl HelpText {
    /// The keys of the objects that `schema` allows.
    fn keys_in(&mut self, at: &str, schema: &Value) {
        self.keys_of(at, schema, false);
    }

    /// `is_kind`: `schema` is one of several, which its key tells apart.
    fn keys_of(&mut self, at: &str, schema: &Value, is_kind: bool) {
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(before) = self.explained.get(name) {
                if has_keys(schema) {
                    let line = format!("    Its keys are those of `{before}`.\n");
                    self.text.push_str(&line);
                }
                return;
            }
            self.explained.insert(name.to_string(), at.to_string());
            return self.keys_in(at, SCHEMA.definition(name));
        }
        for alternative in ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)?.as_array()).flatten() {
            self.keys_of(at, alternative, schema.get("oneOf").is_some());
        }
        let Some(leaf) = schema.as_object() else { return };
        if let Some(elements) = leaf.get("items").filter(|_| is_of(leaf, "array")) {
            self.keys_in(&format!("{at}[]"), elements);
        }
        if let Some(values) = leaf.get("additionalProperties").filter(|values| values.is_object()) {
            self.keys_in(&inside(at, "NAME"), values);
        }
        // The description of one of several kinds stands beside its only key.
        let kind = if is_kind { described(schema) } else { String::new() };
        for (key, schema) in properties(leaf).into_iter().flatten() {
            let meaning = Some(described(schema)).filter(|text| !text.is_empty()).unwrap_or_else(|| kind.clone());
            self.key(&inside(at, key), schema, &meaning, is_required(leaf, key) && !is_kind);
        }
    }

    fn key(&mut self, at: &str, schema: &Value, meaning: &str, is_required: bool) {
        // The keys of an object have their own defaults.
        let default = schema.get("default").filter(|default| !is_nothing(default) && !default.is_object());
        let note = match (default, is_required) {
            (Some(default), _) => format!(" [default: {default}]"),
            (None, true) => " [required]".to_string(),
            (None, false) => String::new(),
        };
        self.lines("", INDENT, &format!("{at}: {}{note}", SCHEMA.expected(schema)));
        self.lines(INDENT, INDENT, meaning);
        for (word, meaning) in words(schema) {
            self.lines(INDENT, INDENT, &format!("`{word}`: {meaning}"));
        }
        self.keys_in(at, schema);
    }

    /// The text in lines of at most [`WIDTH`] columns, the first indented by `first`, the others by `rest`.
    fn lines(&mut self, first: &str, rest: &str, text: &str) {
        let mut line = first.to_string();
        let mut is_empty = true;
        for word in text.split_whitespace() {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.text.push_str(&line);
                self.text.push('\n');
                line = rest.to_string();
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        if !is_empty {
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }
}

fn described(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    text.unwrap_or_default().to_string()
}

/// Whether objects with several keys of their own are allowed.
fn has_keys(schema: &Value) -> bool {
    let several =
        |leaves: Vec<&Map<String, Value>>| leaves.into_iter().filter_map(properties).map(Map::len).sum::<usize>() > 1;
    SCHEMA.leaves(schema).is_some_and(several)
}

/// The allowed words that have a meaning of their own.
fn words(schema: &Value) -> Vec<(String, String)> {
    let of = |leaf: &&Map<String, Value>| {
        let word = leaf.get("const")?.as_str()?.to_string();
        Some((word, leaf.get("description")?.as_str()?.to_string()))
    };
    SCHEMA.leaves(schema).unwrap_or_default().iter().filter_map(of).collect()
}

/// Whether a default is an absent or empty value.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
