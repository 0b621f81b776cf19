//! Reads the lines of a batch's input: each is a call with an id, or an error. `request` interprets the calls.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::eval::source::is_task;
use crate::openai::protocol::{Endpoint, Refusal};

/// A line that is not blank.
pub struct InputLine {
    /// Its index among the lines that are not blank.
    pub index: usize,
    /// `None`: the line has none.
    pub custom_id: Option<String>,
    pub call: Result<Call, Refusal>,
}

/// The call on a line.
pub struct Call {
    pub custom_id: String,
    pub endpoint: Endpoint,
    pub body: Map<String, Value>,
}

pub fn read(path: &Path) -> Result<Vec<InputLine>> {
    let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    if str::from_utf8(bytes).is_ok_and(is_task) {
        return Err(Error::format(path, "holds a task for `offshoot run`, not requests"));
    }
    let mut seen = HashSet::new();
    let mut lines: Vec<InputLine> = Vec::new();
    for (number, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let object = serde_json::from_slice::<Map<String, Value>>(text);
        let custom_id = object.as_ref().ok().and_then(|line| line.get("custom_id")?.as_str()).map(str::to_owned);
        let mut call = object.map_err(|e| invalid(&not_json(&e))).and_then(|line| read_call(line, custom_id.as_ref()));
        if let Some(id) = &custom_id
            && !seen.insert(id.clone())
        {
            let what = format!("`custom_id`: {id:?} is also the id of an earlier line");
            call = Err(Refusal::new("duplicate_custom_id", what));
        }
        let call =
            call.map_err(|refusal| Refusal { message: format!("line {}: {}", number + 1, refusal.message), ..refusal });
        lines.push(InputLine { index: lines.len(), custom_id, call });
    }
    Ok(lines)
}

fn read_call(mut line: Map<String, Value>, custom_id: Option<&String>) -> Result<Call, Refusal> {
    let Some(custom_id) = custom_id else {
        let found = match line.get("custom_id") {
            None => "none".to_owned(),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(other) => other.to_string(),
        };
        return Err(invalid(&format!("`custom_id`: expected a string, found {found}")));
    };
    if line.get("method").is_some_and(|method| method != "POST") {
        return Err(invalid(&format!("`method`: expected \"POST\", found {}", line["method"])));
    }
    let Some(endpoint) = line.get("url").and_then(Value::as_str).and_then(Endpoint::at) else {
        let found = line.get("url").map_or("nothing".to_string(), Value::to_string);
        let (chat, completions) = (Endpoint::Chat.path(), Endpoint::Completions.path());
        return Err(Refusal::new("invalid_url", format!("`url`: expected {chat:?} or {completions:?}, found {found}")));
    };
    match line.remove("body") {
        Some(Value::Object(body)) => Ok(Call { custom_id: custom_id.clone(), endpoint, body }),
        _ => Err(invalid("`body`: expected an object with the request")),
    }
}

fn invalid(what: &str) -> Refusal {
    Refusal::new("invalid_request", what)
}

/// serde_json's line number refers to the text it was given, here always one line, so it is removed.
fn not_json(error: &serde_json::Error) -> String {
    let what = error.to_string();
    format!("column {}: not a JSON object: {}", error.column(), what.split(" at line ").next().unwrap_or(&what))
}
