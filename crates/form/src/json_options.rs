//! How JSON of a form is written, beside its schema: the options of vLLM's structured outputs. They become llguidance's
//! own (`x-guidance`), a part of the schema, so that equal forms stay equal.
#![warn(missing_docs)]

use serde_json::{Map, Value, json};

use super::schema::parts_mut;
use super::spec::Form;

/// How JSON of a form is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// No white space between the values.
    pub disable_any_whitespace: bool,
    /// Objects whose schema lists properties have no others, unless their schema says so.
    pub disable_additional_properties: bool,
    /// The regular expression of the white space between the values; `None`: the usual one.
    pub whitespace_pattern: Option<String>,
}

/// The key of a schema that holds llguidance's options.
const OPTIONS: &str = "x-guidance";

impl JsonOptions {
    /// The form of JSON that `schema` accepts, written so.
    pub fn form(self, mut schema: Value) -> Form {
        if self.disable_additional_properties {
            close_objects(&mut schema);
        }
        let mut options = Map::new();
        if self.disable_any_whitespace {
            options.insert("whitespace_flexible".to_owned(), false.into());
        }
        if let Some(pattern) = self.whitespace_pattern {
            options.insert("whitespace_pattern".to_owned(), pattern.into());
        }
        if options.is_empty() {
            return Form::Json(schema);
        }
        // `true` is the schema of any JSON, too.
        if schema == Value::Bool(true) {
            schema = json!({});
        }
        if let Value::Object(fields) = &mut schema {
            match fields.get_mut(OPTIONS) {
                Some(Value::Object(own)) => own.extend(options),
                _ => drop(fields.insert(OPTIONS.to_owned(), options.into())),
            }
        }
        Form::Json(schema)
    }

    /// The form of a JSON object, written so.
    pub fn object(self) -> Form {
        // Closed, an object without properties would be empty.
        let style = JsonOptions { disable_additional_properties: false, ..self };
        match style == JsonOptions::default() {
            true => Form::JsonObject,
            false => style.form(json!({ "type": "object" })),
        }
    }
}

/// Lets objects whose schema lists properties have no others.
fn close_objects(schema: &mut Value) {
    let mut left = vec![schema];
    while let Some(schema) = left.pop() {
        let Value::Object(fields) = schema else { continue };
        let lists = ["properties", "patternProperties"].iter().any(|key| fields.contains_key(*key));
        if lists {
            fields.entry("additionalProperties").or_insert(false.into());
        }
        left.extend(parts_mut(fields));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_part_of_the_schema() {
        let style = |flat: bool, pattern: Option<&str>| JsonOptions {
            disable_any_whitespace: flat,
            whitespace_pattern: pattern.map(str::to_owned),
            ..JsonOptions::default()
        };
        let string = json!({"type": "string"});
        let cases = [
            (style(false, None), string.clone(), string),
            (style(false, None), json!(true), json!(true)),
            (style(true, None), json!(true), json!({"x-guidance": {"whitespace_flexible": false}})),
            (style(true, None), json!(false), json!(false)),
            (
                style(true, Some(" ?")),
                json!({"x-guidance": {"whitespace_pattern": "a", "coerce_one_of": true}}),
                json!({"x-guidance": {
                    "whitespace_pattern": " ?", "coerce_one_of": true, "whitespace_flexible": false}}),
            ),
        ];
        for (style, schema, expected) in cases {
            assert_eq!(style.clone().form(schema), Form::Json(expected), "{style:?}");
        }
        assert_eq!(style(false, None).object(), Form::JsonObject);
        let flat = json!({"type": "object", "x-guidance": {"whitespace_flexible": false}});
        assert_eq!(style(true, None).object(), Form::Json(flat));
    }

    #[test]
    fn objects_that_list_their_properties_are_closed() {
        let style = JsonOptions { disable_additional_properties: true, ..JsonOptions::default() };
        let open = json!({"type": "object", "properties": {"a": {"properties": {}, "additionalProperties": true}},
                          "anyOf": [{"patternProperties": {}}, {"type": "object"}]});
        let closed = json!({"type": "object", "properties": {"a": {"properties": {}, "additionalProperties": true}},
                            "anyOf": [{"patternProperties": {}, "additionalProperties": false}, {"type": "object"}],
                            "additionalProperties": false});
        assert_eq!(style.clone().form(open), Form::Json(closed));
        assert_eq!(style.clone().object(), Form::JsonObject);
        // A property of this name, and a value: no schemas that list properties.
        let named = json!({"properties": {"properties": {"type": "string"}, "a": {"const": {"properties": {}}}},
                           "default": {"properties": {}}, "enum": [{"patternProperties": {}}]});
        let mut expected = named.clone();
        expected["additionalProperties"] = false.into();
        assert_eq!(style.form(named), Form::Json(expected));
    }
}
