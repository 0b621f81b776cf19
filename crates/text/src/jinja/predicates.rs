//! jinja2's tests: what stands behind `is`.

use super::call::Arguments;
use super::characters;
use super::fault::{Result, fail};
use super::filters::Filter;
use super::operators::{Comparison, Operator};
use super::run::Run;
use super::value::Value;

/// A test, by its place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicate(usize);

type Body = fn(&mut Run<'_>, &Value, Arguments) -> Result<bool>;

const PREDICATES: [(&str, Body); 39] = [
    ("odd", |run, value, arguments| plain(arguments, rest(run, value, &Value::Int(2))?.equals(&Value::Int(1)))),
    ("even", |run, value, arguments| plain(arguments, rest(run, value, &Value::Int(2))?.equals(&Value::Int(0)))),
    ("divisibleby", |run, value, arguments| {
        let [by] = arguments.bound("`divisibleby`", ["num"], 1)?;
        Ok(rest(run, value, &by.expect("it is required"))?.equals(&Value::Int(0)))
    }),
    ("defined", |_, value, arguments| plain(arguments, !value.is_undefined())),
    ("undefined", |_, value, arguments| plain(arguments, value.is_undefined())),
    ("filter", |_, value, arguments| plain(arguments, named(value, |name| Filter::named(name).is_some())?)),
    ("test", |_, value, arguments| plain(arguments, named(value, |name| Predicate::named(name).is_some())?)),
    ("none", |_, value, arguments| plain(arguments, matches!(value, Value::None))),
    ("boolean", |_, value, arguments| plain(arguments, matches!(value, Value::Bool(_)))),
    ("false", |_, value, arguments| plain(arguments, matches!(value, Value::Bool(false)))),
    ("true", |_, value, arguments| plain(arguments, matches!(value, Value::Bool(true)))),
    ("integer", |_, value, arguments| plain(arguments, matches!(value, Value::Int(_)))),
    ("float", |_, value, arguments| plain(arguments, matches!(value, Value::Float(_)))),
    ("lower", |run, value, arguments| {
        run.read(value)?;
        plain(arguments, characters::is_lower(&value.to_text()?))
    }),
    ("upper", |run, value, arguments| {
        run.read(value)?;
        plain(arguments, characters::is_upper(&value.to_text()?))
    }),
    ("string", |_, value, arguments| plain(arguments, value.as_text().is_some())),
    ("mapping", |_, value, arguments| plain(arguments, matches!(value, Value::Dict(_) | Value::Cycler(_)))),
    ("number", |_, value, arguments| plain(arguments, value.as_number().is_some())),
    ("sequence", |run, value, arguments| {
        run.used(value)?;
        let has_items = |value: &Value| !matches!(value, Value::View(..) | Value::Loop(_));
        plain(arguments, value.length().is_some() && has_items(value))
    }),
    ("iterable", |run, value, arguments| {
        run.used(value)?;
        let is_iterable = value.length().is_some() || matches!(value, Value::Iterator(_) | Value::Loop(_));
        plain(arguments, is_iterable)
    }),
    ("callable", |_, value, arguments| plain(arguments, value.is_callable())),
    ("sameas", |run, value, arguments| {
        run.read(value)?;
        let [other] = arguments.bound("`sameas`", ["other"], 1)?;
        Ok(value.is_same(&other.expect("it is required")))
    }),
    ("escaped", |_, value, arguments| plain(arguments, value.as_text().is_some_and(|text| text.is_safe))),
    ("in", |run, value, arguments| compared(run, Comparison::In, value, arguments)),
    ("==", |run, value, arguments| compared(run, Comparison::Equal, value, arguments)),
    ("eq", |run, value, arguments| compared(run, Comparison::Equal, value, arguments)),
    ("equalto", |run, value, arguments| compared(run, Comparison::Equal, value, arguments)),
    ("!=", |run, value, arguments| compared(run, Comparison::Unequal, value, arguments)),
    ("ne", |run, value, arguments| compared(run, Comparison::Unequal, value, arguments)),
    (">", |run, value, arguments| compared(run, Comparison::Greater, value, arguments)),
    ("gt", |run, value, arguments| compared(run, Comparison::Greater, value, arguments)),
    ("greaterthan", |run, value, arguments| compared(run, Comparison::Greater, value, arguments)),
    (">=", |run, value, arguments| compared(run, Comparison::GreaterOrEqual, value, arguments)),
    ("ge", |run, value, arguments| compared(run, Comparison::GreaterOrEqual, value, arguments)),
    ("<", |run, value, arguments| compared(run, Comparison::Less, value, arguments)),
    ("lt", |run, value, arguments| compared(run, Comparison::Less, value, arguments)),
    ("lessthan", |run, value, arguments| compared(run, Comparison::Less, value, arguments)),
    ("<=", |run, value, arguments| compared(run, Comparison::LessOrEqual, value, arguments)),
    ("le", |run, value, arguments| compared(run, Comparison::LessOrEqual, value, arguments)),
];

impl Predicate {
    pub fn named(name: &str) -> Option<Predicate> {
        PREDICATES.iter().position(|(own, _)| *own == name).map(Predicate)
    }

    /// Whether the test holds of the value.
    pub fn holds(self, run: &mut Run<'_>, value: &Value, arguments: Arguments) -> Result<bool> {
        PREDICATES[self.0].1(run, value, arguments)
    }
}

/// The result of a test that takes no arguments.
fn plain(arguments: Arguments, holds: bool) -> Result<bool> {
    arguments.none("the test")?;
    Ok(holds)
}

fn rest(run: &Run<'_>, value: &Value, by: &Value) -> Result<Value> {
    Operator::Modulo.apply(run, value, by)
}

fn named(value: &Value, is_known: fn(&str) -> bool) -> Result<bool> {
    match value {
        Value::List(_) | Value::Dict(_) => fail(format!("a {} is no name", value.type_name())),
        other => Ok(other.as_text().is_some_and(|name| is_known(&name.text))),
    }
}

fn compared(run: &mut Run<'_>, comparison: Comparison, value: &Value, arguments: Arguments) -> Result<bool> {
    let [other] = arguments.bound("the test", [""], 1)?;
    let other = other.expect("it is required");
    run.used(value)?;
    run.used(&other)?;
    run.holds(comparison, value, &other)
}
