//! Calls as LFM2 writes them: `[name(key=value, …), …]` with values as Python has them, or as JSON has them within
//! objects. They become JSON. Templates put strings between quotation marks as they are, so one ends where something
//! follows that may stand behind a value.

use serde_json::{Map, Value};

use super::head::{Cursor, Head, Next};

/// Objects and lists within each other.
const DEEPEST: usize = 64;

/// Why a text is no call, or no value.
enum Stop {
    /// More text decides it.
    More,
    No,
}

/// Reads the call with which `text` begins, whole, perhaps the first of a list.
pub(super) fn head(text: &str) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    let in_list = cursor.eat("[") == Next::Found;
    match call(&mut cursor) {
        Ok((name, arguments)) => {
            Head::Whole { name, bytes: cursor.at, arguments: Value::from(arguments).to_string(), in_list }
        }
        Err(Stop::More) => Head::More,
        Err(Stop::No) => Head::No,
    }
}

fn call(cursor: &mut Cursor<'_>) -> Result<(String, Map<String, Value>), Stop> {
    cursor.skip_space();
    let name = name(cursor)?;
    pass(cursor, "(")?;
    let mut arguments = Map::new();
    while !passes(cursor, ")")? {
        if !arguments.is_empty() {
            pass(cursor, ",")?;
        }
        let key = self::name(cursor)?;
        pass(cursor, "=")?;
        arguments.insert(key, value(cursor, 0)?);
    }
    Ok((name, arguments))
}

fn name(cursor: &mut Cursor<'_>) -> Result<String, Stop> {
    cursor.skip_space();
    match cursor.name() {
        None => Err(Stop::More),
        Some("") => Err(Stop::No),
        Some(name) => Ok(name.to_owned()),
    }
}

/// Passes over white space and `word`, if that follows.
fn passes(cursor: &mut Cursor<'_>, word: &str) -> Result<bool, Stop> {
    cursor.skip_space();
    match cursor.eat(word) {
        Next::Found => Ok(true),
        Next::More => Err(Stop::More),
        Next::Other => Ok(false),
    }
}

/// Passes over white space and `word`, which must follow.
fn pass(cursor: &mut Cursor<'_>, word: &str) -> Result<(), Stop> {
    if passes(cursor, word)? { Ok(()) } else { Err(Stop::No) }
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<Value, Stop> {
    cursor.skip_space();
    if depth > DEEPEST {
        return Err(Stop::No);
    }
    match cursor.rest().chars().next() {
        None => Err(Stop::More),
        Some(mark @ ('\'' | '"')) => string(cursor, mark).map(Value::from),
        Some('[') => items(cursor, depth, "]").map(Value::from),
        Some('(') => items(cursor, depth, ")").map(Value::from),
        Some('{') => fields(cursor, depth).map(Value::from),
        Some(_) => {
            let Some(end) = cursor.rest().find([',', ')', ']', '}', ':']) else { return Err(Stop::More) };
            let word = &cursor.rest()[..end];
            cursor.at += end;
            match word.trim() {
                "True" => Ok(true.into()),
                "False" => Ok(false.into()),
                "None" => Ok(Value::Null),
                word => serde_json::from_str(word).map_err(|_| Stop::No),
            }
        }
    }
}

/// The string here, between two of `mark`.
fn string(cursor: &mut Cursor<'_>, mark: char) -> Result<String, Stop> {
    let mut text = String::new();
    let mut signs = cursor.rest().char_indices().skip(1);
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' => {
                let (_, escaped) = signs.next().ok_or(Stop::More)?;
                match escaped {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '\\' | '\'' | '"' => text.push(escaped),
                    other => text.extend(['\\', other]),
                }
            }
            sign if sign == mark => match cursor.rest()[at + 1..].trim_start().chars().next() {
                None => return Err(Stop::More),
                Some(',' | ')' | ']' | '}' | ':') => {
                    cursor.at += at + 1;
                    return Ok(text);
                }
                Some(_) => text.push(sign),
            },
            sign => text.push(sign),
        }
    }
    Err(Stop::More)
}

/// The values here up to `close`.
fn items(cursor: &mut Cursor<'_>, depth: usize, close: &str) -> Result<Vec<Value>, Stop> {
    cursor.at += 1;
    let mut items = Vec::new();
    while !passes(cursor, close)? {
        if !items.is_empty() {
            pass(cursor, ",")?;
            // Behind the last value there may be a comma, too.
            if passes(cursor, close)? {
                break;
            }
        }
        items.push(value(cursor, depth + 1)?);
    }
    Ok(items)
}

fn fields(cursor: &mut Cursor<'_>, depth: usize) -> Result<Map<String, Value>, Stop> {
    cursor.at += 1;
    let mut fields = Map::new();
    while !passes(cursor, "}")? {
        if !fields.is_empty() {
            pass(cursor, ",")?;
        }
        let Value::String(key) = value(cursor, depth + 1)? else { return Err(Stop::No) };
        pass(cursor, ":")?;
        fields.insert(key, value(cursor, depth + 1)?);
    }
    Ok(fields)
}
