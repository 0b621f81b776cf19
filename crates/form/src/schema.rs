//! JSON Schemas as llguidance takes them: what it refuses though it says nothing, or though an equal schema can say it,
//! is rewritten. A text that the rewritten schema accepts is accepted by the schema that came.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::trial::Refusal;

/// The formats of texts that llguidance knows. By the specification a format is an annotation: others say nothing.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that say nothing about a value, and may be long.
const ANNOTATIONS: [&str; 9] =
    ["deprecated", "$vocabulary", "$comment", "title", "description", "default", "examples", "readOnly", "writeOnly"];
/// Keywords whose value is a schema, or a list of schemas.
const SCHEMAS: [&str; 15] = [
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "allOf",
    "oneOf",
];
/// Keywords whose value is an object of schemas.
const NAMED_SCHEMAS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// The pattern that pydantic writes for a Decimal, and one without look-ahead that accepts the same texts: at least one
/// digit, a sign and a point at most.
const DECIMAL: [&str; 2] = [r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?(\d+\.?\d*|\.\d+)$"];
/// Integers' bounds beyond this are drawn in to it.
const MOST_INTEGER: i64 = 999_999_999_999_999_999;
/// Steps of following references and alternatives.
const MOST_STEPS: usize = 8;

/// The schema, rewritten.
pub(crate) fn rewritten(mut schema: Value) -> Result<Value, Refusal> {
    let root = schema.clone();
    check_multiples(&root)?;
    rewrite(&mut schema, &root);
    Ok(schema)
}

fn rewrite(schema: &mut Value, root: &Value) {
    let Value::Object(fields) = schema else { return };
    ANNOTATIONS.iter().for_each(|key| _ = fields.shift_remove(*key));
    if fields.get("format").and_then(Value::as_str).is_some_and(|format| !FORMATS.contains(&format)) {
        fields.shift_remove("format");
    }
    let is_short = fields.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1);
    if fields.get("uniqueItems").and_then(Value::as_bool).is_some_and(|unique| !unique || is_short) {
        fields.shift_remove("uniqueItems");
    }
    if let Some(pattern) = fields.get_mut("pattern").filter(|pattern| **pattern == DECIMAL[0]) {
        *pattern = DECIMAL[1].into();
    }
    if fields.get("type").is_some_and(|kind| kind == "integer") {
        draw_in_bounds(fields);
    }
    if !fields.contains_key("anyOf")
        && fields.get("oneOf").and_then(Value::as_array).is_some_and(|options| all_disjoint(options, root))
    {
        // The place among the keys says nothing.
        let options = fields.shift_remove("oneOf").expect("it was found just now");
        fields.insert("anyOf".to_string(), options);
    }
    parts_mut(fields).into_iter().for_each(|part| rewrite(part, root));
}

/// The schemas that a schema of these fields is made of. Other values, as those of `const`, are none, whatever their
/// keys are called.
pub(crate) fn parts_mut(fields: &mut Map<String, Value>) -> Vec<&mut Value> {
    let mut parts = Vec::new();
    for (key, value) in fields.iter_mut() {
        if SCHEMAS.contains(&key.as_str()) {
            match value {
                Value::Array(list) => parts.extend(list),
                schema => parts.push(schema),
            }
        } else if NAMED_SCHEMAS.contains(&key.as_str()) {
            parts.extend(value.as_object_mut().into_iter().flat_map(Map::values_mut));
        }
    }
    parts
}

