//! Filters of texts.

use std::sync::LazyLock;

use regex::Regex;

use super::{Arguments, Run, int_or, is_given, soft_text};
use crate::jinja::characters;
use crate::jinja::fault::{Result, fail, undefined};

use crate::jinja::operators::escaped;
use crate::jinja::percent;
use crate::jinja::text_methods::{self, lines, trimmed};
use crate::jinja::value::{Dict, Text, Value};

/// A text that Python would take as one, without making one of other values.
fn strict_text<'v>(value: &'v Value, what: &str) -> Result<&'v Text> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("{what} takes a text, not a value of the type {}", other.type_name())),
    }
}

/// A filter that makes one text of another; of a safe one, a safe one.
pub fn simple(value: &Value, given: Arguments, of: fn(&str) -> String) -> Result<Value> {
    given.none("the filter")?;
    Ok(like(value, of(&soft_text(value)?)))
}

fn like(value: &Value, text: String) -> Value {
    if value.as_text().is_some_and(|text| text.is_safe) { Value::safe(text) } else { Value::text(text) }
}

/// `|title`: a capital behind each space, hyphen and bracket; `str.title` has one behind whatever is no letter.
pub fn words_titled(text: &str) -> String {
    static SPLIT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[-\s({\[<]+").expect("a pattern of ours"));
    let capital = |word: &str| {
        let mut chars = word.chars();
        let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
        first + &chars.as_str().to_lowercase()
    };
    let (mut out, mut last) = (String::new(), 0);
    for between in SPLIT.find_iter(text) {
        out.push_str(&capital(&text[last..between.start()]));
        out.push_str(between.as_str());
        last = between.end();
    }
    out + &capital(&text[last..])
}

pub fn center(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [width] = given.bound("`center`", ["width"], 0)?;
    let width = int_or(width, 80, "`center`")?;
    Ok(like(value, text_methods::centered(run, &soft_text(value)?, width)?))
}

pub fn format(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let format = match value {
        Value::Text(text) => text.clone(),
        other => Text { text: soft_text(other)?, is_safe: false },
    };
    match (given.positional.is_empty(), given.named.is_empty()) {
        (false, false) => fail("`format` takes values with names or without, not both"),
        (_, true) => percent::format(run, &format, &Value::tuple(given.positional)?),
        (true, false) => {
            let named = given.named.into_iter().map(|(name, value)| (Value::text(name), value));
            percent::format(run, &format, &Value::Dict(std::rc::Rc::new(Dict::of(named)?)))
        }
    }
}

pub fn replace(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [old, new, count] = given.bound("`replace`", ["old", "new", "count"], 2)?;
    let part = |part: Option<Value>| soft_text(&part.expect("it is required"));
    let count = count.filter(|count| !matches!(count, Value::None));
    let count = int_or(count, -1, "`replace`")?;
    text_methods::replaced(run, &soft_text(value)?, &part(old)?, &part(new)?, count).map(Value::text)
}

pub fn trim(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [characters] = given.bound("`trim`", ["chars"], 0)?;
    let characters = match &characters {
        None | Some(Value::None) => None,
        Some(characters) => Some(&*strict_text(characters, "`trim`")?.text),
    };
    let text = soft_text(value)?;
    Ok(like(value, trimmed(&text, characters, [true, true]).to_string()))
}

pub fn indent(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [width, first, blank] = given.bound("`indent`", ["width", "first", "blank"], 0)?;
    let text = strict_text(value, "`indent`")?;
    let width = match width {
        Some(Value::Text(width)) => width.text.to_string(),
        width => " ".repeat(run.text_length(1, int_or(width, 4, "`indent`")?)?),
    };
    let with_end = format!("{}\n", text.text);
    let count = lines(&with_end, false).count();
    run.text_length(run.text_length(width.len(), count as i128)?.saturating_add(with_end.len()), 1)?;
    run.step(count)?;
    let is_blank = is_given(blank.as_ref());
    let mut out = String::new();
    for (ix, line) in lines(&with_end, false).enumerate() {
        out.push_str(if ix > 0 { "\n" } else { "" });
        let is_indented = if ix == 0 { is_given(first.as_ref()) } else { is_blank || !line.is_empty() };
        out.push_str(if is_indented { &width } else { "" });
        out.push_str(line);
    }
    Ok(like(value, out))
}

pub fn truncate(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, killwords, end, leeway] = given.bound("`truncate`", names, 0)?;
    let end = match &end {
        None => "...".into(),
        Some(end) => strict_text(end, "`truncate`")?.text.clone(),
    };
    let length = int_or(length, 255, "`truncate`")?;
    let leeway = int_or(leeway.filter(|leeway| !matches!(leeway, Value::None)), 5, "`truncate`")?;
    let of_end = end.chars().count() as i128;
    if length < of_end || leeway < 0 {
        return fail(format!("`truncate` takes a length of {of_end} or more, as its end has, and no negative leeway"));
    }
    // Whatever is short enough stays what it is.
    if value.length().is_some_and(|own| own as i128 <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let chars: Vec<char> = strict_text(value, "`truncate`")?.text.chars().collect();
    let cut: String = chars[..(length - of_end) as usize].iter().collect();
    let words =
        if is_given(killwords.as_ref()) { &*cut } else { cut.rsplit_once(' ').map_or(&*cut, |(words, _)| words) };
    Ok(like(value, format!("{words}{end}")))
}

pub fn wordcount(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").expect("a pattern of ours"));
    given.none("`wordcount`")?;
    Ok(Value::Int(WORD.find_iter(&soft_text(value)?).count() as i128))
}

pub fn urlencode(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    given.none("`urlencode`")?;
    let pairs = match value {
        Value::Dict(dict) => dict.view(crate::jinja::value::View::Items)?,
        Value::Text(_) => return Ok(Value::text(quoted(&soft_text(value)?, false))),
        other if other.length().is_none() && !matches!(other, Value::Iterator(_)) => {
            return Ok(Value::text(quoted(&soft_text(value)?, false)));
        }
        other => run.items(other)?,
    };
    let mut parts = Vec::new();
    for pair in pairs {
        let pair = run.items(&pair)?;
        let [key, value] = &*pair else { return fail("`urlencode` takes a text, a dict or pairs") };
        parts.push(format!("{}={}", quoted(&soft_text(key)?, true), quoted(&soft_text(value)?, true)));
    }
    Ok(Value::text(parts.join("&")))
}

/// A text of a URL, or of its query.
fn quoted(text: &str, is_query: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte.into()),
            b'/' if !is_query => out.push('/'),
            b' ' if is_query => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

pub fn xmlattr(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let [autospace] = given.bound("`xmlattr`", ["autospace"], 0)?;
    let Value::Dict(dict) = value else { return fail("`xmlattr` takes a dict") };
    let shown = |value: &Value| match value {
        Value::Text(text) if text.is_safe => Ok(text.text.to_string()),
        other => other.to_text().map(|text| escaped(&text)),
    };
    let mut parts = Vec::new();
    for (key, value) in dict.pairs().filter(|(_, value)| !matches!(value, Value::None | Value::Undefined(_))) {
        let name = strict_text(key, "`xmlattr`")?;
        if name.text.contains([' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '/', '>', '=']) {
            return fail(format!("`xmlattr` is given `{}`, which is no attribute's name", name.text));
        }
        parts.push(format!("{}=\"{}\"", shown(key)?, shown(value)?));
    }
    let text = parts.join(" ");
    let has_space = autospace.is_none_or(|autospace| autospace.is_true()) && !text.is_empty();
    Ok(Value::text(if has_space { format!(" {text}") } else { text }))
}

pub fn striptags(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    static TAG: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?s)<!--.*?-->|<.*?>").expect("a pattern of ours"));
    static ENTITY: LazyLock<Regex> = LazyLock::new(|| Regex::new("&#?[A-Za-z0-9]+;?").expect("a pattern of ours"));
    given.none("`striptags`")?;
    let text = soft_text(value)?;
    let text = TAG.replace_all(&text, "");
    let text = text.split(characters::is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let mut unknown = None;
    let text = ENTITY.replace_all(&text, |entity: &regex::Captures<'_>| match &entity[0] {
        "&amp;" => "&",
        "&lt;" => "<",
        "&gt;" => ">",
        "&quot;" | "&#34;" => "\"",
        "&#39;" | "&#x27;" => "'",
        "&nbsp;" => "\u{a0}",
        other => {
            unknown.get_or_insert(other.to_string());
            ""
        }
    });
    match unknown {
        Some(entity) => fail(format!("`striptags` does not know `{entity}`: it is not supported")),
        None => Ok(Value::text(&*text)),
    }
}

/// `pprint`, of what fits into one line.
pub fn pprint(_: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    /// Columns of Python's `pprint`.
    const WIDTH: usize = 80;
    given.none("`pprint`")?;
    let text = sorted_keys(value)?.to_repr()?;
    match text.chars().count() <= WIDTH {
        true => Ok(Value::text(text)),
        false => fail(format!("`pprint` is supported of what takes {WIDTH} columns or less: use `tojson(indent=…)`")),
    }
}

fn sorted_keys(value: &Value) -> Result<Value> {
    match value {
        Value::List(list) => Value::list(list.items.iter().map(sorted_keys).collect::<Result<_>>()?),
        Value::Tuple(tuple) => Value::tuple(tuple.items.iter().map(sorted_keys).collect::<Result<_>>()?),
        Value::Dict(dict) => {
            let mut pairs = Vec::new();
            for (key, value) in dict.pairs() {
                let Some(name) = key.as_text() else {
                    return fail("`pprint` is supported of dicts with texts as keys");
                };
                pairs.push((name.text.clone(), key.clone(), sorted_keys(value)?));
            }
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(Value::Dict(std::rc::Rc::new(Dict::of(pairs.into_iter().map(|(_, key, value)| (key, value)))?)))
        }
        other => Ok(other.clone()),
    }
}
