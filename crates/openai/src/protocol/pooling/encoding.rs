//! How numbers are written in an answer: as JSON, or as the bytes of smaller ones in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use half::{bf16, f16};
use serde::Serialize;

use super::super::fields::BodyFields;
use super::super::refusal::Refusal;

/// How an answer's numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Base64 { number: NumberForm, big_endian: bool },
}

/// What a number becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberForm {
    F32,
    F16,
    Bf16,
}

/// Numbers of an answer.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Written {
    One(Vec<f64>),
    Rows(Vec<Vec<f64>>),
    Bytes(String),
}

impl Encoding {
    /// Takes `encoding_format`, `embed_dtype` and `endianness`.
    pub fn take(fields: &mut BodyFields) -> Result<Encoding, Refusal> {
        let is_base64 = fields.word("encoding_format", &[("float", false), ("base64", true)])?.unwrap_or(false);
        let forms = [("float32", NumberForm::F32), ("float16", NumberForm::F16), ("bfloat16", NumberForm::Bf16)];
        let number = fields.word("embed_dtype", &forms)?.unwrap_or(NumberForm::F32);
        let native = cfg!(target_endian = "big");
        let orders = [("native", native), ("little", false), ("big", true)];
        let big_endian = fields.word("endianness", &orders)?.unwrap_or(native);
        Ok(if is_base64 { Encoding::Base64 { number, big_endian } } else { Encoding::Json })
    }

    /// A list of numbers.
    pub fn one(self, numbers: Vec<f64>) -> Written {
        match self {
            Encoding::Json => Written::One(numbers),
            Encoding::Base64 { number, big_endian } => Written::Bytes(base64_of(&numbers, number, big_endian)),
        }
    }

    /// A list of lists.
    pub fn rows(self, rows: Vec<Vec<f64>>) -> Written {
        match self {
            Encoding::Json => Written::Rows(rows),
            Encoding::Base64 { number, big_endian } => Written::Bytes(base64_of(&rows.concat(), number, big_endian)),
        }
    }
}

/// The bytes of numbers, one behind the other, in base64.
fn base64_of(numbers: &[f64], number: NumberForm, big_endian: bool) -> String {
    let mut bytes = Vec::with_capacity(numbers.len() * size_of::<f32>());
    for &value in numbers {
        let at = bytes.len();
        match number {
            NumberForm::F32 => bytes.extend((value as f32).to_le_bytes()),
            NumberForm::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
            NumberForm::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
        }
        if big_endian {
            bytes[at..].reverse();
        }
    }
    STANDARD.encode(bytes)
}
