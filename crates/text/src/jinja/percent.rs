//! `text % values`: printf's directives, as Python has them.

use super::fault::{Result, fail, undefined};
use super::format::{ascii, float_digits};
use super::operators::escaped;
use super::run::Run;
use super::value::{Number, Text, Value, int_of_float};

/// `format % values`
pub fn format(run: &Run<'_>, format: &Text, values: &Value) -> Result<Value> {
    let positional = match values {
        Value::Tuple(tuple) => tuple.items.clone(),
        other => vec![other.clone()],
    };
    let mut directives =
        Directives { run, values, positional: positional.into_iter(), is_named: false, is_safe: format.is_safe };
    let mut out = String::new();
    let mut rest = &*format.text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = directives.directive(&rest[at + 1..], &mut out)?;
        run.text_length(out.len(), 1)?;
    }
    out.push_str(rest);
    // What can be looked up by a key may have more than the format names.
    let is_mapping = matches!(values, Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_));
    if !is_mapping && !directives.is_named && directives.positional.next().is_some() {
        return fail("`%` is given more values than the text has directives");
    }
    Ok(Value::Text(Text { text: out.into(), is_safe: format.is_safe }))
}

struct Directives<'v> {
    run: &'v Run<'v>,
    values: &'v Value,
    positional: std::vec::IntoIter<Value>,
    /// A directive has named its value.
    is_named: bool,
    is_safe: bool,
}

#[derive(Default)]
struct Flags {
    is_alternate: bool,
    has_zeros: bool,
    is_left: bool,
    sign: &'static str,
    width: usize,
    precision: Option<usize>,
}

impl Directives<'_> {
    fn next(&mut self) -> Result<Value> {
        self.positional.next().map_or_else(|| fail("`%` is given fewer values than the text has directives"), Ok)
    }

    /// Writes one directive, which `text` begins with; what is behind it.
    fn directive<'t>(&mut self, text: &'t str, out: &mut String) -> Result<&'t str> {
        if let Some(rest) = text.strip_prefix('%') {
            out.push('%');
            return Ok(rest);
        }
        let mut rest = text;
        let mut named = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let mut open = 1;
            let end = inner.char_indices().find(|(_, c)| {
                open += i32::from(*c == '(') - i32::from(*c == ')');
                open == 0
            });
            let Some((end, _)) = end else { return fail("`%(` has no `)`") };
            let Value::Dict(dict) = self.values else {
                return fail(format!(
                    "`%({})` looks into a {}: it takes a dict",
                    &inner[..end],
                    self.values.type_name()
                ));
            };
            let Some(value) = dict.get_text(&inner[..end]) else {
                return fail(format!("`%({})` names a key that there is not", &inner[..end]));
            };
            named = Some(value.clone());
            self.is_named = true;
            rest = &inner[end + 1..];
        }
        let mut flags = Flags::default();
        loop {
            match rest.as_bytes().first() {
                Some(b'#') => flags.is_alternate = true,
                Some(b'0') => flags.has_zeros = true,
                Some(b'-') => flags.is_left = true,
                Some(b'+') => flags.sign = "+",
                Some(b' ') if flags.sign.is_empty() => flags.sign = " ",
                Some(b' ') => {}
                _ => break,
            }
            rest = &rest[1..];
        }
        let (width, after) = self.number(rest)?;
        rest = after;
        if let Some(width) = width {
            flags.is_left |= width < 0;
            flags.width = self.run.text_length(1, width.saturating_abs())?;
        }
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = self.number(after)?;
            flags.precision = Some(self.run.text_length(1, precision.unwrap_or(0))?);
            rest = after;
        }
        rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let Some(kind) = rest.chars().next() else { return fail("a text ends within a directive of `%`") };
        let value = match named {
            Some(value) => value,
            None => self.next()?,
        };
        self.write(kind, &value, &flags, out)?;
        Ok(&rest[kind.len_utf8()..])
    }

    /// A number, or `*` for one among the values.
    fn number<'t>(&mut self, text: &'t str) -> Result<(Option<i128>, &'t str)> {
        if let Some(rest) = text.strip_prefix('*') {
            return match self.next()?.as_int() {
                Some(int) => Ok((Some(int), rest)),
                None => fail("`*` in a directive of `%` takes an integer"),
            };
        }
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        Ok((if end == 0 { None } else { Some(text[..end].parse().unwrap_or(i128::MAX)) }, &text[end..]))
    }

    fn write(&self, kind: char, value: &Value, flags: &Flags, out: &mut String) -> Result<()> {
        let cut = |text: String| match flags.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        let is_safe = matches!(value, Value::Text(text) if text.is_safe);
        let shown = |text: String| if self.is_safe && !is_safe { escaped(&text) } else { text };
        let (head, digits) = match kind {
            's' => (String::new(), cut(shown(value.to_text()?))),
            'r' => (String::new(), cut(shown(value.to_repr()?))),
            'a' => (String::new(), cut(shown(ascii(&value.to_repr()?)))),
            'c' => (String::new(), character(value)?),
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => integer(kind, value, flags)?,
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let float = match (value.as_number(), value) {
                    (Some(number), _) => number.as_float(),
                    (None, Value::Undefined(why)) => return undefined(why),
                    _ => return fail(format!("`%{kind}` takes a number, not a {}", value.type_name())),
                };
                let sign = if float.is_sign_negative() && !float.is_nan() { "-" } else { flags.sign };
                let digits = float_digits(float.abs(), Some(kind), flags.precision, flags.is_alternate);
                (sign.to_string(), digits)
            }
            other => return fail(format!("`%{other}` is no directive")),
        };
        let missing = flags.width.saturating_sub(head.chars().count() + digits.chars().count());
        let is_number = !matches!(kind, 's' | 'r' | 'a' | 'c');
        if flags.is_left {
            out.extend([&*head, &*digits, &*" ".repeat(missing)]);
        } else if flags.has_zeros && is_number {
            out.extend([&*head, &*"0".repeat(missing), &*digits]);
        } else {
            out.extend([&*" ".repeat(missing), &*head, &*digits]);
        }
        Ok(())
    }
}

fn character(value: &Value) -> Result<String> {
    match value {
        Value::Text(text) if text.text.chars().count() == 1 => Ok(text.text.to_string()),
        other => match other.as_int().and_then(|code| char::from_u32(u32::try_from(code).ok()?)) {
            Some(c) => Ok(c.to_string()),
            None => fail("`%c` takes a character or its code"),
        },
    }
}

/// The sign and prefix, and the digits.
fn integer(kind: char, value: &Value, flags: &Flags) -> Result<(String, String)> {
    let is_decimal = matches!(kind, 'd' | 'i' | 'u');
    let int = match (value.as_number(), value) {
        (Some(Number::Int(int)), _) => int,
        (Some(Number::Float(float)), _) if is_decimal && float.is_finite() => match int_of_float(float) {
            Some(int) => int,
            None => return fail(format!("`%{kind}` writes an integer of more than 127 bits")),
        },
        (_, Value::Undefined(why)) => return undefined(why),
        _ => return fail(format!("`%{kind}` takes an integer, not a {}", value.type_name())),
    };
    let magnitude = int.unsigned_abs();
    let (prefix, digits) = match kind {
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        'o' => ("0o", format!("{magnitude:o}")),
        _ => ("", magnitude.to_string()),
    };
    let sign = if int < 0 { "-" } else { flags.sign };
    let zeros = "0".repeat(flags.precision.unwrap_or(0).saturating_sub(digits.len()));
    Ok((format!("{sign}{}", if flags.is_alternate { prefix } else { "" }), zeros + &digits))
}
