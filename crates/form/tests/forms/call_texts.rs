//! Whatever a grammar of calls allows is a call: texts drawn under the grammar of each family, with tools of the kinds
//! that clients send, are split by the family's reader into one call, or several, whose arguments have the tool's
//! schema. Draws prefer pieces that could end a value early, or be taken for something else.

use std::collections::VecDeque;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms};
use offshoot_text::reasoning::TextStart;
use offshoot_text::tools::{
    AnswerPart, AnswerSplitter, CallDemand, CallReader, CallSyntax, ReasoningText, Tool, ToolCall, ToolSet,
    joined_calls,
};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::calls::tokenizer;
use crate::mutate::Dice;
use crate::validate::has_schema;

/// What templates of the families have.
const TEMPLATES: [&str; 15] = [
    "<tool_call> {\"name\"",
    "<tool_call><function=",
    "<tool_call><arg_key>",
    "<seed:tool_call><function=",
    "ipython \"parameters\"",
    "[TOOL_CALLS]",
    "[TOOL_CALLS] [ARGS]",
    "<|tool_call>",
    "<|tool_call|> <|/tool_call|>",
    "<|tool_call|>",
    "<|tool|> <|/tool|>",
    "<|channel|><|message|>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁begin｜> ```json",
    "<|tool_call_begin|>",
];

