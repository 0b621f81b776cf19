//! Writes the grammar of a text that must call tools, in llguidance's dialect of Lark: the calls in their family's own
//! syntax, with arguments that the tools' schemas accept. Marks that are tokens of the vocabulary stand as those
//! tokens.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::fields::ObjectField;
use super::pattern::{ANY_TEXT, without};
use super::raw_text::raw_text;
use super::schema::SchemaPart;
use super::syntax::{CallSyntax, NamedCall, ObjectKeys, Tagged, WrittenStyle};
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

/// A tool whose arguments a syntax of calls can't write so that their schema holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwritableTool {
    /// The tool's name.
    pub tool: String,
    /// What is expected of its parameters.
    pub expected: &'static str,
    /// What they have.
    pub found: String,
}

/// What a schema says that a grammar of calls can't hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unheld {
    expected: &'static str,
    found: String,
}

impl Unheld {
    pub fn new(found: impl Into<String>) -> Self {
        Unheld { expected: "a schema that the model's syntax of calls can hold", found: found.into() }
    }

    /// Of a keyword of the schema.
    pub fn keyword(keyword: &str) -> Self {
        Unheld::new(format!("`{keyword}`"))
    }

    /// Of a property whose name would be read as another one.
    pub fn name(name: &str) -> Self {
        let expected = "names of properties that the model's syntax of calls can hold";
        Unheld { expected, found: format!("{name:?}") }
    }

    /// In the schema of this property.
    pub fn of(self, property: &str) -> Self {
        Unheld { found: format!("{} of `{property}`", self.found), ..self }
    }
}

impl CallSyntax {
    /// The grammar of a text that makes these calls and has nothing else; where it follows reasoning, with up to two
    /// line breaks before them. Of an answer in channels the text is all of it, with a message of its reasoning, if it
    /// has one. Lists of values and objects are written as Python writes them, unless a schema says otherwise.
    ///
    /// # Errors
    ///
    /// The syntax can't hold the schema of a tool's arguments, or a name of theirs.
    pub fn grammar(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
    ) -> Result<String, UnwritableTool> {
        self.written_grammar(tools, demand, tokenizer, follows_reasoning, None)
    }

    /// The grammar of a text that either makes these calls, as in [`grammar`](Self::grammar), or has the content that
    /// these elements of a rule match.
    ///
    /// # Errors
    ///
    /// As of [`grammar`](Self::grammar).
    pub fn grammar_beside(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
        content: &str,
    ) -> Result<String, UnwritableTool> {
        self.written_grammar(tools, demand, tokenizer, follows_reasoning, Some(content))
    }

    fn written_grammar(
        &self,
        tools: &ToolSet,
        demand: &CallDemand,
        tokenizer: &Tokenizer,
        follows_reasoning: bool,
        content: Option<&str>,
    ) -> Result<String, UnwritableTool> {
        let is_callable = |tool: &Tool| !matches!(demand, CallDemand::Named(name) if *name != tool.name);
        let mut writer = GrammarWriter::new(tokenizer);
        let callable = tools.tools.iter().filter(|tool| is_callable(tool)).enumerate();
        let calls: Vec<String> = callable
            .map(|(index, tool)| {
                writer.call(self, index, tool).map_err(|Unheld { expected, found }| UnwritableTool {
                    tool: tool.name.clone(),
                    expected,
                    found,
                })
            })
            .collect::<Result<_, _>>()?;
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
        Ok(format!(
            "start: {space}{reasoning} (calls{other})\ncalls: {begin} call {more} {end}\n\
             call: {before} ({calls}) {after}\n{rules}"
        ))
    }
}

/// Writes the rules of one grammar.
pub(super) struct GrammarWriter<'t> {
    tokenizer: &'t Tokenizer,
    /// Rules and terminals, each with its line end.
    rules: String,
    /// The terminals of texts, by what they match.
    texts: HashMap<String, String>,
    /// Rules of values so far.
    values: usize,
    /// The rules of schemas that references name, by the reference, so that each is written once.
    pub named: HashMap<String, String>,
}

impl<'t> GrammarWriter<'t> {
    fn new(tokenizer: &'t Tokenizer) -> Self {
        GrammarWriter { tokenizer, rules: String::new(), texts: HashMap::new(), values: 0, named: HashMap::new() }
    }

