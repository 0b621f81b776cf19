//! What a scorer is told that the texts of a line answer: a template over the fields, a field, or what the task says.
//! Without a task the fields are the line's own, with one those of its item.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::records::FileRecord;
use crate::run::sample_fields::{SampleFields, field_of};
use crate::task::template::Template;
use crate::task::{Item, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::describe;
use offshoot_core::setting::QUESTION;
use offshoot_text::Message;

/// The usual fields of questions.
const QUESTIONS: [&str; 6] = ["question", "problem", "prompt", "messages", "instruction", "query"];

/// How the question about a line is found.
pub(super) struct LineQuestions<'o> {
    fields: SampleFields<'o>,
    given: Option<GivenQuestion<'o>>,
    task: Option<TaskItems>,
}

/// What the user says of the question.
enum GivenQuestion<'o> {
    Field(&'o str),
    Filled(Template),
}

/// A task whose items the lines are about.
struct TaskItems {
    task: Task,
    by_id: HashMap<String, Item>,
}

impl<'o> LineQuestions<'o> {
    /// `given`: a template, which has a pair of braces, or the name of a field. `task`: the task whose items the lines
    /// are about.
    pub fn new(fields: SampleFields<'o>, given: Option<&'o str>, task: Option<Task>) -> Result<LineQuestions<'o>> {
        let given = given.map(|text| match ["{{", "{%"].iter().any(|begin| text.contains(begin)) {
            true => Template::of_option(QUESTION, fields.path, text.to_owned()).map(GivenQuestion::Filled),
            false => Ok(GivenQuestion::Field(text)),
        });
        let of_task = |task: Task| {
            let items = task.items(None)?;
            Ok(TaskItems { task, by_id: items.into_iter().map(|item| (item.id.clone(), item)).collect() })
        };
        Ok(LineQuestions { fields, given: given.transpose()?, task: task.map(of_task).transpose()? })
    }

    /// The question that a line's texts answer.
    pub fn of(&self, record: &FileRecord) -> Result<Vec<Message>> {
        let path = self.fields.path;
        let Some(TaskItems { task, by_id }) = &self.task else {
            return match &self.given {
                Some(GivenQuestion::Filled(template)) => filled(template, &record.0.to_string(), &record.1),
                Some(GivenQuestion::Field(field)) => self.in_field(record, Some(field)),
                None => self.in_field(record, None),
            };
        };
        let (id, field) = self.fields.id_of(record)?;
        let item = by_id.get(&id).ok_or_else(|| {
            let expected = format!("the id of an item of {} at {}", task.items_path().display(), record.0);
            Error::field(path, &field, expected, format!("\"{}\"", id.escape_debug()))
        })?;
        match &self.given {
            Some(GivenQuestion::Filled(template)) => filled(template, &item.id, &item.fields),
            Some(GivenQuestion::Field(field)) => {
                let value = item.fields.get(*field).ok_or_else(|| {
                    let expected = format!("a field of item `{id}` of {}", task.items_path().display());
                    Error::value(QUESTION, expected, format!("`{field}`"))
                })?;
                messages(value).map_err(|found| {
                    let expected = format!("a text or a chat in item `{id}`");
                    Error::field(task.items_path(), *field, expected, found)
                })
            }
            None => task.scorer.question(item, task.prompt(item)?),
        }
    }

    /// The question in a field of the line.
    fn in_field(&self, record: &FileRecord, given: Option<&str>) -> Result<Vec<Message>> {
        let path = self.fields.path;
        let field = field_of(path, record, given, &QUESTIONS, QUESTION)?;
        messages(&record.1[&field])
            .map_err(|found| Error::field(path, &field, format!("a text or a chat at {}", record.0), found))
    }
}

fn filled(template: &Template, id: &str, fields: &Map<String, Value>) -> Result<Vec<Message>> {
    Ok(vec![Message::user(template.render(id, fields)?)])
}

/// The turns of a question: a text is the user's, a list has turns with `role` and `content`. The error says what was
/// found instead.
fn messages(value: &Value) -> Result<Vec<Message>, String> {
    let turn = |value: &Value| match value {
        Value::Object(fields) if fields.get("role").is_some_and(Value::is_string) => {
            Ok(Message::of(fields.clone()).completed())
        }
        other => Err(format!("{} among its turns", describe(other))),
    };
    match value {
        Value::String(text) => Ok(vec![Message::user(text)]),
        Value::Array(turns) if !turns.is_empty() => turns.iter().map(turn).collect(),
        other => Err(describe(other)),
    }
}
