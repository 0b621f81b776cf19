//! Grades texts: compares a sample with its item's reference. References are prepared when the items are read, so that
//! an invalid item is reported before anything is sampled and grading cannot fail.

use std::path::Path;

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::answer::expression::ExpressionTarget;
use crate::answer::latex;
use crate::answer::{AnswerRules, ExtractedAnswer, Extractor, Normalise, broken, compile};
use crate::source::Place;
use crate::task::candidate::{JudgeGrade, JudgeSettings};
use crate::task::verdict::{TaskVerdict, VerdictKey, VerdictSettings};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::describe;
use offshoot_core::json::digits::without_exponent;
use offshoot_core::json::names;
use offshoot_search::number_answer;

/// The task file's key `grade`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GradeSettings {
    /// The answer equals that of the item's field: in its canonical form or, of `latex`, by its meaning.
    Exact(ExactSettings),
    /// The answer is a number, that of the item's field.
    Number(NumberSettings),
    /// The sample's text matches a pattern.
    Regex(PatternSettings),
    /// The sample's text contains that of the item's field.
    Contains(ContainsSettings),
    /// The answer is an arithmetic expression of given numbers with a required value, such as in the game of 24.
    Expression(ExpressionSettings),
    /// The item is a programming problem of a benchmark; samples are run against its tests.
    Judge(JudgeSettings),
    /// The task's `judge`, a model, is asked about each sample.
    Verdict(Box<VerdictGradeSettings>),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct VerdictGradeSettings {
    #[serde(flatten)]
    verdict: VerdictSettings,
    /// The least score of a right sample.
    #[serde(default = "half")]
    #[schemars(extend("minimum" = 0, "maximum" = 1, "x-expected" = "a number from 0 to 1"))]
    right_from: f64,
}

