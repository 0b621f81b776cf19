//! Schemas, and changes of them that strangers might make.

use serde_json::{Value, json};

/// A generator of numbers, by a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// A schema with one to eight changes.
pub fn mutated(dice: &mut Dice) -> Value {
    let seeds = seeds();
    let mut schema = seeds[dice.below(seeds.len())].clone();
    for _ in 0..1 + dice.below(8) {
        mutate(&mut schema, dice, 0);
    }
    schema
}

/// Schemas to change.
fn seeds() -> Vec<Value> {
    let texts = [
        r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer",
            "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["red"]}, "maxItems": 4}},
            "required": ["name", "age"], "additionalProperties": false}"#,
        r#"{"type": "object", "additionalProperties": {"type": "array",
            "items": {"type": "string", "pattern": "^(a|b)+c{2,9}$"}}}"#,
        r##"{"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "object",
            "properties": {"next": {"$ref": "#/$defs/n"}}}]}}, "$ref": "#/$defs/n"}"##,
        r#"{"type": "object", "allOf": [{"anyOf": [{"properties": {"a": {"type": "string"}}},
            {"properties": {"b": {"type": "number"}}}]}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}]}"#,
        r#"{"type": "array", "minItems": 2, "maxItems": 30, "prefixItems": [{"type": "number", "multipleOf": 0.01},
            {"type": "string", "format": "date-time"}]}"#,
        r#"{"oneOf": [{"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "y"}}, "required": ["kind"]}]}"#,
    ];
    texts.iter().map(|text| serde_json::from_str(text).expect("it is JSON")).collect()
}

/// Changes one place of a schema.
fn mutate(value: &mut Value, dice: &mut Dice, depth: usize) {
    let strange: [&str; 31] = [
        "-1",
        "1e308",
        "100000",
        "1000000000000",
        "null",
        "[]",
        "{}",
        "true",
        "false",
        r#""^(a+)+$""#,
        r#""(.*a){30}""#,
        r#""((a{1,100}){1,100}){1,100}""#,
        r#""[\\s\\S]{1,4000}x""#,
        r#""(?=a)b""#,
        r#""\\p{L}{1,500}""#,
        r#""https://example.com/schema.json""#,
        r##""#/nowhere""##,
        r##""#""##,
        r##"{"$ref": "#"}"##,
        r#"{"$ref": "http://localhost:1/x"}"#,
        r#"{"not": {}}"#,
        r#"{"type": ["string", "null"]}"#,
        r#"{"minLength": 100000}"#,
        r#"{"type": "string", "minLength": 5, "maxLength": 2}"#,
        r#"{"const": "\u0000\uffff"}"#,
        r#"{"enum": []}"#,
        r#"{"allOf": [{"type": "string"}, {"type": "number"}]}"#,
        r#"{"multipleOf": 0}"#,
        r#"{"type": "integer", "minimum": 10, "maximum": 2}"#,
        r#"{"minItems": 100000}"#,
        r##"{"$dynamicRef": "#x"}"##,
    ];
    let strange = |dice: &mut Dice| serde_json::from_str(strange[dice.below(strange.len())]).expect("it is JSON");
    let keys = [
        "type",
        "pattern",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "$ref",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "if",
        "enum",
        "const",
        "items",
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "format",
        "multipleOf",
        "$id",
        "x-guidance",
        "minProperties",
        "contains",
        "unevaluatedProperties",
        "dependentSchemas",
        "minimum",
    ];
    match value {
        Value::Object(fields) if depth < 12 => {
            let inner = fields.len();
            match dice.below(6) {
                0 => {
                    fields.insert(keys[dice.below(keys.len())].to_string(), strange(dice));
                }
                1 if inner > 0 => {
                    let key = fields.keys().nth(dice.below(inner)).expect("below their number").clone();
                    fields.remove(&key);
                }
                2 => {
                    let whole = Value::Object(fields.clone());
                    let copies = vec![whole; 1 + dice.below(6)];
                    *value = json!({["anyOf", "allOf", "oneOf", "prefixItems"][dice.below(4)]: copies});
                }
                3 => {
                    let many: serde_json::Map<String, Value> =
                        (0..dice.below(400)).map(|n| (format!("k{n}"), json!({"type": "string"}))).collect();
                    fields.insert("properties".to_string(), Value::Object(many));
                }
                _ => {
                    if let Some(inner) = fields.values_mut().nth(dice.below(inner)) {
                        mutate(inner, dice, depth + 1);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() && dice.below(3) > 0 => {
            let at = dice.below(items.len());
            mutate(&mut items[at], dice, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            let copy = items[0].clone();
            items.extend(std::iter::repeat_n(copy, dice.below(200)));
        }
        _ => *value = strange(dice),
    }
}
