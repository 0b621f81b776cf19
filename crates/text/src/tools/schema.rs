//! What a parameter's JSON Schema says about the kinds of its values: what readers and grammars of calls between tags
//! go by. References are followed within the schema of the tool's arguments, the root. Whether a value has the schema
//! is left to who uses it.

use std::collections::VecDeque;

use serde_json::Value;

/// References that are followed one behind the other, and schemas that are looked at for one parameter's kinds.
const MOST_REFERENCES: usize = 16;
const MOST_SCHEMAS: usize = 1000;

/// A schema, and the schema of all arguments, which has the definitions that it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct SchemaPart<'s> {
    pub schema: &'s Value,
    pub root: &'s Value,
}

impl<'s> SchemaPart<'s> {
    /// Another part of the same root.
    pub fn part(self, schema: &'s Value) -> Self {
        SchemaPart { schema, ..self }
    }

    /// The schema that this one names where it has no type of its own: by a reference, or as the only one of `allOf`.
    pub fn named(self) -> Option<Self> {
        let has_own = ["type", "enum", "const", "anyOf", "oneOf"].iter().any(|key| self.schema.get(key).is_some());
        if has_own {
            return None;
        }
        let schema = match (&self.schema["$ref"], self.schema["allOf"].as_array().map(Vec::as_slice)) {
            (reference @ Value::String(_), _) => return self.referred(reference),
            (_, Some([schema])) => schema,
            _ => return None,
        };
        Some(self.part(schema))
    }

    /// Behind what it names, and what that names, as far as that ends.
    pub fn resolved(self) -> Self {
        let mut part = self;
        for _ in 0..MOST_REFERENCES {
            match part.named() {
                Some(next) => part = next,
                None => return part,
            }
        }
        part
    }

    /// The schemas of which a value has one, where it lists them.
    pub fn alternatives(self) -> impl Iterator<Item = Self> {
        let schema = self.schema;
        let lists = ["anyOf", "oneOf"].into_iter().filter_map(move |key| schema[key].as_array());
        lists.flatten().map(move |schema| self.part(schema))
    }

    /// The only values that it accepts, where it lists them.
    pub fn values(self) -> Option<&'s [Value]> {
        match self.schema.get("const") {
            Some(value) => Some(std::slice::from_ref(value)),
            None => self.schema["enum"].as_array().map(Vec::as_slice),
        }
    }

    /// The kinds of values that it allows, each once, as far as it says so; none if it does not.
    pub fn kinds(self) -> Vec<&'s str> {
        let (mut kinds, mut left) = (Vec::new(), vec![self]);
        for _ in 0..MOST_SCHEMAS {
            let Some(part) = left.pop().map(Self::resolved) else { break };
            let own: Vec<&str> = match (&part.schema["type"], part.values()) {
                (Value::String(kind), _) => vec![kind],
                (Value::Array(kinds), _) => kinds.iter().filter_map(Value::as_str).collect(),
                (_, Some(values)) => values.iter().map(kind_of).collect(),
                _ => {
                    // Of several that all hold, the first that says something.
                    let joined = part.schema["allOf"].as_array().into_iter().flatten();
                    left.extend(joined.map(|schema| part.part(schema)).find(|part| part.says_kinds()));
                    left.extend(part.alternatives());
                    continue;
                }
            };
            own.into_iter().for_each(|kind| {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            });
        }
        kinds
    }

    /// Whether it says something about kinds, itself or by what it names.
    fn says_kinds(self) -> bool {
        let schema = self.resolved().schema;
        ["type", "enum", "const", "anyOf", "oneOf"].iter().any(|key| schema.get(key).is_some())
    }

    /// Whether its values are strings alone, which calls between tags write as they are. One that says nothing of kinds
    /// is of strings.
    pub fn is_text(self) -> bool {
        let part = self.resolved();
        let kinds = part.kinds();
        !(kinds.is_empty() && part.schema.get("$ref").is_some()) && kinds.iter().all(|kind| *kind == "string")
    }

    /// The part of the root that a reference names.
    pub fn referred(self, reference: &Value) -> Option<Self> {
        Some(self.part(self.root.pointer(reference.as_str()?.strip_prefix('#')?)?))
    }

    /// The schema of a property: of the first schema that has it among this one, those that it names, and those that it
    /// is made of.
    pub fn property(self, name: &str) -> Option<Self> {
        let mut left = VecDeque::from([self]);
        for _ in 0..MOST_SCHEMAS {
            let part = left.pop_front()?;
            if let Some(found) = part.schema["properties"].get(name) {
                return Some(part.part(found));
            }
            left.extend(part.schema.get("$ref").and_then(|reference| part.referred(reference)));
            let lists = ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| part.schema[*key].as_array());
            left.extend(lists.flatten().map(|schema| part.part(schema)));
        }
        None
    }
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
