//! Checks a task file against the JSON Schema of the types that read it. An error names the key, what was expected
//! there and what was found. Covers the keywords that `schemars` writes for such types. [`EXPECTED`] is the sentence
//! for an error where the keywords alone make none that people say; `help` prints the same sentences.

use regex::Regex;
use serde_json::{Map, Value};

use offshoot_core::json::{describe, listed};

/// An annotation: what a value must be, as an error message and the help say it.
pub(crate) const EXPECTED: &str = "x-expected";
/// The `format` of strings that are paths.
pub(crate) const PATH: &str = "path";

/// The value with the nulls of known keys removed, which mean that the key is absent, and its paths.
pub(crate) struct Checked {
    pub value: Value,
    /// The dotted paths of the strings that are file names.
    pub paths: Vec<String>,
}

/// What is wrong at a dotted path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    UnknownKey { at: String, key: String, known: Vec<String> },
    Wrong { at: String, expected: String, found: String },
}

/// A JSON Schema with its definitions.
pub(crate) struct Schema {
    root: Value,
}

/// A part of a schema without references and alternatives.
type Leaf<'s> = &'s Map<String, Value>;

impl Schema {
    pub fn of<T: schemars::JsonSchema>() -> Schema {
        let mut root = schemars::schema_for!(T).to_value();
        close_objects(&mut root);
        Schema { root }
    }

    pub fn root(&self) -> &Value {
        &self.root
    }

    pub fn check(&self, value: &Value) -> Result<Checked, Fault> {
        let mut paths = Vec::new();
        let value = Check { schema: self, paths: &mut paths }.value("", &self.root, value)?;
        Ok(Checked { value, paths })
    }

    /// The alternatives of `schema`, references followed; `None` if it allows everything.
    pub fn leaves<'s>(&'s self, schema: &'s Value) -> Option<Vec<Leaf<'s>>> {
        let map = schema.as_object()?;
        if let Some(name) = map.get("$ref").and_then(Value::as_str) {
            return self.leaves(self.definition(name));
        }
        let alternatives = map.get("anyOf").or_else(|| map.get("oneOf")).and_then(Value::as_array);
        if let Some(alternatives) = alternatives {
            let all: Option<Vec<_>> = alternatives.iter().map(|schema| self.leaves(schema)).collect();
            return all.map(|all| all.concat());
        }
        ["type", "const", "enum"].iter().any(|key| map.contains_key(*key)).then(|| vec![map])
    }

    pub fn definition(&self, name: &str) -> &Value {
        let found = name.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        found.expect("schemars defines what it refers to")
    }

    /// What a value must be, in words.
    pub fn expected(&self, schema: &Value) -> String {
        if let Some(text) = schema.get(EXPECTED).and_then(Value::as_str) {
            return text.to_string();
        }
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            return self.expected(self.definition(name));
        }
        let Some(leaves) = self.leaves(schema) else { return "any value".to_string() };
        let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
        let keys: Vec<&String> = leaves.iter().filter_map(|leaf| properties(leaf)).flat_map(Map::keys).collect();
        match (&constants(&leaves)[..], alternatives) {
            ([], Some(_)) if leaves.len() > 1 && leaves.iter().all(|leaf| is_of(leaf, "object")) => {
                format!("exactly one of {} with its settings", listed(&keys))
            }
            (_, Some(alternatives)) if !leaves.iter().all(|leaf| is_constant(leaf)) => {
                let parts = alternatives.iter().map(|schema| self.expected(schema)).filter(|text| !text.is_empty());
                parts.collect::<Vec<_>>().join(", or ")
            }
            ([], _) => leaves.first().map_or(String::new(), |leaf| self.expected_by_type(leaf)),
            ([one], _) => format!("`{one}`"),
            ([one, other], _) => format!("`{one}` or `{other}`"),
            (words, _) => format!("one of {}", listed(words)),
        }
    }

    fn expected_by_type(&self, leaf: Leaf<'_>) -> String {
        let number = |key: &str| leaf.get(key).map(Value::to_string);
        let kind = ["string", "boolean", "integer", "number", "array", "object"];
        match kind.into_iter().find(|kind| is_of(leaf, kind)) {
            Some("string") => "a string".to_string(),
            Some("boolean") => "true or false".to_string(),
            Some("integer") => match number("minimum") {
                Some(least) => format!("a whole number of at least {least}"),
                None => "a whole number".to_string(),
            },
            Some("number") => match (number("minimum"), number("maximum")) {
                (Some(least), Some(most)) => format!("a number from {least} to {most}"),
                (Some(least), None) => format!("a number of at least {least}"),
                _ => "a number".to_string(),
            },
            Some("array") => match leaf.get("items") {
                Some(items) if self.leaves(items).is_some() => format!("a list, each element {}", self.expected(items)),
                _ => "a list".to_string(),
            },
            Some("object") => match properties(leaf) {
                Some(properties) => {
                    format!("an object with keys of {}", listed(&properties.keys().collect::<Vec<_>>()))
                }
                None => "an object".to_string(),
            },
            _ => String::new(),
        }
    }
}

