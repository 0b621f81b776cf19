//! Writes arguments in Gemma 4's syntax: `{key:value,…}` with strings between marks, as [`gemma`](super::gemma) reads
//! them. Numbers are JSON there, too; all else that a schema says is held by rules, or is an error.

use serde_json::{Value, json};

use super::fields::ObjectField;
use super::gemma::{QUOTE, is_plain_key};
use super::grammar::{GrammarWriter, Unheld, as_written, quoted};
use super::raw_text::raw_text;
use super::schema::{SchemaPart, kind_of};

/// Schemas within each other that are written.
const DEEPEST: usize = 32;
/// A key of objects that name none, and numbers without bounds.
const KEY: &str = "/[A-Za-z_][A-Za-z0-9_]*/";
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?/";
const INTEGER: &str = "/-?(0|[1-9][0-9]{0,17})/";

/// Keywords of numbers, lists and objects, of which a schema without `type` is one if it has them.
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const OF_LISTS: [&str; 4] = ["items", "prefixItems", "minItems", "maxItems"];
const OF_OBJECTS: [&str; 5] = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
const OF_STRINGS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
/// Keywords that are not held.
const UNHELD: [&str; 9] =
    ["not", "if", "then", "else", "contains", "additionalItems", "unevaluatedItems", "$dynamicRef", "$recursiveRef"];

