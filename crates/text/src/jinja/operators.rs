//! Operators, lookups and loops over values, as Python has them.

use std::rc::Rc;

use super::fault::{Result, fail, undefined};
use super::methods;
use super::percent;
use super::run::Run;
use super::value::{Key, MOST_BYTES, Number, Range, Sequence, Text, Value, View};

/// An operator of two values. `and`, `or` and comparisons are none: they do not always look at both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

impl Operator {
    fn symbol(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::FloorDivide => "//",
            Operator::Modulo => "%",
            Operator::Power => "**",
        }
    }

    pub fn apply(self, run: &Run<'_>, a: &Value, b: &Value) -> Result<Value> {
        match (self, a, b) {
            // A text takes whatever `%` gives it, also what is undefined.
            (Operator::Modulo, Value::Text(format), _) => return percent::format(run, format, b),
            (_, Value::Undefined(why), _) | (_, _, Value::Undefined(why)) => return undefined(why),
            (Operator::Add, Value::Text(a), Value::Text(b)) => return join_texts(run, a, b),
            (Operator::Add, Value::List(a), Value::List(b)) => return Value::list(both(run, a, b)?),
            (Operator::Add, Value::Tuple(a), Value::Tuple(b)) => return Value::tuple(both(run, a, b)?),
            (Operator::Multiply, ..) => {
                for (of, times) in [(a, b), (b, a)] {
                    if let (Value::Text(_) | Value::List(_) | Value::Tuple(_), Some(times)) = (of, times.as_int()) {
                        return repeated(run, of, times);
                    }
                }
            }
            _ => {}
        }
        match (a.as_number(), b.as_number()) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => self.apply_to_ints(a, b),
            (Some(a), Some(b)) => Ok(Value::Float(self.apply_to_floats(a.as_float(), b.as_float())?)),
            _ => fail(format!("`{}` does not take {} and {}", self.symbol(), a.type_name(), b.type_name())),
        }
    }

    fn apply_to_ints(self, a: i128, b: i128) -> Result<Value> {
        let divides = matches!(self, Operator::Divide | Operator::FloorDivide | Operator::Modulo);
        if divides && b == 0 {
            return fail(format!("`{}` divides {a} by zero", self.symbol()));
        }
        let result = match self {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
            Operator::FloorDivide => a.checked_div_euclid(b).and_then(|rounded| {
                // Euclid's division rounds up where the divisor is negative.
                let is_short = b < 0 && a.checked_rem_euclid(b)? != 0;
                rounded.checked_sub(i128::from(is_short))
            }),
            Operator::Modulo => {
                a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            }
            Operator::Power if b < 0 => return Ok(Value::Float(self.apply_to_floats(a as f64, b as f64)?)),
            Operator::Power => match a {
                0 | 1 => Some(if b == 0 { 1 } else { a }),
                -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
                _ => u32::try_from(b).ok().and_then(|exponent| a.checked_pow(exponent)),
            },
        };
        let too_large = || fail(format!("`{}` gives an integer of more than 127 bits", self.symbol()));
        result.map_or_else(too_large, |int| Ok(Value::Int(int)))
    }

    fn apply_to_floats(self, a: f64, b: f64) -> Result<f64> {
        let divides = matches!(self, Operator::Divide | Operator::FloorDivide | Operator::Modulo);
        if b == 0.0 && divides || self == Operator::Power && a == 0.0 && b < 0.0 {
            return fail(format!("`{}` divides {a} by zero", self.symbol()));
        }
        Ok(match self {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            Operator::FloorDivide => floor_division(a, b).0,
            Operator::Modulo => floor_division(a, b).1,
            Operator::Power => {
                if a < 0.0 && b.fract() != 0.0 && a.is_finite() && b.is_finite() {
                    return fail("`**` gives a complex number");
                }
                let power = a.powf(b);
                if power.is_infinite() && a.is_finite() && b.is_finite() {
                    return fail("`**` gives a number too large for a float");
                }
                power
            }
        })
    }
}

