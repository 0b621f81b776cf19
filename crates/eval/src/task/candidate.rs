//! The key `grade.judge`: converts an item's fields to a problem with tests. `program` finds the candidate in a
//! sample's text, and the judge runs it.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::benchmark;
use crate::benchmark::{BenchmarkFormat, with_body};
use crate::program::{CandidateText, ExtractMode, candidate};
use crate::source::Place;
use crate::source::values::TaskPath;
use offshoot_core::error::{Error, Result};
use offshoot_judge::language::Language;
use offshoot_judge::problem::{Assembly, Compare, Limits, Problem, TestSuite};

/// The task file's key `grade.judge`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
#[derive(Default)]
pub(crate) struct JudgeSettings {
    /// The benchmark whose fields the items have (default: recognised by the fields).
    format: Option<BenchmarkFormat>,
    /// The part of a sample's text that is the program.
    extract: ExtractMode,
    /// `python`, `cpp`, or commands: {"file": "main.rs", "compile": ["rustc", "main.rs"], "run": ["./main"]}.
    #[schemars(with = "LanguageSetting", extend("x-expected" = "`python`, `cpp`, or an object with `file` and `run`"))]
    language: Option<Value>,
    /// Seconds for each test, of processor time and by the candidate's clock (default: the benchmark's).
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 86_400, "x-expected" = "seconds above 0, at most a day"))]
    timeout: Option<f64>,
    /// Memory of a candidate in MiB (default: the benchmark's).
    #[schemars(range(min = 1))]
    memory_mb: Option<u32>,
    /// A Python program that compares outputs, for problems with several right ones.
    checker: Option<TaskPath>,
}

/// The shapes of `grade.judge.language`; `judge` reads them.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[allow(dead_code, reason = "only its schema is used")]
enum LanguageSetting {
    Name(String),
    Commands(std::collections::BTreeMap<String, Value>),
}

/// The settings of `grade.judge`, read.
#[derive(Debug)]
pub(crate) struct JudgeGrade {
    /// `None`: recognised by each item's fields.
    format: Option<BenchmarkFormat>,
    extract: ExtractMode,
    language: Language,
    limits: LimitChanges,
    /// A Python program: see [`Compare::Checker`].
    checker: Option<String>,
}

/// Limits of a user, for all problems; `None`: the benchmark's.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitChanges {
    /// CPU time and time by the candidate's clock, for each test.
    pub time: Option<Duration>,
    pub memory_bytes: Option<u64>,
}

impl LimitChanges {
    pub fn apply(self, limits: &mut Limits) {
        *limits = self.time.map_or(*limits, |time| limits.within(time));
        limits.memory_bytes = self.memory_bytes.unwrap_or(limits.memory_bytes);
    }
}

/// The tests of one item, and how its samples become candidates.
#[derive(Clone, Debug)]
pub struct ItemTests {
    pub problem: Problem,
    pub language: Language,
    extract: ExtractMode,
}

impl JudgeGrade {
    /// `place`: of the key `grade.judge`.
    pub fn new(place: &Place<'_>, settings: JudgeSettings) -> Result<JudgeGrade> {
        let language = match settings.language {
            None => Ok(Language::default()),
            Some(Value::String(name)) => Language::parse("language", &name),
            Some(commands) => Language::parse("language", &commands.to_string()),
        };
        let language = language.map_err(|error| match error {
            Error::Value { expected, found, .. } => place.key("language").wrong_as(expected, found),
            other => other,
        })?;
        let checker = settings.checker.map(|path| place.key("checker").read_text(path.0)).transpose()?;
        Ok(JudgeGrade {
            format: settings.format,
            extract: settings.extract,
            language,
            limits: LimitChanges {
                time: settings.timeout.map(Duration::from_secs_f64),
                memory_bytes: settings.memory_mb.map(|mb| u64::from(mb) << 20),
            },
            checker,
        })
    }