/// Integers have bounds of at most 18 digits.
fn draw_in_bounds(fields: &mut Map<String, Value>) {
    for (key, sign) in [("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)] {
        if let Some(bound) = fields.get_mut(key)
            && bound.as_f64().is_some_and(|found| found * sign as f64 > MOST_INTEGER as f64)
        {
            *bound = (sign * MOST_INTEGER).into();
        }
    }
}

fn all_disjoint(options: &[Value], root: &Value) -> bool {
    let pairs = |at: usize| options[at + 1..].iter().map(move |other| (&options[at], other));
    // Many options would take long to compare: each pair is looked at.
    options.len() <= 256 && (0..options.len()).flat_map(pairs).all(|(a, b)| are_disjoint(a, b, root, MOST_STEPS))
}

/// Whether it is plain that no value has both schemas.
fn are_disjoint(a: &Value, b: &Value, root: &Value, steps: usize) -> bool {
    let Some(steps) = steps.checked_sub(1) else { return false };
    let (Some(a), Some(b)) = (resolved(a, root), resolved(b, root)) else { return false };
    if let (Some(a), Some(b)) = (literals(a), literals(b)) {
        return !a.iter().any(|value| b.contains(value));
    }
    if let (Some(a), Some(b)) = (types(a, root, steps), types(b, root, steps))
        && a.is_disjoint(&b)
    {
        return true;
    }
    fn names(schema: &Value) -> BTreeSet<&str> {
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    let differ = |name: &str| match (a["properties"].get(name), b["properties"].get(name)) {
        (Some(a), Some(b)) => are_disjoint(a, b, root, steps),
        _ => false,
    };
    let are_objects = a["type"] == "object" && b["type"] == "object";
    are_objects && names(a).union(&names(b)).any(|name| differ(name))
}

/// The schema that a schema of nothing but a reference into the whole names.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..MOST_STEPS {
        match schema.get("$ref") {
            None => return Some(schema),
            Some(reference) => schema = root.pointer(reference.as_str()?.strip_prefix('#')?)?,
        }
    }
    None
}

/// The only values that a schema accepts, where it lists them.
fn literals(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// The types that values of a schema may have, where it says so. Integers are numbers.
fn types(schema: &Value, root: &Value, steps: usize) -> Option<BTreeSet<&'static str>> {
    let steps = steps.checked_sub(1)?;
    let schema = resolved(schema, root)?;
    let of_name = |name: &Value| match name.as_str()? {
        "null" => Some("null"),
        "boolean" => Some("boolean"),
        "integer" | "number" => Some("number"),
        "string" => Some("string"),
        "array" => Some("array"),
        "object" => Some("object"),
        _ => None,
    };
    let of_value = |value: &&Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if let Some(values) = literals(schema) {
        return Some(values.iter().map(of_value).collect());
    }
    match schema.get("type") {
        Some(Value::Array(names)) => return names.iter().map(of_name).collect(),
        Some(name) => return of_name(name).map(|name| BTreeSet::from([name])),
        None => {}
    }
    let options = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array())?;
    let of_options = options.iter().map(|option| types(option, root, steps));
    of_options.collect::<Option<Vec<_>>>().map(|types| types.into_iter().flatten().collect())
}

