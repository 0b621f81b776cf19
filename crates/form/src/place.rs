//! The messages of llguidance about schemas, which name no place, with the place that they are about.

use serde_json::Value;

use crate::schema::{NAMED_SCHEMAS, SCHEMAS, has_far_bound, has_overlap};
use crate::trial::Refusal;

/// The refusal of a schema, with what llguidance's message leaves out.
pub(crate) fn placed(refusal: Refusal, schema: &Value) -> Refusal {
    let message = &refusal.found;
    if let Some((_, rest)) = message.split_once("Resource '")
        && let Some((address, rest)) = rest.split_once('\'')
        && rest.contains("retrieving it failed")
    {
        let found = format!("a `$ref` to {address}, which is not fetched");
        return Refusal { found, ..Refusal::new("references into the schema itself, as to its `$defs`", "") };
    }
    if message.contains("oneOf constraints are not supported") {
        let at = place(schema, &|one| has_overlap(one, schema)).unwrap_or_else(|| "#".to_owned());
        const COERCED: &str = r#"`"x-guidance": {"coerce_one_of": true}` at the schema's top"#;
        let expected = format!("a `oneOf` whose schemas surely exclude each other, or {COERCED} (it is `anyOf` then)");
        return Refusal::new(expected, format!("at `{at}`: several of its schemas may accept one value"));
    }
    if message.contains("regex for integer range")
        && let Some(at) = place(schema, &has_far_bound)
    {
        return Refusal::new("bounds of integers of at most 18 digits", format!("at `{at}`: a bound of more"));
    }
    let is_it: Box<dyn Fn(&Value) -> bool> = if let Some((_, kind)) = message.split_once("Invalid type: ") {
        let kind = kind.split_whitespace().next().unwrap_or_default();
        Box::new(move |schema| {
            let kinds = &schema["type"];
            kinds == kind || kinds.as_array().is_some_and(|kinds| kinds.iter().any(|one| one == kind))
        })
    } else if let Some((_, keys)) = message.split_once("Unimplemented keys: [\"") {
        let key = keys.split('"').next().unwrap_or_default();
        Box::new(move |schema| schema.get(key).is_some())
    } else {
        return refusal;
    };
    match place(schema, &*is_it) {
        Some(place) => Refusal { found: format!("at `{place}`: {message}"), ..refusal.clone() },
        None => refusal.clone(),
    }
}

/// The first schema within `schema` that is the one looked for, as a reference names it.
fn place(schema: &Value, is_it: &dyn Fn(&Value) -> bool) -> Option<String> {
    let mut left = vec![(schema, "#".to_owned())];
    while let Some((schema, place)) = left.pop() {
        if is_it(schema) {
            return Some(place);
        }
        let mut inner = Vec::new();
        for (key, value) in schema.as_object().into_iter().flatten() {
            let place = format!("{place}/{}", escaped(key));
            match value {
                Value::Object(named) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                    inner.extend(named.iter().map(|(name, schema)| (schema, format!("{place}/{}", escaped(name)))));
                }
                Value::Array(schemas) if SCHEMAS.contains(&key.as_str()) => {
                    inner.extend(schemas.iter().enumerate().map(|(at, schema)| (schema, format!("{place}/{at}"))));
                }
                schema if SCHEMAS.contains(&key.as_str()) => inner.push((schema, place)),
                _ => {}
            }
        }
        left.extend(inner.into_iter().rev());
    }
    None
}

/// A key as a part of a pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
