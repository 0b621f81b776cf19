//! Reads a task file as JSON: removes comments, applies changes from the command line, and checks it against the schema
//! of the types that read it (`schema`). Errors name the file, the key, what was expected and what was found. `task`
//! defines the keys and gives them meaning.

pub(crate) mod schema;
pub(crate) mod values;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::file_kind::{begins_with_request, strip_comments};
use offshoot_core::input;
use offshoot_core::json;
use offshoot_core::json::{describe, listed};
use offshoot_core::setting::SET;
use schema::{Checked, Fault, Schema, inside};

/// A task file's JSON with the changes from the command line.
pub(crate) struct TaskSource {
    pub path: PathBuf,
    pub value: Value,
    /// Dotted paths that came from the command line, so that an error can say so.
    overridden: Vec<String>,
}

impl TaskSource {
    /// Reads `path` and applies the changes (`key=value`, `key` a dotted path, `value` JSON or else a string).
    pub fn read(path: &Path, set: &[String]) -> Result<TaskSource> {
        let text = read_text(path)?;
        if begins_with_request(&text) {
            return Err(Error::format(path, "holds requests for `offshoot batch`, not a task"));
        }
        let text = strip_comments(&text);
        let mut value: Value =
            serde_json::from_str(&text).map_err(|e| Error::format(path, format!("not a JSON task file: {e}")))?;
        if let Some(key) = json::repeated_key(text.trim_ascii()) {
            return Err(Error::field(path, key, "each key once", "it twice"));
        }
        if let Some(items @ Value::Array(_)) = value.get_mut("items") {
            *items = json::read_with_digits::<Value>(&text).expect("it was read before")["items"].take();
        }
        TaskSource::of(path, value, set)
    }

    /// Like [`TaskSource::read`], for JSON that was read from `path` before.
    pub fn of(path: &Path, value: Value, set: &[String]) -> Result<TaskSource> {
        let mut source = TaskSource { path: path.to_path_buf(), value, overridden: Vec::new() };
        for assignment in set {
            source.set(assignment)?;
        }
        Ok(source)
    }

    fn set(&mut self, assignment: &str) -> Result<()> {
        let (key, text) =
            assignment.split_once('=').ok_or_else(|| Error::value(SET, "key=value", format!("`{assignment}`")))?;
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string()));
        let key = key.trim();
        assign(&mut self.value, key, value).map_err(|(at, found)| {
            Error::value(
                format!("{SET} {key}"),
                format!("an object or a list at `{at}` of {}", self.path.display()),
                found,
            )
        })?;
        self.overridden.push(key.to_string());
        Ok(())
    }

    /// `--samples`: replaces the number of samples of the method in the file.
    pub fn set_samples(&mut self, samples: u32) {
        for (name, settings) in self.value.get_mut("method").and_then(Value::as_object_mut).into_iter().flatten() {
            if let Value::Object(settings) = settings {
                settings.insert("samples".to_string(), samples.into());
                self.overridden.push(format!("method.{name}.samples"));
            }
        }
    }

    /// Checks the file against `schema`, the schema of `T`, and reads it. Paths from the command line are made those of
    /// the current folder.
    pub fn parse<T: DeserializeOwned>(&mut self, schema: &Schema) -> Result<T> {
        let Checked { mut value, paths } = schema.check(&self.value).map_err(|fault| self.error(fault))?;
        let typed: Vec<String> = paths.into_iter().filter(|at| self.is_overridden(at)).collect();
        for at in typed {
            let Some(typed) = lookup(&value, &at).and_then(Value::as_str).map(str::to_string) else { continue };
            let meant = Value::String(self.meant(&at, &typed)?);
            for root in [&mut self.value, &mut value] {
                assign(root, &at, meant.clone()).expect("the schema's check found a string there");
            }
        }
        serde_json::from_value(value).map_err(|error| Error::format(&self.path, error.to_string()))
    }

    /// The path that `typed` on the command line names: of the current folder or, where it has none, of the task
    /// file's, as it was typed.
    fn meant(&self, at: &str, typed: &str) -> Result<String> {
        let here = std::path::absolute(typed).map_err(Error::io(typed, "find the current folder beside"))?;
        let beside = self.resolve(typed);
        let beside = std::path::absolute(&beside).map_err(Error::io(&beside, "find the current folder beside"))?;
        match (is_there(&here), is_there(&beside)) {
            _ if here == beside => Ok(typed.to_string()),
            (true, _) => Ok(here.display().to_string()),
            // A model that is in neither folder may be a name on the Hugging Face Hub, about which its reader says
            // more.
            (false, is_beside) if is_beside || matches!(at, "model" | "scorer" | "scorer.model") => {
                Ok(typed.to_string())
            }
            (false, _) => Err(Error::value(
                format!("{SET} {at}"),
                "a file or folder",
                format!("\"{typed}\", which is neither {} nor {}", here.display(), beside.display()),
            )),
        }
    }

    /// A path written in the task file, which is relative to the file's folder.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::Wrong { at, expected, found } => {
                let name = if at.is_empty() { "the task" } else { &at };
                let origin = if self.is_overridden(&at) { COMMAND_LINE } else { "" };
                Error::field(&self.path, name, expected, found + origin)
            }
            Fault::UnknownKey { at, key, known } => {
                let field = inside(&at, &key);
                let origin = if self.is_overridden(&field) { COMMAND_LINE } else { "" };
                let hint = nearest(&key, &known).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let place = if at.is_empty() { String::new() } else { format!(" in `{at}`") };
                let what = format!("unknown key `{field}`{origin}{hint} (known{place}: {})", listed(&known));
                Error::format(&self.path, what)
            }
        }
    }

    fn is_overridden(&self, field: &str) -> bool {
        self.overridden
            .iter()
            .any(|key| field == key || field.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The place of the whole file.
    pub fn root(&self) -> Place<'_> {
        Place { source: self, at: String::new() }
    }
}

