//! The calls of tools in the texts of models: the syntaxes in which families write them (`syntax`), how they are found
//! in a text that comes in pieces (`splitter`, `answer`), and the grammar of a text that must call (`grammar`). Which
//! tools there are, and what an answer shows of its calls, is left to the callers.
#![warn(missing_docs)]

mod answer;
mod fields;
mod formats;
mod gemma;
mod gemma_grammar;
mod grammar;
mod head;
mod history;
mod json;
mod pattern;
mod python;
mod raw_text;
mod schema;
mod splitter;
mod syntax;
mod tagged;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use answer::{AnswerPart, AnswerSplitter, ReasoningText};
pub use grammar::{CallDemand, UnwritableTool};
pub use history::ArgumentsSyntax;
pub(crate) use json::BracketScanner;
use schema::SchemaPart;
pub use splitter::CallReader;
pub use syntax::CallSyntax;
pub(crate) use syntax::{ANY, MARKS};

use super::reasoning::{self, TextStart};

/// A function that a model can call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// What calls name it by.
    pub name: String,
    /// The JSON Schema of its arguments; `None`: it takes no arguments.
    pub parameters: Option<Value>,
}

impl Tool {
    /// The schema of one of its parameters, if the tool names it.
    pub fn parameter(&self, name: &str) -> Option<&Value> {
        self.part(name).map(|part| part.schema)
    }

    /// The schema of one of its parameters, with the schema of all of them.
    fn part(&self, name: &str) -> Option<SchemaPart<'_>> {
        self.whole().property(name)
    }

    /// The schema of all its arguments; that of anything if it has none.
    fn whole(&self) -> SchemaPart<'_> {
        let root = self.parameters.as_ref().unwrap_or(&Value::Null);
        SchemaPart { schema: root, root }
    }

    /// Whether its arguments can be an object, as calls have them, by what their schema says of its type.
    pub fn takes_object(&self) -> bool {
        let Some(root) = &self.parameters else { return true };
        let kinds = SchemaPart { schema: root, root }.kinds();
        kinds.is_empty() || kinds.contains(&"object")
    }
}

/// The tools that a model can call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolSet {
    /// In the order in which the model is shown them.
    pub tools: Vec<Tool>,
}

impl ToolSet {
    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text: an object, as far as the model wrote one.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as a value; `None` if they are not valid JSON.
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(&self.arguments).ok()
    }
}

/// All calls in the answer of a whole text, in any family's syntax. What stands in the reasoning is no call.
pub fn calls_of(text: &str) -> Vec<ToolCall> {
    let reader = CallReader::new(&ANY, ToolSet::default().into());
    let mut splitter = AnswerSplitter::new(TextStart::Answer, ReasoningText::Keep, Some(reader));
    joined_calls(&splitter.push_last(&reasoning::called_part(text)))
}

/// The calls among the parts of an answer.
pub fn joined_calls(parts: &[AnswerPart]) -> Vec<ToolCall> {
    let mut calls: Vec<ToolCall> = Vec::new();
    for part in parts {
        match part {
            AnswerPart::CallBegins { name } => {
                calls.push(ToolCall { name: name.clone(), arguments: String::new() });
            }
            AnswerPart::Arguments(piece) => {
                if let Some(call) = calls.last_mut() {
                    call.arguments.push_str(piece);
                }
            }
            AnswerPart::Reasoning(_) | AnswerPart::Content(_) | AnswerPart::CallEnds { .. } => {}
        }
    }
    calls
}
