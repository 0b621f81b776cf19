//! Benchmarks with samples that define a Python function: HumanEval (Chen et al. 2021), MBPP (Austin et al. 2021) and
//! EvalPlus's larger tests for both (Liu et al. 2023).

use crate::benchmark::fields::{FieldResult, JsonRecord, check_raw_list, raw_list, wrong};
use offshoot_core::json::RawJson;
use offshoot_core::json::describe;
use offshoot_judge::problem::{Assembly, FileForm, Limits, Problem, ReferenceSuite, ScriptSuite, TestSuite};

pub(crate) fn human_eval(id: &str, fields: JsonRecord) -> FieldResult<Problem> {
    let prompt = fields.text("prompt")?;
    let entry = fields.text("entry_point")?;
    let script = ScriptSuite {
        helpers: with_body(prompt),
        code: format!("{}\ncheck({entry})", fields.text("test")?),
        entry: Some(entry.to_string()),
    };
    Ok(Problem {
        id: id.to_string(),
        assembly: Assembly::After(prompt.to_string()),
        suite: TestSuite::Script(script),
        limits: Limits::of(FileForm::HumanEval),
    })
}

/// Completes a prompt that ends in the head of a function to a program: adds a body, so that functions defined before
/// it can be used. Any other prompt stays as it is.
pub fn with_body(prompt: &str) -> String {
    let prompt = prompt.trim_end();
    let code = |line: &&str| !line.trim_start().starts_with('#') && !line.trim().is_empty();
    let last = prompt.lines().rfind(code).unwrap_or("");
    let open = last.split('#').next().is_some_and(|code| code.trim_end().ends_with(':'));
    if !open {
        return format!("{prompt}\n");
    }
    let is_head = |line: &&str| ["def ", "async def ", "class "].iter().any(|word| line.trim_start().starts_with(word));
    let outer = indent(prompt.lines().rfind(is_head).unwrap_or(last));
    // A comment behind the head is indented as the body will be.
    let hint = indent(prompt.lines().last().unwrap_or(""));
    match hint.strip_prefix(outer) {
        Some(inner) if !inner.is_empty() => format!("{prompt}\n{hint}pass\n"),
        _ => format!("{prompt}\n{outer}    pass\n"),
    }
}

/// The white space at the beginning of a line.
fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

pub(crate) fn mbpp(id: &str, fields: JsonRecord) -> FieldResult<Problem> {
    let asserts = match fields.optional_text("test")? {
        Some(script) => vec![script],
        None => fields.texts("test_list")?,
    };
    if asserts.is_empty() {
        return Err(wrong("test_list", "at least one test", "none"));
    }
    // The harnesses run the tests behind the program, and no `test_setup_code`: two tasks have some, which needs a
    // class of the solution. So their solutions, which do not define what the tests name, fail there and here.
    let mut code = fields.optional_texts("test_imports")?;
    code.extend(asserts);
    Ok(Problem { limits: Limits::of(FileForm::Mbpp), ..Problem::script(id, code.join("\n")) })
}

/// The text and the tests in a docstring, as in BigCode's harness.
pub(crate) fn mbpp_prompt(fields: JsonRecord) -> FieldResult<String> {
    let text = match fields.optional_text("text")? {
        Some(text) => text,
        None => fields.text("prompt")?,
    };
    Ok(format!("\"\"\"\n{text}\n{}\n\"\"\"\n", fields.texts("test_list")?.join("\n")))
}

pub(crate) fn eval_plus(id: &str, fields: JsonRecord) -> FieldResult<Problem> {
    let prompt = fields.text("prompt")?;
    let atol = match fields.get("atol") {
        None => 0.0,
        Some(value) => value
            .as_f64()
            .filter(|atol| *atol >= 0.0)
            .ok_or_else(|| wrong("atol", "a number from 0 up", describe(value)))?,
    };
    let reference = ReferenceSuite {
        program: format!("{prompt}{}", fields.text("canonical_solution")?),
        entry: fields.text("entry_point")?.to_string(),
        base: calls(fields, "base_input")?,
        plus: fields.get("plus_input").map_or(Ok(Vec::new()), |_| calls(fields, "plus_input"))?,
        atol,
        mbpp: id.strip_prefix("Mbpp/").and_then(|number| number.parse().ok()),
    };
    let limits = Limits::of(FileForm::EvalPlus);
    let assembly = Assembly::After(prompt.to_string());
    Ok(Problem { assembly, limits, ..Problem::new(id, TestSuite::Reference(reference)) })
}

/// Argument lists; EvalPlus's files write an empty object for no lists.
fn calls(fields: JsonRecord, name: &str) -> FieldResult<Vec<RawJson>> {
    fields.need(name, "a list of argument lists")?;
    let Some(value) = fields.raw(name)? else { return Ok(Vec::new()) };
    if value.object().is_some_and(|object| object.is_empty()) {
        return Ok(Vec::new());
    }
    let calls = raw_list(name, &value)?;
    for (ix, call) in calls.iter().enumerate() {
        check_raw_list(&format!("{name}.{ix}"), call)?;
    }
    Ok(calls)
}

/// The prompt and its solution as one program.
pub(crate) fn canonical(fields: JsonRecord) -> FieldResult<Vec<String>> {
    Ok(vec![format!("{}{}", fields.text("prompt")?, fields.text("canonical_solution")?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_without_docstring_gets_a_body() {
        assert_eq!(with_body("def f():\n"), "def f():\n    pass\n");
        assert_eq!(with_body("def f(a,\n      b):\n\t# hint\n"), "def f(a,\n      b):\n\t# hint\n\tpass\n");
        let whole = "def g():\n    '''x'''\n    return 1\n\ndef f():\n";
        assert_eq!(with_body(whole), format!("{whole}    pass\n"));
        assert_eq!(with_body("def f(x):  # halves\n"), "def f(x):  # halves\n    pass\n");
        let method = "class C:\n    def f(self):\n";
        assert_eq!(with_body(method), format!("{method}        pass\n"));
    }

    #[test]
    fn a_docstring_is_a_body() {
        let prompt = "import x\n\n\ndef f():\n    \"\"\" Says\n  > f()\n    \"\"\"\n";
        assert_eq!(with_body(prompt), prompt);
    }

    #[test]
    fn a_prompt_that_ends_in_no_head_stays() {
        for prompt in ["", "# Write f.", "import math", "def g(): return 1", "def g():\n    return 1\n\nx = 1"] {
            assert_eq!(with_body(prompt), format!("{prompt}\n"));
        }
    }
}
