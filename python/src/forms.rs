//! Forms that samples must have, as Python hands them over, and answers that stand in fields of JSON.

use std::sync::Arc;

use offshoot::search::{CalledTools, JsonPointer};
use offshoot_form::{Form, JsonOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// A form. Whether it can be kept is found when an engine compiles it.
#[pyclass(frozen, name = "Form", module = "offshoot._offshoot")]
pub struct NativeForm(pub Arc<Form>);

#[pymethods]
impl NativeForm {
    /// JSON by the schema whose text this is; without one, a JSON object.
    #[staticmethod]
    #[pyo3(signature = (
        schema=None, *, disable_any_whitespace=false, disable_additional_properties=false, whitespace_pattern=None,
    ))]
    fn json(
        schema: Option<&str>,
        disable_any_whitespace: bool,
        disable_additional_properties: bool,
        whitespace_pattern: Option<String>,
    ) -> PyResult<NativeForm> {
        let style = JsonOptions { disable_any_whitespace, disable_additional_properties, whitespace_pattern };
        let Some(schema) = schema else { return Ok(NativeForm(Arc::new(style.object()))) };
        let schema = serde_json::from_str(schema).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(NativeForm(Arc::new(style.form(schema))))
    }

    /// A text that this regular expression matches as a whole.
    #[staticmethod]
    fn regex(pattern: String) -> NativeForm {
        NativeForm(Arc::new(Form::Regex(pattern)))
    }

    /// A text that this grammar accepts: Lark or GBNF.
    #[staticmethod]
    fn grammar(grammar: &str) -> PyResult<NativeForm> {
        Form::of_grammar(grammar).map(|form| NativeForm(Arc::new(form))).or_raise()
    }

    /// One of these texts.
    #[staticmethod]
    fn choice(texts: Vec<String>) -> NativeForm {
        NativeForm(Arc::new(Form::Choice(texts)))
    }

    /// The field of vLLM's parameters that asks for it.
    #[getter]
    fn kind(&self) -> &'static str {
        match &*self.0 {
            Form::JsonObject => "json_object",
            Form::Json(_) => "json",
            Form::Regex(_) => "regex",
            Form::Lark(_) => "grammar",
            Form::Choice(_) => "choice",
        }
    }
}

/// Finds the answer of a text in a field of its JSON.
#[pyclass(frozen, name = "JsonPointer", module = "offshoot._offshoot")]
pub struct NativePointer(JsonPointer);

#[pymethods]
impl NativePointer {
    #[new]
    fn new(pointer: &str) -> PyResult<NativePointer> {
        JsonPointer::new(pointer).map(NativePointer).or_raise()
    }

    /// The answer in a text, behind its reasoning; None if it has none.
    fn __call__(&self, text: &str) -> Option<String> {
        self.0.answer(text)
    }
}

/// Finds the answer of a text in its calls of tools.
#[pyclass(frozen, name = "CalledTools", module = "offshoot._offshoot")]
pub struct NativeCalls(CalledTools);

#[pymethods]
impl NativeCalls {
    #[new]
    #[pyo3(signature = (pointer=None))]
    fn new(pointer: Option<&str>) -> PyResult<NativeCalls> {
        let pointer = pointer.map(JsonPointer::new).transpose().or_raise()?;
        Ok(NativeCalls(CalledTools { pointer }))
    }

    /// The answer in a text; None if it has none.
    fn __call__(&self, text: &str) -> Option<String> {
        self.0.answer(text)
    }
}
