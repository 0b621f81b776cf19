//! Templates of a task file: Jinja over an item's fields.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use crate::source::Place;
use crate::source::values::TaskPath;
use offshoot_core::bounded::{Bounds, Stopped, Work, is_unbounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::{footprint, names};
use offshoot_core::setting::Setting;
use offshoot_text::jinja::{self, Environment, FaultKind, Whitespace};

/// A text of a task file.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a string or an object with `file`"))]
pub(crate) enum TextSettings {
    Text(String),
    File(TextFileSettings),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TextFileSettings {
    /// A file with the text.
    file: TaskPath,
}

impl TextSettings {
    /// The text; `place`: its own.
    pub fn read(self, place: &Place<'_>) -> Result<String> {
        match self {
            TextSettings::Text(text) => Ok(text),
            TextSettings::File(file) => place.key("file").read_text(file.file.0),
        }
    }
}

/// A compiled template and its place for error messages: a key of the task file, or an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    /// The task file, or that of the records that an option's template is filled by.
    task: PathBuf,
    /// The dotted path of its key, or the option.
    at: String,
}

/// As in Python, except that the last line end is kept.
const WHITESPACE: Whitespace = Whitespace { keeps_last_line_end: true, trims_blocks: false, strips_blocks: false };

/// Steps that a template may take where nothing else ends it.
const STEPS: u64 = 1 << 20;

/// Compiles a template and, where fields follow it, renders it.
pub static TEMPLATES: Work =
    Work::new("task template", |request| serde_json::to_vec(&worked(request)).expect("texts are JSON"));

fn worked(request: &[u8]) -> Result<Option<String>, TemplateFault> {
    let mut values = Deserializer::from_slice(request).into_iter::<Value>();
    let mut next = || values.next().transpose().map_err(|error| TemplateFault::unread(&error));
    let text = next()?.unwrap_or_default();
    let template = jinja::Template::read(text.as_str().unwrap_or_default(), WHITESPACE)
        .map_err(|fault| TemplateFault::of(&fault))?;
    let Some(Value::Object(fields)) = next()? else { return Ok(None) };
    // Undefined names and printed nulls are errors, and a task has no date.
    let steps = is_unbounded().then_some(STEPS);
    let environment = Environment { is_strict: true, refuses_null: true, now: None, steps };
    template.render(&environment, &fields).map(Some).map_err(|fault| TemplateFault::of(&fault))
}

/// Why a template is not compiled or rendered.
#[derive(Serialize, Deserialize)]
struct TemplateFault {
    /// It uses an undefined name.
    is_undefined: bool,
    /// It prints a null.
    is_null: bool,
    text: String,
}

impl TemplateFault {
    fn unread(error: &serde_json::Error) -> TemplateFault {
        TemplateFault { is_undefined: false, is_null: false, text: error.to_string() }
    }

    fn of(fault: &jinja::Fault) -> TemplateFault {
        let is = |kind| fault.kind == kind;
        let what = if is(FaultKind::Undefined) { "undefined value: " } else { "" };
        TemplateFault {
            is_undefined: is(FaultKind::Undefined),
            is_null: is(FaultKind::PrintsNull),
            text: format!("{what}{fault}"),
        }
    }
}

/// Compiles the template, and renders it if there are fields.
fn work(text: &str, fields: Option<&Map<String, Value>>) -> Result<Result<Option<String>, TemplateFault>, Stopped> {
    let mut request = serde_json::to_vec(text).expect("a text is JSON");
    if let Some(fields) = fields {
        serde_json::to_writer(&mut request, fields).expect("fields are JSON, and memory takes them");
    }
    let answer = TEMPLATES.call(Bounds::of_text(text.len() + fields.map_or(0, footprint)), &request)?;
    Ok(serde_json::from_slice(&answer).expect("`TEMPLATES` writes it"))
}

/// Compiles a template; the error says why it is none.
fn check(text: &str) -> Result<(), String> {
    match work(text, None) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(fault)) => Err(fault.text),
        Err(stopped) => Err(stopped.to_string()),
    }
}

impl Template {
    /// `place`: of the template.
    pub(crate) fn read(place: &Place<'_>, settings: TextSettings) -> Result<Template> {
        Template::new(place, settings.read(place)?)
    }

    pub(crate) fn new(place: &Place<'_>, text: String) -> Result<Template> {
        let wrong = |found| place.wrong_as("a template", found);
        check(&text).map_err(wrong)?;
        Ok(Template { text, task: place.source.path.clone(), at: place.field().to_string() })
    }

    /// A template that an option gives, over the fields of the records in the file at `path`.
    pub(crate) fn of_option(option: Setting, path: &Path, text: String) -> Result<Template> {
        check(&text).map_err(|found| Error::value(option, "a template", found))?;
        Ok(Template { text, task: path.to_path_buf(), at: option.to_string() })
    }

    /// Whether it uses the field `name`.
    pub(crate) fn takes_in(&self, name: &str) -> bool {
        let starts = |path: &String| path.split('.').next() == Some(name);
        self.asked().iter().any(starts)
    }

    /// The fields that it uses, as dotted paths.
    fn asked(&self) -> BTreeSet<String> {
        jinja::Template::read(&self.text, WHITESPACE).expect("`read` compiled it").asked()
    }

    /// Renders the template for the item `id` with these fields. An error names the item and its missing fields.
    pub(crate) fn render(&self, id: &str, fields: &Map<String, Value>) -> Result<String> {
        let rendered = work(&self.text, Some(fields)).map_err(|stopped| {
            let expected = format!("a template that item `{id}` fills within its bounds");
            Error::field(&self.task, &self.at, expected, stopped.to_string())
        })?;
        rendered.map(Option::unwrap_or_default).map_err(|fault| {
            let asked = self.asked();
            let first = |path: &String| path.split('.').next().unwrap_or_default().to_string();
            let used: BTreeSet<String> = asked.iter().map(first).collect();
            let missing: Vec<String> =
                used.iter().filter(|name| !fields.contains_key(*name)).map(|name| format!("`{name}`")).collect();
            let nulls: Vec<String> =
                asked.iter().filter(|path| is_null(fields, path)).map(|path| format!("`{path}`")).collect();
            let (expected, found) = match fault {
                TemplateFault { is_null: true, .. } if !nulls.is_empty() => (
                    format!(
                        "a text or number in {} of item `{id}`, or a template that tests for null",
                        nulls.join(", ")
                    ),
                    "null".to_string(),
                ),
                TemplateFault { is_undefined: true, .. } if !missing.is_empty() => {
                    (format!("fields {} in item `{id}`", missing.join(", ")), format!("the fields {}", names(fields)))
                }
                TemplateFault { text, .. } => (format!("a template that item `{id}` fills"), text),
            };
            Error::field(&self.task, &self.at, expected, found)
        })
    }
}

/// Whether the field at a dotted path is present and null.
fn is_null(fields: &Map<String, Value>, path: &str) -> bool {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let inner = |value, name| Value::get(value, name);
    let found =
        fields.get(first).and_then(|value| rest.split('.').filter(|name| !name.is_empty()).try_fold(value, inner));
    found.is_some_and(Value::is_null)
}
