//! Thrift's compact protocol, in which Parquet describes its files and pages: values as a tree, read and written. What
//! the fields mean is up to `schema` and `pages`.

use super::why::{Why, why};

/// Most structs and lists inside each other.
const MOST_DEPTH: usize = 32;

/// A value. Of maps, which Parquet has none of, nothing is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thrift {
    Bool(bool),
    /// An integer: of any width, or an enum's, where it is read; of 32 bits where it is written.
    Int(i64),
    /// An integer of 64 bits, only where it is written; `Byte`: one of 8.
    Long(i64),
    Byte(i8),
    Double,
    Bytes(Vec<u8>),
    List(Vec<Thrift>),
    /// Fields by their number, in the order of these.
    Struct(Vec<(i16, Thrift)>),
}

impl Thrift {
    /// Reads a struct from the beginning of `bytes`; also returns how many bytes it takes. `None`: there are too few.
    pub fn read(bytes: &[u8]) -> Result<Option<(Thrift, usize)>, Why> {
        let mut input = Input { bytes, at: 0 };
        match input.fields(0) {
            Ok(value) => Ok(Some((value, input.at))),
            Err(Broken::Short) => Ok(None),
            Err(Broken::Wrong) => why("its description is not in Thrift's compact protocol"),
        }
    }

    pub fn field(&self, number: i16) -> Option<&Thrift> {
        let Thrift::Struct(fields) = self else { return None };
        fields.iter().find(|(of, _)| *of == number).map(|(_, value)| value)
    }

    pub fn int(&self, number: i16) -> Option<i64> {
        match self.field(number)? {
            Thrift::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A size or a count: what is negative is none.
    pub fn size(&self, number: i16) -> Option<u64> {
        self.int(number).and_then(|value| u64::try_from(value).ok())
    }

    pub fn bool(&self, number: i16) -> Option<bool> {
        match self.field(number)? {
            Thrift::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn text(&self, number: i16) -> Option<String> {
        match self.field(number)? {
            Thrift::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    pub fn list(&self, number: i16) -> &[Thrift] {
        match self.field(number) {
            Some(Thrift::List(list)) => list,
            _ => &[],
        }
    }

    /// Writes a struct.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Thrift::Struct(fields) = self else { return self.write_value(out) };
        let mut last = 0;
        for (number, value) in fields {
            let kind = match value {
                Thrift::Bool(value) => 2 - u8::from(*value),
                other => other.kind(),
            };
            let step = u8::try_from(number - last).expect("fields are written in their order, and close together");
            out.push(step << 4 | kind);
            last = *number;
            if !matches!(value, Thrift::Bool(_)) {
                value.write_value(out);
            }
        }
        out.push(0);
    }

    fn kind(&self) -> u8 {
        match self {
            Thrift::Bool(_) => 2,
            Thrift::Byte(_) => 3,
            Thrift::Int(_) => 5,
            Thrift::Long(_) => 6,
            Thrift::Double => 7,
            Thrift::Bytes(_) => 8,
            Thrift::List(_) => 9,
            Thrift::Struct(_) => 12,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Thrift::Bool(value) => out.push(2 - u8::from(*value)),
            Thrift::Byte(value) => out.push(*value as u8),
            Thrift::Int(value) | Thrift::Long(value) => write_varint(out, (value << 1 ^ value >> 63) as u64),
            Thrift::Double => unreachable!("no double is written"),
            Thrift::Bytes(bytes) => {
                write_varint(out, bytes.len() as u64);
                out.extend(bytes);
            }
            Thrift::List(list) => {
                out.push(0xF0 | list.first().map_or(12, Thrift::kind));
                write_varint(out, list.len() as u64);
                list.iter().for_each(|value| value.write(out));
            }
            Thrift::Struct(_) => self.write(out),
        }
    }
}

pub(super) fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7F {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A number of seven bits a byte, and how many bytes it takes.
pub(super) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (ix, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7F).checked_shl(7 * ix as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, ix + 1));
        }
    }
    None
}

pub(super) fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

enum Broken {
    Short,
    Wrong,
}

struct Input<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Input<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], Broken> {
        let taken = self.bytes[self.at..].get(..count).ok_or(Broken::Short)?;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Broken> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let left = &self.bytes[self.at..];
        let (value, taken) = read_varint(left).ok_or(if left.len() < 10 { Broken::Short } else { Broken::Wrong })?;
        self.at += taken;
        Ok(value)
    }

    fn fields(&mut self, depth: usize) -> Result<Thrift, Broken> {
        let (mut fields, mut number) = (Vec::new(), 0i16);
        if depth > MOST_DEPTH {
            return Err(Broken::Wrong);
        }
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(Thrift::Struct(fields));
            }
            number = match head >> 4 {
                0 => i16::try_from(zigzag(self.varint()?)).map_err(|_| Broken::Wrong)?,
                step => number.checked_add(i16::from(step)).ok_or(Broken::Wrong)?,
            };
            let value = match head & 0xF {
                kind @ (1 | 2) => Thrift::Bool(kind == 1),
                kind => self.value(kind, depth)?,
            };
            fields.push((number, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<Thrift, Broken> {
        Ok(match kind {
            1 | 2 => Thrift::Bool(self.byte()? == 1),
            3 => Thrift::Int(i64::from(self.byte()? as i8)),
            4..=6 => Thrift::Int(zigzag(self.varint()?)),
            7 => {
                self.take(8)?;
                Thrift::Double
            }
            8 => {
                let length = self.varint()?;
                Thrift::Bytes(self.take(usize::try_from(length).map_err(|_| Broken::Wrong)?)?.to_vec())
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Each takes a byte at least, so that a count alone takes no memory.
                let list = (0..count).map(|_| self.value(head & 0xF, depth + 1)).collect::<Result<_, _>>()?;
                Thrift::List(list)
            }
            12 => self.fields(depth + 1)?,
            _ => return Err(Broken::Wrong),
        })
    }
}
