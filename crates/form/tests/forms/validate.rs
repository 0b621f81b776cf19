//! A validator of JSON Schema, as far as the schemas of these tests go.

use regex::Regex;
use serde_json::Value;

/// Whether a value has a schema, whose references name parts of `root`.
pub fn has_schema(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(fields) = schema else { return schema == &Value::Bool(true) };
    fields.iter().all(|(key, wanted)| {
        let of = |schema: &Value| has_schema(value, schema, root);
        let number = |holds: fn(f64, f64) -> bool| match (value.as_f64(), wanted.as_f64()) {
            (Some(found), Some(wanted)) => holds(found, wanted),
            _ => true,
        };
        let count = |count: Option<usize>, holds: fn(u64, u64) -> bool| {
            count.is_none_or(|count| holds(count as u64, wanted.as_u64().expect("a count")))
        };
        let text = value.as_str();
        let list = |schemas: &Value| schemas.as_array().expect("a list").clone();
        match key.as_str() {
            "$ref" => of(root.pointer(&wanted.as_str().expect("a reference")[1..]).expect("a definition")),
            "allOf" => list(wanted).iter().all(of),
            "anyOf" => list(wanted).iter().any(of),
            "oneOf" => list(wanted).iter().filter(|schema| of(schema)).count() == 1,
            "const" => is_equal(value, wanted),
            "enum" => list(wanted).iter().any(|wanted| is_equal(value, wanted)),
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| is_of_kind(value, kind)),
                kind => is_of_kind(value, kind),
            },
            "minimum" => number(|found, least| found >= least),
            "maximum" => number(|found, most| found <= most),
            "exclusiveMinimum" => number(|found, least| found > least),
            "exclusiveMaximum" => number(|found, most| found < most),
            "multipleOf" => number(|found, step| (found / step).fract() == 0.0),
            "minLength" => count(text.map(|text| text.chars().count()), |found, least| found >= least),
            "maxLength" => count(text.map(|text| text.chars().count()), |found, most| found <= most),
            "pattern" => text
                .is_none_or(|text| Regex::new(wanted.as_str().expect("a pattern")).expect("a pattern").is_match(text)),
            "format" => match wanted.as_str() {
                Some("date") => text.is_none_or(is_date),
                other => panic!("{other:?}"),
            },
            "minItems" => count(value.as_array().map(Vec::len), |found, least| found >= least),
            "maxItems" => count(value.as_array().map(Vec::len), |found, most| found <= most),
            "prefixItems" => value.as_array().is_none_or(|items| {
                items.iter().zip(list(wanted)).all(|(item, schema)| has_schema(item, &schema, root))
            }),
            "items" => value.as_array().is_none_or(|items| {
                let first = fields.get("prefixItems").map_or(0, |first| list(first).len());
                items.iter().skip(first).all(|item| has_schema(item, wanted, root))
            }),
            "required" => value.as_object().is_none_or(|fields| {
                list(wanted).iter().all(|name| fields.contains_key(name.as_str().expect("a name")))
            }),
            "properties" => value.as_object().is_none_or(|found| {
                let has = |(name, value): (&String, &Value)| {
                    wanted.get(name).is_none_or(|schema| has_schema(value, schema, root))
                };
                found.iter().all(has)
            }),
            "additionalProperties" => value.as_object().is_none_or(|found| {
                let is_other = |name: &str| fields.get("properties").is_none_or(|named| named.get(name).is_none());
                found.iter().filter(|(name, _)| is_other(name)).all(|(_, value)| has_schema(value, wanted, root))
            }),
            "$defs" | "default" | "description" => true,
            other => panic!("a keyword that is not known here: {other}"),
        }
    })
}

/// Numbers are equal by their value.
fn is_equal(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Number(_), Value::Number(_)) => value.as_f64() == wanted.as_f64(),
        _ => value == wanted,
    }
}

fn is_of_kind(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number =
        |at: usize, digits: usize| -> Option<u32> { parts.get(at).filter(|part| part.len() == digits)?.parse().ok() };
    parts.len() == 3
        && number(0, 4).is_some()
        && number(1, 2).is_some_and(|month| (1..=12).contains(&month))
        && number(2, 2).is_some_and(|day| (1..=31).contains(&day))
}
