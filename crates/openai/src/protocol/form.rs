//! Reads the fields by which a request asks for the form of its answers: OpenAI's `response_format`, vLLM's
//! `structured_outputs` and its older `guided_*`, and SGLang's `json_schema`, `regex` and `ebnf`. Whether a form can be
//! compiled for the model is found where the request is accepted (`answer_form`).

use serde_json::Value;

use super::fields::{BodyFields, brief};
use super::refusal::Refusal;
use offshoot_core::error::Error;
use offshoot_form::{Form, JsonOptions};

/// The form that a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedForm {
    pub form: Form,
    /// The field that has it, for the messages of errors.
    pub field: &'static str,
}

impl RequestedForm {
    /// Of a grammar in Lark or GBNF.
    fn grammar(field: &'static str, text: &str) -> Result<Self, Refusal> {
        let form = Form::of_grammar(text).map_err(|error| refused(field, &error))?;
        Ok(RequestedForm { form, field })
    }
}

/// The field of a tool's schema.
pub fn parameters_field(tool: usize) -> String {
    format!("tools[{tool}].function.parameters")
}

/// The refusal of a request whose form, in this field, is not one.
pub fn refused(field: &str, error: &Error) -> Refusal {
    match error {
        Error::Value { expected, found, .. } => Refusal::value(field, expected, found),
        other => {
            let refusal = Refusal::of(other);
            let message = format!("`{field}`: {}", refusal.message);
            Refusal { message, ..refusal }.about(field)
        }
    }
}

type ReadForm = Result<Option<RequestedForm>, Refusal>;

/// Takes all fields that ask for a form, of which a request has one at most.
pub fn take(fields: &mut BodyFields) -> ReadForm {
    let found = [response_format(fields)?, structured_outputs(fields)?, guided(fields)?, of_sglang(fields)?];
    only_one(found.into_iter().flatten())
}

/// The one form that is requested, if any.
fn only_one(found: impl IntoIterator<Item = RequestedForm>) -> ReadForm {
    let mut found = found.into_iter();
    let first = found.next();
    match (&first, found.next()) {
        (Some(first), Some(second)) => {
            let place = format!("beside `{}`: a text has one form", first.field);
            Err(Refusal::out_of_place(second.field, &place))
        }
        _ => Ok(first),
    }
}

/// OpenAI's field; `json_object` may have a `schema` as llama.cpp and others take it.
fn response_format(fields: &mut BodyFields) -> ReadForm {
    const FIELD: &str = "response_format";
    let Some(value) = fields.take(FIELD) else { return Ok(None) };
    let expected = "an object whose `type` is \"text\", \"json_object\" or \"json_schema\"";
    let Value::Object(format) = &value else { return Err(Refusal::value(FIELD, expected, &brief(&value))) };
    let mut format = BodyFields::new(format);
    let kind = format.take("type").unwrap_or_default();
    let found = match kind.as_str() {
        Some("text") => None,
        Some("json_object") => {
            let form = match format.take("schema") {
                None => Form::JsonObject,
                Some(schema) => Form::Json(schema_of("response_format.schema", schema)?),
            };
            Some(RequestedForm { form, field: FIELD })
        }
        Some("json_schema") => Some(json_schema(&mut format)?),
        Some("structural_tag") => {
            let message = "`response_format`: `structural_tag` is not supported; send `tools` for calls within a text, \
                           or a grammar as `structured_outputs.grammar`";
            return Err(Refusal::new("unsupported_parameter", message).about(FIELD));
        }
        _ => return Err(Refusal::value("response_format.type", expected, &brief(&kind))),
    };
    finish(format, FIELD)?;
    Ok(found)
}

/// The object `json_schema` of a `response_format`. `strict` changes nothing: the schema always holds.
fn json_schema(format: &mut BodyFields) -> Result<RequestedForm, Refusal> {
    const PLACE: &str = "response_format.json_schema";
    const FIELD: &str = "response_format.json_schema.schema";
    let value = format.take("json_schema").unwrap_or_default();
    let Value::Object(described) = &value else {
        return Err(Refusal::value(PLACE, "an object with `name` and `schema`", &brief(&value)));
    };
    let mut described = BodyFields::new(described);
    described.text("name").and_then(|_| described.text("description")).map_err(|refusal| within(PLACE, refusal))?;
    described.choice("strict").map_err(|refusal| within(PLACE, refusal))?;
    let schema = schema_of(FIELD, described.take("schema").unwrap_or_default())?;
    finish(described, PLACE)?;
    Ok(RequestedForm { form: Form::Json(schema), field: FIELD })
}

/// vLLM's field: an object of one constraint and its options. An empty one changes nothing.
fn structured_outputs(fields: &mut BodyFields) -> ReadForm {
    const PLACE: &str = "structured_outputs";
    let object = fields.object(PLACE)?;
    let mut own = BodyFields::new(&object);
    // What vLLM's own class writes of itself.
    own.ignore(&["_backend", "_backend_was_auto"]);
    let inner = |refusal: Refusal| within(PLACE, refusal);
    let style = JsonOptions {
        disable_any_whitespace: own.flag("disable_any_whitespace").map_err(inner)?,
        disable_additional_properties: own.flag("disable_additional_properties").map_err(inner)?,
        whitespace_pattern: own.text("whitespace_pattern").map_err(inner)?,
    };
    if own.take("structural_tag").is_some() {
        let message = "`structured_outputs.structural_tag` is not supported; send `tools` for calls within a text, or \
                       a grammar as `structured_outputs.grammar`";
        return Err(Refusal::new("unsupported_parameter", message).about("structured_outputs.structural_tag"));
    }
    let names = ConstraintNames {
        json: ("json", "structured_outputs.json"),
        json_object: ("json_object", "structured_outputs.json_object"),
        regex: ("regex", "structured_outputs.regex"),
        choice: ("choice", "structured_outputs.choice"),
        grammar: ("grammar", "structured_outputs.grammar"),
    };
    let is_styled = style != JsonOptions::default();
    let found = names.take(&mut own, style)?;
    finish(own, PLACE)?;
    match found {
        None if is_styled => {
            let expected = "one of `json`, `json_object`, `regex`, `choice` and `grammar` beside its options";
            Err(Refusal::value(PLACE, expected, "none"))
        }
        found => Ok(found),
    }
}

