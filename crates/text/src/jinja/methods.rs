//! Attributes and methods of values, as Python has them: what `value.name` finds before the items of a dict.

use std::rc::Rc;

use super::call::Arguments;
use super::characters::{
    IDENTIFIER, all, capitalized, folded, is_alphanumeric, is_decimal, is_digits, is_letter, is_lower, is_space,
    is_title, is_upper, swapped, titled,
};
use super::fault::{Result, fail, undefined};
use super::format;
use super::operators::escaped;
use super::print::is_printable;
use super::run::Run;
use super::value::{Dict, Text, Value, View};

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

type OfText = fn(&mut Run<'_>, &str, Arguments) -> Result<Value>;
type OfValue = fn(&mut Run<'_>, &Value, Arguments) -> Result<Value>;

const OF_TEXT: [(&str, OfText); 46] = [
    ("capitalize", |_, text, given| plain(given, Value::text(capitalized(text)))),
    ("casefold", |_, text, given| plain(given, Value::text(folded(text)))),
    ("center", |run, text, given| padded(run, text, given, Align::Center)),
    ("count", |_, text, given| {
        let place = Place::of(text, given, "count")?;
        let count = if place.part.is_empty() { place.within.chars().count() + 1 } else { place.count() };
        Ok(Value::Int(if place.is_void { 0 } else { count as i128 }))
    }),
    ("endswith", |_, text, given| {
        Ok(Value::Bool(borders(text, given, "endswith", |text, part| text.ends_with(part))?))
    }),
    ("expandtabs", expandtabs),
    ("find", |_, text, given| Ok(Value::Int(Place::of(text, given, "find")?.first().unwrap_or(-1)))),
    ("format", |run, text, given| {
        format::format(run, &Text { text: text.into(), is_safe: false }, &given).map(Value::text)
    }),
    ("format_map", |run, text, given| {
        let [fields] = positional(given, "format_map", 1)?;
        format::format(run, &Text { text: text.into(), is_safe: false }, &fields_of(fields)?).map(Value::text)
    }),
    ("index", |_, text, given| found(Place::of(text, given, "index")?.first())),
    ("isalnum", |_, text, given| plain(given, Value::Bool(all(text, is_alphanumeric)))),
    ("isalpha", |_, text, given| plain(given, Value::Bool(all(text, is_letter)))),
    ("isascii", |_, text, given| plain(given, Value::Bool(text.is_ascii()))),
    ("isdecimal", |_, text, given| plain(given, Value::Bool(all(text, is_decimal)))),
    ("isdigit", |_, text, given| plain(given, Value::Bool(is_digits(text)))),
    ("isidentifier", |_, text, given| plain(given, Value::Bool(IDENTIFIER.is_match(text)))),
    ("islower", |_, text, given| plain(given, Value::Bool(is_lower(text)))),
    ("isnumeric", |_, text, given| plain(given, Value::Bool(all(text, char::is_numeric)))),
    ("isprintable", |_, text, given| plain(given, Value::Bool(text.chars().all(is_printable)))),
    ("isspace", |_, text, given| plain(given, Value::Bool(all(text, is_space)))),
    ("istitle", |_, text, given| plain(given, Value::Bool(is_title(text)))),
    ("isupper", |_, text, given| plain(given, Value::Bool(is_upper(text)))),
    ("join", |run, text, given| {
        let [parts] = positional(given, "join", 1)?;
        joined(run, text, &parts, false).map(Value::text)
    }),
    ("ljust", |run, text, given| padded(run, text, given, Align::Left)),
    ("lower", |_, text, given| plain(given, Value::text(text.to_lowercase()))),
    ("lstrip", |_, text, given| stripped(text, given, [true, false])),
    ("partition", |_, text, given| partitioned(text, given, false)),
    ("removeprefix", |_, text, given| {
        let part = one_text(given, "removeprefix")?;
        Ok(Value::text(text.strip_prefix(&*part).unwrap_or(text)))
    }),
    ("removesuffix", |_, text, given| {
        let part = one_text(given, "removesuffix")?;
        Ok(Value::text(text.strip_suffix(&*part).unwrap_or(text)))
    }),
    ("replace", replace),
    ("rfind", |_, text, given| Ok(Value::Int(Place::of(text, given, "rfind")?.last().unwrap_or(-1)))),
    ("rindex", |_, text, given| found(Place::of(text, given, "rindex")?.last())),
    ("rjust", |run, text, given| padded(run, text, given, Align::Right)),
    ("rpartition", |_, text, given| partitioned(text, given, true)),
    ("rsplit", |run, text, given| split(run, text, given, true)),
    ("rstrip", |_, text, given| stripped(text, given, [false, true])),
    ("split", |run, text, given| split(run, text, given, false)),
    ("splitlines", |run, text, given| {
        let [ends] = given.bound("`splitlines`", ["keepends"], 0)?;
        let keeps_ends = ends.map_or(Ok(0), |ends| int_of(&ends, "splitlines"))? != 0;
        run.list_length(lines(text, keeps_ends).count(), 1)?;
        texts(lines(text, keeps_ends))
    }),
    ("startswith", |_, text, given| {
        Ok(Value::Bool(borders(text, given, "startswith", |text, part| text.starts_with(part))?))
    }),
    ("strip", |_, text, given| stripped(text, given, [true, true])),
    ("swapcase", |_, text, given| plain(given, Value::text(swapped(text)))),
    ("title", |_, text, given| plain(given, Value::text(titled(text)))),
    ("upper", |_, text, given| plain(given, Value::text(text.to_uppercase()))),
    ("zfill", zfill),
    ("encode", |_, _, _| fail("`encode` is not supported: there are no bytes")),
    ("translate", |_, _, _| fail("`translate` is not supported: use `replace`")),
];

const OF_SEQUENCE: [(&str, OfValue); 3] = [
    ("copy", |_, of, given| plain(given, of.clone())),
    ("count", |run, of, given| {
        let [item] = positional(given, "count", 1)?;
        let count = run.items(of)?.iter().filter(|own| own.is_same(&item) || own.equals(&item)).count();
        Ok(Value::Int(count as i128))
    }),
    ("index", |run, of, given| {
        let [item, start, end] = optional(given, "index", 1)?;
        let item = item.expect("it is required");
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
        (Method::Text(place), Value::Text(text)) if text.is_safe => call_of_safe(run, place, text, arguments),
        (Method::Text(place), Value::Text(text)) => OF_TEXT[place].1(run, &text.text, arguments),
        (Method::Sequence(place), _) => OF_SEQUENCE[place].1(run, of, arguments),
        (Method::Dict(place), _) => OF_DICT[place].1(run, of, arguments),
        (Method::Number(place), _) => OF_NUMBER[place].1(run, of, arguments),
        (Method::Loop(place), _) => OF_LOOP[place].1(run, of, arguments),
        (Method::Cycler(place), _) => OF_CYCLER[place].1(run, of, arguments),
        (Method::Text(_), _) => fail("a method of texts is called of another value"),
    }
}

/// Of a safe text: texts that it puts in are escaped, and its results are safe.
fn call_of_safe(run: &mut Run<'_>, place: usize, text: &Text, mut arguments: Arguments) -> Result<Value> {
    let (name, method) = OF_TEXT[place];
    let escape = |value: &mut Value| {
        if let Value::Text(text) = value
            && !text.is_safe
        {
            *value = Value::safe(escaped(&text.text));
        }
    };
    let result = match name {
        "format" => Value::text(format::format(run, text, &arguments)?),
        "format_map" => {
            let [fields] = positional(arguments, name, 1)?;
            Value::text(format::format(run, text, &fields_of(fields)?)?)
        }
        "join" => {
            let [parts] = positional(arguments, name, 1)?;
            Value::text(joined(run, &text.text, &parts, true)?)
        }
        _ => {
            if matches!(name, "replace" | "ljust" | "rjust" | "center") {
                arguments.positional.iter_mut().skip(1).for_each(escape);
            }
            method(run, &text.text, arguments)?
        }
    };
    let safe = |value: &Value| match value {
        Value::Text(text) => Value::safe(text.text.clone()),
        other => other.clone(),
    };
    match &result {
        Value::List(list) => Value::list(list.items.iter().map(safe).collect()),
        Value::Tuple(tuple) => Value::tuple(tuple.items.iter().map(safe).collect()),
        other => Ok(safe(other)),
    }
}

fn dict(of: &Value) -> &Rc<Dict> {
    match of {
        Value::Dict(dict) => dict,
        _ => unreachable!("`own` finds methods of dicts for dicts alone"),
    }
}

fn plain(given: Arguments, value: Value) -> Result<Value> {
    given.none("the method")?;
    Ok(value)
}

/// Arguments that Python takes without names only, of which the first `required` must be there.
fn optional<const N: usize>(given: Arguments, name: &str, required: usize) -> Result<[Option<Value>; N]> {
    if !given.named.is_empty() {
        return fail(format!("`{name}` takes no named arguments"));
    }
    if given.positional.len() > N || given.positional.len() < required {
        return fail(format!("`{name}` takes {required} to {N} arguments and is given {}", given.positional.len()));
    }
    let mut values = given.positional.into_iter();
    Ok(std::array::from_fn(|_| values.next()))
}

fn positional<const N: usize>(given: Arguments, name: &str, required: usize) -> Result<[Value; N]> {
    Ok(optional::<N>(given, name, required)?.map(|value| value.unwrap_or(Value::None)))
}

fn text_of(value: &Value, name: &str) -> Result<Rc<str>> {
    match value {
        Value::Text(text) => Ok(text.text.clone()),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("`{name}` takes a text, not a value of the type {}", other.type_name())),
    }
}

fn one_text(given: Arguments, name: &str) -> Result<Rc<str>> {
    let [part] = positional(given, name, 1)?;
    text_of(&part, name)
}

fn int_of(value: &Value, name: &str) -> Result<i128> {
    match value.as_int() {
        Some(int) => Ok(int),
        None => fail(format!("`{name}` takes an integer, not a value of the type {}", value.type_name())),
    }
}

fn texts<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> Result<Value> {
    Value::list(parts.into_iter().map(|part| Value::text(part.as_ref())).collect())
}

fn fields_of(fields: Value) -> Result<Arguments> {
    let Value::Dict(dict) = fields else { return fail("`format_map` takes a dict") };
    let named = dict.pairs().filter_map(|(key, value)| Some((key.as_text()?.text.clone(), value.clone()))).collect();
    Ok(Arguments { positional: Vec::new(), named })
}

/// A part that is looked for in a text.
struct Place<'t> {
    within: &'t str,
    part: Rc<str>,
    /// Characters in front of `within`.
    before: usize,
    /// The range begins behind the text or its own end: nothing is there, not even an empty part.
    is_void: bool,
}

impl Place<'_> {
    fn of<'t>(text: &'t str, given: Arguments, name: &str) -> Result<Place<'t>> {
        let [part, start, end] = optional(given, name, 1)?;
        let part = text_of(&part.expect("it is required"), name)?;
        let length = text.chars().count();
        let (start, end) = bounds(start.as_ref(), end.as_ref(), length)?;
        let is_void = start > end.min(length);
        let within = if is_void { "" } else { between(text, start, end) };
        Ok(Place { within, part, before: start, is_void })
    }

    fn place(&self, byte: usize) -> i128 {
        (self.before + self.within[..byte].chars().count()) as i128
    }

    fn first(&self) -> Option<i128> {
        self.within.find(&*self.part).filter(|_| !self.is_void).map(|byte| self.place(byte))
    }

    fn last(&self) -> Option<i128> {
        self.within.rfind(&*self.part).filter(|_| !self.is_void).map(|byte| self.place(byte))
    }

    fn count(&self) -> usize {
        self.within.matches(&*self.part).count()
    }
}

