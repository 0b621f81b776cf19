//! Extracts answers from texts: finds a sample's answer, and converts it to the canonical form in which answers are
//! counted and compared (`latex` defines that of mathematics). Searches choose among answers; `grade` decides which are
//! right.

mod boxed;
pub(crate) mod expression;
pub mod latex;
mod rational;

use regex::{Captures, Regex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::boxed::boxes;
use crate::source::Place;
use crate::source::values::Texts;
use offshoot_core::error::{Error, Result};
use offshoot_search::{CalledTools, JsonPointer};
use offshoot_text::reasoning::answer_part;

/// The answer found in a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExtractedAnswer {
    /// Canonical: two samples agree when these are equal.
    pub value: String,
    /// The text from which `value` was made.
    pub found: String,
}

/// How a found text is converted to its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Normalise {
    /// A decimal number: `$1,234.50` is `1234.5`, `18.` and `18.0` are `18`.
    Number,
    /// Trimmed, white space collapsed, lower case, without surrounding quotes and a final full stop.
    Text,
    /// One letter, upper case: `(b).` is `B`.
    Choice,
    /// Mathematics: `\dfrac12` and `0.5` are `\frac{1}{2}`.
    Latex,
    /// Trimmed only.
    #[serde(rename = "none")]
    AsIs,
}

impl Normalise {
    /// The canonical form; `None` if the text has none (not a number, not a single letter, empty).
    pub fn apply(self, text: &str) -> Option<String> {
        let canonical = match self {
            Normalise::Number => return number(text),
            Normalise::Choice => return choice(text),
            Normalise::Latex => return latex::canonical(text),
            Normalise::Text => {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
                text.trim_end_matches('.').trim_matches(['"', '\'', '`']).trim_end_matches('.').trim().to_string()
            }
            Normalise::AsIs => text.trim().to_string(),
        };
        Some(canonical).filter(|text| !text.is_empty())
    }
}