/// vLLM's older fields, which stand by themselves in the body.
fn guided(fields: &mut BodyFields) -> ReadForm {
    let backend = fields.text("guided_decoding_backend")?;
    // Behind the backend's name stand options: `xgrammar:disable-any-whitespace`.
    let options = backend.as_deref().and_then(|backend| backend.split_once(':')).map_or("", |(_, options)| options);
    let has = |option: &str| options.split(',').any(|own| own == option);
    let style = JsonOptions {
        disable_any_whitespace: has("disable-any-whitespace"),
        disable_additional_properties: has("no-additional-properties"),
        whitespace_pattern: fields.text("guided_whitespace_pattern")?,
    };
    let names = ConstraintNames {
        json: ("guided_json", "guided_json"),
        json_object: ("guided_json_object", "guided_json_object"),
        regex: ("guided_regex", "guided_regex"),
        choice: ("guided_choice", "guided_choice"),
        grammar: ("guided_grammar", "guided_grammar"),
    };
    names.take(fields, style)
}

/// SGLang's fields.
fn of_sglang(fields: &mut BodyFields) -> ReadForm {
    let mut found = Vec::new();
    if let Some(schema) = fields.take("json_schema") {
        let form = Form::Json(schema_of("json_schema", schema)?);
        found.push(RequestedForm { form, field: "json_schema" });
    }
    if let Some(pattern) = fields.text("regex")? {
        found.push(RequestedForm { form: Form::Regex(pattern), field: "regex" });
    }
    if let Some(grammar) = fields.text("ebnf")? {
        found.push(RequestedForm::grammar("ebnf", &grammar)?);
    }
    only_one(found)
}

/// What the fields of vLLM's constraints are called: in their object, and in messages.
struct ConstraintNames {
    json: (&'static str, &'static str),
    json_object: (&'static str, &'static str),
    regex: (&'static str, &'static str),
    choice: (&'static str, &'static str),
    grammar: (&'static str, &'static str),
}

impl ConstraintNames {
    fn take(self, fields: &mut BodyFields, style: JsonOptions) -> ReadForm {
        let wrong = |field: &str, expected: &str, found: &Value| Refusal::value(field, expected, &brief(found));
        let mut text = |(key, field): (&str, &str)| match fields.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(field, "a string", &other)),
        };
        let (regex, grammar) = (text(self.regex)?, text(self.grammar)?);
        let mut found = Vec::new();
        if let Some(schema) = fields.take(self.json.0) {
            let schema = schema_of(self.json.1, schema)?;
            found.push(RequestedForm { form: style.clone().form(schema), field: self.json.1 });
        }
        match fields.take(self.json_object.0) {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => found.push(RequestedForm { form: style.object(), field: self.json_object.1 }),
            Some(other) => return Err(wrong(self.json_object.1, "true or false", &other)),
        }
        if let Some(pattern) = regex {
            found.push(RequestedForm { form: Form::Regex(pattern), field: self.regex.1 });
        }
        if let Some(choices) = fields.take(self.choice.0) {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let texts: Option<Vec<String>> = choices.as_array().and_then(|list| list.iter().map(text).collect());
            let texts = texts.filter(|list| !list.is_empty());
            let texts = texts.ok_or_else(|| wrong(self.choice.1, "a list of strings, at least one", &choices))?;
            found.push(RequestedForm { form: Form::Choice(texts), field: self.choice.1 });
        }
        if let Some(grammar) = grammar {
            found.push(RequestedForm::grammar(self.grammar.1, &grammar)?);
        }
        only_one(found)
    }
}

/// A JSON Schema, or its text.
fn schema_of(field: &str, value: Value) -> Result<Value, Refusal> {
    let expected = "a JSON Schema: an object, true or false, or its text";
    let schema = match value {
        Value::String(text) => serde_json::from_str(&text).map_err(|error| {
            let found = format!("text that is not JSON: {error}");
            Refusal::value(field, expected, &found)
        })?,
        value => value,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        Value::Null => Err(Refusal::value(field, expected, "nothing")),
        other => Err(Refusal::value(field, expected, &brief(&other))),
    }
}

/// The refusal of a field of the object `place`.
fn within(place: &str, refusal: Refusal) -> Refusal {
    match &refusal.param {
        None => refusal,
        Some(param) => {
            let whole = format!("{place}.{param}");
            let message = refusal.message.replace(&format!("`{param}`"), &format!("`{whole}`"));
            Refusal { message, ..refusal }.about(whole)
        }
    }
}

/// Refuses fields of the object `place` that were not read.
fn finish(fields: BodyFields, place: &str) -> Result<(), Refusal> {
    fields.finish().map_err(|refusal| within(place, refusal))
}
