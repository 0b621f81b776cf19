//! JSON as Python's `json` writes it, the format of the benchmarks' files: NaN and infinities are bare words, strings
//! may contain unpaired surrogates (`\ud800`), and integers have any length. Values that are interpreted here are read
//! as the nearest value that serde_json can hold (`read`), or with their digits (`read_with_digits`). Test data, which
//! only Python interprets, is kept as text ([`RawJson`]).

mod describe;
pub mod digits;
mod partial;
mod written;

pub use describe::{cut_json, describe, id, listed, names};
pub use partial::field_of_partial;
pub use written::{pretty, text, value};

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use crate::figures::beginning;
use crate::json::digits::is_held;

/// Parses `text` strictly, except for Python's extensions: NaN, infinities and numbers beyond a double become `null`,
/// an unpaired surrogate becomes U+FFFD, and an integer beyond 64 bits becomes the nearest double.
pub fn read<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| match standard_json(text) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(text) => serde_json::from_str(&text),
    })
}

/// Like [`read`], but numbers that serde_json cannot hold exactly become strings of their digits.
pub fn read_with_digits<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let value = read(text)?;
    let lost = |(range, piece): &(Range<usize>, SpecialToken)| {
        matches!(piece, SpecialToken::Bare) && !is_held(&text[range.clone()])
    };
    let quoted =
        |(range, _): (Range<usize>, SpecialToken)| (range.clone(), Cow::Owned(format!("\"{}\"", &text[range])));
    match rewritten(text, pieces(text).filter(lost).map(quoted)) {
        Cow::Borrowed(_) => Ok(value),
        Cow::Owned(text) => read(&text),
    }
}

/// About the bytes of memory that an object's values take.
pub fn footprint(fields: &Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        const VALUE: usize = 64;
        VALUE
            + match value {
                Value::String(text) => text.len(),
                Value::Array(list) => list.iter().map(of).sum(),
                Value::Object(fields) => footprint(fields),
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            }
    }
    fields.iter().map(|(name, value)| name.len() + of(value)).sum()
}

/// One JSON value as its text in the file, for Python's `json` to read: no digit and no surrogate is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawJson(Box<str>);

impl RawJson {
    /// Fails unless `text` is one value that Python's `json` can read.
    pub fn parse(text: &str) -> serde_json::Result<RawJson> {
        read::<IgnoredAny>(text).map(|_| RawJson::part(text))
    }

    /// A text known to be one value; not checked.
    pub fn part(text: &str) -> RawJson {
        RawJson(text.trim_ascii().into())
    }

