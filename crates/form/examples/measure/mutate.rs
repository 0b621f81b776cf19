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
    vec![
                json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string", "pattern": "^(a|b)+c{2,9}$"}}}),
        json!({"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}]}}, "$ref": "#/$defs/n"}),
        json!({"allOf": [{"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "number"}}}]}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}], "type": "object"}),
        json!({"type": "array", "prefixItems": [{"type": "number", "multipleOf": 0.01}, {"type": "string", "format": "date-time"}], "minItems": 2, "maxItems": 30}),
        json!({"oneOf": [{"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"]}, {"type": "object", "properties": {"kind": {"const": "y"}}, "required": ["kind"]}]}),
    ]
}

/// Changes one place of a schema.
fn mutate(value: &mut Value, dice: &mut Dice, depth: usize) {
    let strange = [
        json!(-1), json!(1e308), json!(100_000), json!(1_000_000_000_000_u64), json!(null), json!([]), json!({}), json!(true),
        json!(false), json!("^(a+)+$"), json!("(.*a){30}"), json!("((a{1,100}){1,100}){1,100}"), json!("[\\s\\S]{1,4000}x"),
        json!("(?=a)b"), json!("\\p{L}{1,500}"), json!("https://example.com/schema.json"), json!("#/nowhere"), json!("#"),
        json!({"$ref": "#"}), json!({"$ref": "http://localhost:1/x"}), json!({"not": {}}), json!({"type": ["string", "null"]}),
        json!({"minLength": 100_000}), json!({"type": "string", "minLength": 5, "maxLength": 2}), json!({"const": "\u{0}\u{ffff}"}),
        json!({"enum": []}), json!({"allOf": [{"type": "string"}, {"type": "number"}]}), json!({"multipleOf": 0}),
        json!({"type": "integer", "minimum": 10, "maximum": 2}), json!({"minItems": 100_000}), json!({"$dynamicRef": "#x"}),
    ];
    let keys = [
        "type", "pattern", "minLength", "maxLength", "minItems", "maxItems", "$ref", "anyOf", "allOf", "oneOf", "not", "if", "enum",
        "const", "items", "properties", "patternProperties", "additionalProperties", "required", "format", "multipleOf", "$id",
        "x-guidance", "minProperties", "contains", "unevaluatedProperties", "dependentSchemas", "minimum",
    ];
    match value {
        Value::Object(fields) if depth < 12 => {
            let inner = fields.len();
            match dice.below(6) {
                0 => {
                    fields.insert(keys[dice.below(keys.len())].to_string(), strange[dice.below(strange.len())].clone());
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
        _ => *value = strange[dice.below(strange.len())].clone(),
    }
}
