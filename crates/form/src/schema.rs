//! JSON Schemas as llguidance takes them: what it refuses though it says nothing, or though an equal schema can say it,
//! is rewritten. A text that the rewritten schema accepts is accepted by the schema that came.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::grammar::json_bytes;
use crate::trial::Refusal;

/// The formats of texts that llguidance knows. By the specification a format is an annotation: others say nothing.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that say nothing about a value, and may be long.
const ANNOTATIONS: [&str; 9] =
    ["deprecated", "$vocabulary", "$comment", "title", "description", "default", "examples", "readOnly", "writeOnly"];
/// Keywords whose value is a schema, or a list of schemas.
pub(crate) const SCHEMAS: [&str; 15] = [
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
pub(crate) const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// The pattern that pydantic writes for a Decimal, and one without look-ahead that accepts the same texts: at least one
/// digit, a sign and a point at most.
const DECIMAL: [&str; 2] = [r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?(\d+\.?\d*|\.\d+)$"];
/// Integers' bounds beyond this are drawn in to it.
const MOST_INTEGER: i64 = 999_999_999_999_999_999;
/// Steps of following references and alternatives.
const MOST_STEPS: usize = 8;
/// The work of comparing all alternatives of a schema, in names, types and pieces of values that are looked at: some
/// hundredths of a second. What is beyond is not compared.
const MOST_WORK: usize = 1 << 18;

/// The schema, rewritten.
pub(crate) fn rewritten(mut schema: Value) -> Result<Value, Refusal> {
    let root = schema.clone();
    check_multiples(&root)?;
    rewrite(&mut schema, &Comparer::new(&root));
    Ok(schema)
}

fn rewrite(schema: &mut Value, comparer: &Comparer) {
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
        && fields.get("oneOf").and_then(Value::as_array).is_some_and(|options| comparer.all_disjoint(options))
    {
        // The place among the keys says nothing.
        let options = fields.shift_remove("oneOf").expect("it was found just now");
        fields.insert("anyOf".to_string(), options);
    }
    parts_mut(fields).into_iter().for_each(|part| rewrite(part, comparer));
}

/// The schemas within a schema of these fields. Values, such as that of `const`, are not schemas, whatever keys they
/// have.
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

/// Whether a schema within `root` has a `oneOf` that can't be told to be its `anyOf`.
pub(crate) fn has_overlap(schema: &Value, root: &Value) -> bool {
    let options = schema.get("oneOf").and_then(Value::as_array);
    options.is_some_and(|options| schema.get("anyOf").is_some() || !Comparer::new(root).all_disjoint(options))
}

/// Whether a schema has a bound of more digits than those of integers may have.
pub(crate) fn has_far_bound(schema: &Value) -> bool {
    let bounds =
        ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].iter().filter_map(|key| schema.get(key));
    bounds.filter_map(Value::as_f64).any(|bound| bound.abs() > MOST_INTEGER as f64)
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

/// Compares alternatives of a schema. References may name the same schemas again and again: what all comparisons take
/// together is bounded.
struct Comparer<'a> {
    root: &'a Value,
    /// Work that is left.
    left: Cell<usize>,
}

impl<'a> Comparer<'a> {
    fn new(root: &'a Value) -> Comparer<'a> {
        Comparer { root, left: Cell::new(MOST_WORK) }
    }

    /// Takes so much of the work that is left; `None` where less is left, and from then on.
    fn take(&self, work: usize) -> Option<()> {
        let left = self.left.get().checked_sub(work);
        self.left.set(left.unwrap_or(0));
        left.map(|_| ())
    }

    fn all_disjoint(&self, options: &[Value]) -> bool {
        let pairs = |at: usize| options[at + 1..].iter().map(move |other| (&options[at], other));
        (0..options.len()).flat_map(pairs).all(|(a, b)| self.are_disjoint(a, b, MOST_STEPS))
    }

    /// Whether it is plain that no value has both schemas.
    fn are_disjoint(&self, a: &'a Value, b: &'a Value, steps: usize) -> bool {
        self.found_disjoint(a, b, steps).unwrap_or(false)
    }

    /// `None`: it is not known, or not looked for any more.
    fn found_disjoint(&self, a: &'a Value, b: &'a Value, steps: usize) -> Option<bool> {
        let steps = steps.checked_sub(1)?;
        self.take(1)?;
        let (a, b) = (self.resolved(a)?, self.resolved(b)?);
        if let (Some(a), Some(b)) = (literals(a), literals(b)) {
            let pieces: usize = a.iter().map(|value| 1 + json_bytes(value) / 16).sum();
            self.take(pieces.saturating_mul(b.len()))?;
            return Some(!a.iter().any(|value| b.contains(value)));
        }
        if let (Some(a), Some(b)) = (self.types(a, steps), self.types(b, steps))
            && a.is_disjoint(&b)
        {
            return Some(true);
        }
        if a["type"] != "object" || b["type"] != "object" {
            return Some(false);
        }
        let (of_a, of_b) = (self.required(a)?, self.required(b)?);
        Some(of_a.union(&of_b).any(|name| match (a["properties"].get(name), b["properties"].get(name)) {
            (Some(a), Some(b)) => self.are_disjoint(a, b, steps),
            _ => false,
        }))
    }

    fn required(&self, schema: &'a Value) -> Option<BTreeSet<&'a str>> {
        let names = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        self.take(names.len())?;
        Some(names.iter().filter_map(Value::as_str).collect())
    }

    /// The schema that a schema of nothing but a reference into the whole names.
    fn resolved(&self, schema: &'a Value) -> Option<&'a Value> {
        let mut schema = schema;
        for _ in 0..MOST_STEPS {
            match schema.get("$ref") {
                None => return Some(schema),
                Some(reference) => {
                    let place = reference.as_str()?.strip_prefix('#')?;
                    self.take(1 + place.len() / 16)?;
                    schema = self.root.pointer(place)?;
                }
            }
        }
        None
    }

    /// The types that values of a schema may have, where it says so. Integers are numbers.
    fn types(&self, schema: &'a Value, steps: usize) -> Option<BTreeSet<&'static str>> {
        let steps = steps.checked_sub(1)?;
        let schema = self.resolved(schema)?;
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
            self.take(1 + values.len())?;
            return Some(values.iter().map(of_value).collect());
        }
        match schema.get("type") {
            Some(Value::Array(names)) => {
                self.take(1 + names.len())?;
                return names.iter().map(of_name).collect();
            }
            Some(name) => {
                self.take(1)?;
                return of_name(name).map(|name| BTreeSet::from([name]));
            }
            None => {}
        }
        let options = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array())?;
        let mut types = BTreeSet::new();
        for option in options {
            self.take(1)?;
            types.extend(self.types(option, steps)?);
        }
        Some(types)
    }
}

/// The only values that a schema accepts, where it lists them.
fn literals(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
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

    /// Schemas whose properties, or alternatives, are they themselves: all pairs of them, some steps deep, are more
    /// than can be compared.
    #[test]
    fn comparing_alternatives_ends() {
        let names: Vec<String> = (0..40).map(|at| format!("a{at}")).collect();
        let of_itself = |place: &str| {
            let properties: Map<String, Value> =
                names.iter().map(|name| (name.clone(), json!({"$ref": place}))).collect();
            json!({"type": "object", "required": names, "properties": properties})
        };
        let both = json!([{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}]);
        let defs = json!({"n": of_itself("#/$defs/n"), "m": of_itself("#/$defs/m")});
        assert!(of(json!({"oneOf": both, "$defs": defs})).get("anyOf").is_none());
        // Alternatives that name each other, the last of which is a string.
        let alternatives = |place: &str| {
            let mut options = vec![json!({"$ref": place}); 40];
            options.push(json!({"type": "string"}));
            json!({"anyOf": options})
        };
        let mut defs = Map::new();
        for depth in 0..7 {
            defs.insert(format!("n{depth}"), alternatives(&format!("#/$defs/n{}", depth + 1)));
        }
        defs.insert("n7".to_owned(), json!({"type": "string"}));
        let schema = json!({"oneOf": [{"$ref": "#/$defs/n0"}, {"type": "null"}], "$defs": defs});
        assert!(of(schema).get("anyOf").is_none());
        // Many values: each of the one against each of the other.
        let values = |from: usize, to: usize| json!({"enum": (from..to).collect::<Vec<_>>()});
        let compared = |most: usize| of(json!({"oneOf": [values(0, most), values(most, 2 * most)]}));
        assert!(compared(200).get("anyOf").is_some());
        assert!(compared(20_000).get("anyOf").is_none());
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
