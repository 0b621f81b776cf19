//! Grades texts: compares a sample with its item's reference. References are prepared when the items are read, so that
//! an invalid item is reported before anything is sampled and grading cannot fail.

use std::path::Path;

use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};
use crate::eval::answer::expression::ExpressionTarget;
use crate::eval::answer::{Extractor, Normalise, broken, compile};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::candidate::JudgeGrade;
use crate::json::digits::without_exponent;
use crate::json::names;
use crate::json::{describe, listed};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GradedText {
    pub correct: bool,
    /// The right answer, for the results.
    pub reference: String,
}

/// How a text is compared with its item's reference.
#[derive(Debug)]
pub(crate) enum Grader {
    /// The canonical answer equals the field's.
    Exact {
        field: String,
        extractor: Extractor,
    },
    /// The answer is a number within `tolerance` of the field's.
    Number {
        field: String,
        extractor: Extractor,
        tolerance: f64,
    },
    /// The sample's text matches the task's regex, or the one in the item's field.
    Pattern(Regex),
    PatternField(String),
    /// The sample's text contains the field's text.
    Contains {
        field: String,
        ignore_case: bool,
    },
    /// The answer is an expression of the numbers in the field `numbers` with the required value.
    Expression {
        numbers: String,
        value: NumberSource,
    },
}

/// A number in the task file, or in the item's field.
#[derive(Debug)]
pub(crate) enum NumberSource {
    Number(String),
    Field(String),
}

/// The reference for an item's samples.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedAnswer {
    Exact { values: Vec<String>, normalise: Normalise },
    Number { values: Vec<String>, tolerance: f64 },
    Pattern(Regex),
    Contains { values: Vec<String>, ignore_case: bool },
    Expression(ExpressionTarget),
}

const KINDS: [&str; 6] = ["exact", "number", "regex", "contains", "expression", "judge"];

/// The task file's key `grade`.
#[derive(Debug)]
pub(crate) enum TaskGrading {
    /// By the text.
    Text(Grader),
    /// By running it as a program.
    Judge(JudgeGrade),
}

impl Grader {
    /// `normalise`: the `answer` section's, the default of an `exact` grade.
    pub fn read(
        source: &TaskSource,
        value: Option<&Value>,
        normalise: Option<Normalise>,
    ) -> Result<Option<TaskGrading>> {
        let Some(value) = value else { return Ok(None) };
        let section = TaskSection::open(source, "grade".to_string(), value, &KINDS)?;
        let keys: Vec<&str> = section.keys().collect();
        let [name] = keys[..] else {
            let expected = format!("exactly one of {} with its settings", listed(&KINDS));
            return Err(Error::field(&source.path, "grade", expected, format!("{} of them", keys.len())));
        };
        let inside = section.get(name).expect("`keys` lists what is there");
        let open = |keys: &[&str]| TaskSection::open(source, section.field(name), inside, keys);
        let grader = match name {
            "exact" => {
                let s = open(&["field", "boxed", "regex", "take", "normalise"])?;
                let extractor = Extractor::read(&s, normalise.unwrap_or(Normalise::Text))?;
                Grader::Exact { field: field(&s)?, extractor }
            }
            "number" => {
                let s = open(&["field", "boxed", "regex", "take", "tolerance"])?;
                let tolerance = s.real("tolerance", "a number of at least 0", |x| x >= 0.0)?.unwrap_or(0.0);
                Grader::Number { field: field(&s)?, extractor: Extractor::read(&s, Normalise::Number)?, tolerance }
            }
            "regex" => {
                let s = open(&["field", "pattern"])?;
                match (s.text("field")?, s.text("pattern")?) {
                    (Some(field), None) => Grader::PatternField(field.to_string()),
                    (None, Some(pattern)) => Grader::Pattern(compile(source, &s.field("pattern"), pattern)?),
                    _ => return Err(source.wrong("grade.regex", "either `field` or `pattern`", Some(inside))),
                }
            }
            "expression" => {
                let s = open(&["numbers", "value"])?;
                Grader::Expression { numbers: named_field(&s, "numbers")?, value: wanted(&s)? }
            }
            "judge" => {
                let s = open(&["format", "extract", "language", "timeout", "memory_mb", "checker"])?;
                return JudgeGrade::read(source, &s).map(|judge| Some(TaskGrading::Judge(judge)));
            }
            _ => {
                let s = open(&["field", "ignore_case"])?;
                Grader::Contains { field: field(&s)?, ignore_case: s.flag("ignore_case")? }
            }
        };
        Ok(Some(TaskGrading::Text(grader)))
    }

    /// The reference for this item's samples. `path` and `id` are for the error if its field is missing or invalid.
    pub fn reference(&self, path: &Path, id: &str, fields: &Map<String, Value>) -> Result<ExpectedAnswer> {
        let item = ItemFields { path, id, fields };
        Ok(match self {
            Grader::Exact { field, extractor } => {
                ExpectedAnswer::Exact { values: item.answers(field, extractor)?, normalise: extractor.normalise }
            }
            Grader::Number { field, extractor, tolerance } => {
                ExpectedAnswer::Number { values: item.answers(field, extractor)?, tolerance: *tolerance }
            }
            Grader::Pattern(regex) => ExpectedAnswer::Pattern(regex.clone()),
            Grader::PatternField(field) => ExpectedAnswer::Pattern(item.regex(field)?),
            Grader::Contains { field, ignore_case } => {
                ExpectedAnswer::Contains { values: item.texts(field)?, ignore_case: *ignore_case }
            }
            Grader::Expression { numbers, value } => ExpectedAnswer::Expression(item.target(numbers, value)?),
        })
    }
}