/// llguidance computes the common multiple of the `multipleOf` of schemas that it joins, in 32 bits.
fn check_multiples(schema: &Value) -> Result<(), Refusal> {
    let mut multiples: Vec<f64> = Vec::new();
    let mut joins = false;
    let mut left = vec![schema];
    while let Some(schema) = left.pop() {
        match schema {
            Value::Object(fields) => {
                joins |= ["allOf", "anyOf", "oneOf", "$ref"].iter().any(|key| fields.contains_key(*key));
                multiples.extend(fields.get("multipleOf").and_then(Value::as_f64));
                left.extend(fields.values());
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    multiples.sort_by(f64::total_cmp);
    multiples.dedup();
    let places = |value: f64| (0..20).find(|places| (value * 10_f64.powi(*places)).fract() == 0.0);
    let Some(most) = multiples.iter().map(|value| places(*value)).collect::<Option<Vec<i32>>>() else {
        return Err(Refusal::new("`multipleOf` of a few digits", "one of more than 20"));
    };
    let scale = 10_f64.powi(most.into_iter().max().unwrap_or(0));
    let mut common = 1_u64;
    for multiple in &multiples {
        let scaled = (multiple * scale) as u64;
        let fits = scaled < u64::from(u32::MAX) && (!joins || common.saturating_mul(scaled) < u64::from(u32::MAX));
        if !fits {
            return Err(Refusal::new(
                "`multipleOf` whose common multiple, without its point, is below 2^32",
                format!("{multiples:?}"),
            ));
        }
        common = common / gcd(common, scaled.max(1)) * scaled.max(1);
    }
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: Value) -> Value {
        rewritten(schema).expect("it has no multiples")
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let schema = json!({"type": "object", "deprecated": true, "title": "All", "properties": {
            "title": {"type": "string", "description": "of a page", "default": "none", "examples": ["a"]},
            "kind": {"anyOf": [{"const": {"title": "a"}, "$comment": "an object"}, {"enum": ["default"]}]},
            "format": {"type": "string", "format": "password"},
            "on": {"type": "string", "format": "date"},
            "list": {"type": "array", "uniqueItems": false, "items": {"const": {"format": "password"}}},
            "one": {"type": "array", "uniqueItems": true, "maxItems": 1},
            "set": {"type": "array", "uniqueItems": true}
        }});
        let expected = json!({"type": "object", "properties": {
            "title": {"type": "string"},
            "kind": {"anyOf": [{"const": {"title": "a"}}, {"enum": ["default"]}]},
            "format": {"type": "string"},
            "on": {"type": "string", "format": "date"},
            "list": {"type": "array", "items": {"const": {"format": "password"}}},
            "one": {"type": "array", "maxItems": 1},
            "set": {"type": "array", "uniqueItems": true}
        }});
        assert_eq!(of(schema), expected);
    }

    #[test]
    fn one_of_disjoint_schemas_is_any_of_them() {
        let user = json!({"type": "object", "properties": {"kind": {"const": "user"}}, "required": ["kind"]});
        let group = json!({"type": "object", "properties": {"kind": {"enum": ["group", "team"]}}});
        let becomes = |options: Value| {
            let schema = of(json!({"oneOf": options, "$defs": {"user": user, "name": {"type": ["string", "null"]}}}));
            schema.get("anyOf").is_some()
        };
        assert!(becomes(json!([{"type": "null"}, {"$ref": "#/$defs/user"}])));
        assert!(becomes(json!([{"$ref": "#/$defs/user"}, group])));
        assert!(becomes(json!([{"$ref": "#/$defs/name"}, {"type": "integer"}, {"enum": [[1], {"a": 1}]}])));
        assert!(!becomes(json!([{"$ref": "#/$defs/name"}, {"type": "null"}])));
        assert!(!becomes(json!([{"type": "integer"}, {"type": "number"}])));
        assert!(!becomes(json!([{"type": "object"}, {"$ref": "#/$defs/user"}])));
        assert!(!becomes(json!([{"$ref": "#/nowhere"}, {"type": "null"}])));
        assert!(!becomes(json!([{}, {"type": "null"}])));
    }

    #[test]
    fn wide_bounds_of_integers_are_drawn_in() {
        let schema = json!({"type": "integer", "minimum": i64::MIN, "exclusiveMaximum": 1e30});
        assert_eq!(of(schema), json!({"type": "integer", "minimum": -MOST_INTEGER, "exclusiveMaximum": MOST_INTEGER}));
        let schema = json!({"type": "integer", "minimum": 3, "maximum": 7});
        assert_eq!(of(schema.clone()), schema);
    }

    #[test]
    fn multiples_that_overflow_are_refused() {
        let all = |of: &[f64]| {
            let parts: Vec<Value> = of.iter().map(|multiple| json!({"multipleOf": multiple})).collect();
            rewritten(json!({"allOf": parts})).is_ok()
        };
        assert!(all(&[0.01, 0.5, 5.0, 100.0]));
        assert!(all(&[]));
        assert!(!all(&[65_537.0, 65_539.0]));
        assert!(!all(&[1e-12, 3.0]));
    }
}
