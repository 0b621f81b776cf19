//! Filters of sequences and dicts.

use std::collections::HashSet;
use std::rc::Rc;

use super::{Arguments, Filter, Run, flag, int_or, is_given, soft_text};
use crate::jinja::characters::{ascii_digits, is_digits};
use crate::jinja::fault::{Result, fail, undefined};
use crate::jinja::operators::{self, Operator};
use crate::jinja::predicates::Predicate;
use crate::jinja::value::{Dict, Key, Lazy, Value};

/// What `attribute=` names: items, one within the other.
struct Getter {
    parts: Vec<Value>,
    default: Option<Value>,
    ignores_case: bool,
}

impl Getter {
    /// Without an attribute, the value itself.
    fn of(attribute: Option<&Value>, default: Option<Value>, ignores_case: bool) -> Result<Getter> {
        let parts = match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Text(path)) => {
                let part = |part: &str| match is_digits(part) {
                    true => ascii_digits(part).parse().map_or_else(|_| Value::text(part), Value::Int),
                    false => Value::text(part),
                };
                path.text.split('.').map(part).collect()
            }
            Some(other) => vec![other.clone()],
        };
        Ok(Getter { parts, default: default.filter(|default| !matches!(default, Value::None)), ignores_case })
    }

    fn get(&self, value: &Value) -> Result<Value> {
        let mut value = value.clone();
        for part in &self.parts {
            value = operators::item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, &self.default) {
                value = default.clone();
            }
        }
        match &value {
            Value::Text(text) if self.ignores_case => Ok(Value::text(text.text.to_lowercase())),
            _ => Ok(value),
        }
    }
}

/// Sorts stably. `is_less` may be no order at all.
fn merge_sorted<T>(mut items: Vec<T>, is_less: &mut impl FnMut(&T, &T) -> Result<bool>) -> Result<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let (left, right) = (merge_sorted(items, is_less)?, merge_sorted(right, is_less)?);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if is_less(b, a)? { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// Python's `sorted(items, key=…, reverse=…)`.
fn sorted(items: Vec<Value>, key: impl Fn(&Value) -> Result<Value>, is_reversed: bool) -> Result<Vec<Value>> {
    let mut keyed = Vec::new();
    for item in items {
        keyed.push((key(&item)?, item));
    }
    // What is equal keeps its order in reverse, too.
    if is_reversed {
        keyed.reverse();
    }
    let mut keyed = merge_sorted(keyed, &mut |a: &(Value, Value), b: &(Value, Value)| a.0.is_less(&b.0))?;
    if is_reversed {
        keyed.reverse();
    }
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

pub fn sort(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    run.read_all(value)?;
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case_sensitive, attribute] = given.bound("`sort`", names, 0)?;
    let ignores_case = !is_given(case_sensitive.as_ref());
    let paths = match &attribute {
        Some(Value::Text(paths)) => paths.text.split(',').map(|path| Some(Value::text(path))).collect(),
        other => vec![other.clone()],
    };
    let getters: Vec<Getter> =
        paths.iter().map(|path| Getter::of(path.as_ref(), None, ignores_case)).collect::<Result<_>>()?;
    let key = |item: &Value| Value::list(getters.iter().map(|getter| getter.get(item)).collect::<Result<_>>()?);
    Value::list(sorted(run.items(value)?, key, flag(reverse, "`sort`'s `reverse`")?)?)
}

pub fn dictsort(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    run.read_all(value)?;
    let [case_sensitive, by, reverse] = given.bound("`dictsort`", ["case_sensitive", "by", "reverse"], 0)?;
    let by = by.map_or(Ok("key".into()), |by| soft_text(&by))?;
    let place = match &*by {
        "key" => 0,
        "value" => 1,
        _ => return fail("`dictsort` sorts by `key` or `value`"),
    };
    let getter = Getter::of(Some(&Value::Int(place)), None, !is_given(case_sensitive.as_ref()))?;
    let pairs = dict(value, "`dictsort`")?.view(crate::jinja::value::View::Items)?;
    Value::list(sorted(pairs, |pair| getter.get(pair), flag(reverse, "`dictsort`'s `reverse`")?)?)
}

fn dict(value: &Value, what: &str) -> Result<Rc<Dict>> {
    match value {
        Value::Dict(dict) => Ok(dict.clone()),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("{what} takes a dict, not a value of the type {}", other.type_name())),
    }
}

