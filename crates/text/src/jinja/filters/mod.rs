//! jinja2's filters by name. Those of texts, numbers and sequences have a file each.

mod numbers;
mod sequences;
mod texts;
mod wrapping;

use super::call::Arguments;
use super::characters;
use super::fault::{Result, fail};
use super::methods;
use super::operators::{self, escaped};
use super::print::JsonStyle;
use super::run::Run;
use super::value::{Lazy, Value};

/// A filter, by its place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter(usize);

type Body = fn(&mut Run<'_>, &Value, Arguments) -> Result<Value>;
type Computed = fn(&mut Run<'_>, &Value, Arguments) -> Result<Vec<Value>>;

#[derive(Clone, Copy)]
enum FilterKind {
    /// Computed at once.
    Plain(Body),
    /// A generator, computed when its items are asked for. Its arguments are checked at once.
    Lazy(Computed, Parameters),
}

#[derive(Clone, Copy)]
enum Parameters {
    /// These names, of which the first have no default.
    Named(&'static [&'static str], usize),
    /// Whatever the filter or test takes that it is given.
    Any,
}

use FilterKind::{Lazy as L, Plain as P};
use Parameters::{Any, Named};

const FILTERS: [(&str, FilterKind); 54] = [
    ("abs", P(numbers::abs)),
    ("attr", P(attr)),
    ("batch", L(sequences::batch, Named(&["linecount", "fill_with"], 1))),
    ("capitalize", P(|_, value, given| texts::simple(value, given, characters::capitalized))),
    ("center", P(texts::center)),
    ("count", P(sequences::length)),
    ("d", P(default)),
    ("default", P(default)),
    ("dictsort", P(sequences::dictsort)),
    ("e", P(escape)),
    ("escape", P(escape)),
    ("filesizeformat", P(numbers::filesizeformat)),
    ("first", P(sequences::first)),
    ("float", P(numbers::float)),
    ("forceescape", P(|_, value, given| none(given, Value::safe(escaped(&value.to_text()?))))),
    ("format", P(texts::format)),
    ("groupby", P(sequences::groupby)),
    ("indent", P(texts::indent)),
    ("int", P(numbers::int)),
    ("items", L(sequences::items, Named(&[], 0))),
    ("join", P(sequences::join)),
    ("last", P(sequences::last)),
    ("length", P(sequences::length)),
    ("list", P(|run, value, given| none(given, Value::list(run.items(value)?)?))),
    ("lower", P(|_, value, given| texts::simple(value, given, str::to_lowercase))),
    ("map", L(sequences::map, Any)),
    ("max", P(|run, value, given| sequences::extreme(run, value, given, true))),
    ("min", P(|run, value, given| sequences::extreme(run, value, given, false))),
    ("pprint", P(texts::pprint)),
    ("random", P(|_, _, _| fail("`random` is not supported: a template gives the same text each time"))),
    ("reject", L(|run, value, given| sequences::chosen(run, value, given, false, false), Any)),
    ("rejectattr", L(|run, value, given| sequences::chosen(run, value, given, true, false), Any)),
    ("replace", P(texts::replace)),
    ("reverse", P(sequences::reverse)),
    ("round", P(numbers::round)),
    ("safe", P(|_, value, given| none(given, Value::safe(value.to_text()?)))),
    ("select", L(|run, value, given| sequences::chosen(run, value, given, false, true), Any)),
    ("selectattr", L(|run, value, given| sequences::chosen(run, value, given, true, true), Any)),
    ("slice", L(sequences::slice, Named(&["slices", "fill_with"], 1))),
    ("sort", P(sequences::sort)),
    (
        "string",
        P(|_, value, given| {
            none(given, if value.as_text().is_some() { value.clone() } else { Value::text(value.to_text()?) })
        }),
    ),
    ("striptags", P(texts::striptags)),
    ("sum", P(sequences::sum)),
    ("title", P(|_, value, given| texts::simple(value, given, texts::words_titled))),
    ("tojson", P(tojson)),
    ("trim", P(texts::trim)),
    ("truncate", P(texts::truncate)),
    ("unique", L(sequences::unique, Named(&["case_sensitive", "attribute"], 0))),
    ("upper", P(|_, value, given| texts::simple(value, given, str::to_uppercase))),
    ("urlencode", P(texts::urlencode)),
    ("urlize", P(|_, _, _| fail("`urlize` is not supported: prompts have no links"))),
    ("wordcount", P(texts::wordcount)),
    ("wordwrap", P(wrapping::wordwrap)),
    ("xmlattr", P(texts::xmlattr)),
];

impl Filter {
    pub fn named(name: &str) -> Option<Filter> {
        FILTERS.iter().position(|(own, _)| *own == name).map(Filter)
    }

    pub fn apply(self, run: &mut Run<'_>, value: Value, arguments: Arguments) -> Result<Value> {
        let (name, kind) = &FILTERS[self.0];
        if !matches!(*name, "d" | "default") {
            run.used(&value)?;
        }
        match kind {
            FilterKind::Plain(body) => {
                run.read(&value)?;
                let value = body(run, &value, arguments)?;
                run.charge(&value)?;
                Ok(value)
            }
            FilterKind::Lazy(_, parameters) => {
                if let Parameters::Named(names, required) = parameters {
                    arguments.check(&format!("`{name}`"), names, *required)?;
                }
                Lazy::pending(self, value, arguments)
            }
        }
    }

    /// The items of a generator.
    pub fn computed(self, run: &mut Run<'_>, value: &Value, arguments: &Arguments) -> Result<Vec<Value>> {
        match FILTERS[self.0].1 {
            FilterKind::Lazy(computed, ..) => computed(run, value, arguments.clone()),
            FilterKind::Plain(_) => fail("a filter that is no generator has no items"),
        }
    }
}

/// The result of a filter that takes no arguments.
fn none(given: Arguments, value: Value) -> Result<Value> {
    given.none("the filter")?;
    Ok(value)
}

fn is_given(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

/// A filter's argument that is an integer.
fn int_or(value: Option<Value>, default: i128, what: &str) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => match (value.as_int(), &value) {
            (Some(int), _) => Ok(int),
            (None, Value::Undefined(why)) => super::fault::undefined(why),
            _ => fail(format!("{what} takes an integer, not a value of the type {}", value.type_name())),
        },
    }
}

