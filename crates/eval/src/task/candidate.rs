//! The key `grade.judge`: converts an item's fields to a problem with tests, and extracts the candidate program from a
//! sample's text. Text only; the judge runs candidates.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::benchmark;
use crate::benchmark::{BenchmarkFormat, with_body};
use crate::source::values::TaskPath;
use crate::source::{Place, read_text};
use offshoot_core::error::{Error, Result};
use offshoot_judge::language::Language;
use offshoot_judge::problem::{Assembly, Compare, Limits, Problem, TestSuite};
use offshoot_text::reasoning::answer_part;

/// The task file's key `grade.judge`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
#[derive(Default)]
pub(crate) struct JudgeSettings {
    /// The benchmark whose fields the items have (default: recognised by the fields).
    format: Option<BenchmarkFormat>,
    /// The part of a sample's text that is the program.
    extract: CandidateExtract,
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
    extract: CandidateExtract,
    language: Language,
    limits: LimitChanges,
    /// A Python program: see [`Compare::Checker`].
    checker: Option<String>,
}

/// The part of a sample's text that is the candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CandidateExtract {
    /// The longest block between Markdown fences if there is one, else the whole text.
    #[default]
    Auto,
    /// All of it.
    Completion,
    /// The longest block between Markdown fences; without one, there is no candidate.
    Fence,
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
    extract: CandidateExtract,
}

/// A candidate in a sample's text, or a sample's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateText {
    /// Continues the problem's prompt, or is complete, as [`Assembly`] defines.
    Completion(String),
    /// A complete program, whatever the assembly.
    Program(String),
}

impl CandidateText {
    pub fn as_str(&self) -> &str {
        match self {
            CandidateText::Completion(text) | CandidateText::Program(text) => text,
        }
    }
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
        let checker = settings.checker.map(|path| read_text(&place.source.resolve(path.0))).transpose()?;
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
    /// The candidate in a sample's text, behind its reasoning. Fenced code without indentation is a program; it follows
    /// the prompt's definitions, so that it can use the prompt's imports. Indented code is the body of the prompt's
    /// function.
    pub fn candidate(&self, text: &str) -> CandidateText {
        let text = &*answer_part(text);
        let code = match (self.extract, fenced(text)) {
            (CandidateExtract::Completion, _) | (CandidateExtract::Auto, None) => {
                return CandidateText::Completion(text.to_string());
            }
            (CandidateExtract::Fence | CandidateExtract::Auto, Some(code)) => code,
            (CandidateExtract::Fence, None) => "",
        };
        let indented =
            code.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with([' ', '\t']));
        match &self.problem.assembly {
            Assembly::After(_) if indented => CandidateText::Completion(code.to_string()),
            Assembly::After(prompt) => CandidateText::Program(format!("{}\n{code}", with_body(prompt))),
            _ => CandidateText::Completion(code.to_string()),
        }
    }

    /// The program that is judged.
    pub fn program(&self, text: &str) -> String {
        match self.candidate(text) {
            CandidateText::Completion(text) => self.problem.assembly.program(&text),
            CandidateText::Program(program) => program,
        }
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

/// The contents of the longest block between lines that begin with ```, of equal ones the first; an unclosed one ends
/// with the text. Shorter blocks are usually examples of its use.
pub fn fenced(text: &str) -> Option<&str> {
    let (mut blocks, mut open, mut at) = (Vec::new(), None, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if line.trim_start().starts_with("```") {
            match open.take() {
                None => open = Some(end),
                Some(begin) => blocks.push(&text[begin..at]),
            }
        }
        at = end;
    }
    blocks.extend(open.map(|begin| &text[begin..]));
    blocks.into_iter().rev().max_by_key(|block| block.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tests(extract: CandidateExtract) -> ItemTests {
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
        let tests = tests(CandidateExtract::Auto);
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
        let tests = tests(CandidateExtract::Auto);
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
        let tests = tests(CandidateExtract::Fence);
        let Assembly::After(prompt) = &tests.problem.assembly else { panic!("HumanEval") };
        for text in ["```\ndef f(x):\n    return 2 * x\n```", "```\n    return 2 * x\n```", "no code"] {
            let (theirs, ours) = (format!("{prompt}{}", tests.completion(text)), tests.program(text));
            let lines =
                |program: &str| program.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&theirs), lines(&ours), "{text}");
        }
    }

    #[test]
    fn the_longest_block_counts_also_where_the_text_is_cut() {
        assert_eq!(fenced("```\na\n```\n```py\nbb\n```\n"), Some("bb\n"));
        assert_eq!(fenced("```\na\n```\n```py\nb\n```\n"), Some("a\n"), "of equals the first");
        assert_eq!(fenced("```py\nx = 1\nprint(x)\n```\nand\n```\nls\n```\n"), Some("x = 1\nprint(x)\n"));
        assert_eq!(fenced("```\na\n"), Some("a\n"));
        assert_eq!(fenced("```\na\n```\n```"), Some("a\n"));
        assert_eq!(fenced("no `code` here"), None);
    }
}
