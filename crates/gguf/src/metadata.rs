//! The keys and values of a file, read by type. Every error names the file, the key, what was expected and what was found.

use std::collections::HashMap;

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
    fn text_at(&self, key: &str, place: std::ops::Range<usize>) -> Result<&'a str> {
        let text = std::str::from_utf8(&self.file.bytes()[place]);
        text.map_err(|fault| self.error(key, "UTF-8 text", format!("other bytes ({fault})")))
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::One(Scalar::Text(place))) => self.text_at(key, place.clone()).map(Some),
            Some(other) => Err(self.mismatch(key, "a string", other)),
        }
    }

    /// A whole number from 0.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        const EXPECTED: &str = "a whole number from 0";
        match self.values.get(key) {
            None => Ok(None),
            Some(value @ Value::One(Scalar::Whole(whole))) => {
                u64::try_from(*whole).map(Some).map_err(|_| self.mismatch(key, EXPECTED, value))
            }
            Some(other) => Err(self.mismatch(key, EXPECTED, other)),
        }
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::One(Scalar::Number(number))) => Ok(Some(*number)),
            Some(Value::One(Scalar::Whole(whole))) => Ok(Some(*whole as f64)),
            Some(other) => Err(self.mismatch(key, "a number", other)),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::One(Scalar::Bool(flag))) => Ok(Some(*flag)),
            Some(other) => Err(self.mismatch(key, "true or false", other)),
        }
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

    fn all<T>(&self, key: &str, expected: &str, read: impl Fn(Scalar) -> Option<Result<T>>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let Value::List(list) = value else { return Err(self.mismatch(key, expected, value)) };
        let mut all = Vec::with_capacity(list.len());
        for scalar in list.scalars(self.file.path(), self.file.bytes()) {
            all.push(read(scalar).unwrap_or_else(|| Err(self.mismatch(key, expected, value)))?);
        }
        Ok(Some(all))
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.all(key, "a list of strings", |scalar| match scalar {
            Scalar::Text(place) => Some(self.text_at(key, place)),
            _ => None,
        })
    }

    pub fn counts(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.all(key, "a list of whole numbers from 0", |scalar| match scalar {
            Scalar::Whole(whole) => u64::try_from(whole).ok().map(Ok),
            _ => None,
        })
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.all(key, "a list of numbers", |scalar| match scalar {
            Scalar::Number(number) => Some(Ok(number)),
            Scalar::Whole(whole) => Some(Ok(whole as f64)),
            _ => None,
        })
    }

    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.all(key, "a list of true or false", |scalar| match scalar {
            Scalar::Bool(flag) => Some(Ok(flag)),
            _ => None,
        })
    }
}