/// A flag that Python takes as an integer.
fn flag(value: Option<Value>, what: &str) -> Result<bool> {
    Ok(int_or(value, 0, what)? != 0)
}

/// A value that jinja2 takes as a text, whatever it is.
fn soft_text(value: &Value) -> Result<std::rc::Rc<str>> {
    match value {
        Value::Text(text) => Ok(text.text.clone()),
        other => Ok(other.to_text()?.into()),
    }
}

fn default(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [default, boolean] = given.bound("`default`", ["default_value", "boolean"], 0)?;
    let is_missing = value.is_undefined() || is_given(boolean.as_ref()) && !value.is_true();
    Ok(if is_missing { default.unwrap_or_else(|| Value::text("")) } else { value.clone() })
}

fn escape(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    match value {
        Value::Text(text) if text.is_safe => none(given, value.clone()),
        other => none(given, Value::safe(escaped(&other.to_text()?))),
    }
}

/// An attribute or method, but no item.
fn attr(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [name] = given.bound("`attr`", ["name"], 1)?;
    let Some(Value::Text(name)) = name else { return fail("`attr` takes a text") };
    match value {
        Value::Undefined(_) => operators::attribute(value, &name.text),
        value => methods::own(value, &name.text).unwrap_or_else(|| Ok(Value::missing(value, &*name.text))),
    }
}

/// As transformers has it: Python's `json.dumps`, and nothing escaped for HTML.
fn tojson(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [is_ascii, indent, separators, sorts_keys] = given.bound("`tojson`", names, 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text.text.to_string()),
        Some(width) => Some(" ".repeat(run.text_length(1, int_or(Some(width), 0, "`tojson`'s indent")?)?)),
    };
    let (between_items, after_key) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
        Some(Value::List(pair) | Value::Tuple(pair)) if pair.items.len() == 2 => {
            (soft_text(&pair.items[0])?.to_string(), soft_text(&pair.items[1])?.to_string())
        }
        Some(_) => return fail("`tojson` takes a pair of texts as `separators`"),
    };
    let (is_ascii, sorts_keys) = (is_given(is_ascii.as_ref()), is_given(sorts_keys.as_ref()));
    let style = JsonStyle { is_ascii, indent, between_items, after_key, sorts_keys };
    style.dumps(value).map(Value::text)
}