/// Says of every object with named keys that it has no others.
fn close_objects(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") && !map.contains_key("additionalProperties") {
                map.insert("additionalProperties".to_string(), Value::Bool(false));
            }
            map.remove("unevaluatedProperties");
            map.values_mut().for_each(close_objects);
        }
        Value::Array(list) => list.iter_mut().for_each(close_objects),
        _ => {}
    }
}

/// Whether values of this type are allowed.
pub(crate) fn is_of(leaf: Leaf<'_>, kind: &str) -> bool {
    match leaf.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(several)) => several.iter().any(|one| one == kind),
        _ => false,
    }
}

pub(crate) fn properties<'s>(leaf: Leaf<'s>) -> Option<&'s Map<String, Value>> {
    leaf.get("properties").and_then(Value::as_object)
}

pub(crate) fn is_required(leaf: Leaf<'_>, key: &str) -> bool {
    leaf.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|required| required == key))
}

fn is_constant(leaf: Leaf<'_>) -> bool {
    leaf.contains_key("const") || leaf.contains_key("enum")
}

/// The strings that are allowed by name.
fn constants(leaves: &[Leaf<'_>]) -> Vec<String> {
    let of = |leaf: &Leaf<'_>| -> Vec<String> {
        let one = leaf.get("const").into_iter();
        let all = one.chain(leaf.get("enum").and_then(Value::as_array).into_iter().flatten());
        all.filter_map(Value::as_str).map(str::to_string).collect()
    };
    leaves.iter().flat_map(of).collect()
}

/// The dotted path of `key` in `at`.
pub(crate) fn inside(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_string() } else { format!("{at}.{key}") }
}

struct Check<'c> {
    schema: &'c Schema,
    paths: &'c mut Vec<String>,
}