/// A decimal number in its shortest form, computed on the digits, without floating point.
fn number(text: &str) -> Option<String> {
    let text: String =
        text.chars().filter(|c| !matches!(c, ',' | '$' | '€' | '£' | '%') && !c.is_whitespace()).collect();
    let (negative, digits) = match text.strip_prefix(['-', '−']) {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let digits = digits.strip_suffix('.').unwrap_or(digits);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole = Some(whole.trim_start_matches('0')).filter(|s| !s.is_empty()).unwrap_or("0");
    let fraction = fraction.trim_end_matches('0');
    let sign = if negative && !(whole == "0" && fraction.is_empty()) { "-" } else { "" };
    Some(if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") })
}

fn choice(text: &str) -> Option<String> {
    let mut letters = text.trim().trim_matches(|c: char| !c.is_alphanumeric()).chars();
    match (letters.next(), letters.next()) {
        (Some(c), None) if c.is_ascii_alphabetic() => Some(c.to_ascii_uppercase().to_string()),
        _ => None,
    }
}

/// How to find the answer in a text, as the task file says it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct AnswerRules {
    /// Answers are in `\boxed{…}` or `\fbox{…}`; the patterns are tried where there is none.
    pub boxed: bool,
    /// Patterns, tried in order: the answer is the first group of a match, or the whole match. With neither boxes nor
    /// patterns, the whole text is the answer.
    pub regex: Texts,
    /// A JSON pointer (RFC 6901), such as "/answer", instead of boxes and patterns: the answer is the value there, a
    /// string as it is, anything else as JSON with sorted keys. The JSON is the text, or stands in it, in a fence or
    /// between other words. A text without it, or with null there, has no answer.
    #[schemars(extend("x-expected" = "a JSON pointer, such as \"/answer\""))]
    pub json: Option<String>,
    /// Which match of a pattern, which box or which JSON is the answer (default: last); `all`: the list of them, equal
    /// ones once.
    pub take: Option<Take>,
}

impl AnswerRules {
    /// The canonical form of answers found by them, where it is not said.
    pub fn usual_normalise(&self) -> Normalise {
        if self.json.is_some() { Normalise::AsIs } else { Normalise::Text }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Take {
    #[default]
    Last,
    First,
    All,
}

/// The key `answer` of a task file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct TaskAnswer {
    #[serde(flatten)]
    pub rules: AnswerRules,
    /// The answer is the sample's calls of tools, instead of boxes and patterns: all of them, or with `take` one, each
    /// as {"name": …, "arguments": …}; with `json` the value there in a call, such as "/arguments/city".
    pub tool_call: bool,
    /// The canonical form, by which answers are counted and compared (default: text; none of answers in JSON and calls
    /// of tools, whose values are equal where JSON's are).
    pub normalise: Option<Normalise>,
}

impl TaskAnswer {
    /// The canonical form, said or usual.
    pub fn normalise(&self) -> Normalise {
        let usual = if self.tool_call { Normalise::AsIs } else { self.rules.usual_normalise() };
        self.normalise.unwrap_or(usual)
    }
}

/// Finds the answer in a text.
#[derive(Clone, Debug)]
pub(crate) struct Extractor {
    place: AnswerPlace,
    take: Take,
    pub normalise: Normalise,
}

/// Where in a text its answer stands.
#[derive(Clone, Debug)]
enum AnswerPlace {
    /// The whole text is the answer.
    Everywhere,
    /// In a box, if `boxed` and there is one, or else where the first of the regexes matches that does.
    Marked { boxed: bool, regexes: Vec<Regex> },
    /// In a field of JSON.
    Json(JsonPointer),
    /// In calls of tools; `whole`: all calls are one answer.
    Calls { tools: CalledTools, whole: bool },
}

impl Extractor {
    /// `place`: where the rules are.
    pub fn new(place: &Place<'_>, rules: &AnswerRules, normalise: Normalise) -> Result<Extractor> {
        Extractor::at(place, AnswerPlace::new(place, rules)?, rules, normalise)
    }

    /// The extractor of a task's key `answer`. Beside rules, that key may ask for calls of tools.
    pub fn of_task(place: &Place<'_>, answer: &TaskAnswer) -> Result<Extractor> {
        let rules = &answer.rules;
        let at = match AnswerPlace::new(place, rules)? {
            found if !answer.tool_call => found,
            AnswerPlace::Everywhere => {
                AnswerPlace::Calls { tools: CalledTools::default(), whole: rules.take.is_none() }
            }
            AnswerPlace::Json(pointer) => {
                AnswerPlace::Calls { tools: CalledTools { pointer: Some(pointer) }, whole: false }
            }
            AnswerPlace::Marked { .. } | AnswerPlace::Calls { .. } => {
                let expected = "false beside `boxed` or `regex`: the answer is in one of these places";
                return Err(place.key("tool_call").wrong(expected));
            }
        };
        Extractor::at(place, at, rules, answer.normalise())
    }

    fn at(place: &Place<'_>, found: AnswerPlace, rules: &AnswerRules, normalise: Normalise) -> Result<Extractor> {
        let take = rules.take.unwrap_or_default();
        if take == Take::All && matches!(normalise, Normalise::Number | Normalise::Choice) {
            let expected =
                "`last` or `first`, because an answer of this form is one (of the form `latex`, a list is one)";
            return Err(place.key("take").wrong_as(expected, "`all`"));
        }
        Ok(Extractor { place: found, take, normalise })
    }

    /// Whether its answers are values of JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.place, AnswerPlace::Json(_) | AnswerPlace::Calls { .. })
    }

    /// The answer in a sample, behind its reasoning.
    pub fn of_sample(&self, text: &str) -> Option<ExtractedAnswer> {
        match &self.place {
            // Calls stand beside the content of an answer in channels.
            AnswerPlace::Calls { .. } => self.extract(text),
            _ => self.extract(&answer_part(text)),
        }
    }

    /// The answer of the last box, if boxes are enabled and there is one; otherwise the last match of the first regex
    /// that has one; or the last value at the pointer. Only boxes, matches and values with a canonical form count; the
    /// task can choose the first instead of the last, or all of them. The answer of a match is its first matched group,
    /// or the whole match if the regex has no groups.
    pub fn extract(&self, text: &str) -> Option<ExtractedAnswer> {
        match &self.place {
            AnswerPlace::Everywhere => self.answer(text),
            AnswerPlace::Json(pointer) => self.pick(pointer.answers(text).iter().map(String::as_str)),
            AnswerPlace::Calls { tools, whole: true } => self.answer(&tools.answer(text)?),
            AnswerPlace::Calls { tools, whole: false } => self.pick(tools.answers(text).iter().map(String::as_str)),
            AnswerPlace::Marked { boxed, regexes } => {
                let boxed = boxed.then(|| self.pick(boxes(text).into_iter())).flatten();
                boxed.or_else(|| {
                    regexes
                        .iter()
                        .find_map(|regex| self.pick(regex.captures_iter(text).filter_map(|captures| found(&captures))))
                })
            }
        }
    }

    /// The answer in a value of an item's field, if it is an object, which only a pointer goes into.
    pub fn of_object(&self, value: &Value) -> Option<ExtractedAnswer> {
        match (&self.place, value) {
            (AnswerPlace::Json(pointer), Value::Object(_)) => self.answer(&pointer.answer_of(value)?),
            _ => None,
        }
    }

    fn pick<'t>(&self, found: impl Iterator<Item = &'t str>) -> Option<ExtractedAnswer> {
        let mut answers = found.filter_map(|found| self.answer(found));
        match self.take {
            Take::First => answers.next(),
            Take::Last => answers.last(),
            Take::All => self.list(answers),
        }
    }

    /// The list of answers as one answer; what a text repeats is in it once.
    fn list(&self, answers: impl Iterator<Item = ExtractedAnswer>) -> Option<ExtractedAnswer> {
        let mut distinct: Vec<ExtractedAnswer> = Vec::new();
        for answer in answers {
            if distinct.iter().all(|other| other.value != answer.value) {
                distinct.push(answer);
            }
        }
        let found: Vec<&str> = distinct.iter().map(|answer| answer.found.trim()).collect();
        self.answer(&found.join(", "))
    }

    fn answer(&self, found: &str) -> Option<ExtractedAnswer> {
        self.normalise.apply(found).map(|value| ExtractedAnswer { value, found: found.to_string() })
    }
}