    /// The list of these values.
    pub fn of_list(values: &[RawJson]) -> RawJson {
        let values: Vec<&str> = values.iter().map(RawJson::as_str).collect();
        RawJson(format!("[{}]", values.join(", ")).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_list(&self) -> bool {
        self.0.starts_with('[')
    }

    /// The values of a list; `None` for anything else.
    pub fn list(&self) -> Option<Vec<RawJson>> {
        self.is_list().then(|| parts(&self.0).into_iter().map(RawJson::part).collect())
    }

    /// The keys of an object in order, each with the texts of its key and value; `None` for anything else.
    pub fn pairs(&self) -> Option<Vec<(String, [&str; 2])>> {
        let texts = self.0.starts_with('{').then(|| parts(&self.0))?;
        let pair = |pair: &[_; 2]| (read(pair[0]).expect("a key of valid JSON is a text"), *pair);
        Some(texts.as_chunks().0.iter().map(pair).collect())
    }

    /// The values of an object by key; of equal keys, the last one counts. `None` for anything else.
    pub fn object(&self) -> Option<HashMap<String, RawJson>> {
        Some(self.pairs()?.into_iter().map(|(key, [_, value])| (key, RawJson::part(value))).collect())
    }

    /// A string, with U+FFFD for each unpaired surrogate; `None` for anything else.
    pub fn text(&self) -> Option<String> {
        self.0.starts_with('"').then(|| read(&self.0).expect("it is a valid text"))
    }

    /// Whether a [`Value`] can hold it and is written so that Python reads the same value.
    pub fn is_held_by_value(&self) -> bool {
        pieces(&self.0).all(|(range, piece)| match (piece, &self.0[range]) {
            (SpecialToken::UnpairedSurrogate, _) | (SpecialToken::Bare, "-0") => false,
            (SpecialToken::Bare, bare) => !is_not_finite_double(bare) && is_held(bare),
        })
    }

    /// The value as an error message shows it.
    pub fn describe(&self) -> String {
        match self.0.as_bytes() {
            [b'[', ..] => format!("a list of {}", parts(&self.0).len()),
            [b'{', ..] => "an object".to_string(),
            [b'"', ..] => describe(&Value::String(self.text().unwrap_or_default())),
            _ => self.shown(),
        }
    }

    /// The beginning of its text.
    pub fn shown(&self) -> String {
        match beginning(&self.0, describe::MOST) {
            Some(start) => format!("{start}…"),
            None => self.0.to_string(),
        }
    }
}

impl From<&Value> for RawJson {
    fn from(value: &Value) -> RawJson {
        RawJson(value.to_string().into())
    }
}

/// The dotted path of the first key that an object of the valid JSON `text` has twice.
pub fn repeated_key(text: &str) -> Option<String> {
    let value = RawJson::part(text);
    let inner = |name: String, value: &str| repeated_key(value).map(|inner| format!("{name}.{inner}"));
    if let Some(list) = value.list() {
        return list.iter().enumerate().find_map(|(ix, value)| inner(ix.to_string(), value.as_str()));
    }
    let mut seen = HashSet::new();
    value.pairs()?.into_iter().find_map(|(key, [_, value])| match seen.insert(key.clone()) {
        true => inner(key, value),
        false => Some(key),
    })
}

/// The texts between the top-level commas and colons of a valid list or object.
fn parts(text: &str) -> Vec<&str> {
    let inner = text[1..text.len() - 1].trim_ascii();
    let (mut parts, mut start, mut depth, mut in_string, mut escaped) = (Vec::new(), 0, 0usize, false, false);
    for (ix, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b',' | b':' if depth == 0 => {
                parts.push(&inner[start..ix]);
                start = ix + 1;
            }
            _ => {}
        }
    }
    if !inner.is_empty() {
        parts.push(&inner[start..]);
    }
    parts
}

/// `text` with Python's extensions replaced by standard JSON; all else, valid or not, is unchanged.
fn standard_json(text: &str) -> Cow<'_, str> {
    let instead = |(range, piece): (Range<usize>, SpecialToken)| match piece {
        SpecialToken::UnpairedSurrogate => Some((range, Cow::Borrowed("\\ufffd"))),
        SpecialToken::Bare => is_not_finite_double(&text[range.clone()]).then_some((range, Cow::Borrowed("null"))),
    };
    rewritten(text, pieces(text).filter_map(instead))
}