impl Check<'_> {
    fn value(&mut self, at: &str, schema: &Value, value: &Value) -> Result<Value, Fault> {
        let Some(leaves) = self.schema.leaves(schema) else { return Ok(value.clone()) };
        match value {
            Value::Object(map) => self.object(at, schema, &leaves, map),
            Value::Array(list) => match leaves.iter().find(|leaf| is_of(leaf, "array")) {
                Some(leaf) => self.list(at, schema, leaf, list),
                None => Err(self.wrong(at, schema, value)),
            },
            scalar => match leaves.iter().find(|leaf| accepts(leaf, scalar)) {
                Some(leaf) => {
                    if leaf.get("format").is_some_and(|format| format == PATH) {
                        self.paths.push(at.to_string());
                    }
                    Ok(scalar.clone())
                }
                None => Err(self.wrong_scalar(at, schema, &leaves, scalar)),
            },
        }
    }

    fn object(
        &mut self,
        at: &str,
        schema: &Value,
        leaves: &[Leaf<'_>],
        map: &Map<String, Value>,
    ) -> Result<Value, Fault> {
        let objects: Vec<Leaf<'_>> = leaves.iter().copied().filter(|leaf| is_of(leaf, "object")).collect();
        let leaf = match objects[..] {
            [] => return Err(self.wrong(at, schema, &Value::Object(map.clone()))),
            [leaf] => leaf,
            _ => self.one_of(at, schema, &objects, map)?,
        };
        let Some(known) = properties(leaf) else { return self.map(at, schema, leaf, map) };
        unknown_key(at, map, &known.keys().cloned().collect::<Vec<_>>())?;
        let mut checked = Map::new();
        for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            checked.insert(key.clone(), self.value(&inside(at, key), &known[key], value)?);
        }
        match known.iter().find(|(key, _)| is_required(leaf, key) && !checked.contains_key(*key)) {
            Some((key, schema)) => {
                Err(self.wrong_inside(&inside(at, key), schema, "nothing (the key is missing)".to_string()))
            }
            None => Ok(Value::Object(checked)),
        }
    }

    /// The alternative whose key is present.
    fn one_of<'s>(
        &self,
        at: &str,
        schema: &Value,
        objects: &[Leaf<'s>],
        map: &Map<String, Value>,
    ) -> Result<Leaf<'s>, Fault> {
        let known: Vec<String> =
            objects.iter().filter_map(|leaf| properties(leaf)).flat_map(Map::keys).cloned().collect();
        unknown_key(at, map, &known)?;
        let is_there = |key: &String| map.get(key).is_some_and(|value| !value.is_null());
        let is_meant = |leaf: &&Leaf<'s>| {
            properties(leaf).is_some_and(|keys| keys.keys().all(|key| !is_required(leaf, key) || is_there(key)))
        };
        let meant: Vec<_> = objects.iter().filter(is_meant).collect();
        let keys = known.iter().filter(|key| is_there(key)).count();
        match meant[..] {
            [leaf] if keys == 1 => Ok(leaf),
            _ => Err(self.wrong_inside(at, schema, format!("{keys} of them"))),
        }
    }

    /// An object of values by a name that the user chooses.
    fn map(&mut self, at: &str, schema: &Value, leaf: Leaf<'_>, map: &Map<String, Value>) -> Result<Value, Fault> {
        let by_pattern = leaf.get("patternProperties").and_then(Value::as_object).and_then(|all| all.iter().next());
        let pattern = by_pattern.map(|(pattern, _)| Regex::new(pattern).expect("schemars writes plain patterns"));
        let values = by_pattern.map(|(_, schema)| schema).or_else(|| leaf.get("additionalProperties"));
        let Some(values) = values else { return Ok(Value::Object(map.clone())) };
        let mut checked = Map::new();
        for (key, value) in map {
            if pattern.as_ref().is_some_and(|pattern| !pattern.is_match(key)) {
                return Err(self.wrong_inside(at, schema, format!("the key \"{}\"", key.escape_debug())));
            }
            checked.insert(key.clone(), self.element(at, key, schema, values, value)?);
        }
        Ok(Value::Object(checked))
    }

    fn list(&mut self, at: &str, schema: &Value, leaf: Leaf<'_>, list: &[Value]) -> Result<Value, Fault> {
        let least = leaf.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        if (list.len() as u64) < least {
            return Err(self.wrong(at, schema, &Value::Array(list.to_vec())));
        }
        let Some(elements) = leaf.get("items") else { return Ok(Value::Array(list.to_vec())) };
        if self.schema.leaves(elements).is_none() {
            return Ok(Value::Array(list.to_vec()));
        }
        let checked = list.iter().enumerate().map(|(ix, one)| self.element(at, &ix.to_string(), schema, elements, one));
        checked.collect::<Result<_, _>>().map(Value::Array)
    }

    /// An element of a list, or a value of a map: an error about plain values is one about the whole.
    fn element(&mut self, at: &str, key: &str, whole: &Value, schema: &Value, value: &Value) -> Result<Value, Fault> {
        let has_keys = self.schema.leaves(schema).is_none_or(|leaves| leaves.iter().any(|leaf| is_of(leaf, "object")));
        let checked = self.value(&inside(at, key), schema, value);
        match has_keys {
            true => checked,
            false => checked.map_err(|_| self.wrong_inside(at, whole, format!("{} in it", describe(value)))),
        }
    }

    fn wrong(&self, at: &str, schema: &Value, value: &Value) -> Fault {
        self.wrong_inside(at, schema, describe(value))
    }

    fn wrong_inside(&self, at: &str, schema: &Value, found: String) -> Fault {
        Fault::Wrong { at: at.to_string(), expected: self.schema.expected(schema), found }
    }

    fn wrong_scalar(&self, at: &str, schema: &Value, leaves: &[Leaf<'_>], value: &Value) -> Fault {
        let too_large =
            leaves.iter().filter(|leaf| is_of(leaf, "integer") && !schema_has_words(schema)).find_map(|leaf| {
                let most = most_of(leaf)?;
                value.as_u64().filter(|&number| number > most).map(|_| most)
            });
        match too_large {
            Some(most) => Fault::Wrong {
                at: at.to_string(),
                expected: format!("a whole number of at most {most}"),
                found: describe(value),
            },
            None => self.wrong(at, schema, value),
        }
    }
}

fn schema_has_words(schema: &Value) -> bool {
    schema.get(EXPECTED).is_some()
}

