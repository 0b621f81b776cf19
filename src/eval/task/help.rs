//! `offshoot help task`: every key of a task file, from the schema that also checks it; and the schema itself, for editors.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::SCHEMA;
use crate::eval::source::schema::{inside, is_of, is_required, properties};

/// Columns of the text.
const WIDTH: usize = 100;

/// The JSON Schema of a task file.
pub fn schema() -> String {
    format!("{:#}\n", SCHEMA.root())
}

/// All keys with type, default and meaning.
pub fn text() -> String {
    let mut page = Page { text: String::new(), explained: HashMap::new() };
    page.paragraph("", &described(SCHEMA.root()));
    page.text.push_str(
        "\nKeys by dotted path, as in --set KEY=VALUE; `[]` is an element of a list, `NAME` a name of yours.\n\n",
    );
    page.keys_in("", SCHEMA.root());
    page.text
}

struct Page {
    text: String,
    /// The place where each definition was explained.
    explained: HashMap<String, String>,
}

impl Page {
    /// The keys of the objects that `schema` allows.
    fn keys_in(&mut self, at: &str, schema: &Value) {
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
            self.keys_in(at, alternative);
        }
        let Some(leaf) = schema.as_object() else { return };
        if let Some(elements) = leaf.get("items").filter(|_| is_of(leaf, "array")) {
            self.keys_in(&format!("{at}[]"), elements);
        }
        if let Some(values) = leaf.get("additionalProperties").filter(|values| values.is_object()) {
            self.keys_in(&inside(at, "NAME"), values);
        }
        for (key, schema) in properties(leaf).into_iter().flatten() {
            self.key(
                &inside(at, key),
                schema,
                is_required(leaf, key) && properties(leaf).is_some_and(|keys| keys.len() > 1),
            );
        }
    }

    fn key(&mut self, at: &str, schema: &Value, is_required: bool) {
        let default = schema.get("default").filter(|default| !is_nothing(default));
        let note = match (default, is_required) {
            (Some(default), _) => format!(" [default: {default}]"),
            (None, true) => " [required]".to_string(),
            (None, false) => String::new(),
        };
        self.text.push_str(&format!("{at}: {}{note}\n", SCHEMA.expected(schema)));
        self.paragraph("    ", &described(schema));
        for (word, meaning) in words(schema) {
            self.paragraph("    ", &format!("`{word}`: {meaning}"));
        }
        self.keys_in(at, schema);
    }

    fn paragraph(&mut self, indent: &str, text: &str) {
        let mut column = 0;
        for word in text.split_whitespace() {
            let wide = word.chars().count();
            match column {
                0 => self.text.push_str(indent),
                _ if column + 1 + wide > WIDTH => {
                    self.text.push('\n');
                    self.text.push_str(indent);
                    column = 0;
                }
                _ => self.text.push(' '),
            }
            column = if column == 0 { indent.len() + wide } else { column + 1 + wide };
            self.text.push_str(word);
        }
        if column > 0 {
            self.text.push('\n');
        }
    }
}

/// The description beside a schema, or that of the only definition that it refers to.
fn described(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    text.unwrap_or_default().to_string()
}

/// Whether objects with keys of their own are allowed.
fn has_keys(schema: &Value) -> bool {
    SCHEMA.leaves(schema).is_some_and(|leaves| leaves.iter().any(|leaf| properties(leaf).is_some()))
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