/// Start and end as a slice has them; the start may be behind the length.
fn bounds(start: Option<&Value>, end: Option<&Value>, length: usize) -> Result<(usize, usize)> {
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

/// The characters from `start` to `end`.
fn between(text: &str, start: usize, end: usize) -> &str {
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
    &text[byte(start)..byte(end).max(byte(start))]
}

fn found(place: Option<i128>) -> Result<Value> {
    place.map_or_else(|| fail("`index` looks for a text that is not there"), |place| Ok(Value::Int(place)))
}

/// `startswith` and `endswith`, which take several texts as a tuple, too.
fn borders(text: &str, given: Arguments, name: &str, has: fn(&str, &str) -> bool) -> Result<bool> {
    let [parts, start, end] = optional(given, name, 1)?;
    let length = text.chars().count();
    let (start, end) = bounds(start.as_ref(), end.as_ref(), length)?;
    let is_void = start > end;
    let within = if is_void { "" } else { between(text, start, end) };
    let holds = |part: &Value| Ok(has(within, &text_of(part, name)?) && !is_void);
    match parts.expect("it is required") {
        Value::Tuple(parts) => {
            let held: Vec<bool> = parts.items.iter().map(holds).collect::<Result<_>>()?;
            Ok(held.contains(&true))
        }
        part => holds(&part),
    }
}

enum Align {
    Left,
    Center,
    Right,
}

fn padded(run: &Run<'_>, text: &str, given: Arguments, align: Align) -> Result<Value> {
    let name = "the method";
    let [width, fill] = optional(given, name, 1)?;
    let fill = fill.map_or(Ok(" ".into()), |fill| text_of(&fill, name))?;
    if fill.chars().count() != 1 {
        return fail("a text is filled up with one character");
    }
    padded_to(run, text, int_of(&width.expect("it is required"), name)?, &fill, align).map(Value::text)
}

fn padded_to(run: &Run<'_>, text: &str, width: i128, fill: &str, align: Align) -> Result<String> {
    let width = run.text_length(fill.len(), width)? / fill.len();
    let missing = width.saturating_sub(text.chars().count());
    let left = match align {
        Align::Left => 0,
        Align::Center => missing / 2 + (missing & width & 1),
        Align::Right => missing,
    };
    Ok(fill.repeat(left) + text + &fill.repeat(missing - left))
}

/// `text.center(width)`
pub fn centered(run: &Run<'_>, text: &str, width: i128) -> Result<String> {
    padded_to(run, text, width, " ", Align::Center)
}

fn zfill(run: &mut Run<'_>, text: &str, given: Arguments) -> Result<Value> {
    let [width] = positional(given, "zfill", 1)?;
    let width = run.text_length(1, int_of(&width, "zfill")?)?;
    let (sign, digits) = if text.starts_with(['+', '-']) { text.split_at(1) } else { ("", text) };
    let missing = width.saturating_sub(text.chars().count());
    Ok(Value::text(format!("{sign}{}{digits}", "0".repeat(missing))))
}

fn expandtabs(run: &mut Run<'_>, text: &str, given: Arguments) -> Result<Value> {
    let [size] = given.bound("`expandtabs`", ["tabsize"], 0)?;
    let size = size.map_or(Ok(8), |size| int_of(&size, "expandtabs"))?;
    let size = run.text_length(1, size)?;
    run.text_length(size, text.matches('\t').count() as i128)?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let count = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(count));
                column += count;
            }
            c => {
                out.push(c);
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::text(out))
}

