//! Reads a task file as JSON: removes comments, applies overrides from the command line, and gives typed access to
//! keys, with errors that name the file, the key and the value found. `task` interprets the keys.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::json;
use crate::json::{describe, listed};

/// A task file's JSON, overrides applied, before anything is checked.
pub(crate) struct TaskSource {
    pub path: PathBuf,
    pub value: Value,
    /// Dotted paths that came from the command line, so that an error can say so.
    overridden: Vec<String>,
}

impl TaskSource {
    /// Reads `path` and applies the overrides (`key=value`, `key` a dotted path, `value` JSON or else a string).
    pub fn read(path: &Path, set: &[String]) -> Result<TaskSource> {
        let text = read_text(path)?;
        if begins_with_request(&text) {
            return Err(Error::format(path, "holds requests for `offshoot batch`, not a task"));
        }
        let text = strip_comments(&text);
        let mut value: Value =
            serde_json::from_str(&text).map_err(|e| Error::format(path, format!("not a JSON task file: {e}")))?;
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
            assignment.split_once('=').ok_or_else(|| Error::value("--set", "key=value", format!("`{assignment}`")))?;
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string()));
        let key = key.trim();
        assign(&mut self.value, key, value).map_err(|(at, found)| {
            Error::value(
                format!("--set {key}"),
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

    /// A path written in the task file, which is relative to the file's folder.
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The whole file as a section.
    pub fn root(&self, keys: &'static [&'static str]) -> Result<TaskSection<'_>> {
        TaskSection::open(self, String::new(), &self.value, keys)
    }

    /// The value at `field` for an error message, which tells if the value comes from the command line.
    fn found(&self, field: &str, value: Option<&Value>) -> String {
        let found = value.map_or("nothing (the key is missing)".to_string(), describe);
        match self.is_overridden(field) {
            true => format!("{found} (given on the command line)"),
            false => found,
        }
    }

    fn is_overridden(&self, field: &str) -> bool {
        self.overridden
            .iter()
            .any(|key| field == key || field.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.')))
    }

    /// An error about the value at a dotted path.
    pub fn wrong(&self, field: &str, expected: impl Into<String>, value: Option<&Value>) -> Error {
        Error::field(&self.path, field, expected, self.found(field, value))
    }
}

/// One object of the task file. Its keys have been checked: all of them are known.
pub(crate) struct TaskSection<'a> {
    pub source: &'a TaskSource,
    at: String,
    map: &'a Map<String, Value>,
}

