//! Writes results in the format of the samples' own harness, in addition to the lines that every scoring writes:
//! EvalPlus's `eval_results.json`, BigCode's `evaluation_results.json`, APPS's codes by test, LiveCodeBench's
//! `eval_all`. Writes problem by problem, so that only one problem's samples are in memory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::problems::{ListedProblem, Problems};
use super::results::{CandidateOutcome, Results, of_line};
use super::samples::Form;
use super::summary::{PassAt, VerdictTally, base_passed};
use crate::benchmark::BenchmarkFormat;
use offshoot_core::error::{Error, Result};
use offshoot_core::json::RawJson;
use offshoot_core::out::files::WholeFile;
use offshoot_judge::Verdict;
use offshoot_judge::problem::{ReferenceSuite, TestSuite};
use offshoot_text::strftime;

impl Form {
    /// The path to which the harness of the samples itself would write; `None`: only the lines are written.
    pub fn own_path(self, samples: &Path) -> Option<PathBuf> {
        let name = samples.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        Some(match self {
            Form::Lines => return None,
            Form::EvalPlus if samples.is_dir() => samples.join("eval_results.json"),
            Form::EvalPlus => samples.with_file_name(format!("{stem}_eval_results.json")),
            Form::BigCode => samples.with_file_name("evaluation_results.json"),
            Form::Apps => {
                samples.with_file_name(format!("{}_results.json", stem.strip_suffix("_codes").unwrap_or(stem)))
            }
            Form::LiveCodeBench => samples.with_file_name(format!("{stem}_codegeneration_output_eval_all.json")),
        })
    }
}

/// A finished scoring, for the export.
pub struct Scored<'a> {
    pub problems: &'a Problems,
    pub problems_path: &'a Path,
    pub tally: &'a VerdictTally,
    pub ks: &'a [u32],
    /// For each problem, the byte offsets of its lines in the file of results.
    pub places: &'a [Vec<u64>],
}