    /// The item's fields as tests. `path` is the items file, for an error.
    pub fn tests(&self, path: &Path, id: &str, fields: &Map<String, Value>) -> Result<ItemTests> {
        let in_file = |error| match error {
            Error::Value { what, expected, found } => {
                Error::format(path, format!("{what}: expected {expected}, found {found}"))
            }
            other => other,
        };
        let mut problem = benchmark::problem(self.format, id, fields).map_err(in_file)?;
        self.limits.apply(&mut problem.limits);
        if let Some(program) = &self.checker {
            let TestSuite::Streams(streams) = &mut problem.suite else {
                let expected = "tests by standard input and output, because `grade.judge.checker` compares outputs";
                return Err(Error::format(path, format!("item `{id}`: expected {expected}, found tests by calls")));
            };
            streams.compare = Compare::Checker { program: program.clone() };
        }
        if self.language != Language::Python && !matches!(problem.suite, TestSuite::Streams(_)) {
            let expected = "tests by standard input and output, as `grade.judge.language` is not Python";
            return Err(Error::format(path, format!("item `{id}`: expected {expected}, found tests in Python")));
        }
        Ok(ItemTests { problem, language: self.language.clone(), extract: self.extract })
    }
}

impl ItemTests {
    /// The candidate in a sample's text.
    fn candidate(&self, text: &str) -> CandidateText {
        candidate(&self.problem, &self.language, &CandidateText::Completion(text.to_owned()), self.extract)
    }

    /// The program that is judged.
    pub fn program(&self, text: &str) -> String {
        self.candidate(text).program(&self.problem, &self.language)
    }

    /// The completion in HumanEval's format: the text that its scorer appends to the prompt.
    pub fn completion(&self, text: &str) -> String {
        match (self.candidate(text), &self.problem.assembly) {
            (CandidateText::Completion(text), _) => text,
            // A function head without docstring needs a body before the program can follow.
            (CandidateText::Program(program), Assembly::After(prompt)) => {
                let body = with_body(prompt);
                let behind = program.strip_prefix(body.as_str()).unwrap_or(&program);
                format!("{}{behind}", body.strip_prefix(prompt.trim_end()).unwrap_or_default())
            }
            (CandidateText::Program(program), _) => program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tests(extract: ExtractMode) -> ItemTests {
        let fields = json!({
            "prompt": "import math\n\ndef f(x):\n    \"\"\"Double.\"\"\"\n",
            "entry_point": "f",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n"
        });
        let problem = benchmark::problem(None, "f/0", fields.as_object().unwrap()).unwrap();
        ItemTests { problem, language: Language::Python, extract }
    }

    #[test]
    fn a_fenced_program_follows_the_prompt_and_a_fenced_body_completes_it() {
        let program = "Sure:\n```python\ndef f(x):\n    return 2 * x\n```\nDone.";
        let tests = tests(ExtractMode::Auto);
        let assembled = tests.program(program);
        assert!(assembled.starts_with("import math\n") && assembled.ends_with("\ndef f(x):\n    return 2 * x\n"));
        let body = "```\n    return 2 * x\n```";
        assert_eq!(tests.candidate(body), CandidateText::Completion("    return 2 * x\n".to_string()));
        assert_eq!(tests.candidate("    return x\n"), CandidateText::Completion("    return x\n".to_string()));
    }

    #[test]
    fn programs_in_the_reasoning_are_no_candidates() {
        let reasoning = "Try:\n```python\ndef f(x):\n    return x + x if x else 0\n```\nSimpler:\n";
        let answer = "```python\ndef f(x):\n    return 2 * x\n```\n";
        let tests = tests(ExtractMode::Auto);
        let expected = tests.program(answer);
        for text in [
            format!("<think>{reasoning}</think>\n{answer}"),
            format!("{reasoning}</think>{answer}"),
            format!(
                "<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant<|channel|>final<|message|>{answer}"
            ),
        ] {
            assert_eq!(tests.program(&text), expected, "{text}");
            assert_eq!(tests.completion(&text), tests.completion(answer), "{text}");
        }
        assert_eq!(tests.candidate(&format!("<think>{reasoning}")), CandidateText::Completion(String::new()));
    }

    #[test]
    fn what_other_scorers_are_given_makes_the_same_program() {
        let tests = tests(ExtractMode::Fence);
        let Assembly::After(prompt) = &tests.problem.assembly else { panic!("HumanEval") };
        for text in ["```\ndef f(x):\n    return 2 * x\n```", "```\n    return 2 * x\n```", "no code"] {
            let (theirs, ours) = (format!("{prompt}{}", tests.completion(text)), tests.program(text));
            let lines =
                |program: &str| program.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&theirs), lines(&ours), "{text}");
        }
    }
}