/// `text` with these ranges replaced; the ranges are ascending and disjoint.
fn rewritten<'t>(text: &'t str, instead: impl Iterator<Item = (Range<usize>, Cow<'t, str>)>) -> Cow<'t, str> {
    let (mut out, mut copied) = (String::new(), 0);
    for (range, instead) in instead {
        out.push_str(&text[copied..range.start]);
        out.push_str(&instead);
        copied = range.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

enum SpecialToken {
    /// The escape of an unpaired surrogate, in a string.
    UnpairedSurrogate,
    /// A number or a word outside strings.
    Bare,
}

fn pieces(text: &str) -> impl Iterator<Item = (Range<usize>, SpecialToken)> {
    let bytes = text.as_bytes();
    let (mut at, mut in_string) = (0, false);
    std::iter::from_fn(move || {
        while let Some(byte) = bytes.get(at) {
            let start = at;
            at += 1;
            match byte {
                b'"' => in_string = !in_string,
                b'\\' if in_string => match escaped_unit(bytes, start) {
                    None => at += 1,
                    Some(unit) => {
                        at = start + 6;
                        let half = match unit {
                            0xd800..=0xdbff => !matches!(escaped_unit(bytes, at), Some(0xdc00..=0xdfff)),
                            0xdc00..=0xdfff => true,
                            _ => continue,
                        };
                        if half {
                            return Some((start..at, SpecialToken::UnpairedSurrogate));
                        }
                        at += 6;
                    }
                },
                byte if !in_string && is_bare(byte) => {
                    at += bytes[at..].iter().take_while(|byte| is_bare(byte)).count();
                    return Some((start..at, SpecialToken::Bare));
                }
                _ => {}
            }
        }
        None
    })
}

fn is_bare(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// The UTF-16 unit of the escape at `at`, if it has the form `\uXXXX`.
fn escaped_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Whether Python reads it as a number that is not a finite double.
fn is_not_finite_double(bare: &str) -> bool {
    let beyond = || bare.parse().is_ok_and(f64::is_infinite) && serde_json::from_str::<IgnoredAny>(bare).is_ok();
    matches!(bare, "NaN" | "Infinity" | "-Infinity") || beyond()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// A line of Python's JSON.
    fn scalar() -> BoxedStrategy<String> {
        let number = prop_oneof![
            "-?(0|[1-9][0-9]{0,25})",
            "-?(0|[1-9][0-9]{0,5})\\.[0-9]{1,25}",
            "-?[1-9](\\.[0-9]{1,3})?[eE][-+]?[0-9]{1,3}",
            Just("18446744073709551615".to_string()),
            Just("18446744073709551616".to_string()),
            Just("1".to_string() + &"0".repeat(400)),
            Just("-0".to_string()),
        ];
        let word = prop::sample::select(vec!["NaN", "Infinity", "-Infinity", "true", "false", "null"]);
        prop_oneof![number, word.prop_map(str::to_string), string()].boxed()
    }

    fn string() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            prop::sample::select(vec![
                "\\ud800",
                "\\uDbFf",
                "\\udc00",
                "\\udfff",
                "\\u00e9",
                "\\\\",
                "\\\"",
                "\\n",
                "NaN",
                "1e999",
                "-0",
                "[",
                "]",
                "{",
                "}",
                ",",
                ":",
                "é",
                "😀",
                " ",
                "ud800",
                "\\\\ud800",
            ])
            .prop_map(str::to_string),
            "[a-z0-9]{1,3}",
        ];
        prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
    }

    fn json() -> impl Strategy<Value = String> {
        scalar().prop_recursive(4, 24, 5, |inner| {
            let space = prop::sample::select(vec!["", " ", "\t", " \r "]);
            let list = (prop::collection::vec(inner.clone(), 0..5), space.clone())
                .prop_map(|(values, space)| format!("[{space}{}{space}]", values.join(&format!("{space},{space}"))));
            let object = (prop::collection::vec((string(), inner), 0..4), space).prop_map(|(pairs, space)| {
                let pairs: Vec<String> =
                    pairs.iter().map(|(key, value)| format!("{key}{space}:{space}{value}")).collect();
                format!("{{{space}{}{space}}}", pairs.join(&format!("{space},{space}")))
            });
            prop_oneof![list, object]
        })
    }

    /// Texts that are JSON, and texts that nearly are.
    fn texts() -> Vec<String> {
        let mut runner = TestRunner::deterministic();
        let mut texts: Vec<String> = Vec::new();
        for ix in 0..3000 {
            let text = json().new_tree(&mut runner).expect("no filter").current();
            let chars: Vec<char> = text.chars().collect();
            let cut = ix * 7919 % chars.len();
            texts.push(match ix % 3 {
                0 => chars.iter().enumerate().filter(|(at, _)| *at != cut).map(|(_, c)| c).collect(),
                _ => text,
            });
        }
        texts
    }

    /// Prints for each text what Python reads: null if it refuses the text; otherwise the value that `read` must
    /// return, whether a serde_json value can hold it, and the `repr` of each part of a list or object.
    const PYTHON: &str = r#"
import json, math, re, sys
HALF = re.compile("[\ud800-\udfff]")
def near(v):
    if isinstance(v, bool) or v is None: return v
    if isinstance(v, int): v = v if -2**63 <= v < 2**64 else float(v) if abs(v) < 2**1023 else math.inf
    if isinstance(v, float): return v if math.isfinite(v) else None
    if isinstance(v, int): return v
    if isinstance(v, str): return HALF.sub("\ufffd", v)
    if isinstance(v, list): return [near(x) for x in v]
    return {near(k): near(x) for k, x in v.items()}
def parts(v):
    if isinstance(v, list): return [repr(x) for x in v]
    if isinstance(v, dict) and len({near(k) for k in v}) == len(v): return {near(k): repr(x) for k, x in v.items()}
for line in sys.stdin:
    text = json.loads(line)
    try: v = json.loads(text)
    except ValueError: print("null"); continue
    # A Value holds -0 as a double.
    doubled = json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))
    print(json.dumps([near(doubled), repr(v), parts(v)]))
"#;

    fn python(program: &str, lines: &[String]) -> Option<Vec<Value>> {
        let python = Command::new("python3").args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut python) = python else {
            crate::skip::skipped("no python3");
            return None;
        };
        let mut input = python.stdin.take().expect("it is piped");
        let text: String = lines.iter().map(|line| format!("{}\n", Value::String(line.clone()))).collect();
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = python.wait_with_output().expect("it runs");
        writer.join().expect("no panic").expect("it reads all");
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).expect("JSON is text");
        Some(said.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect())
    }

    #[test]
    fn what_python_reads_is_read_as_its_nearest_value_and_nothing_else_is() {
        let texts = texts();
        let Some(said) = python(PYTHON, &texts) else { return };
        let mut parts = Vec::new();
        let (mut refused, mut inexact) = (0, 0);
        for (text, said) in texts.iter().zip(&said) {
            let raw = RawJson::parse(text).ok();
            assert_eq!(raw.is_some(), !said.is_null(), "{text}");
            let Some(raw) = raw else {
                refused += 1;
                continue;
            };
            let value: Value = read(text).expect("it is valid");
            assert_eq!(value, said[0], "{text}");
            if raw.is_held_by_value() {
                parts.push((RawJson::from(&value), said[1].clone()));
            } else {
                inexact += 1;
            }
            let list = raw.list().into_iter().flatten().zip(said[2].as_array().into_iter().flatten());
            parts.extend(list.map(|(part, said)| (part, said.clone())));
            let object = raw.object().filter(|_| said[2].is_object()).into_iter().flatten();
            parts.extend(object.map(|(key, part)| (part, said[2][&key].clone())));
            assert_eq!(raw.list().map(|list| list.len()), value.as_array().map(Vec::len), "{text}");
        }
        assert!(refused > 300 && inexact > 300 && parts.len() > 3000, "{refused} {inexact} {}", parts.len());
        let texts: Vec<String> = parts.iter().map(|(part, _)| part.as_str().to_string()).collect();
        let program = "import json, sys\nfor line in sys.stdin: print(json.dumps(repr(json.loads(json.loads(line)))))";
        let pictures = python(program, &texts).expect("it was there before");
        for ((part, picture), seen) in parts.iter().zip(pictures) {
            assert_eq!(seen, *picture, "{}", part.as_str());
        }
    }

    #[test]
    fn numbers_that_a_value_does_not_hold_keep_their_digits() {
        let text = r#"{"a": [12345678901234567890123, 1.5, -1e400], "12345678901234567890123": "NaN", "b": NaN}"#;
        let kept = serde_json::json!({
            "a": ["12345678901234567890123", 1.5, "-1e400"], "12345678901234567890123": "NaN", "b": null
        });
        assert_eq!(read_with_digits::<Value>(text).expect("it is valid"), kept);
    }

    #[test]
    fn near_misses_stay_refused() {
        for text in [
            "nan",
            "+Infinity",
            "- Infinity",
            "NaNNaN",
            "1NaN",
            "--Infinity",
            "inf",
            "+1e999",
            ".5e999",
            "1e999.",
            "\"\\ud8\"",
        ] {
            assert!(RawJson::parse(text).is_err() && read::<Value>(text).is_err(), "{text}");
            assert!(read_with_digits::<Value>(text).is_err(), "{text}");
        }
        assert!(RawJson::parse("[1] 2").is_err() && RawJson::parse("").is_err());
    }
}
