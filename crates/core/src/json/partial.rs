//! Reads one field of a JSON object whose text is not sound as a whole: cut, faulty behind the field, or with Python's
//! extensions.

use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::standard_json;

/// The field `key` of an object, read as far as `text` is JSON (with Python's extensions, as [`super::read`] has them);
/// of equal keys, the last one counts. `None`: there is none before the first fault.
pub fn field_of_partial(text: &str, key: &str) -> Option<Value> {
    let (text, mut found) = (standard_json(text), None);
    // The fault is known; what was read before it is in `found`.
    let _ = serde_json::Deserializer::from_str(&text).deserialize_map(FieldVisitor { key, found: &mut found });
    found
}

struct FieldVisitor<'a> {
    key: &'a str,
    found: &'a mut Option<Value>,
}

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key == self.key {
                true => *self.found = Some(map.next_value()?),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_before_the_first_fault() {
        for text in [
            r#"{"id": "a", "x": "#,
            r#"{"x": [NaN, -Infinity, 1e999], "id": "a", "y": NaN}"#,
            r#"{"x": "\ud800", "id": "a"}"#,
            r#"{"x": {"id": "b"}, "id": "a" "y"}"#,
            r#"{"id": "b", "id": "a", "#,
            r#"{"id": "a"} {"id": "b"}"#,
        ] {
            assert_eq!(field_of_partial(text, "id"), Some(Value::from("a")), "{text}");
        }
        for text in
            ["", "[1]", r#"{"x": {"id": "a"}}"#, r#"{"id": "a"#, r#"{"x": "\"id\": \"a\""}"#, r#"{"x" "id": "a"}"#]
        {
            assert_eq!(field_of_partial(text, "id"), None, "{text}");
        }
    }
}
