//! Templates of a task file: Jinja over an item's fields.

use std::path::PathBuf;
use std::sync::LazyLock;

use minijinja::{Environment, ErrorKind, UndefinedBehavior, escape_formatter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bounded::{Bounds, bounded};
use crate::error::{Error, Result};
use crate::eval::source::values::TaskPath;
use crate::eval::source::{Place, read_text};
use crate::json::{footprint, names};

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
            TextSettings::File(file) => read_text(&place.source.resolve(file.file.0)),
        }
    }
}

/// A compiled template and the key of its place in the task file, for error messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Template {
    text: String,
    #[serde(skip)]
    task: PathBuf,
    /// The dotted path of its key.
    #[serde(skip)]
    at: String,
}

/// Jinja as in Python, except that the last line end is kept, undefined names and printed nulls are errors and nothing
/// is escaped.
static JINJA: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut jinja = Environment::new();
    jinja.set_keep_trailing_newline(true);
    jinja.set_undefined_behavior(UndefinedBehavior::Strict);
    jinja.set_formatter(|out, state, value| match value.is_none() {
        true => Err(minijinja::Error::new(ErrorKind::InvalidOperation, PRINTS_NULL)),
        false => escape_formatter(out, state, value),
    });
    jinja.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    jinja.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    jinja
});

/// The formatter's error for a null.
const PRINTS_NULL: &str = "it prints null";

impl Template {
    /// `place`: of the template.
    pub(crate) fn read(place: &Place<'_>, settings: TextSettings) -> Result<Template> {
        Template::new(place, settings.read(place)?)
    }

    pub(crate) fn new(place: &Place<'_>, text: String) -> Result<Template> {
        let compiled = text.clone();
        let compiled = bounded(Bounds::of_text(text.len()), move || JINJA.template_from_str(&compiled).map(drop));
        match compiled {
            Ok(Ok(())) => Ok(Template { text, task: place.source.path.clone(), at: place.field().to_string() }),
            Ok(Err(error)) => Err(place.wrong_as("a template", in_one_line(&error))),
            Err(stopped) => Err(place.wrong_as("a template", stopped.to_string())),
        }
    }

    /// Whether it uses the field `name`.
    pub(crate) fn takes_in(&self, name: &str) -> bool {
        let template = JINJA.template_from_str(&self.text).expect("`read` compiled it");
        template.undeclared_variables(false).contains(name)
    }

    /// Renders the template for the item `id` with these fields. An error names the item and its missing fields.
    pub(crate) fn render(&self, id: &str, fields: &Map<String, Value>) -> Result<String> {
        let bounds = Bounds::of_text(self.text.len() + footprint(fields));
        let (text, owned) = (self.text.clone(), fields.clone());
        let rendered = bounded(bounds, move || {
            let template = JINJA.template_from_str(&text).expect("`read` compiled it");
            template.render(owned)
        });
        let rendered = rendered.map_err(|stopped| {
            let expected = format!("a template that item `{id}` fills within its bounds");
            Error::field(&self.task, &self.at, expected, stopped.to_string())
        })?;
        rendered.map_err(|e| {
            let template = JINJA.template_from_str(&self.text).expect("`read` compiled it");
            let missing = template.undeclared_variables(false).into_iter().filter(|v| !fields.contains_key(v));
            let mut missing: Vec<String> = missing.map(|v| format!("`{v}`")).collect();
            missing.sort();
            let nulls = template.undeclared_variables(true).into_iter().filter(|name| is_null(fields, name));
            let mut nulls: Vec<String> = nulls.map(|v| format!("`{v}`")).collect();
            nulls.sort();
            let (expected, found) = match (e.kind(), missing.is_empty()) {
                _ if e.detail() == Some(PRINTS_NULL) && !nulls.is_empty() => (
                    format!(
                        "a text or number in {} of item `{id}`, or a template that tests for null",
                        nulls.join(", ")
                    ),
                    "null".to_string(),
                ),
                (ErrorKind::UndefinedError, false) => {
                    (format!("fields {} in item `{id}`", missing.join(", ")), format!("the fields {}", names(fields)))
                }
                _ => (format!("a template that item `{id}` fills"), in_one_line(&e)),
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

/// The error in one line, without the template's name, which our own error contains.
fn in_one_line(e: &minijinja::Error) -> String {
    let detail = e.detail().map_or_else(|| e.kind().to_string(), |detail| format!("{}: {detail}", e.kind()));
    e.line().map_or(detail.clone(), |line| format!("{detail} (line {line} of the template)"))
}
