//! How values print: Python's `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use super::fault::{Result, fail};
use super::value::{Dict, MOST_BYTES, Namespace, Value, View};

/// Levels of namespaces within each other.
const MOST_LEVELS: usize = 1000;

impl Value {
    /// `str(value)`.
    ///
    /// # Errors
    ///
    /// Python would print an address.
    pub fn to_text(&self) -> Result<String> {
        let mut out = String::new();
        self.print(&mut out)?;
        Ok(out)
    }

    /// Writes `str(value)`.
    pub fn print(&self, out: &mut String) -> Result<()> {
        match self {
            Value::Undefined(_) => {}
            Value::Text(text) => out.push_str(&text.text),
            other => other.show(out, 0)?,
        }
        Ok(())
    }

    /// `repr(value)`.
    pub fn to_repr(&self) -> Result<String> {
        let mut out = String::new();
        self.show(&mut out, 0)?;
        Ok(out)
    }

    fn show(&self, out: &mut String, level: usize) -> Result<()> {
        if level > MOST_LEVELS {
            return fail("a value nests too deeply to be shown");
        }
        if out.len() > MOST_BYTES {
            return fail(format!("a value takes more than {MOST_BYTES} bytes when it is shown"));
        }
        match self {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(int) => write!(out, "{int}").expect("a text takes all"),
            Value::Float(float) => out.push_str(&float_repr(*float)),
            Value::Text(text) if text.is_safe => {
                out.push_str("Markup(");
                quote(&text.text, out);
                out.push(')');
            }
            Value::Text(text) => quote(&text.text, out),
            Value::List(list) => show_items(list.items.iter(), ["[", "]"], out, level)?,
            Value::Tuple(tuple) => match tuple.items.len() {
                1 => show_items(tuple.items.iter(), ["(", ",)"], out, level)?,
                _ => show_items(tuple.items.iter(), ["(", ")"], out, level)?,
            },
            Value::Dict(dict) => show_dict(dict, out, level)?,
            Value::View(dict, View::Keys) => show_items(dict.keys(), ["dict_keys([", "])"], out, level)?,
            Value::View(dict, View::Values) => show_items(dict.values(), ["dict_values([", "])"], out, level)?,
            Value::View(dict, View::Items) => {
                show_items(dict.view(View::Items)?.iter(), ["dict_items([", "])"], out, level)?;
            }
            Value::Range(range) => match range.bounds() {
                [start, stop, 1] => write!(out, "range({start}, {stop})").expect("a text takes all"),
                [start, stop, step] => write!(out, "range({start}, {stop}, {step})").expect("a text takes all"),
            },
            Value::Namespace(namespace) => show_namespace(namespace, out, level)?,
            Value::Macro(of) => match &of.name {
                Some(name) => {
                    out.push_str("<Macro ");
                    quote(name, out);
                    out.push('>');
                }
                None => out.push_str("<Macro anonymous>"),
            },
            Value::Loop(state) => {
                write!(out, "<LoopContext {}/{}>", state.index0() + 1, state.length()).expect("a text takes all");
            }
            Value::Iterator(_) | Value::Cycler(_) | Value::Joiner(_) | Value::Function(_) | Value::Method(_) => {
                let what = self.type_name();
                return fail(format!(
                    "a {what} is printed, whose text in Python is an address: call it, or make it a list (`|list`)"
                ));
            }
        }
        Ok(())
    }
}

fn show_items<'a>(
    items: impl Iterator<Item = &'a Value>,
    [open, close]: [&str; 2],
    out: &mut String,
    level: usize,
) -> Result<()> {
    out.push_str(open);
    for (ix, item) in items.enumerate() {
        out.push_str(if ix > 0 { ", " } else { "" });
        item.show(out, level + 1)?;
    }
    out.push_str(close);
    Ok(())
}

fn show_dict(dict: &Dict, out: &mut String, level: usize) -> Result<()> {
    out.push('{');
    for (ix, (key, value)) in dict.pairs().enumerate() {
        out.push_str(if ix > 0 { ", " } else { "" });
        key.show(out, level + 1)?;
        out.push_str(": ");
        value.show(out, level + 1)?;
    }
    out.push('}');
    Ok(())
}

fn show_namespace(namespace: &Namespace, out: &mut String, level: usize) -> Result<()> {
    out.push_str("<Namespace ");
    show_dict(&namespace.attributes.borrow(), out, level + 1)?;
    out.push('>');
    Ok(())
}