/// The words about a value from the command line.
const COMMAND_LINE: &str = " (given on the command line)";

/// A place in a task file, for what is read there and for errors about it.
#[derive(Clone)]
pub(crate) struct Place<'a> {
    pub source: &'a TaskSource,
    /// The dotted path.
    at: String,
}

impl Place<'_> {
    pub fn key(&self, key: &str) -> Self {
        Self { source: self.source, at: inside(&self.at, key) }
    }

    pub fn field(&self) -> &str {
        &self.at
    }

    /// The value here as it was written; `None` if it is absent or null.
    pub fn value(&self) -> Option<&Value> {
        lookup(&self.source.value, &self.at).filter(|value| !value.is_null())
    }

    /// An error about the value here.
    pub fn wrong(&self, expected: impl Into<String>) -> Error {
        self.wrong_as(expected, self.value().map_or("nothing (the key is missing)".to_string(), describe))
    }

    /// Like [`Place::wrong`], with other words about what was found.
    pub fn wrong_as(&self, expected: impl Into<String>, found: impl Into<String>) -> Error {
        self.source.error(Fault::Wrong { at: self.at.clone(), expected: expected.into(), found: found.into() })
    }

    /// The text of the file whose path, relative to the task file, stands here.
    pub fn read_text(&self, path: impl AsRef<Path>) -> Result<String> {
        read_text(&self.source.resolve(path)).map_err(|error| match error {
            Error::Io { .. } => self.wrong_as("the path of a file that can be read", error.to_string()),
            other => other,
        })
    }
}

/// The value at a dotted path.
fn lookup<'v>(root: &'v Value, at: &str) -> Option<&'v Value> {
    at.split('.').filter(|key| !key.is_empty()).try_fold(root, |value, key| match value {
        Value::Object(map) => map.get(key),
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Whether there is a file or folder at `path`. Of a pattern (`*`) or a template (`{{…}}`), only the folder before it
/// is known.
fn is_there(path: &Path) -> bool {
    let is_fixed = |path: &Path| !path.to_string_lossy().contains(['*', '{']);
    path.ancestors().find(|path| is_fixed(path)).is_some_and(Path::exists)
}

/// Reads a text file, removes a byte order mark and converts line ends to `\n`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let text = input::text(path)?;
    Ok(text.trim_start_matches('\u{feff}').replace("\r\n", "\n"))
}

/// Sets the value at a dotted path, creating objects on the way; a number in the path indexes a list. The error is the
/// path that is neither an object nor a list, and its value.
fn assign(root: &mut Value, path: &str, new: Value) -> Result<(), (String, String)> {
    let mut place = root;
    let mut done: Vec<&str> = Vec::new();
    for key in path.split('.') {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let found = describe(place);
        place = match place {
            Value::Object(map) => map.entry(key).or_insert(Value::Null),
            Value::Array(list) => match key.parse::<usize>().ok().and_then(|ix| list.get_mut(ix)) {
                Some(element) => element,
                None => return Err((done.join("."), format!("{found}, which has no element `{key}`"))),
            },
            _ => return Err((done.join("."), found)),
        };
        done.push(key);
    }
    *place = new;
    Ok(())
}

/// The name in `names` that `typed` was probably meant to be.
fn nearest<'n>(typed: &str, names: &'n [String]) -> Option<&'n str> {
    let score = |name: &str| strsim::jaro_winkler(typed, name);
    names.iter().map(String::as_str).filter(|name| score(name) > 0.75).max_by(|a, b| score(a).total_cmp(&score(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_make_objects_on_the_way_and_index_lists() {
        let mut value = serde_json::json!({"a": {"b": 1}, "l": [1, 2]});
        assign(&mut value, "a.c.d", serde_json::json!(0.5)).unwrap();
        assign(&mut value, "l.1", serde_json::json!("x")).unwrap();
        assert_eq!(value, serde_json::json!({"a": {"b": 1, "c": {"d": 0.5}}, "l": [1, "x"]}));
        assert_eq!(assign(&mut value, "a.b.c", Value::Null), Err(("a.b".into(), "1".into())));
        assert!(assign(&mut value, "l.7", Value::Null).unwrap_err().1.contains("no element `7`"));
    }
}