impl AnswerPlace {
    /// `place`: where the rules are.
    fn new(place: &Place<'_>, rules: &AnswerRules) -> Result<AnswerPlace> {
        let patterns = &rules.regex.0;
        match &rules.json {
            Some(_) if rules.boxed || !patterns.is_empty() => Err(place
                .key("json")
                .wrong("no pointer beside `boxed` or `regex`: the answer is in one of these places")),
            Some(pointer) => pointer_of(&place.key("json"), pointer).map(AnswerPlace::Json),
            None if !rules.boxed && patterns.is_empty() => Ok(AnswerPlace::Everywhere),
            None => {
                let regexes = patterns.iter().map(|pattern| compile(&place.key("regex"), pattern));
                Ok(AnswerPlace::Marked { boxed: rules.boxed, regexes: regexes.collect::<Result<_>>()? })
            }
        }
    }
}

/// Reads a JSON pointer of the task file.
fn pointer_of(place: &Place<'_>, pointer: &str) -> Result<JsonPointer> {
    JsonPointer::new(pointer).map_err(|error| match error {
        Error::Value { expected, found, .. } => place.wrong_as(expected, found),
        other => other,
    })
}

/// The first matched group, or the whole match if the regex has no groups.
pub(crate) fn found<'t>(captures: &Captures<'t>) -> Option<&'t str> {
    let whole = (captures.len() == 1).then(|| captures.get(0)).flatten();
    captures.iter().skip(1).flatten().next().or(whole).map(|found| found.as_str())
}

/// Compiles a regex of the task file.
pub(crate) fn compile(place: &Place<'_>, pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| place.wrong_as("a regular expression", broken(pattern, &error)))
}

