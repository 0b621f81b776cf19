//! Reads single fields of a JSON object. Every error names the file, the field, what was expected and what was found. A
//! `null` counts as absent, as in transformers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::json::cut_json;

/// Upper bounds of sizes, above those of any existing model (contexts reach ten million tokens), such that a product of
/// two sizes, a layer count and the bytes of an element cannot overflow.
pub const LARGEST_WIDTH: usize = 1 << 22;
pub const LARGEST_CONTEXT: usize = 1 << 24;
pub const LARGEST_VOCAB: usize = 1 << 24;
pub const LARGEST_LAYERS: usize = 1 << 12;
pub const LARGEST_EXPERTS: usize = 1 << 14;

/// A JSON object in the file `path`. `prefix`: the names of the enclosing objects, e.g. "" or "rope_scaling.".
pub struct Fields<'a> {
    path: &'a Path,
    prefix: String,
    object: &'a Map<String, Value>,
    /// What errors call the fields instead, by their names with those of the enclosing objects.
    called: Option<&'a BTreeMap<String, String>>,
    /// Names that the file has for fields of this object, by those that they are read by.
    own: Option<&'a OwnNames>,
    /// Where it is noted which fields were asked for.
    used: Option<&'a UsedKeys>,
}

/// The names of fields that somebody asked for, with those of the enclosing objects.
#[derive(Default)]
pub struct UsedKeys(RefCell<BTreeSet<String>>);

impl UsedKeys {
    /// Whether somebody asked for this field of `fields`.
    pub fn has(&self, fields: &Fields<'_>, name: &str) -> bool {
        self.0.borrow().contains(&format!("{}{name}", fields.prefix))
    }
}

/// A family's own names of fields, by those of the family that they are read as.
pub type OwnNames = BTreeMap<&'static str, &'static str>;

impl<'a> Fields<'a> {
    /// The top object of a file that was parsed as `value`.
    pub fn of_file(path: &'a Path, value: &'a Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| Error::format(path, "expected a JSON object"))?;
        Ok(Self { path, prefix: String::new(), object, called: None, own: None, used: None })
    }

    /// Fields that were made from a file of another kind; errors call them as `called` says.
    pub fn of_metadata(path: &'a Path, value: &'a Value, called: &'a BTreeMap<String, String>) -> Result<Self> {
        Ok(Self { called: Some(called), ..Self::of_file(path, value)? })
    }

    /// Whether the fields were made from the metadata of a GGUF file.
    pub fn is_metadata(&self) -> bool {
        self.called.is_some()
    }

    fn note(&self, name: &str) {
        if let Some(UsedKeys(used)) = self.used {
            used.borrow_mut().insert(format!("{}{name}", self.prefix));
        }
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.note(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Whether the key is present, even as `null`.
    pub fn is_written(&self, name: &str) -> bool {
        self.note(name);
        self.object.contains_key(name)
    }

    /// What the file calls the field that is read by this name.
    pub fn name<'n>(&self, name: &'n str) -> &'n str {
        self.own.and_then(|own| own.get(name).copied()).unwrap_or(name)
    }

    pub fn error(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let name = format!("{}{}", self.prefix, self.name(name));
        let name = self.called.and_then(|called| called.get(&name)).cloned().unwrap_or(name);
        Error::field(self.path, name, expected, found)
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.error(name, expected, shown(value)))
    }

    /// A whole number from 1 to `largest` (some tools write 4096.0).
    pub fn size(&self, name: &str, largest: usize) -> Result<Option<usize>> {
        self.typed(name, &format!("a whole number from 1 to {largest}"), |value| {
            whole(value).and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=largest).contains(n))
        })
    }

    pub fn required_size(&self, name: &str, largest: usize) -> Result<usize> {
        let expected = || format!("a whole number from 1 to {largest}");
        self.size(name, largest)?.ok_or_else(|| self.error(name, expected(), "nothing"))
    }

    /// A whole number from 0.
    pub fn count(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a whole number from 0", whole)
    }

    /// A number above 0 that is normal and finite as an f32.
    pub fn positive(&self, name: &str) -> Result<Option<f64>> {
        let f32_holds = |x: &f64| (f32::MIN_POSITIVE..=f32::MAX).contains(&(*x as f32));
        self.typed(name, "a number above 0 that an f32 holds", |value| value.as_f64().filter(f32_holds))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub fn list(&self, name: &str) -> Result<Option<&'a [Value]>> {
        self.typed(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// `what`: said where the object is missing.
    pub fn required_object(&self, name: &str, what: &str) -> Result<Fields<'a>> {
        self.object(name)?.ok_or_else(|| self.error(name, format!("an object ({what})"), "nothing"))
    }

    /// This file and place with the fields of another object.
    pub fn over<'b>(&self, object: &'b Map<String, Value>) -> Fields<'b>
    where
        'a: 'b,
    {
        let prefix = self.prefix.clone();
        Fields { path: self.path, prefix, object, called: self.called, own: None, used: self.used }
    }

    /// The same fields, of which the file has some by names of its own.
    pub fn with_names(self, own: &'a OwnNames) -> Self {
        Self { own: Some(own), ..self }
    }

    /// The same fields; which of them are asked for is noted in `used`.
    pub fn noting(self, used: &'a UsedKeys) -> Self {
        Self { used: Some(used), ..self }
    }

    /// All fields.
    pub fn all(&self) -> &'a Map<String, Value> {
        self.object
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let object = self.typed(name, "an object", Value::as_object)?;
        let prefix = format!("{}{name}.", self.prefix);
        let (path, called, used) = (self.path, self.called, self.used);
        Ok(object.map(|object| Fields { path, prefix, object, called, own: None, used }))
    }
}

pub fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x));
    value.as_u64().or_else(|| float().map(|x| x as u64))
}

/// A value as errors quote it: JSON, truncated to 60 characters.
pub fn shown(value: &Value) -> String {
    cut_json(value, 60)
}
