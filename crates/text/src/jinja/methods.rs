//! Attributes and methods of values, as Python has them: what `value.name` finds before the items of a dict.

use std::rc::Rc;

use super::call::Arguments;
use super::fault::{Result, fail, undefined};
use super::run::Run;
use super::text_methods::{self, OF_TEXT};
use super::value::{Dict, Value, View};

/// A method, by its place in the table of its values' type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Text(usize),
    Sequence(usize),
    Dict(usize),
    Number(usize),
    Loop(usize),
    Cycler(usize),
}

type OfValue = fn(&mut Run<'_>, &Value, Arguments) -> Result<Value>;

const OF_SEQUENCE: [(&str, OfValue); 3] = [
    ("copy", |_, of, given| plain(given, of.clone())),
    ("count", |run, of, given| {
        let [item] = positional(given, "count", 1)?;
        run.read_to_find(of, &item)?;
        let count = run.items(of)?.iter().filter(|own| own.is_same(&item) || own.equals(&item)).count();
        Ok(Value::Int(count as i128))
    }),
    ("index", |run, of, given| {
        let [item, start, end] = optional(given, "index", 1)?;
        let item = item.expect("it is required");
        run.read_to_find(of, &item)?;
        let items = run.items(of)?;
        let (start, end) = bounds(start.as_ref(), end.as_ref(), items.len())?;
        let places = start..end.max(start).min(items.len());
        let place = places.into_iter().find(|place| items[*place].is_same(&item) || items[*place].equals(&item));
        match place {
            Some(place) => Ok(Value::Int(place as i128)),
            None => fail("`index` looks for a value that is not there"),
        }
    }),
];

const OF_DICT: [(&str, OfValue); 6] = [
    ("get", |_, of, given| {
        let [key, default] = optional(given, "get", 1)?;
        let found = dict(of).get(&key.expect("it is required"))?.cloned();
        Ok(found.or(default).unwrap_or(Value::None))
    }),
    ("items", |_, of, given| plain(given, Value::View(dict(of).clone(), View::Items))),
    ("keys", |_, of, given| plain(given, Value::View(dict(of).clone(), View::Keys))),
    ("values", |_, of, given| plain(given, Value::View(dict(of).clone(), View::Values))),
    ("copy", |_, of, given| plain(given, of.clone())),
    ("fromkeys", |run, _, given| {
        let [keys, value] = optional(given, "fromkeys", 1)?;
        let value = value.unwrap_or(Value::None);
        let keys = run.items(&keys.expect("it is required"))?;
        Ok(Value::Dict(Rc::new(Dict::of(keys.into_iter().map(|key| (key, value.clone())))?)))
    }),
];

const OF_NUMBER: [(&str, OfValue); 3] = [
    ("bit_length", |_, of, given| match of.as_int() {
        Some(int) => plain(given, Value::Int((128 - int.unsigned_abs().leading_zeros()).into())),
        None => fail("`bit_length` is a method of integers"),
    }),
    ("conjugate", |_, of, given| plain(given, of.clone())),
    ("is_integer", |_, of, given| match of {
        Value::Float(float) => plain(given, Value::Bool(float.is_finite() && float.fract() == 0.0)),
        _ => plain(given, Value::Bool(true)),
    }),
];

const OF_LOOP: [(&str, OfValue); 2] = [
    ("cycle", |_, of, given| {
        let Value::Loop(state) = of else { return fail("`cycle` is a method of `loop`") };
        match given.positional.len() {
            0 => fail("`loop.cycle` takes at least one value"),
            count => Ok(given.positional[state.index0() as usize % count].clone()),
        }
    }),
    ("changed", |_, of, given| {
        let Value::Loop(state) = of else { return fail("`changed` is a method of `loop`") };
        let values = Value::tuple(given.positional)?;
        let is_changed = state.last_changed.borrow().as_ref().is_none_or(|last| !last.equals(&values));
        if is_changed {
            state.last_changed.replace(Some(values));
        }
        Ok(Value::Bool(is_changed))
    }),
];

const OF_CYCLER: [(&str, OfValue); 2] = [
    ("next", |_, of, given| {
        let Value::Cycler(cycler) = of else { return fail("`next` is a method of a cycler") };
        let place = cycler.place.replace((cycler.place.get() + 1) % cycler.items.len());
        plain(given, cycler.items[place].clone())
    }),
    ("reset", |_, of, given| {
        let Value::Cycler(cycler) = of else { return fail("`reset` is a method of a cycler") };
        cycler.place.set(0);
        plain(given, Value::None)
    }),
];

/// Methods of Python's that change a list or dict, which jinja2's sandbox refuses.
const CHANGES_LIST: [&str; 8] = ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The attribute or method of this name.
pub fn own(value: &Value, name: &str) -> Option<Result<Value>> {
    fn place<T>(table: &[(&str, T)], name: &str) -> Option<usize> {
        table.iter().position(|(own, _)| *own == name)
    }
    let unsafe_one = || Some(Ok(Value::unnamed(format!("`{name}` of a {} is not available here", value.type_name()))));
    if name.starts_with("__") && name.ends_with("__") && !matches!(value, Value::Namespace(_)) {
        return unsafe_one();
    }
    let method = |method: Method| Some(Ok(Value::Method(Rc::new((value.clone(), method)))));
    match value {
        Value::Text(_) => place(&OF_TEXT, name).map(Method::Text).and_then(method),
        Value::List(_) if CHANGES_LIST.contains(&name) => unsafe_one(),
        Value::Dict(_) if CHANGES_DICT.contains(&name) => unsafe_one(),
        Value::Tuple(tuple) if tuple.is_group && name == "grouper" => Some(Ok(tuple.items[0].clone())),
        Value::Tuple(tuple) if tuple.is_group && name == "list" => Some(Ok(tuple.items[1].clone())),
        Value::List(_) => place(&OF_SEQUENCE, name).map(Method::Sequence).and_then(method),
        Value::Tuple(_) | Value::Range(_) if name != "copy" => match (value, name) {
            (Value::Range(range), "start") => Some(Ok(Value::Int(range.bounds()[0]))),
            (Value::Range(range), "stop") => Some(Ok(Value::Int(range.bounds()[1]))),
            (Value::Range(range), "step") => Some(Ok(Value::Int(range.bounds()[2]))),
            _ => place(&OF_SEQUENCE, name).map(Method::Sequence).and_then(method),
        },
        Value::Dict(_) => place(&OF_DICT, name).map(Method::Dict).and_then(method),
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => match (name, value.as_int()) {
            ("real", Some(int)) | ("numerator", Some(int)) => Some(Ok(Value::Int(int))),
            ("imag", Some(_)) => Some(Ok(Value::Int(0))),
            ("denominator", Some(_)) => Some(Ok(Value::Int(1))),
            ("real", None) => Some(Ok(value.clone())),
            ("imag", None) => Some(Ok(Value::Float(0.0))),
            ("bit_length", None) => None,
            // Python's integers have it from 3.12 on.
            _ => place(&OF_NUMBER, name).map(Method::Number).and_then(method),
        },
        Value::Namespace(namespace) => namespace.attributes.borrow().get_text(name).cloned().map(Ok),
        Value::Loop(state) => {
            let index0 = state.index0();
            let length = state.length() as i128;
            let item = |place: i128, without: &str| {
                let item = usize::try_from(place).ok().and_then(|place| state.items.get(place).cloned());
                item.unwrap_or_else(|| Value::unnamed(without))
            };
            Some(Ok(match name {
                "index" => Value::Int(index0 + 1),
                "index0" => Value::Int(index0),
                "revindex" => Value::Int(length - index0),
                "revindex0" => Value::Int(length - index0 - 1),
                "first" => Value::Bool(index0 == 0),
                "last" => Value::Bool(index0 + 1 == length),
                "length" => Value::Int(length),
                "depth" => Value::Int(state.depth0 as i128 + 1),
                "depth0" => Value::Int(state.depth0 as i128),
                "previtem" => item(index0 - 1, "there is no item before the first"),
                "nextitem" => item(index0 + 1, "there is no item after the last"),
                _ => return place(&OF_LOOP, name).map(Method::Loop).and_then(method),
            }))
        }
        Value::Macro(of) => Some(Ok(match name {
            "name" => of.name.clone().map_or(Value::None, Value::text),
            "arguments" => {
                let names = of.node.parameters.iter().map(|(name, _)| Value::text(name.clone())).collect();
                return Some(Value::tuple(names));
            }
            "catch_kwargs" => Value::Bool(of.node.uses.kwargs),
            "catch_varargs" => Value::Bool(of.node.uses.varargs),
            "caller" => Value::Bool(of.node.uses.caller),
            _ => return None,
        })),
        Value::Cycler(cycler) => match name {
            "current" => Some(Ok(cycler.items[cycler.place.get()].clone())),
            "items" => Some(Value::tuple(cycler.items.clone())),
            "pos" => Some(Ok(Value::Int(cycler.place.get() as i128))),
            _ => place(&OF_CYCLER, name).map(Method::Cycler).and_then(method),
        },
        Value::Joiner(joiner) => match name {
            "sep" => Some(Ok(joiner.separator.clone())),
            "used" => Some(Ok(Value::Bool(joiner.is_used.get()))),
            _ => None,
        },
        _ => None,
    }
}

/// Calls a method that `own` has found of the value.
pub fn call(run: &mut Run<'_>, of: &Value, method: Method, arguments: Arguments) -> Result<Value> {
    match (method, of) {
        (Method::Text(place), Value::Text(text)) if text.is_safe => {
            text_methods::call_of_safe(run, place, text, arguments)
        }
        (Method::Text(place), Value::Text(text)) => OF_TEXT[place].1(run, &text.text, arguments),
        (Method::Sequence(place), _) => OF_SEQUENCE[place].1(run, of, arguments),
        (Method::Dict(place), _) => OF_DICT[place].1(run, of, arguments),
        (Method::Number(place), _) => OF_NUMBER[place].1(run, of, arguments),
        (Method::Loop(place), _) => OF_LOOP[place].1(run, of, arguments),
        (Method::Cycler(place), _) => OF_CYCLER[place].1(run, of, arguments),
        (Method::Text(_), _) => fail("a method of texts is called of another value"),
    }
}

fn dict(of: &Value) -> &Rc<Dict> {
    match of {
        Value::Dict(dict) => dict,
        _ => unreachable!("`own` finds methods of dicts for dicts alone"),
    }
}

pub fn plain(given: Arguments, value: Value) -> Result<Value> {
    given.none("the method")?;
    Ok(value)
}

/// Arguments that Python takes without names only, of which the first `required` must be there.
pub fn optional<const N: usize>(given: Arguments, name: &str, required: usize) -> Result<[Option<Value>; N]> {
    if !given.named.is_empty() {
        return fail(format!("`{name}` takes no named arguments"));
    }
    if given.positional.len() > N || given.positional.len() < required {
        return fail(format!("`{name}` takes {required} to {N} arguments and is given {}", given.positional.len()));
    }
    let mut values = given.positional.into_iter();
    Ok(std::array::from_fn(|_| values.next()))
}

pub fn positional<const N: usize>(given: Arguments, name: &str, required: usize) -> Result<[Value; N]> {
    Ok(optional::<N>(given, name, required)?.map(|value| value.unwrap_or(Value::None)))
}

pub fn text_of(value: &Value, name: &str) -> Result<Rc<str>> {
    match value {
        Value::Text(text) => Ok(text.text.clone()),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("`{name}` takes a text, not a value of the type {}", other.type_name())),
    }
}

pub fn int_of(value: &Value, name: &str) -> Result<i128> {
    match value.as_int() {
        Some(int) => Ok(int),
        None => fail(format!("`{name}` takes an integer, not a value of the type {}", value.type_name())),
    }
}

/// Start and end as a slice has them; the start may be behind the length.
pub fn bounds(start: Option<&Value>, end: Option<&Value>, length: usize) -> Result<(usize, usize)> {
    let bound = |bound: Option<&Value>, default: usize| -> Result<usize> {
        match bound {
            None | Some(Value::None) => Ok(default),
            Some(value) => {
                let int = int_of(value, "a bound")?;
                let int = if int < 0 { int.saturating_add(length as i128).max(0) } else { int };
                Ok(usize::try_from(int).unwrap_or(usize::MAX))
            }
        }
    };
    Ok((bound(start, 0)?, bound(end, length)?.min(length)))
}