/// The name in `{"field": NAME}`.
fn named_field(section: &TaskSection, key: &str) -> Result<String> {
    let value = section.need(key, "{\"field\": NAME}")?;
    field(&TaskSection::open(section.source, section.field(key), value, &["field"])?)
}

fn wanted(section: &TaskSection) -> Result<NumberSource> {
    match section.need("value", "a number, or {\"field\": NAME}")? {
        Value::Number(number) => Ok(NumberSource::Number(number.to_string())),
        _ => named_field(section, "value").map(NumberSource::Field),
    }
}

fn field(section: &TaskSection) -> Result<String> {
    section.need("field", "the name of an item's field")?;
    Ok(section.text("field")?.expect("`need` found it").to_string())
}

/// The fields of one item, read for grading.
struct ItemFields<'a> {
    path: &'a Path,
    id: &'a str,
    fields: &'a Map<String, Value>,
}

impl ItemFields<'_> {
    fn wrong(&self, field: &str, expected: &str, found: String) -> Error {
        Error::field(self.path, field, format!("{expected} in item `{}`", self.id), found)
    }

    /// The field as texts: a string, number or boolean, or a list of them, each of which is accepted.
    fn texts(&self, field: &str) -> Result<Vec<String>> {
        self.texts_with(field, Number::to_string)
    }

    /// Like [`ItemFields::texts`]; `number` formats numbers.
    fn texts_with(&self, field: &str, number: fn(&Number) -> String) -> Result<Vec<String>> {
        let expected = "a string, a number or a list of them";
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(value) => Ok(number(value)),
            Value::Bool(value) => Ok(value.to_string()),
            _ => Err(self.wrong(field, expected, describe(value))),
        };
        match self.fields.get(field) {
            None => Err(self.wrong(field, expected, format!("the fields {}", names(self.fields)))),
            Some(Value::Array(list)) if !list.is_empty() => list.iter().map(text).collect(),
            Some(value) => Ok(vec![text(value)?]),
        }
    }

    fn answers(&self, field: &str, extractor: &Extractor) -> Result<Vec<String>> {
        let extract = |text: String| match extractor.extract(&text) {
            Some(answer) => Ok(answer.value),
            None => Err(self.wrong(field, "a text in which `grade` finds an answer", describe(&Value::String(text)))),
        };
        // A number's exponent would be read as a letter.
        let number = match extractor.normalise {
            Normalise::Number | Normalise::Latex => without_exponent,
            Normalise::Text | Normalise::Choice | Normalise::AsIs => Number::to_string,
        };
        self.texts_with(field, number)?.into_iter().map(extract).collect()
    }

    /// The target of an expression; the numbers may be a string or a list.
    fn target(&self, numbers: &str, value: &NumberSource) -> Result<ExpressionTarget> {
        let given = self.texts(numbers)?.join(" ");
        let value = match value {
            NumberSource::Number(number) => number.clone(),
            NumberSource::Field(field) => self.texts(field)?.concat(),
        };
        ExpressionTarget::new(&given, &value).ok_or_else(|| {
            self.wrong(numbers, "numbers (and a number to be made of them)", format!("\"{given}\" and \"{value}\""))
        })
    }

    fn regex(&self, field: &str) -> Result<Regex> {
        let Some(Value::String(pattern)) = self.fields.get(field) else {
            let found = self.fields.get(field).map_or_else(|| format!("the fields {}", names(self.fields)), describe);
            return Err(self.wrong(field, "a regular expression", found));
        };
        Regex::new(pattern).map_err(|e| self.wrong(field, "a regular expression", broken(pattern, &e)))
    }
}

impl ExpectedAnswer {
    /// The right answer, for the results.
    pub fn shown(&self) -> String {
        match self {
            ExpectedAnswer::Exact { values, .. }
            | ExpectedAnswer::Number { values, .. }
            | ExpectedAnswer::Contains { values, .. } => values.join(" | "),
            ExpectedAnswer::Pattern(regex) => regex.to_string(),
            ExpectedAnswer::Expression(target) => target.shown().to_string(),
        }
    }

    /// Grades a sample: `text` is the whole sample, `answer` its extracted answer (`None`: it has none, which is wrong
    /// if the grader compares answers).
    pub fn judge(&self, text: &str, answer: Option<&str>) -> GradedText {
        let correct = match self {
            ExpectedAnswer::Exact { values, normalise } => {
                answer.and_then(|a| normalise.apply(a)).is_some_and(|given| values.contains(&given))
            }
            ExpectedAnswer::Number { values, tolerance } => answer
                .and_then(|a| Normalise::Number.apply(a))
                .is_some_and(|given| values.iter().any(|v| near(v, &given, *tolerance))),
            ExpectedAnswer::Pattern(regex) => regex.is_match(text),
            ExpectedAnswer::Contains { values, ignore_case } => {
                let fold = |s: &str| if *ignore_case { s.to_lowercase() } else { s.to_string() };
                let text = fold(text);
                values.iter().any(|v| text.contains(&fold(v)))
            }
            ExpectedAnswer::Expression(target) => answer.is_some_and(|answer| target.accepts(answer)),
        };
        GradedText { correct, reference: self.shown() }
    }
}

/// Whether two canonical numbers are equal as text, or within the tolerance if there is one.
fn near(a: &str, b: &str, tolerance: f64) -> bool {
    let value = |s: &str| s.parse::<f64>().expect("a canonical number is one for f64 too");
    a == b || (tolerance > 0.0 && (value(a) - value(b)).abs() <= tolerance)
}
