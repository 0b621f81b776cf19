//! Writes the grammar of a text that must call tools, in llguidance's dialect of Lark: the calls in their family's own
//! syntax, with arguments that the tools' schemas accept. Marks that are tokens of the vocabulary stand as those tokens.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::gemma::{QUOTE, is_plain_key};
use super::schema::SchemaPart;
use super::syntax::{CallSyntax, NamedCall, Tagged, WrittenStyle};
use super::{MARKS, Tool, ToolSet};
use crate::load::CHANNEL_MARKS;
use crate::tokenizer::Tokenizer;

/// Which calls a text must make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDemand {
    /// One or several, of any tools.
    Some,
    /// One, of any tool.
    One,
    /// One, of the tool with this name.
    Named(String),
}

impl CallSyntax {
    /// The grammar of a text that makes these calls and has nothing else; where it follows reasoning, with up to two
    /// line breaks before them. Of an answer in channels the text is all of it, with a message of its reasoning, if it
    /// has one. Lists of values and objects are written as Python writes them, unless a schema says otherwise.
    pub fn grammar(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
    ) -> String {
        self.written_grammar(tools, demand, tokenizer, follows_reasoning, None)
    }

    /// The grammar of a text that either makes these calls, as in [`grammar`](Self::grammar), or has the content that
    /// these elements of a rule match.
    pub fn grammar_beside(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
        content: &str,
    ) -> String {
        self.written_grammar(tools, demand, tokenizer, follows_reasoning, Some(content))
    }

    fn written_grammar(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
        content: Option<&str>,
    ) -> String {
        let is_asked = |tool: &&Tool| !matches!(demand, CallDemand::Named(name) if *name != tool.name);
        let mut writer = GrammarWriter { tokenizer, rules: String::new(), texts: 0, values: 0, named: HashMap::new() };
        let calls: Vec<String> = tools
            .tools
            .iter()
            .filter(is_asked)
            .enumerate()
            .map(|(index, tool)| writer.call(self, index, tool))
            .collect();
        let written = &self.written;
        let space = if follows_reasoning { r"/\n{0,2}/ " } else { "" };
        let (begin, end) = (writer.literal(written.begin), writer.literal(written.end));
        let more = match (demand, written.between) {
            (CallDemand::Some, Some(between)) => format!("({} call)*", writer.literal(between)),
            _ => String::new(),
        };
        let (before, after) = (writer.literal(written.before), writer.literal(written.after));
        let reasoning = match written.style {
            WrittenStyle::Channel => writer.reasoning_message(),
            _ => String::new(),
        };
        let calls = calls.join(" | ");
        let header = match written.style {
            WrittenStyle::Channel => writer.literal("<|channel|>final<|message|>"),
            _ => String::new(),
        };
        let content = content.map_or(String::new(), |content| format!("content: {header} {content}\n"));
        let other = if content.is_empty() { "" } else { " | content" };
        let rules = content + &writer.rules;
        format!(
            "start: {space}{reasoning} (calls{other})\ncalls: {begin} call {more} {end}\n\
             call: {before} ({calls}) {after}\n{rules}"
        )
    }
}

struct GrammarWriter<'t> {
    tokenizer: &'t Tokenizer,
    /// Rules, each with its line end.
    rules: String,
    /// Rules of free texts so far, and rules of values.
    texts: usize,
    values: usize,
    /// The rules of schemas that others name, by their places in memory, so that each is written once.
    named: HashMap<*const Value, String>,
}