/// A message about a pattern that does not compile, with the regex crate's reason, in one line.
pub(crate) fn broken(pattern: &str, error: &regex::Error) -> String {
    let message = error.to_string();
    let reason = message.lines().last().unwrap_or(&message).trim_start_matches("error: ");
    format!("`{pattern}` ({reason})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extractor(patterns: &[&str], take: Take, normalise: Normalise) -> Extractor {
        placed(AnswerPlace::Marked { boxed: false, regexes: regexes(patterns) }, take, normalise)
    }

    fn boxed(patterns: &[&str], take: Take) -> Extractor {
        placed(AnswerPlace::Marked { boxed: true, regexes: regexes(patterns) }, take, Normalise::Latex)
    }

    #[test]
    fn calls_of_tools_are_answers() {
        let call =
            |city: &str| format!("<tool_call>{{\"name\": \"w\", \"arguments\": {{\"city\": \"{city}\"}}}}</tool_call>");
        let text = call("Oslo") + &call("Rome");
        let of = |pointer: Option<&str>, whole, take| {
            let pointer = pointer.map(|pointer| JsonPointer::new(pointer).expect("a pointer"));
            placed(AnswerPlace::Calls { tools: CalledTools { pointer }, whole }, take, Normalise::AsIs)
        };
        let oslo = r#"{"arguments":{"city":"Oslo"},"name":"w"}"#;
        let both = format!("[{oslo},{}]", oslo.replace("Oslo", "Rome"));
        assert_eq!(value(&of(None, true, Take::Last), &text), Some(both));
        assert_eq!(value(&of(None, false, Take::First), &text).as_deref(), Some(oslo));
        assert_eq!(value(&of(Some("/arguments/city"), false, Take::Last), &text).as_deref(), Some("Rome"));
        assert_eq!(value(&of(None, true, Take::Last), "Oslo"), None);
    }

    fn placed(place: AnswerPlace, take: Take, normalise: Normalise) -> Extractor {
        Extractor { place, take, normalise }
    }

    fn regexes(patterns: &[&str]) -> Vec<Regex> {
        patterns.iter().map(|pattern| Regex::new(pattern).unwrap()).collect()
    }

    fn value(e: &Extractor, text: &str) -> Option<String> {
        e.extract(text).map(|a| a.value)
    }

    #[test]
    fn numbers_have_one_form() {
        let forms = [
            ("18", "18"),
            ("18.0", "18"),
            ("18.", "18"),
            ("$1,234.50", "1234.5"),
            ("+007", "7"),
            ("-0.0", "0"),
            ("-.5", "-0.5"),
            (" 3 % ", "3"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ];
        for (text, expected) in forms {
            assert_eq!(number(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", ".", "-", "1.2.3", "12a", "1e5", "٣", "--1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn texts_and_choices_have_one_form() {
        assert_eq!(Normalise::Text.apply("  \"New \n York.\". ").as_deref(), Some("new york"));
        assert_eq!(Normalise::Text.apply(" . "), None);
        assert_eq!(Normalise::AsIs.apply(" A b ").as_deref(), Some("A b"));
        assert_eq!(Normalise::Choice.apply(" (b).").as_deref(), Some("B"));
        assert_eq!(Normalise::Choice.apply("bc"), None);
    }

    #[test]
    fn last_match_unless_first_is_asked_for() {
        let pattern = &["#### (-?[0-9.,]+)"];
        let text = "#### 1\nno, #### 2,000.\n#### .";
        assert_eq!(value(&extractor(pattern, Take::Last, Normalise::Number), text).as_deref(), Some("2000"));
        assert_eq!(value(&extractor(pattern, Take::First, Normalise::Number), text).as_deref(), Some("1"));
        assert_eq!(value(&extractor(pattern, Take::Last, Normalise::Number), "####"), None);
    }

    #[test]
    fn regexes_are_tried_in_order_and_groups_that_took_part_count() {
        let strict_then_flexible = [r"The answer is (\-?[0-9\.\,]*[0-9]+)", r"(-?[$0-9.,]{2,})|(-?[0-9]+)"];
        let e = extractor(&strict_then_flexible, Take::Last, Normalise::Number);
        assert_eq!(value(&e, "The answer is 5. Q: 77").as_deref(), Some("5"));
        assert_eq!(value(&e, "perhaps $12 or 7").as_deref(), Some("7"));
        assert_eq!(value(&extractor(&["[A-D]"], Take::Last, Normalise::Choice), "A or C").as_deref(), Some("C"));
        assert_eq!(
            value(&placed(AnswerPlace::Everywhere, Take::Last, Normalise::Text), " Orange.\n").as_deref(),
            Some("orange")
        );
    }

    #[test]
    fn boxes_come_before_regexes() {
        let e = boxed(&["answer is (.*)"], Take::Last);
        assert_eq!(
            value(&e, r"\boxed{1}, no, \boxed{\dfrac12}; \boxed{ }, answer is 7").as_deref(),
            Some(r"\frac{1}{2}")
        );
        assert_eq!(value(&e, r"\boxed{1, answer is 7").as_deref(), Some("7"));
        assert_eq!(value(&boxed(&[], Take::Last), "7"), None);
        assert_eq!(
            value(&Extractor { take: Take::First, ..e.clone() }, r"\fbox{1}, no, \boxed{2}").as_deref(),
            Some("1")
        );
        let mention = r"I write \boxed{} or \boxed at the end: \boxed{\dfrac12}. I used \boxed as asked.";
        assert_eq!(value(&e, mention).as_deref(), Some(r"\frac{1}{2}"));
    }

    #[test]
    fn all_answers_are_one_list() {
        let e = boxed(&["#([0-9]+)"], Take::All);
        let list = Normalise::Latex.apply("3, 5, 7");
        assert_eq!(value(&e, r"$\boxed{3}$, \boxed{5}, \boxed{7}"), list);
        assert_eq!(value(&e, r"\boxed{3}: so \boxed{ 3 }, \boxed{}, \boxed{5} and \boxed{7}"), list);
        assert_eq!(value(&e, r"\boxed{4}"), Normalise::Latex.apply("4"));
        assert_eq!(value(&e, "#3 #5 #7"), list);
        assert_eq!(value(&e, "none"), None);
    }
    #[test]
    fn fields_of_json_are_answers_by_the_same_normalisers() {
        let of = |take, normalise| {
            let pointer = JsonPointer::new("/answer").expect("a pointer");
            placed(AnswerPlace::Json(pointer), take, normalise)
        };
        let text = r#"First {"answer": "$1,200.00"}, then {"answer": 18.0} and {"note": "none"}."#;
        assert_eq!(value(&of(Take::Last, Normalise::Number), text).as_deref(), Some("18"));
        assert_eq!(value(&of(Take::First, Normalise::Number), text).as_deref(), Some("1200"));
        assert_eq!(value(&of(Take::All, Normalise::AsIs), text).as_deref(), Some("$1,200.00, 18"));
        assert_eq!(value(&of(Take::Last, Normalise::Text), r#"{"answer": " Paris. "}"#).as_deref(), Some("paris"));
        assert_eq!(value(&of(Take::Last, Normalise::Choice), r#"{"answer": "(b)"}"#).as_deref(), Some("B"));
        assert_eq!(
            value(&of(Take::Last, Normalise::Latex), r#"{"answer": "\\frac12"}"#),
            Normalise::Latex.apply("0.5")
        );
        // One that is no number is left out, as a match of a pattern is.
        assert_eq!(
            value(&of(Take::Last, Normalise::Number), r#"{"answer": 7}, {"answer": "?"}"#).as_deref(),
            Some("7")
        );
        assert_eq!(value(&of(Take::Last, Normalise::Text), "Paris"), None);
        let thought = r#"<think>{"answer": 1}</think>```json
            {"answer": 2}
            ```"#;
        assert_eq!(of(Take::First, Normalise::Number).of_sample(thought).map(|answer| answer.value), Some("2".into()));
    }
}
