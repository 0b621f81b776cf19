//! APPS (Hendrycks et al. 2021): programs over standard input and output, or functions called with data.

use crate::benchmark::fields::{
    FieldResult, JsonRecord, check_raw_list, list, raw_list, raw_object, raw_text, text, wrong,
};
use offshoot_core::json::RawJson;
use offshoot_judge::problem::{
    Assembly, CallSuite, CallTest, Compare, FileForm, Limits, Problem, StreamSuite, StreamTest, TestSuite,
};

/// Its relative tolerance: that of `numpy.allclose`.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn problem(id: &str, fields: JsonRecord) -> FieldResult<Problem> {
    let tests = tests(fields)?.ok_or_else(|| wrong("input_output", "tests", "none"))?;
    let suite = match tests.function {
        Some(function) => {
            let tests = tests.pairs.iter().enumerate().map(|(ix, (input, output))| call(ix, input, output));
            TestSuite::Calls(CallSuite { function, tests: tests.collect::<FieldResult<_>>()? })
        }
        None => {
            let tests = tests.pairs.iter().enumerate().map(|(ix, (input, output))| {
                let at = |what: &str| format!("input_output.{what}.{ix}");
                Ok(StreamTest { input: lines(&at("inputs"), input)?, output: lines(&at("outputs"), output)? })
            });
            TestSuite::Streams(StreamSuite {
                tests: tests.collect::<FieldResult<_>>()?,
                compare: Compare::Floats { tolerance: TOLERANCE },
            })
        }
    };
    let limits = Limits::of(FileForm::Apps);
    Ok(Problem { id: id.to_string(), assembly: Assembly::WithImports, suite, limits })
}

/// Whether the record has any tests; some of the published ones have none.
pub(crate) fn has_tests(fields: JsonRecord) -> FieldResult<bool> {
    tests(fields).map(|tests| tests.is_some())
}

struct AppsTests {
    function: Option<String>,
    pairs: Vec<(RawJson, RawJson)>,
}

fn tests(fields: JsonRecord) -> FieldResult<Option<AppsTests>> {
    let field = "input_output";
    let Some(value) = fields.raw(field)? else { return Ok(None) };
    let all = raw_object(field, &value)?;
    let get = |name: &str| all.get(name).filter(|value| value.as_str() != "null");
    let part = |name: &str| {
        let expected = "a list with one entry per test";
        let value = get(name).ok_or_else(|| wrong(format!("{field}.{name}"), expected, "nothing"))?;
        raw_list(&format!("{field}.{name}"), value)
    };
    let (inputs, outputs) = (part("inputs")?, part("outputs")?);
    if inputs.len() != outputs.len() {
        let expected = format!("as many entries as `{field}.inputs` has: {}", inputs.len());
        return Err(wrong(format!("{field}.outputs"), expected, outputs.len().to_string()));
    }
    let function = get("fn_name").map(|name| raw_text("input_output.fn_name", name)).transpose()?;
    let pairs: Vec<_> = inputs.into_iter().zip(outputs).collect();
    Ok(if pairs.is_empty() { None } else { Some(AppsTests { function, pairs }) })
}

/// A test by call: a list of arguments and the result. Many results are wrapped in a list, so its first entry is
/// accepted too.
fn call(ix: usize, input: &RawJson, output: &RawJson) -> FieldResult<CallTest> {
    check_raw_list(&format!("input_output.inputs.{ix}"), input)?;
    let first = output.list().and_then(|list| list.into_iter().next());
    Ok(CallTest { arguments: input.clone(), expected: [output.clone()].into_iter().chain(first).collect() })
}

/// A text, or its lines.
fn lines(field: &str, value: &RawJson) -> FieldResult<String> {
    match (value.text(), value.list()) {
        (Some(text), _) => Ok(text),
        (None, Some(lines)) => {
            let lines = lines.iter().map(|line| raw_text(field, line)).collect::<FieldResult<Vec<_>>>()?;
            Ok(lines.join("\n"))
        }
        (None, None) => Err(wrong(field, "a text or a list of lines", value.describe())),
    }
}

pub(crate) fn prompt(fields: JsonRecord) -> FieldResult<String> {
    let starter = fields.optional_text("starter_code")?.filter(|code| !code.is_empty());
    let starter = starter.map(|code| format!("\n{code}")).unwrap_or_default();
    let function = tests(fields)?.is_some_and(|tests| tests.function.is_some());
    let way = if function { "Call-Based" } else { "Standard Input" };
    Ok(format!("\nQUESTION:\n{}{starter}\nUse {way} format\nANSWER:\n", fields.text("question")?))
}

pub(crate) fn references(fields: JsonRecord) -> FieldResult<Vec<String>> {
    let Some(solutions) = fields.json("solutions")? else { return Ok(Vec::new()) };
    let solutions = list("solutions", &solutions)?;
    solutions.iter().enumerate().map(|(ix, code)| Ok(text(&format!("solutions.{ix}"), code)?.to_string())).collect()
}