impl GrammarWriter<'_> {
    /// The elements that match this text: marks that are one token as that token.
    fn literal(&self, text: &str) -> String {
        let marks = || MARKS.into_iter().chain(CHANNEL_MARKS.into_iter().flatten().copied());
        let token = |mark: &str| Some(self.tokenizer.token(mark)?.0);
        let mut out = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let next =
                marks().filter_map(|mark| Some((rest.find(mark)?, mark, token(mark)?))).min_by_key(|next| next.0);
            let plain = &rest[..next.map_or(rest.len(), |(at, ..)| at)];
            if !plain.is_empty() {
                let _ = write!(out, " {}", quoted(plain));
            }
            rest = &rest[plain.len()..];
            if let Some((_, mark, id)) = next {
                let _ = write!(out, " <[{id}]>");
                rest = &rest[mark.len()..];
            }
        }
        out.trim_start().to_owned()
    }

    /// The elements that match any text and, behind it, `end`, which the text does not have.
    fn text_until(&mut self, end: &str) -> String {
        if let Some(token) = self.tokenizer.token(end) {
            return format!("/(?s:.*)/ <[{}]>", token.0);
        }
        let rule = format!("text{}", self.texts);
        self.texts += 1;
        let _ = writeln!(self.rules, "{rule}[suffix={}]: /(?s:.*)/", quoted(end));
        rule
    }

    /// A new rule with this body; its name.
    fn rule(&mut self, body: &str) -> String {
        let rule = format!("value{}", self.values);
        self.values += 1;
        let _ = writeln!(self.rules, "{rule}: {body}");
        rule
    }

    /// The rule of a call of `tool`; its name.
    fn call(&mut self, syntax: &CallSyntax, index: usize, tool: &Tool) -> String {
        let body = match syntax.written.style {
            WrittenStyle::Object(key) => {
                let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(&*tool.name));
                format!("{} {} \"}}\"", self.literal(&head), arguments(tool))
            }
            WrittenStyle::Named(NamedCall { before, after, skips }) => {
                let name = self.literal(&format!("{before}{}", tool.name));
                let number = skips.map_or(String::new(), |skipped| format!("{} /[0-9]{{1,3}}/", quoted(skipped)));
                format!("{name} {number} {} {}", self.literal(after), arguments(tool))
            }
            WrittenStyle::Tagged(tags) => self.tagged(&tags, tool),
            WrittenStyle::Gemma => {
                let head = self.literal(&format!("call:{}", tool.name));
                let root = tool.parameters.as_ref().unwrap_or(&Value::Null);
                format!("{head} {}", self.gemma_object(SchemaPart { schema: root, root }.resolved(), 0))
            }
            WrittenStyle::Channel => {
                let head = format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
                format!("{} {}", self.literal(&head), arguments(tool))
            }
        };
        let rule = format!("tool{index}");
        let _ = writeln!(self.rules, "{rule}: {body}");
        rule
    }

    /// A message of the reasoning, which may be left out, and the beginning of the next message.
    fn reasoning_message(&mut self) -> String {
        let open = self.literal("<|channel|>analysis<|message|>");
        let text = self.text_until("<|end|>");
        format!("({open} {text} {})?", self.literal("<|start|>assistant"))
    }

    fn tagged(&mut self, tags: &Tagged, tool: &Tool) -> String {
        let mut body = self.literal(&format!("{}{}{}\n", tags.before_name, tool.name, tags.after_name));
        let root = tool.parameters.as_ref().unwrap_or(&Value::Null);
        let all = SchemaPart { schema: root, root }.resolved();
        for (key, parameter) in all.schema["properties"].as_object().into_iter().flatten() {
            // Where no tag opens the value, it has a line of its own.
            let line_end = if tags.before_value.is_empty() { "\n" } else { "" };
            let open = format!("{}{key}{}\n{}", tags.before_key, tags.after_key, tags.before_value);
            let close = format!("{line_end}{}", tags.after_value);
            let value = match all.part(parameter).strings() {
                Some(values) if !values.is_empty() => {
                    let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
                    format!("({}) {}", values.join(" | "), self.literal(&close))
                }
                Some(_) => self.text_until(tags.after_value),
                None => format!("{} {}", json_of(parameter, root), self.literal(&close)),
            };
            let argument = format!("{} {value} \"\\n\"", self.literal(&open));
            let _ = if all.is_required(key) { write!(body, " {argument}") } else { write!(body, " ({argument})?") };
        }
        body + " " + &self.literal(tags.end)
    }

    /// An object in Gemma's syntax, with keys in the order in which the template writes them.
    fn gemma_object(&mut self, part: SchemaPart<'_>, depth: usize) -> String {
        let mut fields: Vec<(&String, &Value)> = part.schema["properties"].as_object().into_iter().flatten().collect();
        fields.sort_by_key(|(key, _)| key.to_lowercase());
        // From the last one: what may follow where no field has been written, and where one has.
        let (mut first, mut later) = (String::new(), String::new());
        for (key, value) in fields.into_iter().rev() {
            let value = self.gemma_value(part.part(value), depth + 1);
            let field = self.rule(&format!("{} {value}", self.gemma_key(key)));
            let next = if later.is_empty() { field.clone() } else { format!("{field} {later}") };
            (first, later) = match part.is_required(key) {
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
        format!("\"{{\" {first} \"}}\"")
    }

    fn gemma_value(&mut self, part: SchemaPart<'_>, depth: usize) -> String {
        /// Schemas within each other that are held; deeper ones allow any value.
        const DEEPEST: usize = 32;
        if depth > DEEPEST {
            return self.gemma_any();
        }
        if let Some(named) = part.named() {
            let place = std::ptr::from_ref(named.schema);
            if let Some(rule) = self.named.get(&place) {
                return rule.clone();
            }
            // The rule may name itself.
            let rule = format!("named{}", self.named.len());
            self.named.insert(place, rule.clone());
            let body = self.gemma_value(named, depth + 1);
            let _ = writeln!(self.rules, "{rule}: {body}");
            return rule;
        }
        if let Some(values) = part.values() {
            let values: Vec<String> = values.iter().map(|value| self.gemma_literal(value)).collect();
            return format!("({})", values.join(" | "));
        }
        if part.schema.get("type").is_none() {
            let values: Vec<String> = part.alternatives().map(|part| self.gemma_value(part, depth + 1)).collect();
            if !values.is_empty() {
                return format!("({})", values.join(" | "));
            }
        }
        let kinds = part.kinds();
        if kinds.is_empty() {
            return self.gemma_any();
        }
        let kinds: Vec<String> = kinds
            .iter()
            .map(|kind| match *kind {
                "string" => self.gemma_string(),
                "integer" | "number" => number(kind, part.schema),
                "boolean" => r#"("true" | "false")"#.to_owned(),
                "null" => r#""null""#.to_owned(),
                "array" => {
                    let item = self.gemma_value(part.part(&part.schema["items"]), depth + 1);
                    let item = self.rule(&item);
                    format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
                }
                "object" if part.schema["properties"].is_object() => self.gemma_object(part, depth + 1),
                "object" => {
                    let value = match &part.schema["additionalProperties"] {
                        schema @ Value::Object(_) => self.gemma_value(part.part(schema), depth + 1),
                        _ => self.gemma_any(),
                    };
                    let field = self.rule(&format!("{KEY} \":\" {value}"));
                    format!("\"{{\" ({field} (\",\" {field})*)? \"}}\"")
                }
                _ => self.gemma_any(),
            })
            .collect();
        format!("({})", kinds.join(" | "))
    }

    /// A key of an object: as a string where it would be read as another one without its marks.
    fn gemma_key(&self, key: &str) -> String {
        match is_plain_key(key) {
            true => quoted(&format!("{key}:")),
            false => self.literal(&format!("{QUOTE}{key}{QUOTE}:")),
        }
    }

    /// This value.
    fn gemma_literal(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) => self.literal(&format!("{QUOTE}{text}{QUOTE}")),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.gemma_literal(item)).collect();
                format!("\"[\" {} \"]\"", items.join(" \",\" "))
            }
            Value::Object(fields) => {
                let field =
                    |(key, value): (&String, _)| format!("{} {}", self.gemma_key(key), self.gemma_literal(value));
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("\"{{\" {} \"}}\"", fields.join(" \",\" "))
            }
            value => quoted(&value.to_string()),
        }
    }

    fn gemma_string(&mut self) -> String {
        format!("{} {}", self.literal(QUOTE), self.text_until(QUOTE))
    }

    /// Any value.
    fn gemma_any(&mut self) -> String {
        let text = self.gemma_string();
        let any = format!("value{}", self.values);
        self.rule(&format!(
            "{text} | {NUMBER} | \"true\" | \"false\" | \"null\" | \"[\" ({any} (\",\" {any})*)? \"]\" | \
             \"{{\" ({KEY} \":\" {any} (\",\" {KEY} \":\" {any})*)? \"}}\""
        ))
    }
}

/// A number of this kind within the schema's bounds: JSON, as Gemma's syntax has numbers, too.
fn number(kind: &str, schema: &Value) -> String {
    const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    let bounds = BOUNDS.into_iter().filter_map(|key| Some((key.to_owned(), schema.get(key)?.clone())));
    as_written(bounds.chain([("type".to_owned(), kind.into())]).collect())
}

/// A key of objects that name none.
const KEY: &str = "/[A-Za-z_][A-Za-z0-9_]*/";
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?/";

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The arguments of a tool as JSON. One without a schema has none.
fn arguments(tool: &Tool) -> String {
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let schema = tool.parameters.as_ref().unwrap_or(&nothing);
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    // Whatever else the schema allows, arguments are an object.
    schema.insert("type".to_owned(), "object".into());
    as_written(schema)
}

/// A value of JSON that `schema` accepts; `root` has the definitions that it names.
fn json_of(schema: &Value, root: &Value) -> String {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(key) {
            schema.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    as_written(schema)
}

fn as_written(mut schema: Map<String, Value>) -> String {
    let style = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.entry("x-guidance").or_insert(style);
    format!("%json {}", Value::from(schema))
}
