//! Samples as one JSON value (BigCode's generations, APPS's codes, LiveCodeBench's outputs) or as a folder of programs
//! (EvalPlus).

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::lines;
use super::sample::{Form, ImportedSample, ImportedSamples, unknown};
use crate::records::{RecordPlace, inline};
use crate::scoring::problems::Problems;
use crate::source::read_text;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::json;
use offshoot_core::json::RawJson;
use offshoot_core::json::describe;

/// Reads a JSON list: of lists of programs, or of objects as in a file of lines.
pub(super) fn list<'a>(path: &'a Path, text: &str, problems: &'a Problems) -> Result<ImportedSamples<'a>> {
    let Value::Array(list) = value(path, text)? else { return Err(Error::format(path, "not a JSON list")) };
    if !list.first().is_some_and(Value::is_array) {
        let form = list.first().and_then(|first| lines::form(&first.to_string())).unwrap_or(Form::Lines);
        let texts = RawJson::part(text).list().expect("it was read as a list");
        let records = inline(path, list)?.into_iter().zip(texts).map(Ok);
        return Ok(ImportedSamples { form, iter: Box::new(lines::samples(path, records, problems)) });
    }
    if list.len() > problems.list.len() {
        let what = format!("lists of programs for {} problems; there are {}", list.len(), problems.list.len());
        return Err(Error::format(path, what));
    }
    let samples = list.into_iter().enumerate().map(|(ix, programs)| of_problem(path, problems, ix, programs));
    let samples = samples.collect::<Result<Vec<_>>>()?;
    Ok(ImportedSamples { form: Form::BigCode, iter: Box::new(samples.into_iter().flatten().map(Ok)) })
}

pub(super) fn value<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    json::read(text).map_err(|e| Error::format(path, format!("not JSON: {e}")))
}

/// Whether the values of an object are programs.
pub(super) fn are_codes(object: &Map<String, Value>) -> bool {
    object.values().all(|value| value.is_string() || value.is_array())
}

/// Whether all keys of an object are numbers and all values are programs; otherwise it may be a line of samples.
pub(super) fn are_codes_by_number(object: &Map<String, Value>) -> bool {
    !object.is_empty() && are_codes(object) && object.keys().all(|key| key.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads APPS's object: by id if every key is one, else by index.
pub(super) fn codes<'a>(
    path: &'a Path,
    codes: Map<String, Value>,
    problems: &'a Problems,
) -> Result<ImportedSamples<'a>> {
    let by_id = codes.keys().all(|key| problems.find(key).is_some());
    let mut samples = Vec::new();
    for (number, (key, programs)) in codes.into_iter().enumerate() {
        let place = if by_id { problems.find(&key) } else { key.parse().ok().filter(|ix| *ix < problems.list.len()) };
        let problem = place.ok_or_else(|| unknown(path, &key, RecordPlace::Entry(number + 1), &key, problems))?;
        let programs = if programs.is_string() { Value::Array(vec![programs]) } else { programs };
        samples.extend(of_problem(path, problems, problem, programs)?);
    }
    Ok(ImportedSamples { form: Form::Apps, iter: Box::new(samples.into_iter().map(Ok)) })
}

fn of_problem(path: &Path, problems: &Problems, problem: usize, programs: Value) -> Result<Vec<ImportedSample>> {
    let id = &problems.list[problem].id;
    let wrong = |value: &Value| Error::field(path, id, "a list of programs", describe(value));
    let Value::Array(programs) = programs else { return Err(wrong(&programs)) };
    let programs = programs.into_iter().enumerate().map(|(index, program)| match program {
        Value::String(program) => Ok(ImportedSample::program(problem, id, index, program)),
        other => Err(wrong(&other)),
    });
    programs.collect()
}

/// Reads EvalPlus's folder (`HumanEval_0/0.py`), in the order of problems and numbers.
pub(super) fn folder<'a>(path: &'a Path, problems: &'a Problems) -> Result<ImportedSamples<'a>> {
    let mut files: Vec<(usize, usize, PathBuf)> = Vec::new();
    for folder in input::entries(path)?.into_iter().filter(|folder| folder.is_dir()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let slashed = name.replacen('_', "/", 1);
        let problem = problems.find(&slashed).or_else(|| problems.find(&name));
        let problem = problem.ok_or_else(|| unknown(path, "folder", &name, &slashed, problems))?;
        for file in input::entries(&folder)?.into_iter().filter(|file| file.extension().is_some_and(|e| e == "py")) {
            let number = file.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let number = number.ok_or_else(|| Error::format(&file, "expected a number before .py"))?;
            files.push((problem, number, file));
        }
    }
    if files.is_empty() {
        return Err(Error::format(path, "expected folders of programs (HumanEval_0/0.py), found none"));
    }
    files.sort();
    let samples = files.into_iter().map(|(problem, number, file)| {
        Ok(ImportedSample::program(problem, &problems.list[problem].id, number, read_text(&file)?))
    });
    Ok(ImportedSamples { form: Form::EvalPlus, iter: Box::new(samples) })
}
