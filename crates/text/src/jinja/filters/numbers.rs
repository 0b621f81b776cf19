//! Filters of numbers.

use super::{Arguments, Run, int_or, is_given};
use crate::jinja::characters::ascii_digits;
use crate::jinja::fault::{Result, fail, undefined};
use crate::jinja::operators::Operator;
use crate::jinja::value::{Number, Value, int_of_float};

/// A number, or the error of Python's arithmetic.
fn number(value: &Value, what: &str) -> Result<Number> {
    match (value.as_number(), value) {
        (Some(number), _) => Ok(number),
        (None, Value::Undefined(why)) => undefined(why),
        _ => fail(format!("{what} takes a number, not a value of the type {}", value.type_name())),
    }
}

pub fn abs(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`abs`")?;
    match number(value, "`abs`")? {
        Number::Int(int) => int.checked_abs().map_or_else(|| too_long("abs"), |int| Ok(Value::Int(int))),
        Number::Float(float) => Ok(Value::Float(float.abs())),
    }
}

fn too_long<T>(filter: &str) -> Result<T> {
    fail(format!("`{filter}` gives an integer of more than 127 bits"))
}

/// The integer of a finite float, without its fraction.
fn whole(float: f64, filter: &str) -> Result<Value> {
    int_of_float(float).map_or_else(|| too_long(filter), |int| Ok(Value::Int(int)))
}