/// `repr` of a text: in single quotes unless only double ones need no escape.
pub fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match c as u32 {
                code @ ..0x100 => write!(out, "\\x{code:02x}").expect("a text takes all"),
                code @ ..0x1_0000 => write!(out, "\\u{code:04x}").expect("a text takes all"),
                code => write!(out, "\\U{code:08x}").expect("a text takes all"),
            },
        }
    }
    out.push(mark);
}

/// `str.isprintable` of a character.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Rust's library escapes the same categories, and combining characters only at a text's start.
    let mut after_a = ['a', c].iter().collect::<String>();
    after_a = after_a.escape_debug().collect();
    !after_a.starts_with("a\\u")
}

/// `repr` of a float: the fewest digits that read back as it.
pub fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_string();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`e` asks for an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// How `tojson` writes.
pub struct JsonStyle {
    pub is_ascii: bool,
    /// What each level is indented by; all on one line without.
    pub indent: Option<String>,
    pub between_items: String,
    pub after_key: String,
    pub sorts_keys: bool,
}

impl JsonStyle {
    /// `json.dumps(value)`.
    ///
    /// # Errors
    ///
    /// The value is none of JSON's.
    pub fn dumps(&self, value: &Value) -> Result<String> {
        let mut out = String::new();
        self.write(value, &mut out, 1)?;
        Ok(out)
    }

    fn write(&self, value: &Value, out: &mut String, level: usize) -> Result<()> {
        if out.len() > MOST_BYTES {
            return fail(format!("a value takes more than {MOST_BYTES} bytes as JSON"));
        }
        match value {
            Value::List(sequence) | Value::Tuple(sequence) => {
                let items: Vec<(Option<String>, &Value)> = sequence.items.iter().map(|item| (None, item)).collect();
                self.write_all(&items, ['[', ']'], out, level)
            }
            Value::Dict(dict) => {
                let mut pairs: Vec<(&Value, &Value)> = dict.pairs().collect();
                if self.sorts_keys {
                    sort_by_key(&mut pairs)?;
                }
                let named = |(key, value)| Ok((Some(self.key(key)?), value));
                let items: Vec<(Option<String>, &Value)> = pairs.into_iter().map(named).collect::<Result<_>>()?;
                self.write_all(&items, ['{', '}'], out, level)
            }
            Value::Text(text) => {
                self.quote(&text.text, out);
                Ok(())
            }
            other => match scalar(other) {
                Some(text) => {
                    out.push_str(&text);
                    Ok(())
                }
                None => fail(format!(
                    "`tojson` is given a value of the type {}, which is none of JSON's",
                    other.type_name()
                )),
            },
        }
    }

    fn write_all(
        &self,
        items: &[(Option<String>, &Value)],
        [open, close]: [char; 2],
        out: &mut String,
        level: usize,
    ) -> Result<()> {
        out.push(open);
        for (ix, (key, value)) in items.iter().enumerate() {
            out.push_str(if ix > 0 { &self.between_items } else { "" });
            self.new_line(out, level);
            if let Some(key) = key {
                self.quote(key, out);
                out.push_str(&self.after_key);
            }
            self.write(value, out, level + 1)?;
        }
        if !items.is_empty() {
            self.new_line(out, level - 1);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, level: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    }

    fn key(&self, key: &Value) -> Result<String> {
        match key {
            Value::Text(text) => Ok(text.text.to_string()),
            other => scalar(other).map_or_else(
                || fail(format!("`tojson` is given a key of the type {}, which is none of JSON's", other.type_name())),
                Ok,
            ),
        }
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || self.is_ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").expect("a text takes all");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// The JSON of a value that is neither a text nor holds others.
fn scalar(value: &Value) -> Option<String> {
    Some(match value {
        Value::None => "null".to_string(),
        Value::Bool(is) => is.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Float(float) if float.is_nan() => "NaN".to_string(),
        Value::Float(float) if float.is_infinite() => if *float > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        Value::Float(float) => float_repr(*float),
        _ => return None,
    })
}

fn sort_by_key(pairs: &mut [(&Value, &Value)]) -> Result<()> {
    let mut wrong = None;
    pairs.sort_by(|a, b| {
        a.0.compare(b.0, "<")
            .unwrap_or_else(|fault| {
                wrong.get_or_insert(fault);
                None
            })
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    wrong.map_or(Ok(()), Err)
}