/// Tools of the kinds that pydantic, MCP and hand-written schemas have.
fn tools() -> Vec<Tool> {
    let object = |properties: Value, required: Value| {
        let mut schema = json!({"type": "object", "additionalProperties": false});
        (schema["properties"], schema["required"]) = (properties, required);
        schema
    };
    let with_defs = |mut schema: Value, defs: Value| {
        schema["$defs"] = defs;
        schema
    };
    let address = object(
        json!({"city": {"type": "string", "maxLength": 12}, "zip": {"type": "string", "pattern": "^[0-9]{4}$"}}),
        json!(["city", "zip"]),
    );
    let color = json!({"type": "string", "enum": ["red", "green"]});
    let node = object(
        json!({"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}),
        json!(["value"]),
    );
    let kinds = json!([
        object(
            json!({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}),
            json!(["kind", "lives"])
        ),
        object(json!({"kind": {"const": "dog"}, "name": {"type": "string", "maxLength": 6}}), json!(["kind"])),
    ]);
    let parameters = [
        // Nested models and enums by reference.
        with_defs(
            object(
                json!({"to": {"$ref": "#/$defs/address"}, "color": {"$ref": "#/$defs/color"},
                       "backup": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]}}),
                json!(["to", "color"]),
            ),
            json!({"address": address, "color": color}),
        ),
        // Optional values, of which those of text may be quoted.
        object(
            json!({"note": {"anyOf": [{"type": "string", "maxLength": 10}, {"type": "null"}], "default": null},
                   "count": {"type": ["integer", "null"]}, "name": {"type": "string"}}),
            json!(["note"]),
        ),
        // One schema of `allOf`, with a description beside it, and several.
        with_defs(
            object(
                json!({"place": {"allOf": [{"$ref": "#/$defs/address"}], "description": "Where."},
                       "short": {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": 3}]}}),
                json!(["place", "short"]),
            ),
            json!({"address": address}),
        ),
        // Lists of objects, with bounds.
        object(
            json!({"rows": {"type": "array", "minItems": 1, "maxItems": 3, "items": object(
                json!({"id": {"type": "integer", "minimum": 1, "maximum": 99}, "tag": {"enum": ["a", "b"]}}),
                json!(["id", "tag"]))},
                "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": false,
                         "minItems": 2}}),
            json!(["rows"]),
        ),
        // Constants.
        object(
            json!({"version": {"const": 2}, "mode": {"const": "fast"}, "level": {"enum": [1, 2.5, null, "1"]},
                   "on": {"const": true}}),
            json!(["version", "mode", "level"]),
        ),
        // Numbers with bounds.
        object(
            json!({"n": {"type": "integer", "minimum": 1, "maximum": 5},
                   "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                   "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 99}}),
            json!(["n", "share"]),
        ),
        // Texts with patterns, lengths and formats.
        object(
            json!({"code": {"type": "string", "pattern": "^[A-Z]{2}/\\d{2}$"},
                   "name": {"type": "string", "minLength": 2, "maxLength": 5},
                   "part": {"type": "string", "pattern": "b+|^x", "maxLength": 8},
                   "day": {"type": "string", "format": "date"},
                   "size": {"minLength": 1, "maxLength": 2}}),
            json!(["code", "name"]),
        ),
        // Choices that look like something else.
        object(
            json!({"text": {"enum": ["a", "a\nb", "\"q\"", "null", "1", "", "{\"a\": 1}", "\n", "<tool_call>"]},
                   "more": {"type": "string", "enum": ["a/b", "a b", "a"]}}),
            json!(["text"]),
        ),
        // Maps.
        object(
            json!({"labels": {"type": "object", "additionalProperties": {"type": "integer"}},
                   "any": {"type": "object"}}),
            json!(["labels"]),
        ),
        // A schema that names itself, as the whole of the arguments.
        with_defs(json!({"$ref": "#/$defs/node"}), json!({"node": node})),
        // Alternatives told by a constant.
        object(json!({"pet": {"oneOf": kinds}, "old": {"type": "boolean"}}), json!(["pet"])),
    ];
    let names = [
        "send_order",
        "note",
        "find.place",
        "add-rows",
        "set_mode",
        "scale",
        "tag_text",
        "pick",
        "label",
        "walk",
        "feed",
    ];
    let tools = names.into_iter().zip(parameters);
    let tools = tools.map(|(name, schema)| Tool { name: name.to_owned(), parameters: Some(schema) });
    let empty = Tool { name: "ping".to_owned(), parameters: Some(object(json!({}), json!([]))) };
    tools.chain([empty, Tool { name: "now".to_owned(), parameters: None }]).collect()
}

/// Pieces that a draw tries to write, where they are allowed: values, and what looks like the end of one.
const PIECES: [&str; 33] = [
    "\"",
    "\": ",
    ", ",
    "{\"",
    "1",
    "12",
    "null",
    "true",
    "a",
    "b",
    "ab",
    "AB/12",
    "2024-02-29",
    "0.5",
    "\n",
    "\n\n",
    " ",
    "</parameter>",
    "\n</parameter>",
    "\n</parameter>\n",
    "</function>",
    "</arg_value>",
    "</arg_key>",
    "<|\"|>",
    "<tool_call>",
    "</tool_call>",
    "</think>",
    "<think>",
    "<|end|>",
    "<tool_call|>",
    "```",
    "\\\"",
    "<|tool_call_end|>",
];

/// Pieces that end values and calls.
const ENDS: [&str; 11] =
    ["\"", "}", "]", "\n</parameter>", "</arg_value>", "<|\"|>", "<|end|>", ":1", "1", "AB/12", "ab"];

/// A text under the form; `None`: it is not over after so many tokens.
fn drawn(forms: &mut Forms, form: &Arc<CompiledForm>, tokenizer: &Tokenizer, dice: &mut Dice) -> Option<String> {
    const MOST: usize = 600;
    /// Tokens that are not forced behind which a text is to end soon.
    const LONG: usize = 40;
    let encode = |text: &str| tokenizer.encode(text, AddSpecial::No).expect("the vocabulary has all bytes");
    // Sign by sign, marks are no special tokens.
    let spelled = |text: &str| text.chars().flat_map(|c| encode(c.encode_utf8(&mut [0; 4]))).collect();
    let mut state = FormState::begin(form.clone(), &FormBegin::AtOnce);
    let mut next: VecDeque<TokenId> = VecDeque::new();
    let mut picked = 0;
    for _ in 0..MOST {
        let mask = forms.masks(&mut [&mut state]).remove(0).expect("a mask");
        assert!(!mask.is_dead_end(), "{:?}", tokenizer.decode(state.tokens()));
        if mask.may_end && (mask.only_end || dice.below(2) == 0) {
            return Some(tokenizer.decode(state.tokens()));
        }
        let allowed = mask.allowed.as_ref().expect("the form has begun");
        picked += usize::from(mask.forced.is_none());
        let token = mask.forced.unwrap_or_else(|| {
            loop {
                match next.pop_front() {
                    Some(token) if allowed.contains(token) => break token,
                    Some(_) => next.clear(),
                    None => {}
                }
                match dice.below(8) {
                    0..=6 if picked > LONG => next = encode(ENDS[dice.below(ENDS.len())]).into(),
                    0..=2 => next = encode(PIECES[dice.below(PIECES.len())]).into(),
                    3..=5 => next = spelled(PIECES[dice.below(PIECES.len())]),
                    _ => {
                        let tokens = (0..allowed.vocab()).map(TokenId::new);
                        let is_next = |token: &TokenId| allowed.contains(*token) && Some(*token) != tokenizer.eos();
                        let tokens: Vec<TokenId> = tokens.filter(is_next).collect();
                        break tokens[dice.below(tokens.len())];
                    }
                }
            }
        });
        state.push(token);
    }
    None
}

#[test]
fn whatever_a_grammar_of_calls_allows_calls_a_tool_with_its_arguments() {
    check_families(false);
}

#[test]
fn where_marks_are_tokens_too() {
    check_families(true);
}

fn check_families(has_marks: bool) {
    let mut faults = Vec::new();
    let folder = TempDir::new().expect("a temporary folder");
    let tokenizer = tokenizer(folder.path(), has_marks);
    let ends = tokenizer.eos().into_iter().collect();
    let compiler = FormCompiler::new(tokenizer.clone(), ends, tokenizer.vocab_size());
    let syntaxes = TEMPLATES.iter().map(|template| CallSyntax::of(template).expect("a family"));
    for (seed, syntax) in syntaxes.chain([CallSyntax::unknown()]).enumerate() {
        let family = Family {
            syntax,
            tools: ToolSet { tools: tools() }.into(),
            compiler: &compiler,
            follows_reasoning: has_marks,
        };
        let found = family.faults(&tokenizer, seed as u64 + 1);
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", syntax.name())));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A family whose calls are drawn.
struct Family<'a> {
    syntax: &'static CallSyntax,
    tools: Arc<ToolSet>,
    compiler: &'a FormCompiler,
    follows_reasoning: bool,
}

impl Family<'_> {
    /// What is wrong with texts that are drawn: some that call each tool, and some that call several of any.
    fn faults(&self, tokenizer: &Tokenizer, seed: u64) -> Vec<String> {
        const TEXTS: usize = 3;
        let tools = &self.tools.tools;
        let taken = if self.syntax.has_json_arguments() { Form::schema_in_grammar } else { Form::schema_in_rules };
        let in_grammar = |tool: &Tool| Tool {
            name: tool.name.clone(),
            parameters: tool.parameters.clone().map(|schema| taken(schema).expect("a schema")),
        };
        let rewritten = ToolSet { tools: tools.iter().map(in_grammar).collect() };
        let named = tools.iter().map(|tool| CallDemand::Named(tool.name.clone()));
        let mut forms = Forms::new(1);
        let mut dice = Dice(seed);
        let mut faults = Vec::new();
        for demand in named.chain([CallDemand::Some, CallDemand::Some]) {
            let grammar =
                self.syntax.grammar(&rewritten, &demand, tokenizer, self.follows_reasoning).expect("a grammar");
            let form = self.compiler.compile(&Arc::new(Form::Lark(grammar.clone())));
            let form = form.unwrap_or_else(|error| panic!("{}: {error}\n{grammar}", self.syntax.name()));
            // Some are not over soon enough.
            let texts = (0..4 * TEXTS).filter_map(|_| drawn(&mut forms, &form, tokenizer, &mut dice));
            let texts: Vec<String> = texts.take(TEXTS).collect();
            if texts.len() < TEXTS {
                faults.push(format!("{demand:?}: {} texts are over", texts.len()));
            }
            for text in texts {
                match (self.called(&text, demand != CallDemand::Some), &demand) {
                    (Err(fault), _) => faults.push(format!("{fault}: {text:?}")),
                    (Ok(called), CallDemand::Named(name)) if tools[called[0]].name != *name => {
                        faults.push(format!("not {name}: {text:?}"));
                    }
                    (Ok(_), _) => {}
                }
            }
        }
        faults
    }

    /// The tools that a text calls, with arguments that they take; an error says what else the text is.
    fn called(&self, text: &str, is_single: bool) -> Result<Vec<usize>, String> {
        let reader = CallReader::new(self.syntax, self.tools.clone());
        let mut splitter = AnswerSplitter::new(TextStart::Answer, ReasoningText::Split, Some(reader));
        let parts = splitter.push_last(text);
        // In channels, the token that ends a call is none of the text.
        let is_whole = !self.syntax.is_in_channels();
        let is_other = |part: &&AnswerPart| match part {
            AnswerPart::Content(_) => true,
            AnswerPart::CallEnds { is_cut } => is_whole && *is_cut,
            _ => false,
        };
        if let Some(other) = parts.iter().find(is_other) {
            return Err(format!("{other:?}"));
        }
        let calls = joined_calls(&parts);
        if calls.is_empty() || (is_single && calls.len() > 1) {
            return Err(format!("{} calls", calls.len()));
        }
        let tool = |call: ToolCall| {
            let at = self.tools.tools.iter().position(|tool| tool.name == call.name);
            let at = at.ok_or_else(|| format!("no tool {:?}", call.name))?;
            let arguments: Value = match serde_json::from_str(&call.arguments) {
                Ok(arguments) => arguments,
                // JSON has them, and few readers do.
                Err(error) if error.to_string().starts_with("number out of range") => return Ok(at),
                Err(error) => return Err(format!("no JSON: {}: {error}", call.arguments)),
            };
            let fits = match &self.tools.tools[at].parameters {
                Some(schema) => has_schema(&arguments, schema, schema),
                None => arguments == json!({}),
            };
            if fits { Ok(at) } else { Err(format!("not of the schema: {arguments}")) }
        };
        calls.into_iter().map(tool).collect()
    }
}
