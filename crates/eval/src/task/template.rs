//! Templates of a task file: Jinja over an item's fields.

use std::path::PathBuf;
use std::sync::LazyLock;

use minijinja::{Environment, ErrorKind, UndefinedBehavior, escape_formatter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use crate::source::values::TaskPath;
use crate::source::{Place, read_text};
use offshoot_core::bounded::{Bounds, Stopped, Work, is_unbounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::{footprint, names};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    task: PathBuf,
    /// The dotted path of its key.
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
    jinja.set_fuel(is_unbounded().then_some(FUEL));
    jinja
});

/// Instructions that a template may run where nothing else ends it.
const FUEL: u64 = 1 << 20;

/// The formatter's error for a null.
const PRINTS_NULL: &str = "it prints null";

/// Compiles a template and, where fields follow it, renders it.
pub static TEMPLATES: Work =
    Work::new("task template", |request| serde_json::to_vec(&worked(request)).expect("texts are JSON"));

fn worked(request: &[u8]) -> Result<Option<String>, Fault> {
    let mut values = Deserializer::from_slice(request).into_iter::<Value>();
    let mut next = || values.next().transpose().map_err(|error| Fault::unread(&error));
    let text = next()?.unwrap_or_default();
    let template = JINJA.template_from_str(text.as_str().unwrap_or_default()).map_err(|error| Fault::of(&error))?;
    next()?.map(|fields| template.render(fields)).transpose().map_err(|error| Fault::of(&error))
}

/// Why a template is not compiled or rendered.
#[derive(Serialize, Deserialize)]
struct Fault {
    /// It uses an undefined name.
    is_undefined: bool,
    /// It prints a null.
    is_null: bool,
    text: String,
}

impl Fault {
    fn unread(error: &serde_json::Error) -> Fault {
        Fault { is_undefined: false, is_null: false, text: error.to_string() }
    }

    fn of(error: &minijinja::Error) -> Fault {
        let is_undefined = error.kind() == ErrorKind::UndefinedError;
        Fault { is_undefined, is_null: error.detail() == Some(PRINTS_NULL), text: in_one_line(error) }
    }
}

/// Compiles the template, and renders it if there are fields.
fn work(text: &str, fields: Option<&Map<String, Value>>) -> Result<Result<Option<String>, Fault>, Stopped> {
    let mut request = serde_json::to_vec(text).expect("a text is JSON");
    if let Some(fields) = fields {
        serde_json::to_writer(&mut request, fields).expect("fields are JSON, and memory takes them");
    }
    let answer = TEMPLATES.call(Bounds::of_text(text.len() + fields.map_or(0, footprint)), &request)?;
    Ok(serde_json::from_slice(&answer).expect("`TEMPLATES` writes it"))
}

impl Template {
    /// `place`: of the template.
    pub(crate) fn read(place: &Place<'_>, settings: TextSettings) -> Result<Template> {
        Template::new(place, settings.read(place)?)
    }

    pub(crate) fn new(place: &Place<'_>, text: String) -> Result<Template> {
        match work(&text, None) {
            Ok(Ok(_)) => Ok(Template { text, task: place.source.path.clone(), at: place.field().to_string() }),
            Ok(Err(fault)) => Err(place.wrong_as("a template", fault.text)),
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
        let rendered = work(&self.text, Some(fields)).map_err(|stopped| {
            let expected = format!("a template that item `{id}` fills within its bounds");
            Error::field(&self.task, &self.at, expected, stopped.to_string())
        })?;
        rendered.map(Option::unwrap_or_default).map_err(|fault| {
            let template = JINJA.template_from_str(&self.text).expect("`read` compiled it");
            let missing = template.undeclared_variables(false).into_iter().filter(|v| !fields.contains_key(v));
            let mut missing: Vec<String> = missing.map(|v| format!("`{v}`")).collect();
            missing.sort();
            let nulls = template.undeclared_variables(true).into_iter().filter(|name| is_null(fields, name));
            let mut nulls: Vec<String> = nulls.map(|v| format!("`{v}`")).collect();
            nulls.sort();
            let (expected, found) = match fault {
                Fault { is_null: true, .. } if !nulls.is_empty() => (
                    format!(
                        "a text or number in {} of item `{id}`, or a template that tests for null",
                        nulls.join(", ")
                    ),
                    "null".to_string(),
                ),
                Fault { is_undefined: true, .. } if !missing.is_empty() => {
                    (format!("fields {} in item `{id}`", missing.join(", ")), format!("the fields {}", names(fields)))
                }
                Fault { text, .. } => (format!("a template that item `{id}` fills"), text),
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
