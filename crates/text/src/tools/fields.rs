//! What a schema of objects says of their fields, for grammars that write each field by itself. Schemas that hold
//! together are joined into one; what grammars of fields can't hold is an error.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::grammar::Unheld;
use super::schema::SchemaPart;

/// Schemas within each other that are joined.
const DEEPEST: usize = 32;
/// Keywords of which values have no sign: what others are made of, and notes.
const SILENT: [&str; 16] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "readOnly",
    "writeOnly",
    "deprecated",
    "contentEncoding",
    "x-guidance",
];
/// Keywords that say which fields an object has in a way that is not held.
const UNHELD: [&str; 12] = [
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
static ANYTHING: Value = Value::Bool(true);

/// A field of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectField<'s> {
    pub key: &'s str,
    pub part: SchemaPart<'s>,
    pub is_required: bool,
}

impl<'s> SchemaPart<'s> {
    /// Whether it says something of values beside these keywords.
    pub fn says_beside(self, keywords: &[&str]) -> bool {
        let says = |key: &String| !SILENT.contains(&&**key) && !keywords.contains(&&**key);
        self.schema.as_object().is_some_and(|fields| fields.keys().any(says))
    }

    /// An error if it has one of these keywords.
    pub fn check(self, keywords: &[&str]) -> Result<(), Unheld> {
        match keywords.iter().find(|keyword| self.schema.get(**keyword).is_some()) {
            Some(keyword) => Err(Unheld::keyword(keyword)),
            None => Ok(()),
        }
    }

    /// This schema and those that hold together with it, as one; `None`: it is one by itself.
    pub fn joined(self) -> Result<Option<Value>, Unheld> {
        if self.schema.get("$ref").is_none() && self.schema.get("allOf").is_none() {
            return Ok(None);
        }
        let mut joined = Joined::default();
        joined.add(self, 0)?;
        joined.finish().map(Some)
    }

    /// The fields that an object of this schema, joined, is written with. Others it may have are left out.
    pub fn fields(self) -> Result<Vec<ObjectField<'s>>, Unheld> {
        self.check(&UNHELD)?;
        let required = || self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let listed = self.schema["properties"].as_object().into_iter().flatten();
        let mut fields: Vec<ObjectField<'s>> = listed
            .map(|(key, schema)| ObjectField {
                key,
                part: self.part(schema),
                is_required: required().any(|name| name == key),
            })
            .collect();
        let others = self.schema.get("additionalProperties").unwrap_or(&ANYTHING);
        for key in required() {
            if !fields.iter().any(|field| field.key == key) {
                fields.push(ObjectField { key, part: self.part(others), is_required: true });
            }
        }
        if let Some(field) = fields.iter().find(|field| field.is_required && *field.part.schema == Value::Bool(false)) {
            return Err(Unheld::new(format!("the required `{}`, which no value has", field.key)));
        }
        fields.retain(|field| *field.part.schema != Value::Bool(false));
        let needed = fields.iter().filter(|field| field.is_required).count() as u64;
        let count = |key: &str| self.schema.get(key).and_then(Value::as_u64);
        match (count("minProperties"), count("maxProperties")) {
            (Some(least), _) if least > needed => Err(Unheld::keyword("minProperties")),
            (_, Some(most)) if most < fields.len() as u64 => Err(Unheld::keyword("maxProperties")),
            _ => Ok(fields),
        }
    }
}

/// Schemas that hold together.
#[derive(Default)]
struct Joined {
    fields: Map<String, Value>,
    /// For each that says what other properties are: those that it lists.
    closed: Vec<BTreeSet<String>>,
}

impl Joined {
    fn add(&mut self, part: SchemaPart<'_>, depth: usize) -> Result<(), Unheld> {
        let fields = match part.schema {
            Value::Object(fields) => fields,
            Value::Bool(false) => return Err(Unheld::new("`false`")),
            _ => return Ok(()),
        };
        if depth > DEEPEST {
            return Err(Unheld::new("a schema that names itself"));
        }
        // What `items` is of depends on the list beside it.
        let lists = |fields: &Map<String, Value>| ["items", "prefixItems"].map(|key| fields.get(key).cloned());
        let (own, others) = (lists(&self.fields), lists(fields));
        if own != others && own.iter().any(Option::is_some) && others.iter().any(Option::is_some) {
            return Err(Unheld::keyword("items"));
        }
        let names = || fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
        if fields.get("additionalProperties").is_some_and(|others| *others != Value::Bool(true)) {
            self.closed.push(names().collect());
        }
        for (key, value) in fields {
            match key.as_str() {
                "$ref" => {
                    let named = part.referred(value).ok_or_else(|| Unheld::keyword(key))?;
                    self.add(named, depth + 1)?;
                }
                "allOf" => {
                    let all = value.as_array().into_iter().flatten();
                    all.into_iter().try_for_each(|schema| self.add(part.part(schema), depth + 1))?;
                }
                key if SILENT.contains(&key) => {}
                key => self.add_keyword(key, value)?,
            }
        }
        Ok(())
    }

    fn add_keyword(&mut self, key: &str, value: &Value) -> Result<(), Unheld> {
        let Some(own) = self.fields.get_mut(key) else {
            self.fields.insert(key.to_owned(), value.clone());
            return Ok(());
        };
        if own == value {
            return Ok(());
        }
        let larger = |a: &Value, b: &Value| a.as_f64() > b.as_f64();
        match (key, &mut *own, value) {
            ("required", Value::Array(own), Value::Array(others)) => own.extend(others.iter().cloned()),
            ("properties", Value::Object(own), Value::Object(others)) => {
                for (name, other) in others {
                    let both = match own.get(name) {
                        Some(own) if own != other => serde_json::json!({"allOf": [own, other]}),
                        _ => other.clone(),
                    };
                    own.insert(name.clone(), both);
                }
            }
            ("minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties", own, other) => {
                if larger(other, own) {
                    *own = other.clone();
                }
            }
            ("maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties", own, other) => {
                if larger(own, other) {
                    *own = other.clone();
                }
            }
            ("type", own, other) => {
                let both = types(own)
                    .into_iter()
                    .flat_map(|own| types(other).into_iter().filter_map(move |other| both(own, other)));
                let both: Vec<Value> = both.map(Value::from).collect();
                if both.is_empty() {
                    return Err(Unheld::keyword(key));
                }
                *own = both.into();
            }
            _ => return Err(Unheld::keyword(key)),
        }
        Ok(())
    }

    fn finish(self) -> Result<Value, Unheld> {
        let names = || self.fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        match self.closed.iter().all(|closed| names().all(|name| closed.contains(name))) {
            true => Ok(self.fields.into()),
            false => Err(Unheld::keyword("additionalProperties")),
        }
    }
}

fn types(value: &Value) -> Vec<&str> {
    match value {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The type that values of both types have.
fn both<'a>(a: &'a str, b: &'a str) -> Option<&'a str> {
    match (a, b) {
        (a, b) if a == b => Some(a),
        ("integer", "number") | ("number", "integer") => Some("integer"),
        _ => None,
    }
}