/// Fails with the first key that is not `known`.
fn unknown_key(at: &str, map: &Map<String, Value>, known: &[String]) -> Result<(), Fault> {
    match map.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(Fault::UnknownKey { at: at.to_string(), key: key.clone(), known: known.to_vec() }),
        None => Ok(()),
    }
}

/// The largest whole number that is allowed.
fn most_of(leaf: Leaf<'_>) -> Option<u64> {
    let by_type = leaf.get("format").filter(|format| *format == "uint32").map(|_| u64::from(u32::MAX));
    leaf.get("maximum").and_then(Value::as_u64).or(by_type)
}

/// Whether a value that is neither an object nor a list is allowed.
fn accepts(leaf: Leaf<'_>, value: &Value) -> bool {
    if let Some(constant) = leaf.get("const") {
        return constant == value;
    }
    if let Some(allowed) = leaf.get("enum").and_then(Value::as_array) {
        return allowed.contains(value);
    }
    match value {
        Value::String(text) => {
            let least = leaf.get("minLength").and_then(Value::as_u64).unwrap_or(0);
            is_of(leaf, "string") && text.chars().count() as u64 >= least
        }
        Value::Bool(_) => is_of(leaf, "boolean"),
        Value::Null => is_of(leaf, "null"),
        Value::Number(_) if is_of(leaf, "integer") => {
            let least = leaf.get("minimum").and_then(Value::as_u64).unwrap_or(0);
            value.as_u64().is_some_and(|number| number >= least && most_of(leaf).is_none_or(|most| number <= most))
        }
        Value::Number(_) if is_of(leaf, "number") => value.as_f64().is_some_and(|number| is_in_range(leaf, number)),
        _ => false,
    }
}

/// Numbers of 32 bits are compared after conversion: 1e39 is infinite, 1e-60 is 0.
fn is_in_range(leaf: Leaf<'_>, number: f64) -> bool {
    let is_single = leaf.get("format").is_some_and(|format| format == "float");
    let number = if is_single { f64::from(number as f32) } else { number };
    let bound = |key: &str| leaf.get(key).and_then(Value::as_f64);
    number.is_finite()
        && bound("minimum").is_none_or(|least| number >= least)
        && bound("maximum").is_none_or(|most| number <= most)
        && bound("exclusiveMinimum").is_none_or(|below| number > below)
        && bound("exclusiveMaximum").is_none_or(|above| number < above)
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde_json::json;

    use super::*;

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct Whole {
        /// Said with words.
        #[schemars(range(min = 1), extend("x-expected" = "some"))]
        count: u32,
        #[schemars(range(min = 0.0, max = 1.0))]
        share: Option<f32>,
        kind: Option<Kind>,
        biases: Option<std::collections::BTreeMap<u32, f32>>,
        list: Option<Vec<String>>,
    }

    #[derive(JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[allow(dead_code, reason = "only its schema is used")]
    enum Kind {
        One { a: u32 },
        Other { b: bool },
    }

    #[test]
    fn faults_name_the_key_and_what_was_expected() {
        let schema = Schema::of::<Whole>();
        let fault = |value: Value| match schema.check(&value) {
            Err(Fault::Wrong { at, expected, found }) => format!("{at}: {expected}: {found}"),
            Err(Fault::UnknownKey { at, key, .. }) => format!("{at}: no {key}"),
            Ok(_) => "good".to_string(),
        };
        assert_eq!(fault(json!({"count": 1, "share": null})), "good");
        assert_eq!(fault(json!({"count": 0})), "count: some: 0");
        assert_eq!(fault(json!({})), "count: some: nothing (the key is missing)");
        assert_eq!(fault(json!({"count": 1, "share": 2})), "share: a number from 0.0 to 1.0: 2");
        assert_eq!(
            fault(json!({"count": 1, "kind": {"one": {"a": true}}})),
            "kind.one.a: a whole number of at least 0: true"
        );
        assert_eq!(
            fault(json!({"count": 1, "kind": {"one": {"a": 1}, "other": {"b": true}}})),
            "kind: exactly one of `one`, `other` with its settings: 2 of them"
        );
        assert_eq!(fault(json!({"count": 1, "kind": {"on": 1}})), "kind: no on");
        assert!(fault(json!({"count": 1, "biases": {"x": 1}})).ends_with("the key \"x\""));
        assert!(fault(json!({"count": 1, "list": ["a", 1]})).starts_with("list: a list"));
        assert_eq!(fault(json!({"count": 1, "biases": {"7": 1e39}})).split(':').next(), Some("biases"));
    }
}
