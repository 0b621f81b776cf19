//! The keys and values of a file, read by type. Every error names the file, the key, what was expected and what was
//! found.

use std::collections::HashMap;
use std::ops::Range;

use super::value::{List, Scalar, Value};
use offshoot_core::error::{Error, Result};
use offshoot_core::mapped::MappedFile;

/// The metadata of one file.
pub struct Metadata<'a> {
    pub(super) file: &'a MappedFile,
    pub(super) values: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub fn error(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::field(self.file.path(), key, expected, found)
    }

    fn mismatch(&self, key: &str, expected: &str, value: &Value) -> Error {
        self.error(key, expected, value.shown(self.file.bytes()))
    }

    /// The string in the file at this place; `key`: for the error.
    fn text_at(&self, key: &str, place: Range<usize>) -> Result<&'a str> {
        let text = std::str::from_utf8(&self.file.bytes()[place]);
        text.map_err(|fault| self.error(key, "UTF-8 text", format!("other bytes ({fault})")))
    }

    /// The single value of `key`, which `read` reads.
    fn one<T>(&self, key: &str, expected: &str, read: impl Fn(&Scalar) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let found = if let Value::One(scalar) = value { read(scalar) } else { None };
        found.map(Some).ok_or_else(|| self.mismatch(key, expected, value))
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.one(key, "a string", place)?.map(|place| self.text_at(key, place)).transpose()
    }

    /// A whole number from 0.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.one(key, "a whole number from 0", count)
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.one(key, "a number", number)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.one(key, "true or false", flag)
    }

    fn list(&self, key: &str) -> Option<&'a List> {
        match self.values.get(key) {
            Some(Value::List(list)) => Some(list),
            _ => None,
        }
    }

    pub fn is_list(&self, key: &str) -> bool {
        self.list(key).is_some()
    }

    /// The list of `key`, each of whose values `read` reads.
    fn all<T>(&self, key: &str, expected: &str, read: impl Fn(&Scalar) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let Value::List(list) = value else { return Err(self.mismatch(key, expected, value)) };
        let mut all = Vec::with_capacity(list.len());
        for scalar in list.scalars(self.file.path(), self.file.bytes()) {
            all.push(read(&scalar).ok_or_else(|| self.mismatch(key, expected, value))?);
        }
        Ok(Some(all))
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(places) = self.all(key, "a list of strings", place)? else { return Ok(None) };
        places.into_iter().map(|place| self.text_at(key, place)).collect::<Result<_>>().map(Some)
    }

    pub fn counts(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.all(key, "a list of whole numbers from 0", count)
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.all(key, "a list of numbers", number)
    }

    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.all(key, "a list of true or false", flag)
    }
}

fn place(scalar: &Scalar) -> Option<Range<usize>> {
    if let Scalar::Text(place) = scalar { Some(place.clone()) } else { None }
}

fn count(scalar: &Scalar) -> Option<u64> {
    if let Scalar::Whole(whole) = scalar { u64::try_from(*whole).ok() } else { None }
}

fn number(scalar: &Scalar) -> Option<f64> {
    match scalar {
        Scalar::Number(number) => Some(*number),
        Scalar::Whole(whole) => Some(*whole as f64),
        Scalar::Bool(_) | Scalar::Text(_) => None,
    }
}

fn flag(scalar: &Scalar) -> Option<bool> {
    if let Scalar::Bool(flag) = scalar { Some(*flag) } else { None }
}