/// The rounded quotient and its rest, which has the divisor's sign.
fn floor_division(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(a / b), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

/// The length of a result that is `times` as long as `length`.
///
/// # Errors
///
/// It is too long for any memory that a template may take.
pub fn product(length: usize, times: i128) -> Result<usize> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match length.checked_mul(times) {
        Some(product) if product <= MOST_BYTES => Ok(product),
        _ => fail(format!("a value grows too large: {MOST_BYTES} bytes are the most")),
    }
}

fn repeated(run: &Run<'_>, of: &Value, times: i128) -> Result<Value> {
    let count = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match of {
        Value::Text(text) => {
            run.text_length(text.text.len(), times)?;
            let count = if text.text.is_empty() { 0 } else { count };
            Ok(Value::Text(Text { text: text.text.repeat(count).into(), is_safe: text.is_safe }))
        }
        Value::List(sequence) => Value::list(repeated_items(run, sequence, times)?),
        Value::Tuple(sequence) => Value::tuple(repeated_items(run, sequence, times)?),
        _ => fail("only texts and sequences are repeated"),
    }
}

fn repeated_items(run: &Run<'_>, of: &Sequence, times: i128) -> Result<Vec<Value>> {
    let length = run.list_length(of.items.len(), times)?;
    Ok(of.items.iter().cycle().take(length).cloned().collect())
}

fn both(run: &Run<'_>, a: &Sequence, b: &Sequence) -> Result<Vec<Value>> {
    run.list_length(a.items.len() + b.items.len(), 1)?;
    Ok(a.items.iter().chain(&b.items).cloned().collect())
}

fn join_texts(run: &Run<'_>, a: &Text, b: &Text) -> Result<Value> {
    run.text_length(a.text.len() + b.text.len(), 1)?;
    let is_safe = a.is_safe || b.is_safe;
    let part = |text: &Text| if is_safe && !text.is_safe { escaped(&text.text) } else { text.text.to_string() };
    Ok(Value::Text(Text { text: (part(a) + &part(b)).into(), is_safe }))
}

/// Escaped for HTML, as `|escape` does.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

impl Comparison {
    pub fn apply(self, a: &Value, b: &Value) -> Result<bool> {
        use std::cmp::Ordering::{Greater, Less};
        Ok(match self {
            Comparison::Equal => a.equals(b),
            Comparison::Unequal => !a.equals(b),
            Comparison::Less => a.compare(b, "<")? == Some(Less),
            Comparison::LessOrEqual => a.compare(b, "<=")?.is_some_and(|order| order != Greater),
            Comparison::Greater => a.compare(b, ">")? == Some(Greater),
            Comparison::GreaterOrEqual => a.compare(b, ">=")?.is_some_and(|order| order != Less),
            Comparison::In => contains(b, a)?,
            Comparison::NotIn => !contains(b, a)?,
        })
    }
}

pub fn negative(value: &Value) -> Result<Value> {
    match value.as_number() {
        Some(Number::Int(int)) => int
            .checked_neg()
            .map_or_else(|| fail("`-` gives an integer of more than 127 bits"), |int| Ok(Value::Int(int))),
        Some(Number::Float(float)) => Ok(Value::Float(-float)),
        None => match value {
            Value::Undefined(why) => undefined(why),
            other => fail(format!("`-` does not take {}", other.type_name())),
        },
    }
}

/// `item in container`, for containers whose items are known already.
pub fn contains(container: &Value, item: &Value) -> Result<bool> {
    let among = |items: &[Value]| items.iter().any(|own| own.is_same(item) || own.equals(item));
    match container {
        Value::Text(text) => match item {
            Value::Text(part) => Ok(text.text.contains(&*part.text)),
            other => fail(format!("`in` looks for a {} in a text: it takes a text", other.type_name())),
        },
        Value::List(sequence) | Value::Tuple(sequence) => Ok(among(&sequence.items)),
        Value::Dict(dict) | Value::View(dict, View::Keys) => Ok(dict.get(item)?.is_some()),
        Value::View(dict, view) => Ok(among(&dict.view(*view)?)),
        Value::Range(range) => Ok(matches!(Key::of(item), Ok(Key::Int(int)) if range.contains(int))),
        Value::Undefined(_) => Ok(false),
        other => fail(format!("`in` looks into a value of the type {}, which holds nothing", other.type_name())),
    }
}

