//! The methods of texts, as Python's `str` has them.

use std::rc::Rc;

use super::call::Arguments;
use super::characters::{
    IDENTIFIER, all, capitalized, folded, is_alphanumeric, is_decimal, is_digits, is_letter, is_lower, is_space,
    is_title, is_upper, swapped, titled,
};
use super::fault::{Result, fail};
use super::format;
use super::methods::{bounds, int_of, optional, plain, positional, text_of};
use super::operators::escaped;
use super::print::is_printable;
use super::run::Run;
use super::value::{Text, Value};

type OfText = fn(&mut Run<'_>, &str, Arguments) -> Result<Value>;
pub const OF_TEXT: [(&str, OfText); 46] = [
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

/// Of a safe text: texts that it puts in are escaped, and its results are safe.
pub fn call_of_safe(run: &mut Run<'_>, place: usize, text: &Text, mut arguments: Arguments) -> Result<Value> {
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

fn one_text(given: Arguments, name: &str) -> Result<Rc<str>> {
    let [part] = positional(given, name, 1)?;
    text_of(&part, name)
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
