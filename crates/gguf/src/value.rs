//! The values of a file's metadata. Strings and lists stay where they are in the file; `Metadata` reads them when
//! asked.

use std::ops::Range;
use std::path::Path;

use super::cursor::Cursor;
use offshoot_core::error::{Error, Result};

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn by_number(number: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64].get(number as usize).copied()
    }

    /// Bytes, and at least as many for a string: its length.
    fn least_bytes(self) -> usize {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::Text => 8,
            ValueType::List => 12,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ValueType::F32 | ValueType::F64 => "numbers",
            ValueType::Bool => "booleans",
            ValueType::Text => "strings",
            ValueType::List => "lists",
            _ => "whole numbers",
        }
    }
}

/// A value that is not a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Whole(i128),
    Number(f64),
    Bool(bool),
    /// Its place in the file.
    Text(Range<usize>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    One(Scalar),
    List(List),
}

/// A list of values of one type, none of which is a list.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    of: ValueType,
    len: usize,
    /// Where its elements are in the file; checked when it was read.
    place: Range<usize>,
}

impl Value {
    /// Reads the type and the value of `key`.
    pub fn read(cursor: &mut Cursor<'_>, path: &Path, bytes: &[u8], key: &str) -> Result<Self> {
        let of = value_type(cursor, path, key)?;
        if of != ValueType::List {
            return Ok(Value::One(scalar(cursor, bytes, of, key)?));
        }
        let of = value_type(cursor, path, key)?;
        if of == ValueType::List {
            return Err(Error::field(path, key, "a list of single values", "a list of lists"));
        }
        let len = cursor.u64(&format!("the length of `{key}`"))?;
        let len = cursor.fits(len, &format!("elements of `{key}`"), of.least_bytes())?;
        let start = cursor.at();
        match of {
            ValueType::Text => {
                for _ in 0..len {
                    cursor.string(&format!("a string of `{key}`"))?;
                }
            }
            _ => {
                cursor.take((len * of.least_bytes()) as u64, &format!("`{key}`"))?;
            }
        }
        Ok(Value::List(List { of, len, place: start..cursor.at() }))
    }

    /// As errors quote it.
    pub fn shown(&self, bytes: &[u8]) -> String {
        match self {
            Value::One(Scalar::Whole(whole)) => whole.to_string(),
            Value::One(Scalar::Number(number)) => number.to_string(),
            Value::One(Scalar::Bool(flag)) => flag.to_string(),
            Value::One(Scalar::Text(place)) => format!("\"{}\"", String::from_utf8_lossy(&bytes[place.clone()])),
            Value::List(list) => format!("a list of {} {}", list.len, list.of.name()),
        }
    }
}

impl List {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The elements, one after the other.
    pub fn scalars<'a>(&'a self, path: &'a Path, bytes: &'a [u8]) -> impl Iterator<Item = Scalar> + 'a {
        let bytes = &bytes[..self.place.end];
        let mut cursor = Cursor::new(path, bytes);
        cursor.take(self.place.start as u64, "a list").expect("its place is inside the file");
        (0..self.len).map(move |_| scalar(&mut cursor, bytes, self.of, "").expect("its length was checked"))
    }
}

fn value_type(cursor: &mut Cursor<'_>, path: &Path, key: &str) -> Result<ValueType> {
    let number = cursor.u32(&format!("the type of `{key}`"))?;
    ValueType::by_number(number)
        .ok_or_else(|| Error::field(path, key, "a value of one of the types 0 to 12", format!("type {number}")))
}

fn scalar(cursor: &mut Cursor<'_>, bytes: &[u8], of: ValueType, key: &str) -> Result<Scalar> {
    if of == ValueType::Text {
        return cursor.string(key).map(Scalar::Text);
    }
    let place = cursor.take(of.least_bytes() as u64, key)?;
    let mut eight = [0; 8];
    eight[..place.len()].copy_from_slice(&bytes[place]);
    let unsigned = u64::from_le_bytes(eight);
    Ok(match of {
        ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => Scalar::Whole(i128::from(unsigned)),
        ValueType::I8 => Scalar::Whole(i128::from(unsigned as i8)),
        ValueType::I16 => Scalar::Whole(i128::from(unsigned as i16)),
        ValueType::I32 => Scalar::Whole(i128::from(unsigned as i32)),
        ValueType::I64 => Scalar::Whole(i128::from(unsigned as i64)),
        ValueType::F32 => Scalar::Number(as_written(f32::from_bits(unsigned as u32))),
        ValueType::F64 => Scalar::Number(f64::from_bits(unsigned)),
        ValueType::Bool => Scalar::Bool(unsigned != 0),
        ValueType::Text | ValueType::List => unreachable!("a string was read above, a list has lists' own reader"),
    })
}

/// The shortest decimal number that rounds to `x`, which is what somebody wrote: 0.00001 and not
/// 0.000009999999747378752.
fn as_written(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| f64::from(x))
}