/// `text.replace(old, new, count)`, whose count below 0 is none.
pub fn replaced(run: &Run<'_>, text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    let places = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let places = if count < 0 { places } else { places.min(usize::try_from(count).unwrap_or(usize::MAX)) };
    let length = run.text_length(new.len(), places as i128)?.saturating_add(text.len());
    run.text_length(length, 1)?;
    Ok(text.replacen(old, new, places))
}

fn replace(run: &mut Run<'_>, text: &str, given: Arguments) -> Result<Value> {
    let [old, new, count] = optional(given, "replace", 2)?;
    let part = |value: Option<Value>| text_of(&value.expect("it is required"), "replace");
    let count = count.map_or(Ok(-1), |count| int_of(&count, "replace"))?;
    replaced(run, text, &part(old)?, &part(new)?, count).map(Value::text)
}

/// `separator.join(parts)`
fn joined(run: &mut Run<'_>, separator: &str, parts: &Value, is_safe: bool) -> Result<String> {
    let parts = run.items(parts)?;
    let mut out = String::new();
    for (ix, part) in parts.iter().enumerate() {
        run.text_length(out.len() + separator.len(), 1)?;
        out.push_str(if ix > 0 { separator } else { "" });
        match part {
            Value::Text(text) if is_safe && !text.is_safe => out.push_str(&escaped(&text.text)),
            part if is_safe => out.push_str(&escaped(&part.to_text()?)),
            part => out.push_str(&text_of(part, "join")?),
        }
        run.text_length(out.len(), 1)?;
    }
    Ok(out)
}