fn half() -> f64 {
    0.5
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ExactSettings {
    /// The item's field with the right answer, or a list of right answers.
    #[schemars(extend("x-expected" = "the name of an item's field"))]
    field: String,
    /// How the answer is found in the field's text.
    #[serde(flatten)]
    rules: AnswerRules,
    /// The canonical form (default: that of `answer`, else text).
    normalise: Option<Normalise>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct NumberSettings {
    /// The item's field with the right number, or a list of right numbers.
    #[schemars(extend("x-expected" = "the name of an item's field"))]
    field: String,
    /// How the number is found in the field's text.
    #[serde(flatten)]
    rules: AnswerRules,
    /// The largest difference that still counts as right.
    #[serde(default)]
    #[schemars(extend("minimum" = 0, "x-expected" = "a number of at least 0"))]
    tolerance: f64,
}

/// Either `field` or `pattern`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct PatternSettings {
    /// The item's field with the pattern.
    field: Option<String>,
    /// The pattern, for all items.
    pattern: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ContainsSettings {
    /// The item's field with the text, or a list of texts, one of which must occur.
    #[schemars(extend("x-expected" = "the name of an item's field"))]
    field: String,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    ignore_case: bool,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ExpressionSettings {
    /// The item's field with the numbers, each of which must be used once.
    #[schemars(extend("x-expected" = "{\"field\": NAME}"))]
    numbers: FieldName,
    /// The value of the expression.
    #[schemars(extend("x-expected" = "a number, or {\"field\": NAME}"))]
    value: NumberOrField,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FieldName {
    /// The item's field.
    #[schemars(extend("x-expected" = "the name of an item's field"))]
    pub field: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum NumberOrField {
    Number(Number),
    Field(FieldName),
}

/// How a text is compared with its item's reference.
#[derive(Debug)]
pub(crate) enum Grader {
    /// The answer equals the field's or, of numbers, is within `tolerance` of it.
    Answer {
        field: String,
        extractor: Extractor,
        /// Whether answers are values of JSON, and the field's numbers, too.
        is_json: bool,
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
        value: NumberOrField,
    },
}

/// The reference for an item's samples.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedAnswer {
    Answer { values: Vec<ExtractedAnswer>, normalise: Normalise, tolerance: f64 },
    Pattern(Regex),
    Contains { values: Vec<String>, ignore_case: bool },
    Expression(ExpressionTarget),
}

/// How samples are graded.
#[derive(Debug)]
pub(crate) enum TaskGrading {
    /// Graded by the text.
    Text(Grader),
    /// Graded by running it as a program.
    Judge(JudgeGrade),
    /// Graded by a judge, which is a model.
    Verdict(VerdictGrade),
}

/// What a judge is asked about a sample, and when the sample is right.
#[derive(Debug)]
pub struct VerdictGrade {
    /// What it is asked.
    pub verdict: TaskVerdict,
    /// The least score of a right sample.
    pub right_from: f64,
}

impl TaskGrading {
    /// `place`: of the key `grade`; `answer`: of the `answer` section, whose canonical form is an `exact` grade's
    /// default.
    pub fn new(place: &Place<'_>, settings: GradeSettings, answer: Option<&Extractor>) -> Result<Self> {
        let is_json = answer.is_some_and(Extractor::is_json);
        let grader = match settings {
            GradeSettings::Exact(exact) => {
                let usual = || answer.map_or(exact.rules.usual_normalise(), |answer| answer.normalise);
                let normalise = exact.normalise.unwrap_or_else(usual);
                let extractor = Extractor::new(&place.key("exact"), &exact.rules, normalise)?;
                Grader::Answer {
                    field: exact.field,
                    is_json: is_json || extractor.is_json(),
                    extractor,
                    tolerance: 0.0,
                }
            }
            GradeSettings::Number(number) => {
                let extractor = Extractor::new(&place.key("number"), &number.rules, Normalise::Number)?;
                Grader::Answer { field: number.field, is_json: false, extractor, tolerance: number.tolerance }
            }
            GradeSettings::Regex(PatternSettings { field, pattern }) => match (field, pattern) {
                (Some(field), None) => Grader::PatternField(field),
                (None, Some(pattern)) => Grader::Pattern(compile(&place.key("regex").key("pattern"), &pattern)?),
                _ => return Err(place.key("regex").wrong("either `field` or `pattern`")),
            },
            GradeSettings::Contains(ContainsSettings { field, ignore_case }) => Grader::Contains { field, ignore_case },
            GradeSettings::Expression(ExpressionSettings { numbers, value }) => {
                Grader::Expression { numbers: numbers.field, value }
            }
            GradeSettings::Judge(judge) => return JudgeGrade::new(&place.key("judge"), judge).map(TaskGrading::Judge),
            GradeSettings::Verdict(settings) => {
                let VerdictGradeSettings { verdict, right_from } = *settings;
                let verdict = TaskVerdict::new(&place.key("verdict"), verdict, VerdictKey::Grade)?;
                return Ok(TaskGrading::Verdict(VerdictGrade { verdict, right_from }));
            }
        };
        Ok(TaskGrading::Text(grader))
    }
}

impl Grader {
    /// The item's field with the reference; `None`: it is the same for all items.
    pub fn field(&self) -> Option<&str> {
        match self {
            Grader::Answer { field, .. } | Grader::PatternField(field) | Grader::Contains { field, .. } => Some(field),
            Grader::Pattern(_) | Grader::Expression { .. } => None,
        }
    }

    /// The reference for this item's samples. `path` and `id` are for the error if its field is missing or invalid.
    pub fn reference(&self, path: &Path, id: &str, fields: &Map<String, Value>) -> Result<ExpectedAnswer> {
        let item = ItemFields { path, id, fields };
        Ok(match self {
            Grader::Answer { field, extractor, is_json, tolerance } => {
                let (values, normalise) = (item.answers(field, extractor, *is_json)?, extractor.normalise);
                ExpectedAnswer::Answer { values, normalise, tolerance: *tolerance }
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

    fn answers(&self, field: &str, extractor: &Extractor, is_json: bool) -> Result<Vec<ExtractedAnswer>> {
        let extract = |text: String| match extractor.extract(&text) {
            Some(answer) => Ok(answer),
            None => Err(self.wrong(field, "a text in which `grade` finds an answer", describe(&Value::String(text)))),
        };
        // A number's exponent would be read as a letter.
        let number = match extractor.normalise {
            Normalise::Number | Normalise::Latex => without_exponent,
            // As the numbers of samples' answers are written.
            Normalise::AsIs if is_json => number_answer,
            Normalise::Text | Normalise::Choice | Normalise::AsIs => Number::to_string,
        };
        if let Some(answer) = self.fields.get(field).and_then(|value| extractor.of_object(value)) {
            return Ok(vec![answer]);
        }
        self.texts_with(field, number)?.into_iter().map(extract).collect()
    }

    /// The target of an expression; the numbers may be a string or a list.
    fn target(&self, numbers: &str, value: &NumberOrField) -> Result<ExpressionTarget> {
        let given = self.texts(numbers)?.join(" ");
        let value = match value {
            NumberOrField::Number(number) => number.to_string(),
            NumberOrField::Field(named) => self.texts(&named.field)?.concat(),
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
            ExpectedAnswer::Answer { values, .. } => {
                values.iter().map(|answer| &answer.value[..]).collect::<Vec<_>>().join(" | ")
            }
            ExpectedAnswer::Contains { values, .. } => values.join(" | "),
            ExpectedAnswer::Pattern(regex) => regex.to_string(),
            ExpectedAnswer::Expression(target) => target.shown().to_string(),
        }
    }

    /// Whether a sample is right: `text` is the whole sample, `answer` its extracted answer (`None`: it has none, which
    /// is wrong if the grader compares answers).
    pub fn accepts(&self, text: &str, answer: Option<&str>) -> bool {
        match self {
            ExpectedAnswer::Answer { values, normalise: Normalise::Latex, .. } => {
                answer.is_some_and(|given| values.iter().any(|right| latex::same(&right.found, given)))
            }
            ExpectedAnswer::Answer { values, normalise, tolerance } => answer
                .and_then(|a| normalise.apply(a))
                .is_some_and(|given| values.iter().any(|right| near(&right.value, &given, *tolerance))),
            ExpectedAnswer::Pattern(regex) => regex.is_match(text),
            ExpectedAnswer::Contains { values, ignore_case } => {
                let fold = |s: &str| if *ignore_case { s.to_lowercase() } else { s.to_string() };
                let text = fold(text);
                values.iter().any(|v| text.contains(&fold(v)))
            }
            ExpectedAnswer::Expression(target) => answer.is_some_and(|answer| target.accepts(answer)),
        }
    }
}

/// Whether two canonical answers are equal as text or, if there is a tolerance, are numbers within it.
fn near(a: &str, b: &str, tolerance: f64) -> bool {
    let value = |s: &str| s.parse::<f64>().expect("a canonical number is one for f64 too");
    a == b || (tolerance > 0.0 && (value(a) - value(b)).abs() <= tolerance)
}