    /// The elements that match this text: marks that are one token as that token.
    pub fn literal(&self, text: &str) -> String {
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

    /// The elements that match the texts of an expression of terminals, and behind them `before_end` and `end`. None of
    /// the texts may have `end` in it.
    pub fn closed_text(&mut self, texts: &str, before_end: &str, end: &str) -> String {
        // One terminal, as far as it has no token: its longest match is its only one.
        let (in_terminal, behind) = match self.tokenizer.token(end) {
            Some(token) => (before_end.to_owned(), format!(" <[{}]>", token.0)),
            None => (format!("{before_end}{end}"), String::new()),
        };
        let literal = if in_terminal.is_empty() { String::new() } else { format!(" {}", quoted(&in_terminal)) };
        let matched = format!("{texts}{literal}");
        let count = self.texts.len();
        let rules = &mut self.rules;
        let name = self.texts.entry(matched).or_insert_with_key(|matched| {
            let name = format!("TEXT{count}");
            let _ = writeln!(rules, "{name}: {matched}");
            name
        });
        format!("{name}{behind}")
    }

    /// A new rule with this body; its name.
    pub fn rule(&mut self, body: &str) -> String {
        let rule = format!("value{}", self.values);
        self.values += 1;
        let _ = writeln!(self.rules, "{rule}: {body}");
        rule
    }

    /// A rule with this name and body.
    pub fn named_rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    /// The rule of a call of `tool`; its name.
    fn call(&mut self, syntax: &CallSyntax, index: usize, tool: &Tool) -> Result<String, Unheld> {
        let body = match syntax.written.style {
            WrittenStyle::Object(ObjectKeys { number, name, arguments: key }) => {
                let head = format!("\"{name}\": {}, \"{key}\": ", Value::from(&*tool.name));
                let head = match number {
                    None => self.literal(&format!("{{{head}")),
                    Some(number) => {
                        let before = self.literal(&format!("{{\"{number}\": \""));
                        format!("{before} /[0-9]{{1,3}}/ {}", self.literal(&format!("\", {head}")))
                    }
                };
                format!("{head} {} \"}}\"", arguments(tool))
            }
            WrittenStyle::Named(NamedCall { before, after, skips }) => {
                let name = self.literal(&format!("{before}{}", tool.name));
                let number = skips.map_or(String::new(), |skipped| format!("{} /[0-9]{{1,3}}/", quoted(skipped)));
                format!("{name} {number} {} {}", self.literal(after), arguments(tool))
            }
            WrittenStyle::Tagged(tags) => self.tagged(&tags, tool)?,
            WrittenStyle::Gemma => {
                let head = self.literal(&format!("call:{}", tool.name));
                format!("{head} {}", self.gemma_arguments(tool.whole())?)
            }
            WrittenStyle::Channel => {
                let head = format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
                format!("{} {}", self.literal(&head), arguments(tool))
            }
        };
        let rule = format!("tool{index}");
        self.named_rule(&rule, &body);
        Ok(rule)
    }

    /// A message of the reasoning, which may be left out, and the beginning of the next message.
    fn reasoning_message(&mut self) -> String {
        let open = self.literal("<|channel|>analysis<|message|>");
        let text = format!("({ANY_TEXT} & {})", without("<|end|>"));
        let text = self.closed_text(&text, "", "<|end|>");
        format!("({open} {text} {})?", self.literal("<|start|>assistant"))
    }

    fn tagged(&mut self, tags: &Tagged, tool: &Tool) -> Result<String, Unheld> {
        let mut body = self.literal(&format!("{}{}{}\n", tags.before_name, tool.name, tags.after_name));
        let whole = tool.whole();
        let joined = whole.joined()?;
        let all = joined.as_ref().map_or(whole, |schema| whole.part(schema));
        all.check(&["anyOf", "oneOf", "enum", "const"])?;
        for ObjectField { key, part, is_required } in all.fields()? {
            if key.is_empty() || key.trim() != key || key.contains(tags.after_key) {
                return Err(Unheld::name(key));
            }
            // Where no tag opens the value, it has a line of its own.
            let line_end = if tags.before_value.is_empty() { "\n" } else { "" };
            let open = format!("{}{key}{}\n{}", tags.before_key, tags.after_key, tags.before_value);
            // As the reader takes it.
            let value = match tool.part(key).is_none_or(SchemaPart::is_text) {
                true => {
                    let texts = raw_text(part, tags.after_value).map_err(|unheld| unheld.of(key))?;
                    self.closed_text(&texts, line_end, tags.after_value)
                }
                false => {
                    let close = self.literal(&format!("{line_end}{}", tags.after_value));
                    format!("{} {close}", json_of(part))
                }
            };
            let argument = format!("{} {value} \"\\n\"", self.literal(&open));
            let _ = if is_required { write!(body, " {argument}") } else { write!(body, " ({argument})?") };
        }
        Ok(body + " " + &self.literal(tags.end))
    }
}

/// A text as Lark writes it.
pub(super) fn quoted(text: &str) -> String {
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

/// A value of JSON that a part of a schema accepts, with the definitions that it names.
fn json_of(part: SchemaPart<'_>) -> String {
    /// Where the whole stands in the part, if the part names more of it than its definitions.
    const WHOLE: &str = "arguments";
    const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
    let SchemaPart { schema, root } = part;
    let mut own = schema.clone();
    let mut defined = Vec::new();
    let is_definition = |place: &str| DEFINITIONS.iter().any(|key| place.starts_with(&format!("#/{key}/")));
    let mut names_whole = false;
    let mut root = root.clone();
    for schema in [&mut own, &mut root] {
        references(schema, &mut |reference| names_whole |= reference.starts_with('#') && !is_definition(reference));
    }
    if names_whole {
        for schema in [&mut own, &mut root] {
            references(schema, &mut |reference| {
                if let Some(place) = reference.strip_prefix('#') {
                    *reference = format!("#/$defs/{WHOLE}{place}");
                }
            });
        }
        defined.push(("$defs", json!({ WHOLE: root })));
    } else {
        defined.extend(DEFINITIONS.into_iter().filter_map(|key| Some((key, root.get(key)?.clone()))));
    }
    let mut own = if let Value::Object(fields) = own { fields } else { Map::new() };
    for (key, value) in defined {
        own.entry(key).or_insert(value);
    }
    as_written(own)
}

/// Calls `each` with all references of a schema, but for those that stand in values.
fn references(schema: &mut Value, each: &mut impl FnMut(&mut String)) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| references(item, each)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => each(reference),
                    ("const" | "enum" | "default" | "examples", _) => {}
                    (_, value) => references(value, each),
                }
            }
        }
        _ => {}
    }
}

pub(super) fn as_written(mut schema: Map<String, Value>) -> String {
    let style = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.entry("x-guidance").or_insert(style);
    format!("%json {}", Value::from(schema))
}
