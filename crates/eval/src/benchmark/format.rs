//! The formats of benchmarks: recognising one by a record's fields, and what each makes of a record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::benchmark::fields::{FieldResult, JsonRecord, Wrong, wrong};
use crate::benchmark::{apps, functions, live_code_bench};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::names;
use offshoot_core::named;
use offshoot_judge::problem::Problem;

/// The benchmark whose fields a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BenchmarkFormat {
    HumanEval,
    EvalPlus,
    Mbpp,
    Apps,
    LiveCodeBench,
}

// In the order of recognition: EvalPlus's records also have HumanEval's fields.
named!(BenchmarkFormat {
    EvalPlus = "evalplus",
    HumanEval = "humaneval",
    Mbpp = "mbpp",
    Apps = "apps",
    LiveCodeBench = "livecodebench",
});

impl BenchmarkFormat {
    /// The format that has these fields.
    pub fn recognise(fields: &Map<String, Value>) -> Option<BenchmarkFormat> {
        Self::ALL.into_iter().find(|format| format.marks().iter().all(|field| fields.contains_key(*field)))
    }

    /// The fields that together identify the format.
    fn marks(self) -> &'static [&'static str] {
        match self {
            BenchmarkFormat::HumanEval => &["test", "entry_point"],
            BenchmarkFormat::EvalPlus => &["base_input", "entry_point"],
            BenchmarkFormat::Mbpp => &["test_list"],
            BenchmarkFormat::Apps => &["input_output"],
            BenchmarkFormat::LiveCodeBench => &["public_test_cases"],
        }
    }

    /// The field that names a problem.
    pub fn id_field(self) -> &'static str {
        match self {
            BenchmarkFormat::HumanEval | BenchmarkFormat::EvalPlus | BenchmarkFormat::Mbpp => "task_id",
            BenchmarkFormat::Apps => "problem_id",
            BenchmarkFormat::LiveCodeBench => "question_id",
        }
    }

    /// Fails if an identifying field is missing and the record has another format.
    pub(super) fn fits(self, fields: &Map<String, Value>) -> FieldResult<()> {
        let missing = self.marks().iter().find(|field| !fields.contains_key(**field));
        match (missing, BenchmarkFormat::recognise(fields)) {
            (Some(field), Some(other)) => {
                let found = format!("nothing (the field is missing; the record looks like one of {})", other.name());
                Err(wrong(*field, format!("a field of {}", self.name()), found))
            }
            _ => Ok(()),
        }
    }

    /// `None`: the record has no tests, as some of APPS.
    pub(super) fn problem_with_tests(self, id: &str, fields: JsonRecord) -> FieldResult<Option<Problem>> {
        let tested = self != BenchmarkFormat::Apps || apps::has_tests(fields)?;
        tested.then(|| self.problem(id, fields)).transpose()
    }

    fn problem(self, id: &str, fields: JsonRecord) -> FieldResult<Problem> {
        match self {
            BenchmarkFormat::HumanEval => functions::human_eval(id, fields),
            BenchmarkFormat::EvalPlus => functions::eval_plus(id, fields),
            BenchmarkFormat::Mbpp => functions::mbpp(id, fields),
            BenchmarkFormat::Apps => apps::problem(id, fields),
            BenchmarkFormat::LiveCodeBench => live_code_bench::problem(id, fields),
        }
    }
}

/// The problem in the fields of the item `id`. Without a format, it is recognised by the fields.
pub fn problem(format: Option<BenchmarkFormat>, id: &str, fields: &Map<String, Value>) -> Result<Problem> {
    let format = known(format, id, fields)?;
    let problem = format.fits(fields).and_then(|()| format.problem(id, JsonRecord(fields)));
    problem.map_err(|wrong| of_item(id, wrong))
}

/// The prompt that the benchmark's authors use for a base model.
pub fn prompt(format: Option<BenchmarkFormat>, id: &str, fields: &Map<String, Value>) -> Result<String> {
    let prompt = match known(format, id, fields)? {
        BenchmarkFormat::HumanEval | BenchmarkFormat::EvalPlus => JsonRecord(fields).text("prompt").map(str::to_string),
        BenchmarkFormat::Mbpp => functions::mbpp_prompt(JsonRecord(fields)),
        BenchmarkFormat::Apps => apps::prompt(JsonRecord(fields)),
        BenchmarkFormat::LiveCodeBench => live_code_bench::prompt(JsonRecord(fields)),
    };
    prompt.map_err(|wrong| of_item(id, wrong))
}

/// The record's own solutions as complete programs; LiveCodeBench has none.
pub fn references(format: Option<BenchmarkFormat>, id: &str, fields: &Map<String, Value>) -> Result<Vec<String>> {
    let references = match known(format, id, fields)? {
        BenchmarkFormat::HumanEval | BenchmarkFormat::EvalPlus => functions::canonical(JsonRecord(fields)),
        BenchmarkFormat::Mbpp => JsonRecord(fields).text("code").map(|code| vec![code.to_string()]),
        BenchmarkFormat::Apps => apps::references(JsonRecord(fields)),
        BenchmarkFormat::LiveCodeBench => Ok(Vec::new()),
    };
    references.map_err(|wrong| of_item(id, wrong))
}

fn known(format: Option<BenchmarkFormat>, id: &str, fields: &Map<String, Value>) -> Result<BenchmarkFormat> {
    format.or_else(|| BenchmarkFormat::recognise(fields)).ok_or_else(|| {
        let found = format!("the fields {}", names(fields));
        Error::value(format!("item {id}"), expected_marks(), found)
    })
}

fn of_item(id: &str, wrong: Wrong) -> Error {
    Error::value(format!("item {id}: `{}`", wrong.field), wrong.expected, wrong.found)
}

/// The fields by which formats are recognised, for an error message.
pub(super) fn expected_marks() -> String {
    let marks = BenchmarkFormat::ALL.map(|format| format!("{} ({})", format.marks().join(" and "), format.name()));
    format!("the fields of a benchmark: {}", marks.join(", "))
}