impl<'a> TaskSection<'a> {
    /// `value` at the dotted path `at` as an object with no other keys than `keys`.
    pub fn open(source: &'a TaskSource, at: String, value: &'a Value, keys: &[&str]) -> Result<TaskSection<'a>> {
        let Value::Object(map) = value else {
            let name = if at.is_empty() { "the task" } else { &at };
            return Err(source.wrong(name, format!("an object with keys of {}", listed(keys)), Some(value)));
        };
        let section = TaskSection { source, at, map };
        match map.keys().find(|key| !keys.contains(&key.as_str())) {
            Some(key) => Err(section.unknown(key, keys)),
            None => Ok(section),
        }
    }

    fn unknown(&self, key: &str, keys: &[&str]) -> Error {
        let field = self.field(key);
        let origin = if self.source.is_overridden(&field) { " (given on the command line)" } else { "" };
        let hint = nearest(key, keys).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let place = if self.at.is_empty() { String::new() } else { format!(" in `{}`", self.at) };
        Error::format(
            &self.source.path,
            format!("unknown key `{field}`{origin}{hint} (known{place}: {})", listed(keys)),
        )
    }

    /// The dotted path of `key`.
    pub fn field(&self, key: &str) -> String {
        if self.at.is_empty() { key.to_string() } else { format!("{}.{key}", self.at) }
    }

    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> Error {
        self.source.wrong(&self.field(key), expected, self.get(key))
    }

    /// The value of `key`; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn need(&self, key: &str, expected: &str) -> Result<&'a Value> {
        self.get(key).ok_or_else(|| self.wrong(key, expected))
    }

    /// The keys that are present, in the file's order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| self.wrong(key, "a string"))).transpose()
    }

    pub fn flag(&self, key: &str) -> Result<bool> {
        self.get(key).map_or(Ok(false), |v| v.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
    }

    /// A whole number that is at least `least`.
    pub fn whole(&self, key: &str, least: u64) -> Result<Option<u64>> {
        let ok = |v: &Value| v.as_u64().filter(|n| *n >= least);
        self.get(key)
            .map(|v| ok(v).ok_or_else(|| self.wrong(key, format!("a whole number of at least {least}"))))
            .transpose()
    }

    /// Like [`TaskSection::whole`], for counts of 32 bits.
    pub fn count(&self, key: &str, least: u32) -> Result<Option<u32>> {
        let Some(n) = self.whole(key, least.into())? else { return Ok(None) };
        u32::try_from(n).map(Some).map_err(|_| self.wrong(key, format!("a whole number of at most {}", u32::MAX)))
    }

    /// A number that `ok` accepts; `expected` describes these numbers in the error message.
    pub fn real(&self, key: &str, expected: &str, ok: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        let read = |v: &Value| v.as_f64().filter(|x| ok(*x));
        self.get(key).map(|v| read(v).ok_or_else(|| self.wrong(key, expected))).transpose()
    }

    /// A string, or a list of strings.
    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        let wrong = || self.wrong(key, "a string or a list of strings");
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one.clone()]),
            Some(Value::Array(many)) => many.iter().map(|v| v.as_str().map(str::to_string).ok_or_else(wrong)).collect(),
            Some(_) => Err(wrong()),
        }
    }
}

/// Whether the first line that is not blank is a request in OpenAI's Batch format.
fn begins_with_request(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.and_then(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    first.is_some_and(|line| ["custom_id", "url", "body"].iter().any(|key| line.contains_key(*key)))
}

/// Whether `text` is a task file, for the error messages of commands that expect another file.
pub(crate) fn is_task(text: &str) -> bool {
    let task = || serde_json::from_str::<Map<String, Value>>(&strip_comments(text)).ok();
    !begins_with_request(text) && task().is_some_and(|task| task.contains_key("items") && task.contains_key("prompt"))
}

/// Reads a text file, removes a byte order mark and converts line ends to `\n`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "read"))?;
    let text = String::from_utf8(bytes)
        .map_err(|e| Error::format(path, format!("not UTF-8 text (byte {})", e.utf8_error().valid_up_to())))?;
    Ok(text.trim_start_matches('\u{feff}').replace("\r\n", "\n"))
}

/// Replaces `//` comments, and commas before a closing bracket, outside strings, by spaces, so that lines and columns
/// stay the same.
fn strip_comments(text: &str) -> String {
    let mut out: Vec<u8> = text.bytes().collect();
    let (mut at, mut in_string, mut comma) = (0, false, None);
    while at < out.len() {
        match out[at] {
            b'\\' if in_string => at += 1,
            b'"' => (in_string, comma) = (!in_string, None),
            _ if in_string => {}
            b'/' if out.get(at + 1) == Some(&b'/') => {
                while at < out.len() && out[at] != b'\n' {
                    out[at] = b' ';
                    at += 1;
                }
            }
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += 1;
    }
    String::from_utf8(out).expect("whole comments and single ASCII commas were replaced by spaces")
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
fn nearest<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let score = |name: &str| strsim::jaro_winkler(typed, name);
    names.iter().copied().filter(|name| score(name) > 0.75).max_by(|a, b| score(a).total_cmp(&score(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_last_commas_are_blanked_outside_strings_only() {
        let text = "{ // a \"comment\"\n \"a\": \"http://x, }\", \"b\": [1, 2, // two\n ], \"c\\\"//\": 3,\n}";
        let value: Value = serde_json::from_str(&strip_comments(text)).unwrap();
        assert_eq!(value, serde_json::json!({"a": "http://x, }", "b": [1, 2], "c\"//": 3}));
        assert_eq!(strip_comments(text).len(), text.len());
    }

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