impl GrammarWriter<'_> {
    /// The arguments of a call: an object, whatever else their schema allows.
    pub fn gemma_arguments(&mut self, whole: SchemaPart<'_>) -> Result<String, Unheld> {
        match whole.schema {
            Value::Object(fields) if fields.contains_key("type") || fields.contains_key("properties") => {
                let mut object = fields.clone();
                object.insert("type".to_owned(), "object".into());
                self.gemma_value(whole.part(&object.into()), 0)
            }
            Value::Object(_) => {
                let object = json!({"allOf": [whole.schema, {"type": "object"}]});
                self.gemma_value(whole.part(&object), 0)
            }
            _ => Ok("\"{}\"".to_owned()),
        }
    }

    fn gemma_value(&mut self, part: SchemaPart<'_>, depth: usize) -> Result<String, Unheld> {
        if depth > DEEPEST {
            return Err(Unheld::new("schemas nested too deep"));
        }
        match part.schema {
            Value::Object(_) => {}
            Value::Bool(false) => return Err(Unheld::new("`false`")),
            _ => return Ok(self.gemma_any()),
        }
        part.check(&UNHELD)?;
        if let (Some(reference), false) = (part.schema.get("$ref"), part.says_beside(&["$ref"])) {
            return self.gemma_named(part, reference, depth);
        }
        if let Some(joined) = part.joined()? {
            return self.gemma_value(part.part(&joined), depth + 1);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(options) = part.schema.get(key).and_then(Value::as_array) {
                return self.gemma_alternatives(part, key, options, depth);
            }
        }
        if let Some(values) = part.values() {
            return self.gemma_choice(part, values);
        }
        let has = |keywords: &[&str]| keywords.iter().any(|keyword| part.schema.get(*keyword).is_some());
        let kinds = match part.kinds() {
            kinds if !kinds.is_empty() => kinds,
            _ if has(&OF_OBJECTS) => vec!["object"],
            _ if has(&OF_LISTS) => vec!["array"],
            _ if has(&OF_STRINGS) => vec!["string"],
            _ if has(&OF_NUMBERS) => vec!["number"],
            _ => return Ok(self.gemma_any()),
        };
        let kinds = kinds.into_iter().map(|kind| match kind {
            "string" => self.gemma_string(part),
            "integer" | "number" => Ok(number(kind, part.schema)),
            "boolean" => Ok(r#"("true" | "false")"#.to_owned()),
            "null" => Ok(r#""null""#.to_owned()),
            "array" => self.gemma_list(part, depth),
            "object" => self.gemma_object(part, depth),
            other => Err(Unheld::new(format!("the type {other:?}"))),
        });
        Ok(format!("({})", kinds.collect::<Result<Vec<_>, _>>()?.join(" | ")))
    }

    /// The rule of what a reference names, which may name itself.
    fn gemma_named(&mut self, part: SchemaPart<'_>, reference: &Value, depth: usize) -> Result<String, Unheld> {
        let key = reference.to_string();
        if let Some(rule) = self.named.get(&key) {
            return Ok(rule.clone());
        }
        let named = part.referred(reference).ok_or_else(|| Unheld::new(format!("the reference {reference}")))?;
        let rule = format!("named{}", self.named.len());
        self.named.insert(key, rule.clone());
        let body = self.gemma_value(named, depth + 1)?;
        self.named_rule(&rule, &body);
        Ok(rule)
    }

    /// One of several schemas, each joined with what stands beside them.
    fn gemma_alternatives(
        &mut self,
        part: SchemaPart<'_>,
        key: &str,
        options: &[Value],
        depth: usize,
    ) -> Result<String, Unheld> {
        if key == "oneOf" && options.len() > 1 {
            return Err(Unheld::keyword(key));
        }
        let mut beside = part.schema.clone();
        beside.as_object_mut().map(|fields| fields.shift_remove(key));
        let options = options.iter().map(|option| match part.says_beside(&[key]) {
            true => {
                let both = json!({"allOf": [beside, option]});
                self.gemma_value(part.part(&both), depth + 1)
            }
            false => self.gemma_value(part.part(option), depth + 1),
        });
        Ok(format!("({})", options.collect::<Result<Vec<_>, _>>()?.join(" | ")))
    }

    /// One of several values.
    fn gemma_choice(&mut self, part: SchemaPart<'_>, values: &[Value]) -> Result<String, Unheld> {
        if part.schema.get("const").is_some() && part.schema.get("enum").is_some() {
            return Err(Unheld::keyword("enum"));
        }
        if part.says_beside(&["type", "enum", "const"]) {
            // What else is said of texts is held as of any text.
            let all_text = part.schema["type"] == "string" || values.iter().all(Value::is_string);
            return if all_text { self.gemma_string(part) } else { Err(Unheld::keyword("enum")) };
        }
        let kinds = match &part.schema["type"] {
            Value::String(kind) => vec![kind.as_str()],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let is_allowed = |value: &&Value| {
            let kind = kind_of(value);
            let is_whole = value.as_f64().is_some_and(|value| value.fract() == 0.0);
            kinds.is_empty()
                || kinds.contains(&kind)
                || (value.is_number() && (kinds.contains(&"number") || (is_whole && kinds.contains(&"integer"))))
        };
        let values = values.iter().filter(is_allowed).map(|value| self.gemma_literal(value));
        let values: Vec<String> = values.collect::<Result<_, _>>()?;
        match values.is_empty() {
            true => Err(Unheld::keyword("enum")),
            false => Ok(format!("({})", values.join(" | "))),
        }
    }

    fn gemma_object(&mut self, part: SchemaPart<'_>, depth: usize) -> Result<String, Unheld> {
        let fields = part.fields()?;
        if fields.is_empty() {
            return self.gemma_map(part, depth);
        }
        self.gemma_fields(fields, depth)
    }

    /// An object whose keys are the model's own.
    fn gemma_map(&mut self, part: SchemaPart<'_>, depth: usize) -> Result<String, Unheld> {
        let most = part.schema.get("maxProperties").and_then(Value::as_u64);
        let others = part.schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        if *others == Value::Bool(false) || most == Some(0) || part.schema.get("properties").is_some() {
            return Ok("\"{}\"".to_owned());
        }
        let value = self.gemma_value(part.part(others), depth + 1)?;
        let field = self.rule(&format!("{KEY} \":\" {value}"));
        Ok(format!("\"{{\" ({field} (\",\" {field}){})? \"}}\"", repeated(0, most.map(|most| most - 1))))
    }

    /// An object of these fields, in the order in which the template writes them.
    fn gemma_fields(&mut self, mut fields: Vec<ObjectField<'_>>, depth: usize) -> Result<String, Unheld> {
        fields.sort_by_key(|field| field.key.to_lowercase());
        // From the last one: what may follow where no field has been written, and where one has.
        let (mut first, mut later) = (String::new(), String::new());
        for ObjectField { key, part, is_required } in fields.into_iter().rev() {
            let value = self.gemma_value(part, depth + 1).map_err(|unheld| unheld.of(key))?;
            let name = self.gemma_key(key)?;
            let field = self.rule(&format!("{name} {value}"));
            let next = if later.is_empty() { field.clone() } else { format!("{field} {later}") };
            (first, later) = match is_required {
                true => (next.clone(), self.rule(&format!("\",\" {next}"))),
                false if later.is_empty() => {
                    (self.rule(&format!("({field})?")), self.rule(&format!("(\",\" {field})?")))
                }
                false => {
                    let first = if first.is_empty() { "\"\"".to_owned() } else { first };
                    (self.rule(&format!("{next} | {first}")), self.rule(&format!("(\",\" {field})? {later}")))
                }
            };
        }
        Ok(format!("\"{{\" {first} \"}}\""))
    }

    fn gemma_list(&mut self, part: SchemaPart<'_>, depth: usize) -> Result<String, Unheld> {
        /// Schemas of single items that are written.
        const MOST_SINGLE: usize = 64;
        let schema = part.schema;
        if schema.get("uniqueItems").is_some_and(|unique| *unique != Value::Bool(false)) {
            return Err(Unheld::keyword("uniqueItems"));
        }
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        let single = schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if single.len() > MOST_SINGLE {
            return Err(Unheld::keyword("prefixItems"));
        }
        let items = schema.get("items").unwrap_or(&Value::Bool(true));
        let comma = |at: u64| if at == 0 { "" } else { "\",\" " };
        // What follows the single items: so many more of the same schema.
        let begun = single.len() as u64;
        let left = most.map(|most| most.saturating_sub(begun));
        let mut rest = match (items, left) {
            (Value::Bool(false), _) | (_, Some(0)) if least > begun => return Err(Unheld::keyword("minItems")),
            (Value::Bool(false), _) | (_, Some(0)) => String::new(),
            _ => {
                let item = self.gemma_value(part.part(items), depth + 1)?;
                let item = self.rule(&item);
                let needed = least.saturating_sub(begun);
                match begun {
                    0 => {
                        let more = repeated(needed.saturating_sub(1), left.map(|left| left - 1));
                        let all = format!("{item} (\",\" {item}){more}");
                        if needed == 0 { format!("({all})?") } else { all }
                    }
                    _ => format!("(\",\" {item}){}", repeated(needed, left)),
                }
            }
        };
        for (at, schema) in single.iter().enumerate().rev() {
            let at = at as u64;
            if most.is_some_and(|most| at >= most) {
                rest = String::new();
                continue;
            }
            let item = self.gemma_value(part.part(schema), depth + 1)?;
            let with_rest = format!("{}{item} {rest}", comma(at));
            rest = self.rule(&if at >= least { format!("({with_rest})?") } else { with_rest });
        }
        Ok(format!("\"[\" {rest} \"]\""))
    }

    /// A key of an object: as a string where it would be read as another one without its marks.
    fn gemma_key(&self, key: &str) -> Result<String, Unheld> {
        match key {
            key if is_plain_key(key) => Ok(quoted(&format!("{key}:"))),
            key if key.is_empty() || key.contains(QUOTE) => Err(Unheld::name(key)),
            key => Ok(self.literal(&format!("{QUOTE}{key}{QUOTE}:"))),
        }
    }

    /// This value.
    fn gemma_literal(&mut self, value: &Value) -> Result<String, Unheld> {
        Ok(match value {
            Value::String(text) if text.contains(QUOTE) => {
                return Err(Unheld::new(format!("the text {text:?}, which has {QUOTE:?} in it")));
            }
            Value::String(text) => self.literal(&format!("{QUOTE}{text}{QUOTE}")),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.gemma_literal(item)).collect::<Result<_, _>>()?;
                format!("\"[\" {} \"]\"", items.join(" \",\" "))
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    Ok(format!("{} {}", self.gemma_key(key)?, self.gemma_literal(value)?))
                };
                let fields: Vec<String> = fields.iter().map(field).collect::<Result<_, Unheld>>()?;
                format!("\"{{\" {} \"}}\"", fields.join(" \",\" "))
            }
            value => quoted(&value.to_string()),
        })
    }

    fn gemma_string(&mut self, part: SchemaPart<'_>) -> Result<String, Unheld> {
        let texts = raw_text(part, QUOTE)?;
        let text = self.closed_text(&texts, "", QUOTE);
        Ok(format!("{} {text}", self.literal(QUOTE)))
    }

    /// Any value.
    fn gemma_any(&mut self) -> String {
        const ANY: &str = "any_value";
        if self.named.insert(ANY.to_owned(), ANY.to_owned()).is_none() {
            let text = self.gemma_string(SchemaPart { schema: &Value::Null, root: &Value::Null });
            let text = text.expect("a schema that says nothing can be held");
            self.named_rule(
                ANY,
                &format!(
                    "{text} | {NUMBER} | \"true\" | \"false\" | \"null\" | \"[\" ({ANY} (\",\" {ANY})*)? \"]\" | \
                 \"{{\" ({KEY} \":\" {ANY} (\",\" {KEY} \":\" {ANY})*)? \"}}\""
                ),
            );
        }
        ANY.to_owned()
    }
}

/// A number of this kind within the schema's bounds: JSON, as Gemma's syntax has numbers, too.
fn number(kind: &str, schema: &Value) -> String {
    let bounds = OF_NUMBERS.into_iter().filter_map(|key| Some((key.to_owned(), schema.get(key)?.clone())));
    let bounds: Vec<(String, Value)> = bounds.collect();
    match (bounds.is_empty(), kind) {
        (true, "integer") => INTEGER.to_owned(),
        (true, _) => NUMBER.to_owned(),
        (false, _) => as_written(bounds.into_iter().chain([("type".to_owned(), kind.into())]).collect()),
    }
}

/// How often something is repeated.
fn repeated(least: u64, most: Option<u64>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
