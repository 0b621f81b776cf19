//! LiveCodeBench (Jain et al. 2024): contest problems with public and private tests, over standard input and output or
//! as calls.

use std::io::Read as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::benchmark::fields::{FieldResult, JsonRecord, list, object, parse, raw, text, wrong};
use crate::benchmark::pickle;
use offshoot_core::json::RawJson;
use offshoot_core::json::describe;
use offshoot_judge::problem::{
    Assembly, CallSuite, CallTest, Compare, FileForm, Limits, Problem, StreamSuite, StreamTest, TestSuite,
};

/// Limit of one problem's tests; some have over 100 MB.
const MOST_TEST_BYTES: u64 = 2 << 30;

pub(crate) fn problem(id: &str, fields: JsonRecord) -> FieldResult<Problem> {
    let public = fields.json("public_test_cases")?.unwrap_or_else(|| Value::Array(Vec::new()));
    let mut tests = cases("public_test_cases", &public)?;
    if let Some(private) = private(fields)? {
        tests.extend(cases("private_test_cases", &private)?);
    }
    let calls = tests.iter().filter(|test| test.functional).count();
    let suite = match calls {
        _ if tests.is_empty() => return Err(wrong("public_test_cases", "at least one test", "none")),
        0 => TestSuite::Streams(StreamSuite {
            tests: tests.into_iter().map(|test| StreamTest { input: test.input, output: test.output }).collect(),
            compare: Compare::Floats { tolerance: 0.0 },
        }),
        all if all == tests.len() => TestSuite::Calls(CallSuite {
            function: function(fields)?,
            tests: tests.iter().map(call).collect::<FieldResult<_>>()?,
        }),
        _ => return Err(wrong("public_test_cases", "tests of one type", "stdin and functional ones")),
    };
    let limits = Limits::of(FileForm::LiveCodeBench);
    Ok(Problem { id: id.to_string(), assembly: Assembly::WithImports, suite, limits })
}

struct LiveCodeBenchTest {
    /// The field from which it was read.
    field: String,
    functional: bool,
    input: String,
    output: String,
}

fn cases(field: &str, value: &Value) -> FieldResult<Vec<LiveCodeBenchTest>> {
    let case = |(ix, value): (usize, &Value)| {
        let field = format!("{field}.{ix}");
        let case = JsonRecord(object(&field, value)?);
        let part = |name: &str| {
            let at = format!("{field}.{name}");
            let value = case.get(name).ok_or_else(|| wrong(at.as_str(), "a text", "nothing (the field is missing)"))?;
            Ok(text(&at, value)?.to_string())
        };
        let functional = match part("testtype")?.as_str() {
            "stdin" => false,
            "functional" => true,
            other => return Err(wrong(format!("{field}.testtype"), "stdin or functional", other)),
        };
        Ok(LiveCodeBenchTest { functional, input: part("input")?, output: part("output")?, field })
    };
    list(field, value)?.iter().enumerate().map(case).collect()
}

/// The private tests: JSON, or a pickled JSON string compressed by zlib and encoded in base64.
fn private(fields: JsonRecord) -> FieldResult<Option<Value>> {
    let field = "private_test_cases";
    let packed = match fields.get(field) {
        Some(Value::String(text)) if !text.trim_start().starts_with('[') && !text.trim().is_empty() => text.trim(),
        _ => return fields.json(field),
    };
    let expected = "JSON, or base64 of zlib of a pickled text of JSON";
    let zipped = STANDARD.decode(packed).map_err(|e| wrong(field, expected, format!("no base64 ({e})")))?;
    let mut pickled = Vec::new();
    flate2::read::ZlibDecoder::new(zipped.as_slice())
        .take(MOST_TEST_BYTES)
        .read_to_end(&mut pickled)
        .map_err(|e| wrong(field, expected, format!("no zlib ({e})")))?;
    let text = pickle::text(&pickled).ok_or_else(|| wrong(field, expected, "another pickle"))?;
    parse(field, text).map(Some)
}

fn function(fields: JsonRecord) -> FieldResult<String> {
    let expected = "an object with the name of the function to call";
    let metadata = fields.json("metadata")?.ok_or_else(|| wrong("metadata", expected, "nothing"))?;
    let name = object("metadata", &metadata)?.get("func_name");
    name.and_then(Value::as_str).map(str::to_string).ok_or_else(|| {
        wrong("metadata.func_name", "the name of the function to call", name.map_or("nothing".to_string(), describe))
    })
}

/// A test by call: one JSON value per line, each an argument.
fn call(case: &LiveCodeBenchTest) -> FieldResult<CallTest> {
    let lines = case.input.lines().filter(|line| !line.trim().is_empty());
    let arguments = lines.map(|line| raw(&format!("{}.input", case.field), line)).collect::<FieldResult<Vec<_>>>()?;
    let expected = vec![raw(&format!("{}.output", case.field), &case.output)?];
    Ok(CallTest { arguments: RawJson::of_list(&arguments), expected })
}

/// The question, the starter code if there is any, and the required form of the answer.
pub(crate) fn prompt(fields: JsonRecord) -> FieldResult<String> {
    let question = fields.text("question_content")?;
    Ok(match fields.optional_text("starter_code")?.filter(|code| !code.trim().is_empty()) {
        Some(code) => format!(
            "### Question:\n{question}\n\n### Format: Complete this code and put it between fences.\n\
             ```python\n{code}\n```\n\n### Answer:\n"
        ),
        None => format!(
            "### Question:\n{question}\n\n### Format: Write a Python program that reads standard input and writes \
             standard output, between fences.\n\n### Answer:\n"
        ),
    })
}
