//! Reads the settings from the task file. Defaults are the paper's for its Game of 24: proposed thoughts valued by
//! three samples, the best five kept; three steps and the answer after them make its four.

use regex::Regex;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::eval::answer::compile;
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::method::tree_of_thought::{QuestionTemplate, TreeOfThought};
use crate::eval::task::prompt::PromptTemplate;
use crate::json::listed;
use crate::search::tree_of_thought::{
    AnswerSettings, Evaluate, Generate, SamplingOverrides, ThoughtSearch, ThoughtSelect, ThoughtTraversal, ValueBy,
};

const KEYS: [&str; 11] =
    ["steps", "breadth", "thought", "end", "extract", "state", "generate", "evaluate", "select", "search", "answer"];
const STEPS: u32 = 3;
const BREADTH: u32 = 5;
const EVALUATIONS: u32 = 3;
/// Keys of [`SamplingOverrides`].
const DRAWING: [&str; 3] = ["temperature", "max_tokens", "stop"];
/// The regex for the conclusion that the paper's vote prompt requires.
const CHOICE: &str = r"(?is)best choice is.*?(\d+)";
/// Reserved names, for neither fields of items nor regexes.
const OWN_NAMES: [&str; 6] = ["thoughts", "last", "path", "step", "choices", "answer"];

impl TreeOfThought {
    /// `at`: the dotted path of `value`.
    pub(crate) fn read(source: &TaskSource, at: String, value: &Value) -> Result<TreeOfThought> {
        let s = TaskSection::open(source, at, value, &KEYS)?;
        let settings = ThoughtSearch {
            steps: s.count("steps", 1)?.unwrap_or(STEPS),
            breadth: s.count("breadth", 1)?.unwrap_or(BREADTH),
            generate: generate(&s)?,
            evaluate: evaluate(&s)?,
            select: select(&s)?,
            search: search(&s)?,
            answer: answering(&s)?,
        };
        Ok(TreeOfThought {
            settings,
            thought: regex(&s, "thought")?,
            end: regex(&s, "end")?,
            extract: extract(&s)?,
            state: state(&s)?,
            source: value.clone(),
        })
    }
}

/// The single key of an object, which is its kind, and the settings in it.
fn one_of<'a>(section: &TaskSection<'a>, key: &str, kinds: &[&str]) -> Result<(&'a str, &'a Value)> {
    let expected = format!("exactly one of {} with its settings", listed(kinds));
    let value = section.need(key, &expected)?;
    let inside = TaskSection::open(section.source, section.field(key), value, kinds)?;
    let keys: Vec<&str> = inside.keys().collect();
    let [name] = keys[..] else {
        return Err(Error::field(
            &section.source.path,
            section.field(key),
            expected,
            format!("{} of them", keys.len()),
        ));
    };
    Ok((name, inside.get(name).expect("`keys` lists what is there")))
}

fn generate(section: &TaskSection) -> Result<Generate<QuestionTemplate>> {
    let (name, inside) = one_of(section, "generate", &["propose", "sample"])?;
    let open = |keys: &[&str]| {
        let keys: Vec<&str> = keys.iter().chain(&DRAWING).copied().collect();
        TaskSection::open(section.source, section.field(&format!("generate.{name}")), inside, &keys)
    };
    match name {
        "sample" => {
            let s = open(&["thoughts"])?;
            let thoughts = s.count("thoughts", 1)?.unwrap_or(BREADTH);
            Ok(Generate::Sample { thoughts, drawing: with_stop(drawing(&s)?, "\n") })
        }
        _ => {
            let s = open(&["prompt", "lists"])?;
            let (question, lists) = (question(&s, "prompt")?, s.count("lists", 1)?.unwrap_or(1));
            Ok(Generate::Propose { question, lists, drawing: with_stop(drawing(&s)?, "\n\n") })
        }
    }
}

fn evaluate(section: &TaskSection) -> Result<Evaluate<QuestionTemplate>> {
    let (name, inside) = one_of(section, "evaluate", &["value", "vote"])?;
    let open = |keys: &[&str]| {
        let keys: Vec<&str> = keys.iter().chain(&DRAWING).copied().collect();
        TaskSection::open(section.source, section.field(&format!("evaluate.{name}")), inside, &keys)
    };
    match name {
        "value" => {
            let s = open(&["prompt", "last", "words", "samples", "exact"])?;
            let last = s.get("last").map(|_| question(&s, "last")).transpose()?;
            Ok(Evaluate::Value { question: question(&s, "prompt")?, last, words: words(&s)?, by: value_by(&s)? })
        }
        _ => {
            let s = open(&["prompt", "samples", "choice"])?;
            let choice = match regex(&s, "choice")? {
                Some(choice) => choice,
                None => Regex::new(CHOICE).expect("it is tested"),
            };
            let samples = s.count("samples", 1)?.unwrap_or(EVALUATIONS);
            Ok(Evaluate::Vote { question: question(&s, "prompt")?, samples, choice, drawing: drawing(&s)? })
        }
    }
}