pub fn groupby(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    run.read_all(value)?;
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case_sensitive] = given.bound("`groupby`", names, 1)?;
    let getter = Getter::of(attribute.as_ref(), default, !is_given(case_sensitive.as_ref()))?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(run.items(value)?, |item| getter.get(item), false)? {
        let key = getter.get(&item)?;
        match groups.last_mut() {
            Some((last, items)) if last.equals(&key) => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let as_written = Getter { ignores_case: false, ..getter };
    let group = |(_, items): (Value, Vec<Value>)| Value::group(as_written.get(&items[0])?, Value::list(items)?);
    Value::list(groups.into_iter().map(group).collect::<Result<_>>()?)
}

pub fn unique(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Vec<Value>> {
    run.read_all(value)?;
    let [case_sensitive, attribute] = given.bound("`unique`", ["case_sensitive", "attribute"], 0)?;
    let getter = Getter::of(attribute.as_ref(), None, !is_given(case_sensitive.as_ref()))?;
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for item in run.items(value)? {
        if seen.insert(Key::of(&getter.get(&item)?)?) {
            out.push(item);
        }
    }
    Ok(out)
}

/// `max` and `min`: the first of those that are equal.
pub fn extreme(run: &mut Run<'_>, value: &Value, given: Arguments, is_largest: bool) -> Result<Value> {
    run.read_all(value)?;
    let [case_sensitive, attribute] = given.bound("`max` or `min`", ["case_sensitive", "attribute"], 0)?;
    let getter = Getter::of(attribute.as_ref(), None, !is_given(case_sensitive.as_ref()))?;
    let mut best: Option<(Value, Value)> = None;
    for item in run.items(value)? {
        let key = getter.get(&item)?;
        let is_better = match &best {
            None => true,
            Some((best, _)) if is_largest => best.is_less(&key)?,
            Some((best, _)) => key.is_less(best)?,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::unnamed("the extreme of no items"), |(_, item)| item))
}

pub fn sum(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [attribute, start] = given.bound("`sum`", ["attribute", "start"], 0)?;
    let getter = Getter::of(attribute.as_ref(), None, false)?;
    let mut sum = start.unwrap_or(Value::Int(0));
    if sum.as_text().is_some() {
        return fail("`sum` adds no texts: use `join`");
    }
    for item in run.items(value)? {
        sum = Operator::Add.apply(run, &sum, &getter.get(&item)?)?;
        if let Value::List(list) | Value::Tuple(list) = &sum {
            run.step(list.items.len())?;
        }
    }
    Ok(sum)
}

pub fn join(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [separator, attribute] = given.bound("`join`", ["d", "attribute"], 0)?;
    let separator = separator.map_or(Ok("".into()), |separator| soft_text(&separator))?;
    let getter = Getter::of(attribute.as_ref(), None, false)?;
    let mut out = String::new();
    for (ix, item) in run.items(value)?.iter().enumerate() {
        run.text_length(out.len() + separator.len(), 1)?;
        out.push_str(if ix > 0 { &separator } else { "" });
        getter.get(item)?.print(&mut out)?;
        run.text_length(out.len(), 1)?;
    }
    Ok(Value::text(out))
}

pub fn length(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`length`")?;
    match value.length() {
        Some(length) => Ok(Value::Int(length as i128)),
        None => fail(format!("`length` takes what has items, not a value of the type {}", value.type_name())),
    }
}

pub fn first(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`first`")?;
    Ok(run.first(value)?.unwrap_or_else(|| Value::unnamed("the first of no items")))
}

pub fn last(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`last`")?;
    if let Value::Iterator(_) = value {
        return fail("`last` takes no generator: make it a list (`|list`)");
    }
    let items = run.items(value)?;
    Ok(items.last().cloned().unwrap_or_else(|| Value::unnamed("the last of no items")))
}

pub fn reverse(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`reverse`")?;
    let kind = match value {
        Value::Text(text) => return Ok(Value::text(text.text.chars().rev().collect::<String>())),
        Value::List(_) => "list_reverseiterator",
        Value::Dict(_) => "dict_reversekeyiterator",
        _ => "reversed",
    };
    let mut items = run.items(value)?;
    items.reverse();
    match value {
        Value::Iterator(_) => Value::list(items),
        _ => Lazy::ready(kind, items),
    }
}

pub fn items(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Vec<Value>> {
    given.none("`items`")?;
    if value.is_undefined() {
        return Ok(Vec::new());
    }
    dict(value, "`items`")?.view(crate::jinja::value::View::Items)
}

pub fn batch(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Vec<Value>> {
    let [count, fill] = given.bound("`batch`", ["linecount", "fill_with"], 1)?;
    let count = int_or(count, 0, "`batch`")?;
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    for item in run.items(value)? {
        if batch.len() as i128 == count {
            batches.push(Value::list(std::mem::take(&mut batch))?);
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        if let Some(fill) = fill.filter(|fill| !matches!(fill, Value::None)) {
            let length = run.list_length(1, count)?.max(batch.len());
            run.step(length)?;
            batch.resize(length, fill);
        }
        batches.push(Value::list(batch)?);
    }
    Ok(batches)
}

pub fn slice(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Vec<Value>> {
    let [count, fill] = given.bound("`slice`", ["slices", "fill_with"], 1)?;
    let count = int_or(count, 0, "`slice`")?;
    let items = run.items(value)?;
    if count == 0 {
        return fail("`slice` divides by zero");
    }
    let count = run.list_length(1, count)?;
    run.step(count)?;
    let (size, larger) = (items.len() / count.max(1), items.len() % count.max(1));
    let mut slices = Vec::new();
    let mut start = 0;
    for ix in 0..count {
        let end = start + size + usize::from(ix < larger);
        let mut slice = items[start..end].to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None) && ix >= larger) {
            slice.push(fill.clone());
        }
        slices.push(Value::list(slice)?);
        start = end;
    }
    Ok(slices)
}

pub fn map(run: &mut Run<'_>, value: &Value, mut given: Arguments) -> Result<Vec<Value>> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    if given.positional.is_empty() && given.named.iter().any(|(name, _)| **name == *"attribute") {
        let [attribute, default] = given.bound("`map`", ["attribute", "default"], 1)?;
        let getter = Getter::of(attribute.as_ref(), default, false)?;
        return run.items(value)?.iter().map(|item| getter.get(item)).collect();
    }
    if given.positional.is_empty() {
        return fail("`map` takes the name of a filter, or `attribute=`");
    }
    let name = given.positional.remove(0);
    let Some(filter) = name.as_text().and_then(|name| Filter::named(&name.text)) else {
        return fail(format!("`map` is given {}, and no filter is called so", name.to_repr()?));
    };
    let mut out = Vec::new();
    for item in run.items(value)? {
        out.push(filter.apply(run, item, given.clone())?);
    }
    Ok(out)
}

/// `select`, `reject` and those by an attribute.
pub fn chosen(
    run: &mut Run<'_>,
    value: &Value,
    mut given: Arguments,
    by_attribute: bool,
    keeps: bool,
) -> Result<Vec<Value>> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    let getter = match by_attribute {
        true if given.positional.is_empty() => return fail("the filter misses the name of an attribute"),
        true => Getter::of(Some(&given.positional.remove(0)), None, false)?,
        false => Getter::of(None, None, false)?,
    };
    let test = match given.positional.is_empty() {
        true => None,
        false => {
            let name = given.positional.remove(0);
            let Some(test) = name.as_text().and_then(|name| Predicate::named(&name.text)) else {
                return fail(format!("a filter is given {}, and no test is called so", name.to_repr()?));
            };
            Some(test)
        }
    };
    let mut out = Vec::new();
    for item in run.items(value)? {
        let of = getter.get(&item)?;
        let holds = match test {
            Some(test) => test.holds(run, &of, given.clone())?,
            None => of.is_true(),
        };
        if holds == keeps {
            out.push(item);
        }
    }
    Ok(out)
}