impl Scored<'_> {
    /// Writes the file of `form` to its own path, or another, atomically.
    pub fn write(&self, form: Form, results: &mut Results, path: &Path) -> Result<()> {
        let mut file = WholeFile::create(path)?;
        let mut out = JsonWriter { out: file.writer(), path };
        match form {
            Form::Lines => unreachable!("lines alone have no own path"),
            Form::EvalPlus => self.eval_plus(results, &mut out)?,
            Form::BigCode => out.value(&self.big_code())?,
            Form::Apps => self.apps(results, &mut out)?,
            Form::LiveCodeBench => self.live_code_bench(results, &mut out)?,
        }
        out.text("\n")?;
        file.finish()
    }

    /// Calls the function with each problem that has samples and can be judged, with its index and all of its lines.
    fn each(&self, results: &mut Results, take: &mut TakeProblem) -> Result<()> {
        let with_samples = self.problems.list.iter().zip(self.places).enumerate();
        let with_samples =
            with_samples.filter(|(ix, (_, lines))| !lines.is_empty() && !self.tally.left_out.contains_key(ix));
        let mut first = true;
        for (ix, (listed, places)) in with_samples {
            let lines = places.iter().map(|place| {
                let fields = results.line(*place)?;
                match of_line(&fields) {
                    Some(Ok(outcome)) => Ok(JudgedLine { fields, outcome }),
                    _ => Err(Error::format(results.path(), "changed since it was written")),
                }
            });
            take(first, ix, listed, lines.collect::<Result<_>>()?)?;
            first = false;
        }
        Ok(())
    }

    fn eval_plus(&self, results: &mut Results, out: &mut JsonWriter) -> Result<()> {
        let date = strftime("%Y-%m-%d %H:%M", SystemTime::now());
        let hash = match self.problems_path.is_file() {
            true => blake3::hash(&fs::read(self.problems_path).map_err(Error::io(self.problems_path, "read"))?)
                .to_hex()
                .to_string(),
            false => String::new(),
        };
        out.text(&format!("{{\"date\": {}, \"hash\": {}, \"eval\": {{", json!(date), json!(hash)))?;
        self.each(results, &mut |first, _, listed, lines| {
            let lines: Vec<String> = lines.iter().map(|line| line.eval_plus(listed)).collect();
            out.entry(first, &listed.id, &format!("[{}]", lines.join(", ")))
        })?;
        let at = |right: &[u32]| named(&self.tally.pass_at(right, self.ks));
        let extended =
            |listed: &ListedProblem| matches!(listed.tests(), Some(p) if matches!(p.suite, TestSuite::Reference(_)));
        let mut pass_at_k = Map::new();
        pass_at_k.insert("base".to_string(), Value::Object(at(&self.tally.base_right)));
        if self.problems.list.iter().any(extended) {
            pass_at_k.insert("plus".to_string(), Value::Object(at(&self.tally.right)));
        }
        out.text(&format!("}}, \"pass_at_k\": {}}}", Value::Object(pass_at_k)))
    }

    fn big_code(&self) -> Value {
        let task = match self.problems.format {
            BenchmarkFormat::HumanEval | BenchmarkFormat::EvalPlus => "humaneval",
            format => format.name(),
        };
        let config = json!({"tasks": task, "problems": self.problems_path,
            "judge": concat!("offshoot ", env!("CARGO_PKG_VERSION"))});
        json!({task: named(&self.tally.pass_at(&self.tally.right, self.ks)), "config": config})
    }

    fn apps(&self, results: &mut Results, out: &mut JsonWriter) -> Result<()> {
        out.text("{")?;
        self.each(results, &mut |first, ix, _, lines| {
            let codes: Vec<Value> = lines.iter().map(|line| line.codes([-2, -1, -1])).collect();
            out.entry(first, &ix.to_string(), &json!(codes).to_string())
        })?;
        out.text("}")
    }

    fn live_code_bench(&self, results: &mut Results, out: &mut JsonWriter) -> Result<()> {
        out.text("[")?;
        self.each(results, &mut |first, _, listed, lines| {
            let mut entry = listed.about.clone();
            let programs: Vec<&Value> = lines.iter().filter_map(|line| line.fields.get("solution")).collect();
            let passed: Vec<bool> = lines.iter().map(|line| line.outcome.passed()).collect();
            let right = passed.iter().filter(|passed| **passed).count();
            let own = json!({
                "output_list": programs,
                "code_list": programs,
                "graded_list": passed,
                "pass@1": right as f64 / passed.len() as f64,
                "metadata": lines.iter().map(JudgedLine::live_code_bench).collect::<Vec<_>>(),
                "results": lines.iter().map(|line| line.codes([-4, -4, -3])).collect::<Vec<_>>(),
            });
            entry.extend(own.as_object().cloned().unwrap_or_default());
            out.text(if first { "" } else { ", " })?;
            out.value(&Value::Object(entry))
        })?;
        out.text("]")
    }
}

/// Takes a problem with its index and its lines; the first argument: whether it is the first.
type TakeProblem<'a> = dyn FnMut(bool, usize, &ListedProblem, Vec<JudgedLine>) -> Result<()> + 'a;

/// A line of the file of results.
struct JudgedLine {
    fields: Map<String, Value>,
    outcome: CandidateOutcome,
}