/// `text.strip(characters)` at its begin, its end or both.
pub fn trimmed<'t>(text: &'t str, characters: Option<&str>, [start, end]: [bool; 2]) -> &'t str {
    let goes = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

fn stripped(text: &str, given: Arguments, ends: [bool; 2]) -> Result<Value> {
    let [characters] = optional(given, "strip", 0)?;
    let characters = match characters {
        None | Some(Value::None) => None,
        Some(characters) => Some(text_of(&characters, "strip")?),
    };
    Ok(Value::text(trimmed(text, characters.as_deref(), ends)))
}

fn partitioned(text: &str, given: Arguments, from_end: bool) -> Result<Value> {
    let mark = one_text(given, "partition")?;
    if mark.is_empty() {
        return fail("`partition` takes a text that is not empty");
    }
    let parts = match (from_end, text.split_once(&*mark), text.rsplit_once(&*mark)) {
        (false, Some((before, after)), _) | (true, _, Some((before, after))) => [before, &*mark, after],
        (false, ..) => [text, "", ""],
        (true, ..) => ["", "", text],
    };
    Value::tuple(parts.into_iter().map(Value::text).collect())
}

fn split(run: &Run<'_>, text: &str, given: Arguments, from_end: bool) -> Result<Value> {
    let [mark, most] = given.bound("`split`", ["sep", "maxsplit"], 0)?;
    let most = most.map_or(Ok(-1), |most| int_of(&most, "split"))?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts = match mark {
        None | Some(Value::None) => {
            // Parts have spaces between them.
            run.list_length(text.chars().filter(|c| is_space(*c)).count().min(most), 1)?;
            split_at_spaces(text, most, from_end)
        }
        Some(mark) => {
            let mark = text_of(&mark, "split")?;
            if mark.is_empty() {
                return fail("`split` takes a text that is not empty");
            }
            run.list_length(text.matches(&*mark).count().min(most), 1)?;
            let count = most.saturating_add(1);
            match from_end {
                false => text.splitn(count, &*mark).collect(),
                true => {
                    let mut parts: Vec<&str> = text.rsplitn(count, &*mark).collect();
                    parts.reverse();
                    parts
                }
            }
        }
    };
    texts(parts)
}

fn split_at_spaces(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = trimmed(text, None, [!from_end, from_end]);
    while !rest.is_empty() {
        let end = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        match end.filter(|_| parts.len() < most) {
            None => {
                parts.push(trimmed(rest, None, [false, false]));
                break;
            }
            Some(at) => {
                let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                let (part, left) =
                    if from_end { (&rest[at + width..], &rest[..at]) } else { (&rest[..at], &rest[at..]) };
                parts.push(part);
                rest = trimmed(left, None, [!from_end, from_end]);
            }
        }
    }
    if from_end {
        parts.reverse();
    }
    parts
}

/// `text.splitlines()`
pub fn lines(text: &str, keeps_ends: bool) -> impl Iterator<Item = &str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let Some(at) = rest.find(is_end) else {
            return Some(std::mem::take(&mut rest)).filter(|last| !last.is_empty());
        };
        let width =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        let line = &rest[..if keeps_ends { at + width } else { at }];
        rest = &rest[at + width..];
        Some(line)
    })
}