fn value_by(section: &TaskSection) -> Result<ValueBy> {
    if !section.flag("exact")? {
        let samples = section.count("samples", 1)?.unwrap_or(EVALUATIONS);
        return Ok(ValueBy::Samples { samples, drawing: drawing(section)? });
    }
    match DRAWING.iter().chain(&["samples"]).find(|key| section.get(key).is_some()) {
        Some(key) => Err(section.wrong(key, "nothing with `exact`, which samples no answer")),
        None => Ok(ValueBy::Probability),
    }
}

fn words(section: &TaskSection) -> Result<Vec<(String, f64)>> {
    let expected =
        "an object of numbers from 0 up by word, such as {\"sure\": 20, \"likely\": 1, \"impossible\": 0.001}";
    let words = section.need("words", expected)?.as_object().filter(|words| !words.is_empty());
    let wrong = || section.wrong("words", expected);
    let read = |(word, value): (&String, &Value)| {
        let value = value.as_f64().filter(|value| *value >= 0.0 && !word.trim().is_empty())?;
        Some((word.clone(), value))
    };
    words.ok_or_else(wrong)?.iter().map(|entry| read(entry).ok_or_else(wrong)).collect()
}

fn select(section: &TaskSection) -> Result<ThoughtSelect> {
    match section.text("select")? {
        None | Some("greedy") => Ok(ThoughtSelect::Greedy),
        Some("sample") => Ok(ThoughtSelect::Sample),
        Some(_) => Err(section.wrong("select", "`greedy` or `sample`")),
    }
}

fn search(section: &TaskSection) -> Result<ThoughtTraversal> {
    let expected = "\"bfs\" or {\"dfs\": {\"threshold\", \"visits\"}}";
    match section.get("search") {
        None => Ok(ThoughtTraversal::Bfs),
        Some(Value::String(name)) if name == "bfs" => Ok(ThoughtTraversal::Bfs),
        Some(Value::Object(_)) => {
            let (_, inside) = one_of(section, "search", &["dfs"])?;
            let s = TaskSection::open(section.source, section.field("search.dfs"), inside, &["threshold", "visits"])?;
            let threshold = s.real("threshold", "a number", |_| true)?;
            let threshold =
                threshold.ok_or_else(|| s.wrong("threshold", "the minimum value of a thought to continue from"))?;
            let visits = s.count("visits", 1)?.ok_or_else(|| s.wrong("visits", "a whole number of at least 1"))?;
            Ok(ThoughtTraversal::Dfs { threshold, visits })
        }
        Some(_) => Err(section.wrong("search", expected)),
    }
}

fn answering(section: &TaskSection) -> Result<Option<AnswerSettings>> {
    let Some(value) = section.get("answer") else { return Ok(None) };
    let keys: Vec<&str> = ["best"].iter().chain(&DRAWING).copied().collect();
    let s = TaskSection::open(section.source, section.field("answer"), value, &keys)?;
    Ok(Some(AnswerSettings { best: s.count("best", 1)?, drawing: drawing(&s)? }))
}

fn drawing(section: &TaskSection) -> Result<SamplingOverrides> {
    let temperature = |x: f64| x >= 0.0 && (x as f32).is_finite();
    let stop = section.get("stop").map(|_| section.texts("stop")).transpose()?;
    if stop.iter().flatten().any(String::is_empty) {
        return Err(section.wrong("stop", "strings that are not empty"));
    }
    Ok(SamplingOverrides {
        temperature: section.real("temperature", "a 32-bit number of at least 0", temperature)?.map(|x| x as f32),
        max_tokens: section.count("max_tokens", 1)?,
        stop,
    })
}

/// Adds the stop string `stop` if the task file has none.
fn with_stop(drawing: SamplingOverrides, stop: &str) -> SamplingOverrides {
    SamplingOverrides { stop: drawing.stop.or_else(|| Some(vec![stop.to_string()])), ..drawing }
}

fn question(section: &TaskSection, key: &str) -> Result<QuestionTemplate> {
    section.need(key, "a prompt")?;
    PromptTemplate::read(section.source, &section.field(key), section.get(key))
        .map(|template| QuestionTemplate(Box::new(template)))
}

fn regex(section: &TaskSection, key: &str) -> Result<Option<Regex>> {
    section.text(key)?.map(|pattern| compile(section.source, &section.field(key), pattern)).transpose()
}

fn extract(section: &TaskSection) -> Result<Vec<(String, Regex)>> {
    let Some(value) = section.get("extract") else { return Ok(Vec::new()) };
    let wrong = || section.wrong("extract", "an object of regexes by name");
    let read = |(name, pattern): (&String, &Value)| {
        let field = section.field(&format!("extract.{name}"));
        if OWN_NAMES.contains(&name.as_str()) {
            let expected = format!("another name than {}, which are taken", listed(&OWN_NAMES));
            return Err(Error::field(&section.source.path, field, expected, format!("`{name}`")));
        }
        Ok((name.clone(), compile(section.source, &field, pattern.as_str().ok_or_else(wrong)?)?))
    };
    value.as_object().ok_or_else(wrong)?.iter().map(read).collect()
}

fn state(section: &TaskSection) -> Result<Option<PromptTemplate>> {
    if section.text("state")?.is_none() {
        return Ok(None);
    }
    PromptTemplate::read(section.source, &section.field("state"), section.get("state")).map(Some)
}
