//! Reads the lines of a batch's input: each is a call with an id, or a refusal. `request` interprets the calls.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::protocol::{BatchEndpoint, Refusal};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;
use offshoot_core::file_kind::is_task;
use offshoot_core::json::{RawJson, describe, field_of_partial};
use offshoot_lines::{Line, Lines, open};

/// The longest line that is read if nobody asks for another, in bytes.
pub const DEFAULT_MOST_OF_LINE: usize = 64 << 20;
/// The most of a line's beginning that is searched for its id if the line is too long, in bytes.
const MOST_SEARCHED: usize = 1 << 20;
/// Characters of a parser's message, which may quote all of a value.
const MOST_SAID: usize = 200;

/// A line that is not blank.
pub struct InputLine {
    /// Its index among the lines that are not blank.
    pub index: usize,
    /// `None`: the line has none, or none before what makes it unreadable.
    pub custom_id: Option<String>,
    pub call: Result<Call, Refusal>,
}

/// The call on a line.
pub struct Call {
    pub custom_id: String,
    pub endpoint: BatchEndpoint,
    pub body: Map<String, Value>,
}

/// The lines of the file at `path`, gzipped or not; `most`: the longest line, in bytes.
pub fn read(path: &Path, most: usize) -> Result<Vec<InputLine>> {
    let mut seen = HashSet::new();
    let mut lines: Vec<InputLine> = Vec::new();
    for line in Lines::of(path, open(path)?, most) {
        let line = line?;
        let (custom_id, mut call) = read_line(&line);
        if lines.is_empty() && call.is_err() && begins_task(path, most)? {
            return Err(Error::format(path, "holds a task for `offshoot run`, not requests"));
        }
        if let Some(id) = &custom_id
            && !seen.insert(id.clone())
        {
            let what =
                format!("`custom_id`: {} is also the id of an earlier line", describe(&Value::from(id.as_str())));
            call = Err(Refusal::new("duplicate_custom_id", what).about("custom_id"));
        }
        let call = call
            .map_err(|refusal| Refusal { message: format!("line {}: {}", line.number, refusal.message), ..refusal });
        lines.push(InputLine { index: lines.len(), custom_id, call });
    }
    match lines.is_empty() {
        true => Err(Error::format(path, "holds no requests")),
        false => Ok(lines),
    }
}

/// Whether the file is a task file, which is read as a whole: so it is no longer than a line may be.
fn begins_task(path: &Path, most: usize) -> Result<bool> {
    let mut bytes = Vec::new();
    open(path)?.take(most as u64).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    Ok(String::from_utf8(bytes).is_ok_and(|text| is_task(text.trim_start_matches('\u{feff}'))))
}

/// What a line says: the id and the call of an [`InputLine`].
fn read_line(line: &Line) -> (Option<String>, Result<Call, Refusal>) {
    let object = match line.too_long {
        Some(too_long) => Err(Refusal::new("line_too_long", too_long.why())),
        None => serde_json::from_slice::<Map<String, Value>>(&line.bytes).map_err(|e| invalid(&not_json(&e))),
    };
    let object = match object {
        Ok(object) => object,
        Err(refusal) => {
            let searched = if line.too_long.is_some() { MOST_SEARCHED } else { usize::MAX };
            let text = String::from_utf8_lossy(&line.bytes[..line.bytes.len().min(searched)]);
            let custom_id = field_of_partial(&text, "custom_id").and_then(|id| id.as_str().map(str::to_owned));
            return (custom_id, Err(refusal));
        }
    };
    let custom_id = object.get("custom_id").and_then(Value::as_str).map(str::to_owned);
    let call = match twice(&line.bytes, &object) {
        Some(name) => Err(invalid(&format!("`{name}`: expected once, found twice")).about(name)),
        None => read_call(object, custom_id.as_ref()),
    };
    (custom_id, call)
}

/// The first name that the line has twice, as the parser keeps the last value alone and a call would be answered under
/// another id, or be another call, than its author sees.
fn twice(line: &[u8], object: &Map<String, Value>) -> Option<String> {
    let line = RawJson::part(std::str::from_utf8(line).ok()?);
    let pairs = line.pairs().filter(|pairs| pairs.len() != object.len())?;
    let mut seen = HashSet::new();
    let again = pairs.into_iter().map(|(name, _)| name).find(|name| !seen.insert(name.clone()));
    again.map(|name| shortened(name, MOST_SAID))
}

fn read_call(mut line: Map<String, Value>, custom_id: Option<&String>) -> Result<Call, Refusal> {
    let Some(custom_id) = custom_id else {
        let found = line.get("custom_id").map_or_else(|| "none".to_owned(), describe);
        return Err(invalid(&format!("`custom_id`: expected a string, found {found}")).about("custom_id"));
    };
    if let Some(method) = line.get("method").filter(|method| **method != "POST") {
        return Err(invalid(&format!("`method`: expected \"POST\", found {}", describe(method))).about("method"));
    }
    let Some(endpoint) = line.get("url").and_then(Value::as_str).and_then(BatchEndpoint::at) else {
        let found = line.get("url").map_or("nothing".to_string(), describe);
        let known = BatchEndpoint::ALL.map(|endpoint| format!("{:?}", endpoint.path())).join(", ");
        let what = format!("`url`: expected one of {known}, found {found}");
        return Err(Refusal::new("invalid_url", what).about("url"));
    };
    match line.remove("body") {
        Some(Value::Object(body)) => Ok(Call { custom_id: custom_id.clone(), endpoint, body }),
        _ => Err(invalid("`body`: expected an object with the request").about("body")),
    }
}

fn invalid(what: &str) -> Refusal {
    Refusal::new("invalid_request", what)
}

/// serde_json's line number refers to the text it was given, here always one line, so it is removed. Its column is 0
/// where the value, which begins the line, is of another kind.
fn not_json(error: &serde_json::Error) -> String {
    let what = error.to_string();
    let what = what.split(" at line ").next().unwrap_or(&what);
    format!("column {}: not a JSON object: {}", error.column().max(1), shortened(what.to_string(), MOST_SAID))
}