/// `value.name`: an attribute or method, or else the item of that name.
pub fn attribute(value: &Value, name: &str) -> Result<Value> {
    if let Value::Undefined(why) = value {
        return undefined(why);
    }
    if let Some(own) = methods::own(value, name) {
        return own;
    }
    if let Value::Dict(dict) = value
        && let Some(item) = dict.get_text(name)
    {
        return Ok(item.clone());
    }
    Ok(Value::missing(value, name))
}

/// `value[key]`: an item, or else the attribute or method of that name.
pub fn item(value: &Value, key: &Value) -> Result<Value> {
    if let Value::Undefined(why) = value {
        return undefined(why);
    }
    let found = match value {
        Value::Dict(dict) => dict.get(key).ok().flatten().cloned(),
        Value::Text(text) => {
            let at = |place: usize| {
                let one: String = text.text.chars().nth(place)?.into();
                Some(Value::Text(Text { text: one.into(), is_safe: text.is_safe }))
            };
            place(key, || text.text.chars().count()).and_then(at)
        }
        Value::List(sequence) | Value::Tuple(sequence) => {
            place(key, || sequence.items.len()).and_then(|place| sequence.items.get(place).cloned())
        }
        Value::Range(range) => place(key, || range.len() as usize)
            .filter(|place| (*place as i128) < range.len())
            .map(|place| Value::Int(range.at(place as i128))),
        _ => None,
    };
    match (found, key) {
        (Some(found), _) => Ok(found),
        (None, Value::Text(name)) => match methods::own(value, &name.text) {
            Some(own) => own,
            None => Ok(Value::missing(value, &*name.text)),
        },
        (None, other) => Ok(Value::missing(value, other.to_repr().unwrap_or_default())),
    }
}

/// Where an index points to, which may count from the end.
fn place(index: &Value, length: impl Fn() -> usize) -> Option<usize> {
    let index = index.as_int()?;
    let index = if index < 0 { index + length() as i128 } else { index };
    usize::try_from(index).ok()
}

/// `value[start:stop:step]`.
pub fn slice(run: &Run<'_>, value: &Value, [start, stop, step]: [&Value; 3]) -> Result<Value> {
    let length = match value {
        Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) => value.length().unwrap_or(0) as i128,
        Value::Undefined(why) => return undefined(why),
        other => return fail(format!("a slice is taken of a value of the type {}", other.type_name())),
    };
    let number = |bound: &Value, default: i128| match bound {
        Value::None => Ok(default),
        other => other.as_int().map_or_else(
            || fail(format!("a slice has the bound {}: it takes integers", other.to_repr().unwrap_or_default())),
            Ok,
        ),
    };
    let step = number(step, 1)?;
    if step == 0 {
        return fail("a slice has the step 0");
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |bound: &Value, default: i128| -> Result<i128> {
        if matches!(bound, Value::None) {
            return Ok(default);
        }
        let given = number(bound, default)?;
        Ok((if given < 0 { given.saturating_add(length) } else { given }).clamp(low, high))
    };
    let (start, stop) = match step > 0 {
        true => (bound(start, low)?, bound(stop, high)?),
        false => (bound(start, high)?, bound(stop, low)?),
    };
    let places = Range::new(start, stop, step)?;
    let chosen = |items: &[Value]| -> Result<Vec<Value>> {
        run.list_length(places.len() as usize, 1)?;
        Ok((0..places.len()).map(|ix| items[places.at(ix) as usize].clone()).collect())
    };
    match value {
        Value::Text(text) => {
            let chosen: String = match step {
                1 => text.text.chars().skip(start as usize).take(places.len() as usize).collect(),
                _ => {
                    let chars: Vec<char> = text.text.chars().collect();
                    (0..places.len()).map(|ix| chars[places.at(ix) as usize]).collect()
                }
            };
            Ok(Value::Text(Text { text: chosen.into(), is_safe: text.is_safe }))
        }
        Value::List(sequence) => Value::list(chosen(&sequence.items)?),
        Value::Tuple(sequence) => Value::tuple(chosen(&sequence.items)?),
        Value::Range(range) => Ok(Value::Range(Rc::new(range.sliced(&places)?))),
        _ => fail("only texts and sequences have slices"),
    }
}