/// Python's `int(text, base)`.
fn parsed_int(text: &str, base: i128) -> Option<i128> {
    let text = crate::jinja::text_methods::trimmed(text, None, [true, true]);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.get(..2).unwrap_or_default().to_ascii_lowercase();
    let of_prefix = match &*lower {
        "0x" => Some(16),
        "0o" => Some(8),
        "0b" => Some(2),
        _ => None,
    };
    let (base, digits) = match (base, of_prefix) {
        (0, Some(own)) => (own, &digits[2..]),
        (base, Some(own)) if base == i128::from(own) => (own, &digits[2..]),
        (0, None) if digits.starts_with('0') && digits.contains(|c| !matches!(c, '0' | '_')) => return None,
        (0, None) => (10, digits),
        (base, _) => (u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?, digits),
    };
    let digits = if of_prefix.is_some() { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    // An underscore stands between digits alone.
    if digits.is_empty() || digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let digits = digits.replace('_', "");
    let int = if digits.starts_with(['+', '-']) { None } else { i128::from_str_radix(&digits, base).ok() }?;
    Some(if is_negative { -int } else { int })
}

/// Python's `float(text)`.
fn parsed_float(text: &str) -> Option<f64> {
    let text = crate::jinja::text_methods::trimmed(text, None, [true, true]);
    let chars: Vec<char> = text.chars().collect();
    let between_digits = |at: usize| {
        let is_digit = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(char::is_ascii_digit);
        is_digit(at.checked_sub(1)) && is_digit(Some(at + 1))
    };
    if chars.iter().enumerate().any(|(at, c)| *c == '_' && !between_digits(at)) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

pub fn int(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [default, base] = given.bound("`int`", ["default", "base"], 0)?;
    let default = default.unwrap_or(Value::Int(0));
    let cut = |float: f64| match float.is_finite() {
        true => whole(float, "int").map(Some),
        false => Ok(None),
    };
    match value {
        Value::Undefined(why) => undefined(why),
        Value::Text(text) => {
            let text = ascii_digits(&text.text);
            // Of a base that is none, Python goes on as of a text that is no integer.
            let base = base.map_or(Some(10), |base| base.as_int());
            if let Some(int) = base.and_then(|base| parsed_int(&text, base)) {
                return Ok(Value::Int(int));
            }
            let digits = text.trim().trim_start_matches(['+', '-']);
            if digits.len() > 38 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return too_long("int");
            }
            match parsed_float(&text) {
                Some(float) => Ok(cut(float)?.unwrap_or(default)),
                None => Ok(default),
            }
        }
        Value::Float(float) if float.is_infinite() => fail("`int` is given infinity"),
        other => match other.as_number() {
            Some(Number::Int(int)) => Ok(Value::Int(int)),
            Some(Number::Float(float)) => Ok(cut(float)?.unwrap_or(default)),
            None => Ok(default),
        },
    }
}

pub fn float(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [default] = given.bound("`float`", ["default"], 0)?;
    let found = match value {
        Value::Undefined(why) => return undefined(why),
        Value::Text(text) => parsed_float(&ascii_digits(&text.text)),
        other => other.as_number().map(Number::as_float),
    };
    Ok(found.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
}

pub fn round(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [precision, method] = given.bound("`round`", ["precision", "method"], 0)?;
    let precision = int_or(precision, 0, "`round`")?;
    let method = method.map_or(Ok("common".into()), |method| super::soft_text(&method))?;
    let own = number(value, "`round`")?;
    match &*method {
        "common" => match own {
            Number::Int(int) if precision >= 0 => Ok(Value::Int(int)),
            Number::Int(int) => {
                let digits = precision.checked_neg().and_then(|digits| u32::try_from(digits).ok());
                // Half of 10^39 is more than any integer here.
                let Some(unit) = digits.and_then(|digits| 10_i128.checked_pow(digits)) else {
                    return Ok(Value::Int(0));
                };
                let (below, rest) = (int.div_euclid(unit), int.rem_euclid(unit));
                let is_up = rest > unit - rest || rest == unit - rest && below % 2 != 0;
                match (below + i128::from(is_up)).checked_mul(unit) {
                    Some(int) => Ok(Value::Int(int)),
                    None => too_long("round"),
                }
            }
            Number::Float(float) => rounded(float, precision).map(Value::Float),
        },
        "ceil" | "floor" => {
            let scale = Operator::Power.apply(run, &Value::Int(10), &Value::Int(precision))?;
            let scaled = match Operator::Multiply.apply(run, value, &scale)? {
                Value::Float(float) if !float.is_finite() => return fail("`round` is given no finite number"),
                Value::Float(float) => {
                    let float = if &*method == "ceil" { float.ceil() } else { float.floor() };
                    whole(float, "round")?
                }
                int => int,
            };
            Operator::Divide.apply(run, &scaled, &scale)
        }
        _ => fail("`round` takes the methods common, ceil and floor"),
    }
}

/// Half to even, of the exact value.
fn rounded(float: f64, precision: i128) -> Result<f64> {
    if !float.is_finite() || precision > 330 {
        return Ok(float);
    }
    if precision >= 0 {
        let text = format!("{float:.*}", precision as usize);
        return Ok(text.parse().expect("a number was written"));
    }
    if precision < -310 {
        return Ok(0.0_f64.copysign(float));
    }
    let unit = 10_f64.powi(-precision as i32);
    let text = format!("{:.0}", float / unit);
    Ok(text.parse::<f64>().expect("a number was written") * unit)
}

pub fn filesizeformat(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [binary] = given.bound("`filesizeformat`", ["binary"], 0)?;
    let is_binary = is_given(binary.as_ref());
    let bytes = match float(run, value, Arguments::of(vec![Value::None]))? {
        Value::Float(bytes) => bytes,
        _ => return fail("`filesizeformat` takes a number"),
    };
    let (base, units) = match is_binary {
        true => (1024_f64, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000_f64, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok(Value::text("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::text(format!("{} Bytes", whole(bytes, "filesizeformat")?.to_text()?)));
    }
    let mut unit = base;
    for (ix, name) in units.iter().enumerate() {
        unit *= base;
        if bytes < unit || ix + 1 == units.len() {
            return Ok(Value::text(format!("{:.1} {name}", base * bytes / unit)));
        }
    }
    fail("`filesizeformat` has no unit")
}
