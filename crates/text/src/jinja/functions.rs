//! The functions of the environment: jinja2's, and those that transformers adds.

use std::cell::Cell;
use std::rc::Rc;

use super::call::Arguments;
use super::fault::{Result, fail};
use super::run::Run;
use super::strftime::strftime;
use super::value::{Cycler, Dict, Extent, Joiner, Range, Value};

/// A function, by its place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(usize);

type Body = fn(&mut Run<'_>, Arguments) -> Result<Value>;

const FUNCTIONS: [(&str, Body); 8] = [
    ("range", range),
    ("dict", |run, arguments| Ok(Value::Dict(Rc::new(dict(run, arguments)?)))),
    ("namespace", namespace),
    ("cycler", cycler),
    ("joiner", joiner),
    ("lipsum", |_, _| fail("`lipsum` is not supported: it writes random words")),
    ("raise_exception", raise_exception),
    ("strftime_now", strftime_now),
];

/// Numbers that a `range` may have, as in jinja2's sandbox.
const MOST_NUMBERS: i128 = 100_000;

impl Function {
    pub fn named(name: &str) -> Option<Function> {
        FUNCTIONS.iter().position(|(own, _)| *own == name).map(Function)
    }

    pub fn number(self) -> usize {
        self.0
    }

    pub fn call(self, run: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
        FUNCTIONS[self.0].1(run, arguments)
    }
}

fn range(_: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    if !arguments.named.is_empty() || !(1..=3).contains(&arguments.positional.len()) {
        return fail("`range` takes one to three integers");
    }
    let mut numbers = Vec::new();
    for value in &arguments.positional {
        match (value, value.as_int()) {
            (_, Some(int)) => numbers.push(int),
            (Value::Undefined(why), _) => return super::fault::undefined(why),
            (other, None) => {
                return fail(format!("`range` takes integers, not a value of the type {}", other.type_name()));
            }
        }
    }
    let (start, stop) = if numbers.len() == 1 { (0, numbers[0]) } else { (numbers[0], numbers[1]) };
    let range = Range::new(start, stop, numbers.get(2).copied().unwrap_or(1))?;
    if range.len() > MOST_NUMBERS {
        return fail(format!("`range` has {} numbers: {MOST_NUMBERS} are the most", range.len()));
    }
    Ok(Value::Range(Rc::new(range)))
}

/// `dict(…)`: of a dict, or of pairs, and of named arguments.
pub fn dict(run: &mut Run<'_>, mut arguments: Arguments) -> Result<Dict> {
    let mut dict = match arguments.positional.len() {
        0 => Dict::default(),
        1 => match arguments.positional.remove(0) {
            Value::Dict(dict) => (*dict).clone(),
            pairs => {
                let mut dict = Dict::default();
                for pair in run.items(&pairs)? {
                    let [key, value] = run.items(&pair)?.try_into().map_err(|parts: Vec<Value>| {
                        let message = format!("`dict` takes pairs, and is given {} values as one", parts.len());
                        super::fault::fault(super::fault::FaultKind::Other, message)
                    })?;
                    dict.insert(key, value)?;
                }
                dict
            }
        },
        count => return fail(format!("`dict` takes one argument without a name and is given {count}")),
    };
    for (name, value) in arguments.named {
        dict.insert(Value::text(name), value)?;
    }
    Ok(dict)
}

fn namespace(run: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    let attributes = dict(run, arguments)?;
    for key in attributes.keys() {
        if let Some(name) = key.as_text() {
            run.check_attribute(&name.text)?;
        }
    }
    Ok(run.namespace(attributes))
}

fn cycler(_: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    if arguments.positional.is_empty() || !arguments.named.is_empty() {
        return fail("`cycler` takes at least one value");
    }
    let extent = Extent::around(arguments.positional.iter())?;
    Ok(Value::Cycler(Rc::new(Cycler { items: arguments.positional, extent, place: Cell::new(0) })))
}

fn joiner(_: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    let [separator] = arguments.bound("`joiner`", ["sep"], 0)?;
    let separator = separator.unwrap_or_else(|| Value::text(", "));
    Ok(Value::Joiner(Rc::new(Joiner { separator, is_used: Cell::new(false) })))
}

fn raise_exception(_: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    let [message] = arguments.bound("`raise_exception`", ["message"], 1)?;
    fail(message.expect("it is required").to_text()?)
}

fn strftime_now(run: &mut Run<'_>, arguments: Arguments) -> Result<Value> {
    let [format] = arguments.bound("`strftime_now`", ["format"], 1)?;
    let Some(now) = run.environment.now else {
        return fail("`strftime_now` is not available here: results would change");
    };
    match format {
        Some(Value::Text(format)) => Ok(Value::text(strftime(&format.text, now))),
        _ => fail("`strftime_now` takes a text"),
    }
}
