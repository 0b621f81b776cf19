//! `str.format` and the format specifications of numbers and texts.

use super::call::Arguments;
use super::fault::{Result, fail};
use super::operators::{self, escaped};
use super::print::float_repr;
use super::run::Run;
use super::value::{Number, Text, Value};

/// `text.format(…)`
pub fn format(run: &Run<'_>, format: &Text, arguments: &Arguments) -> Result<String> {
    let mut fields = Fields { run, format, arguments, automatic: Some(0) };
    fields.filled(&format.text, 2)
}

struct Fields<'a> {
    run: &'a Run<'a>,
    format: &'a Text,
    arguments: &'a Arguments,
    /// The number of the next `{}`; None where fields are numbered by hand.
    automatic: Option<usize>,
}

impl Fields<'_> {
    /// `levels`: how deep replacement fields may be within specifications.
    fn filled(&mut self, format: &str, levels: usize) -> Result<String> {
        if levels == 0 {
            return fail("`format` has fields within fields within fields");
        }
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let mark = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(mark) {
                out.push_str(mark);
                rest = after;
                continue;
            }
            if mark == "}" {
                return fail("`format` has a `}` without `{`");
            }
            let end = field_end(rest)?;
            let (field, after) = (&rest[..end], &rest[end + 1..]);
            self.field(field, levels, &mut out)?;
            self.run.text_length(out.len(), 1)?;
            rest = after;
        }
        Ok(out + rest)
    }

    /// `name!conversion:specification`
    fn field(&mut self, field: &str, levels: usize, out: &mut String) -> Result<()> {
        let bracket_end = field.rfind(']').unwrap_or(0);
        let name_end = match field.find(['!', ':']) {
            Some(at) if at > bracket_end || !field[..at].contains('[') => at,
            Some(_) => field[bracket_end..].find(['!', ':']).map_or(field.len(), |at| at + bracket_end),
            None => field.len(),
        };
        let (name, rest) = field.split_at(name_end);
        let (conversion, specification) = match rest.strip_prefix('!') {
            Some(rest) => {
                let (conversion, specification) = rest.split_once(':').unwrap_or((rest, ""));
                (Some(conversion), specification)
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let mut value = self.value(name)?;
        match conversion {
            None => {}
            Some("s") => value = Value::text(value.to_text()?),
            Some("r") => value = Value::text(value.to_repr()?),
            Some("a") => value = Value::text(ascii(&value.to_repr()?)),
            Some(other) => return fail(format!("`format` has the conversion `!{other}`: there are s, r and a")),
        }
        let specification =
            self.filled(specification, levels - 1 + usize::from(!specification.contains(['{', '}'])))?;
        let text = formatted(self.run, &value, &specification)?;
        let is_escaped = self.format.is_safe && !matches!(&value, Value::Text(text) if text.is_safe);
        out.push_str(&if is_escaped { escaped(&text) } else { text });
        Ok(())
    }

    fn value(&mut self, name: &str) -> Result<Value> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(first_end);
        let numbered = match first {
            "" => {
                let Some(number) = self.automatic else {
                    return fail("`format` has fields with and without numbers");
                };
                self.automatic = Some(number + 1);
                Some(number)
            }
            first if first.bytes().all(|byte| byte.is_ascii_digit()) => {
                if self.automatic.is_some_and(|number| number > 0) {
                    return fail("`format` has fields with and without numbers");
                }
                self.automatic = None;
                Some(first.parse().unwrap_or(usize::MAX))
            }
            _ => None,
        };
        let found = match numbered {
            Some(number) => self.arguments.positional.get(number).cloned(),
            None => self.arguments.named.iter().find(|(own, _)| **own == *first).map(|(_, value)| value.clone()),
        };
        let Some(mut value) = found else {
            return fail(format!("`format` has a field `{name}` and is given no such argument"));
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = operators::attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else if let Some((key, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                let key = key.parse().map_or_else(|_| Value::text(key), Value::Int);
                value = operators::item(&value, &key)?;
                rest = after;
            } else {
                return fail(format!("`format` has a field `{name}`, which is none"));
            }
        }
        Ok(value)
    }
}

/// Where a field ends, which may have others within.
fn field_end(text: &str) -> Result<usize> {
    let mut open = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => return Ok(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    fail("`format` has a `{` without `}`")
}

/// `ascii` of a text that `repr` gave.
pub fn ascii(repr: &str) -> String {
    let mut out = String::new();
    for c in repr.chars() {
        match c as u32 {
            ..0x80 => out.push(c),
            code @ ..0x100 => out.push_str(&format!("\\x{code:02x}")),
            code @ ..0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}

/// `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`
struct Specification {
    fill: char,
    align: Option<char>,
    /// The flag `0`, where no fill is given: numbers without an alignment are filled behind their sign.
    has_zeros: bool,
    sign: Option<char>,
    /// `z`: a negative number that is rounded to zero has no sign.
    drops_sign_of_zero: bool,
    is_alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Specification {
    fn of(run: &Run<'_>, text: &str) -> Result<Specification> {
        let wrong = || fail(format!("`format` has the specification `{text}`, which is none"));
        let mut chars = text.chars().peekable();
        let mut own = Specification {
            fill: ' ',
            align: None,
            has_zeros: false,
            sign: None,
            drops_sign_of_zero: false,
            is_alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        };
        let is_align = |c: &char| matches!(c, '<' | '>' | '^' | '=');
        let mut ahead = text.chars();
        let (first, second) = (ahead.next(), ahead.next());
        let has_fill = second.as_ref().is_some_and(is_align);
        if has_fill {
            own.fill = first.unwrap_or(' ');
            chars.next();
            own.align = chars.next();
        } else if first.as_ref().is_some_and(is_align) {
            own.align = chars.next();
        }
        own.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        own.drops_sign_of_zero = chars.next_if_eq(&'z').is_some();
        own.is_alternate = chars.next_if_eq(&'#').is_some();
        // Behind a fill, it is a digit of the width.
        if !has_fill && chars.next_if_eq(&'0').is_some() {
            (own.fill, own.has_zeros) = ('0', true);
        }
        let number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Option<usize> {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
        };
        own.width = number(&mut chars).unwrap_or(0);
        own.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            own.precision = number(&mut chars);
            if own.precision.is_none() {
                return wrong();
            }
        }
        own.kind = chars.next();
        run.text_length(own.width.max(own.precision.unwrap_or(0)), 1)?;
        run.text_length(own.fill.len_utf8(), own.width as i128)?;
        if chars.next().is_some() { wrong() } else { Ok(own) }
    }

    /// Fills up to the width, with `align` if none is given. `head`: the length of the sign and prefix, which stay in
    /// front of zeros.
    fn padded(&self, text: &str, head: usize, align: char) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(align) {
            '<' => text.to_string() + &fill(missing),
            '^' => fill(missing / 2) + text + &fill(missing - missing / 2),
            '=' => text[..head].to_string() + &fill(missing) + &text[head..],
            _ => fill(missing) + text,
        }
    }
}

/// `format(value, specification)`
pub fn formatted(run: &Run<'_>, value: &Value, specification: &str) -> Result<String> {
    if specification.is_empty() {
        return value.to_text();
    }
    match (value, value.as_number()) {
        (Value::Text(text), _) => {
            let own = Specification::of(run, specification)?;
            if !matches!(own.kind, None | Some('s'))
                || own.align == Some('=')
                || own.sign.is_some()
                || own.is_alternate
                || own.drops_sign_of_zero
                || own.grouping.is_some()
            {
                return fail(format!("`format` has the specification `{specification}`, which is none of a text's"));
            }
            let cut: String = text.text.chars().take(own.precision.unwrap_or(usize::MAX)).collect();
            Ok(own.padded(&cut, 0, '<'))
        }
        (_, Some(number)) => formatted_number(run, number, value, specification),
        _ => fail(format!(
            "`format` has the specification `{specification}` for a value of the type {}",
            value.type_name()
        )),
    }
}

fn formatted_number(run: &Run<'_>, number: Number, value: &Value, specification: &str) -> Result<String> {
    let own = Specification::of(run, specification)?;
    let wrong = || fail(format!("`format` has the specification `{specification}`, which is none of this number's"));
    let align = if own.has_zeros { '=' } else { '>' };
    let groups = match (own.grouping, own.kind) {
        (None, _) => true,
        (Some(','), Some('b' | 'o' | 'x' | 'X')) | (Some(_), Some('c' | 'n')) => false,
        _ => true,
    };
    if !groups {
        return wrong();
    }
    let (is_negative, digits, prefix) = match (number, own.kind) {
        (Number::Int(int), None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X')) => {
            if own.precision.is_some() || own.drops_sign_of_zero {
                return wrong();
            }
            let magnitude = int.unsigned_abs();
            let (digits, prefix) = match own.kind {
                Some('b') => (format!("{magnitude:b}"), "0b"),
                Some('o') => (format!("{magnitude:o}"), "0o"),
                Some('x') => (format!("{magnitude:x}"), "0x"),
                Some('X') => (format!("{magnitude:X}"), "0X"),
                _ => (magnitude.to_string(), ""),
            };
            (int < 0, digits, if own.is_alternate { prefix } else { "" })
        }
        (Number::Int(code), Some('c')) => {
            let c = u32::try_from(code).ok().and_then(char::from_u32);
            let is_plain = own.sign.is_none() && !own.drops_sign_of_zero && !own.is_alternate;
            return match c.filter(|_| is_plain && own.precision.is_none()) {
                Some(c) => Ok(own.padded(&c.to_string(), 0, align)),
                None => wrong(),
            };
        }
        (_, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) => {
            if matches!(value, Value::Bool(_)) && own.kind.is_none() {
                return wrong();
            }
            let float = number.as_float();
            let digits = float_digits(float.abs(), own.kind, own.precision, own.is_alternate);
            let mantissa = digits.split(['e', 'E']).next().unwrap_or_default();
            let is_zero = !mantissa.contains(|c: char| !matches!(c, '0' | '.' | '%'));
            let is_negative = float.is_sign_negative() && !float.is_nan() && !(own.drops_sign_of_zero && is_zero);
            (is_negative, digits, "")
        }
        _ => return wrong(),
    };
    let sign = match (is_negative, own.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let head = sign.len() + prefix.len();
    let digits = match own.grouping {
        Some(mark) => {
            let size = if matches!(own.kind, Some('b' | 'o' | 'x' | 'X')) { 4 } else { 3 };
            // Zeros in front are grouped, too.
            let is_filled = own.fill == '0' && own.align.unwrap_or(align) == '=';
            let zeros = if is_filled { own.width.saturating_sub(head) } else { 0 };
            let whole_end = match number {
                Number::Int(_) if !matches!(own.kind, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) => digits.len(),
                _ => digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()),
            };
            match digits.split_at(whole_end) {
                ("", _) => digits,
                parts => grouped(parts, mark, size, zeros),
            }
        }
        None => digits,
    };
    Ok(own.padded(&format!("{sign}{prefix}{digits}"), head, align))
}

/// Digits with a mark between each `size` of the whole number, filled with zeros up to `width`.
fn grouped((whole, rest): (&str, &str), mark: char, size: usize, width: usize) -> String {
    let mut out = String::new();
    let mut count = 0;
    let mut own = whole.chars().rev();
    loop {
        let next = own.next();
        if next.is_none() && out.len() + rest.len() >= width {
            break;
        }
        if count > 0 && count % size == 0 {
            out.push(mark);
        }
        out.push(next.unwrap_or('0'));
        count += 1;
    }
    out.chars().rev().collect::<String>() + rest
}

/// The digits of a float that is not negative.
pub fn float_digits(float: f64, kind: Option<char>, precision: Option<usize>, is_alternate: bool) -> String {
    if !float.is_finite() {
        let text = if float.is_nan() { "nan" } else { "inf" };
        let text = if matches!(kind, Some('E' | 'F' | 'G')) { text.to_uppercase() } else { text.to_string() };
        return if kind == Some('%') { text + "%" } else { text };
    }
    match kind {
        Some('f' | 'F') => fixed(float, precision.unwrap_or(6), is_alternate),
        Some('%') => fixed(float * 100.0, precision.unwrap_or(6), is_alternate) + "%",
        Some('e') => exponential(float, precision.unwrap_or(6), is_alternate),
        Some('E') => exponential(float, precision.unwrap_or(6), is_alternate).to_uppercase(),
        Some('G') => general(float, precision.unwrap_or(6), is_alternate, 0).to_uppercase(),
        Some(_) => general(float, precision.unwrap_or(6), is_alternate, 0),
        None => match precision {
            None => float_repr(float),
            Some(precision) => general(float, precision, is_alternate, 1),
        },
    }
}

/// A precision that Rust writes, and the zeros behind it: no float has more than 1,074 digits behind the point.
fn written(precision: usize) -> (usize, String) {
    let own = precision.min(1100);
    (own, "0".repeat(precision - own))
}

fn fixed(float: f64, precision: usize, is_alternate: bool) -> String {
    let (own, zeros) = written(precision);
    let text = format!("{float:.own$}") + &zeros;
    if is_alternate && precision == 0 { text + "." } else { text }
}

fn exponential(float: f64, precision: usize, is_alternate: bool) -> String {
    let (own, zeros) = written(precision);
    let text = format!("{float:.own$e}");
    let (digits, exponent) = text.split_once('e').expect("`e` asks for an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    let point = if is_alternate && precision == 0 { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{zeros}{point}e{sign}{:02}", exponent.abs())
}

/// `g`. `decimals`: those that stay behind the point if it is written without an exponent.
fn general(float: f64, precision: usize, is_alternate: bool, decimals: usize) -> String {
    let precision = precision.max(1);
    let scientific = exponential(float, precision - 1, is_alternate);
    let (digits, exponent) = scientific.split_once('e').expect("it has an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    let trimmed = |text: &str| match is_alternate || !text.contains('.') {
        true => text.to_string(),
        false => text.trim_end_matches('0').trim_end_matches('.').to_string(),
    };
    // Without a kind, one digit less has room before the exponent begins.
    if (-4..precision as i32 - decimals as i32).contains(&exponent) {
        let text = trimmed(&fixed(float, (precision as i32 - 1 - exponent).max(0) as usize, is_alternate));
        return if decimals > 0 && !text.contains('.') { text + ".0" } else { text };
    }
    format!("{}e{}", trimmed(digits), &scientific[scientific.find('e').expect("it has an exponent") + 1..])
}