impl JudgedLine {
    /// As JSON text, with the inputs unchanged from their file.
    fn eval_plus(&self, listed: &ListedProblem) -> String {
        let field = |name: &str| self.fields.get(name).and_then(Value::as_str);
        let problem = listed.tests().expect("only problems with tests are judged");
        let solution = match (field("solution"), field("completion")) {
            (Some(program), _) => program.to_string(),
            (None, text) => problem.assembly.program(text.unwrap_or_default()),
        };
        // EvalPlus's own alarm ends a slow test, which fails; what its process does outside of tests times out.
        let status = |passed| match passed {
            true => "pass",
            false if self.outcome.began => "fail",
            false => "timeout",
        };
        let base_passed = base_passed(&problem.suite, &self.outcome);
        let mut plus_status = Value::Null;
        let (mut base_failed, mut plus_failed) = ("[]".to_string(), "null".to_string());
        if let TestSuite::Reference(ReferenceSuite { base, plus, .. }) = &problem.suite {
            let tests = &self.outcome.tests;
            let accepted = |test: &Verdict| *test == Verdict::Accepted;
            // The base tests end at the first failure, unless all were run; EvalPlus's tests follow.
            let all = base_passed || tests.len() == base.len() + plus.len();
            let run =
                tests.iter().position(|test| !accepted(test)).filter(|_| !all).map_or(base.len(), |failed| failed + 1);
            let (of_base, of_plus) = tests.split_at(run.min(tests.len()));
            let plus_passed = of_plus.len() == plus.len() && of_plus.iter().all(accepted);
            plus_status = json!(status(plus_passed));
            (base_failed, plus_failed) = (failed(base, of_base), failed(plus, of_plus));
        }
        let (id, solution, base_status) = (json!(listed.id), json!(solution), json!(status(base_passed)));
        format!(
            "{{\"task_id\": {id}, \"solution\": {solution}, \"base_status\": {base_status}, \
             \"plus_status\": {plus_status}, \
             \"base_fail_tests\": {base_failed}, \"plus_fail_tests\": {plus_failed}}}"
        )
    }

    /// For each test `true`, or the code of a compile error, a runtime error or a time limit; a wrong answer is APPS's
    /// `false` or LiveCodeBench's -2.
    fn codes(&self, [compile, runtime, time]: [i32; 3]) -> Value {
        let wrong = if compile == -2 { json!(false) } else { json!(-2) };
        let code = |verdict: &Verdict| match verdict {
            Verdict::Accepted => json!(true),
            Verdict::WrongAnswer => wrong.clone(),
            Verdict::CompileError => json!(compile),
            Verdict::TimeLimit => json!(time),
            Verdict::MemoryLimit | Verdict::OutputLimit | Verdict::RuntimeError | Verdict::Sandbox => json!(runtime),
        };
        match self.outcome.tests[..] {
            [] => json!([code(&self.outcome.verdict)]),
            ref tests => json!(tests.iter().map(code).collect::<Vec<_>>()),
        }
    }

    /// The metadata as a JSON string, in LiveCodeBench's format.
    fn live_code_bench(&self) -> String {
        let code = match self.outcome.verdict {
            Verdict::Accepted => return "{}".to_string(),
            Verdict::WrongAnswer => -2,
            Verdict::TimeLimit => -3,
            _ => -4,
        };
        let message = self.outcome.message.clone().unwrap_or_else(|| self.outcome.verdict.to_string());
        json!({"error_code": code, "error_message": message}).to_string()
    }
}

/// The inputs of failed tests, as a JSON list.
fn failed(inputs: &[RawJson], verdicts: &[Verdict]) -> String {
    let run = inputs.iter().zip(verdicts).filter(|(_, verdict)| **verdict != Verdict::Accepted);
    format!("[{}]", run.map(|(input, _)| input.as_str()).collect::<Vec<_>>().join(", "))
}

fn named(pass_at: &[PassAt]) -> Map<String, Value> {
    pass_at.iter().map(|at| (format!("pass@{}", at.k), json!(at.value))).collect()
}

/// Writes JSON incrementally.
struct JsonWriter<'a> {
    out: &'a mut BufWriter<File>,
    path: &'a Path,
}

impl JsonWriter<'_> {
    fn text(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes()).map_err(Error::io(self.path, "write"))
    }

    fn value(&mut self, value: &Value) -> Result<()> {
        self.text(&value.to_string())
    }

    /// `value`: JSON text.
    fn entry(&mut self, first: bool, key: &str, value: &str) -> Result<()> {
        self.text(if first { "" } else { ", " })?;
        self.text(&format!("{}: ", json!(key)))?;
        self.text(value)
    }
}
