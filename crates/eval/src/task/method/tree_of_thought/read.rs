//! The settings of tree of thoughts as the task file has them. Defaults are the paper's for its Game of 24: proposed
//! thoughts valued by three samples, the best five kept; three steps and the answer after them make its four.

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::answer::compile;
use crate::source::Place;
use crate::source::values::{Pairs, Texts};
use crate::task::method::tree_of_thought::questions::{QuestionTemplate, TreeOfThought};
use crate::task::prompt::{PromptSettings, PromptTemplate};
use crate::task::verdict::{TaskVerdict, VerdictKey, VerdictSettings};
use offshoot_core::error::Result;
use offshoot_core::json::listed;
use offshoot_search::tree_of_thought::{
    AnswerSettings, Evaluate, Generate, SamplingOverrides, ThoughtSearch, ThoughtSelect, ThoughtTraversal, ValueBy,
};

const EVALUATIONS: u32 = 3;
/// The regex for the conclusion that the paper's vote prompt requires.
const CHOICE: &str = r"(?is)best choice is.*?(\d+)";
/// Reserved names, for neither fields of items nor regexes.
const OWN_NAMES: [&str; 6] = ["thoughts", "last", "path", "step", "choices", "answer"];

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TreeOfThoughtSettings {
    /// The most thoughts on a path.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    steps: u32,
    /// The most paths that are continued after a step.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    breadth: u32,
    /// A pattern: the thought in a generated text is its first group, or the whole match (default: the trimmed text).
    thought: Option<String>,
    /// A pattern: a thought that matches it ends its path.
    end: Option<String>,
    /// Patterns by name: the match in the last thought becomes a name in templates.
    #[schemars(extend("x-expected" = "an object of regexes by name"))]
    #[serde(default)]
    extract: Pairs<String>,
    /// A template: paths with the same text are in the same state, and only one of them is kept.
    state: Option<String>,
    /// Where next thoughts come from.
    generate: GenerateSettings,
    /// How thoughts are judged.
    evaluate: EvaluateSettings,
    /// Which thoughts are continued.
    #[serde(default)]
    select: ThoughtSelect,
    /// The order in which paths are visited (default: bfs).
    #[schemars(extend("x-expected" = "\"bfs\" or {\"dfs\": {\"threshold\", \"visits\"}}"))]
    search: Option<TraversalSettings>,
    /// How the answer is sampled after the last thought (default: the path itself is the sample).
    answer: Option<PathAnswerSettings>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum GenerateSettings {
    /// Answers to a question about the path: lists of thoughts, one per line.
    Propose(ProposeSettings),
    /// Continuations of the path itself.
    Sample(ThoughtSettings),
}

#[derive(Deserialize, JsonSchema)]
struct ProposeSettings {
    /// The question, over the item's fields and the path's names (`thoughts`, `last`, `path`, `step`).
    #[schemars(extend("x-expected" = "a prompt"))]
    prompt: PromptSettings,
    /// Lists sampled after each path.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    lists: u32,
    #[serde(flatten)]
    drawing: DrawingSettings,
}

#[derive(Deserialize, JsonSchema)]
struct ThoughtSettings {
    /// Thoughts sampled after each path.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    thoughts: u32,
    #[serde(flatten)]
    drawing: DrawingSettings,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-expected" = "`reward`, or exactly one of `value`, `vote`, `judge`"))]
enum EvaluateSettings {
    /// A question about each path, answered by a word with a value.
    Value(ValueSettings),
    /// One question about all paths of a step.
    Vote(PathVoteSettings),
    /// What the task's `judge` is asked about each path, whose text is `sample`.
    Judge(Box<VerdictSettings>),
    /// The scores of the task's `scorer`, as numbers from 0 to 1.
    Reward,
}

#[derive(Deserialize, JsonSchema)]
struct ValueSettings {
    /// The question about a path.
    #[schemars(extend("x-expected" = "a prompt"))]
    prompt: PromptSettings,
    /// Another question about a path that has ended, over its `answer`.
    #[schemars(extend("x-expected" = "a prompt"))]
    last: Option<PromptSettings>,
    /// The words that may answer it, with their values.
    #[schemars(extend("x-expected" = WORDS))]
    words: Pairs<f64>,
    /// Answers sampled for each path (default: 3).
    #[schemars(range(min = 1))]
    samples: Option<u32>,
    /// Whether the value is computed from the words' probabilities instead of sampled.
    #[serde(default)]
    exact: bool,
    #[serde(flatten)]
    drawing: DrawingSettings,
}

const WORDS: &str =
    "an object of numbers from 0 up by word, such as {\"sure\": 20, \"likely\": 1, \"impossible\": 0.001}";

#[derive(Deserialize, JsonSchema)]
struct PathVoteSettings {
    /// The question about the paths `choices`.
    #[schemars(extend("x-expected" = "a prompt"))]
    prompt: PromptSettings,
    /// Votes sampled for each step.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    samples: u32,
    /// A pattern whose first group is the number of the chosen path (default: the paper's "best choice is").
    choice: Option<String>,
    #[serde(flatten)]
    drawing: DrawingSettings,
}

/// Sampling that differs from the task's.
#[derive(Default, Deserialize, JsonSchema)]
struct DrawingSettings {
    /// Instead of the task's.
    #[schemars(extend("minimum" = 0, "x-expected" = "a 32-bit number of at least 0"))]
    temperature: Option<f32>,
    /// Instead of the task's.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// Instead of the task's.
    stop: Option<Texts>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum TraversalSettings {
    Breadth(BreadthFirst),
    Depth(DepthSettings),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BreadthFirst {
    /// Breadth-first: step by step, the best paths at once.
    Bfs,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum DepthSettings {
    /// Depth-first: the best thought first, with backtracking.
    Dfs {
        /// The least value of a thought to continue from.
        #[schemars(extend("x-expected" = "the minimum value of a thought to continue from"))]
        threshold: f64,
        /// The most times that a path is extended.
        #[schemars(range(min = 1))]
        visits: u32,
    },
}

#[derive(Deserialize, JsonSchema)]
struct PathAnswerSettings {
    /// Paths that are answered, best first (default: all that are left).
    #[schemars(range(min = 1))]
    best: Option<u32>,
    #[serde(flatten)]
    drawing: DrawingSettings,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn five() -> u32 {
    5
}

impl TreeOfThought {
    /// `place`: of the key `tree_of_thought`.
    pub(crate) fn new(place: &Place<'_>, settings: TreeOfThoughtSettings) -> Result<TreeOfThought> {
        let regex =
            |key: &str, pattern: Option<String>| pattern.map(|pattern| compile(&place.key(key), &pattern)).transpose();
        let (thought, end) = (regex("thought", settings.thought)?, regex("end", settings.end)?);
        let extract = extract(&place.key("extract"), settings.extract)?;
        let (evaluate, judge) = evaluate(&place.key("evaluate"), settings.evaluate)?;
        let state = settings.state.map(|text| PromptTemplate::new(&place.key("state"), PromptSettings::Template(text)));
        Ok(TreeOfThought {
            settings: ThoughtSearch {
                steps: settings.steps,
                breadth: settings.breadth,
                generate: generate(&place.key("generate"), settings.generate)?,
                evaluate,
                select: settings.select,
                search: match settings.search {
                    None | Some(TraversalSettings::Breadth(BreadthFirst::Bfs)) => ThoughtTraversal::Bfs,
                    Some(TraversalSettings::Depth(DepthSettings::Dfs { threshold, visits })) => {
                        ThoughtTraversal::Dfs { threshold, visits }
                    }
                },
                answer: match settings.answer {
                    None => None,
                    Some(PathAnswerSettings { best, drawing }) => {
                        Some(AnswerSettings { best, drawing: drawing.read(&place.key("answer"))? })
                    }
                },
            },
            judge,
            thought,
            end,
            extract,
            state: state.transpose()?,
            source: place.value().cloned().unwrap_or_default(),
        })
    }
}

fn generate(place: &Place<'_>, settings: GenerateSettings) -> Result<Generate<QuestionTemplate>> {
    match settings {
        GenerateSettings::Sample(ThoughtSettings { thoughts, drawing }) => {
            Ok(Generate::Sample { thoughts, drawing: with_stop(drawing.read(&place.key("sample"))?, "\n") })
        }
        GenerateSettings::Propose(ProposeSettings { prompt, lists, drawing }) => {
            let place = place.key("propose");
            let drawing = with_stop(drawing.read(&place)?, "\n\n");
            Ok(Generate::Propose { question: question(&place.key("prompt"), prompt)?, lists, drawing })
        }
    }
}

/// How thoughts are evaluated, and what a judge is asked where it scores them.
fn evaluate(
    place: &Place<'_>,
    settings: EvaluateSettings,
) -> Result<(Evaluate<QuestionTemplate>, Option<TaskVerdict>)> {
    let evaluate = match settings {
        EvaluateSettings::Reward => Evaluate::Scorer,
        EvaluateSettings::Judge(verdict) => {
            let verdict = TaskVerdict::new(&place.key("judge"), *verdict, VerdictKey::Paths)?;
            return Ok((Evaluate::Scorer, Some(verdict)));
        }
        EvaluateSettings::Value(value) => {
            let place = place.key("value");
            let last = value.last.map(|last| question(&place.key("last"), last)).transpose()?;
            let words = value.words.0;
            if words.is_empty() || words.iter().any(|(word, worth)| word.trim().is_empty() || *worth < 0.0) {
                return Err(place.key("words").wrong(WORDS));
            }
            let by = match value.exact {
                false => ValueBy::Samples {
                    samples: value.samples.unwrap_or(EVALUATIONS),
                    drawing: value.drawing.read(&place)?,
                },
                true => {
                    let DrawingSettings { temperature, max_tokens, stop } = &value.drawing;
                    let given = [
                        ("temperature", temperature.is_some()),
                        ("max_tokens", max_tokens.is_some()),
                        ("stop", stop.is_some()),
                        ("samples", value.samples.is_some()),
                    ];
                    if let Some((key, _)) = given.iter().find(|(_, given)| *given) {
                        return Err(place.key(key).wrong("nothing with `exact`, which samples no answer"));
                    }
                    ValueBy::Probability
                }
            };
            Evaluate::Value { question: question(&place.key("prompt"), value.prompt)?, last, words, by }
        }
        EvaluateSettings::Vote(PathVoteSettings { prompt, samples, choice, drawing }) => {
            let place = place.key("vote");
            let choice = match choice {
                Some(pattern) => compile(&place.key("choice"), &pattern)?,
                None => Regex::new(CHOICE).expect("it is tested"),
            };
            let drawing = drawing.read(&place)?;
            Evaluate::Vote { question: question(&place.key("prompt"), prompt)?, samples, choice, drawing }
        }
    };
    Ok((evaluate, None))
}

impl DrawingSettings {
    /// `place`: of the object with these keys.
    fn read(self, place: &Place<'_>) -> Result<SamplingOverrides> {
        let stop = self.stop.map(|stop| stop.0);
        if stop.iter().flatten().any(String::is_empty) {
            return Err(place.key("stop").wrong("strings that are not empty"));
        }
        Ok(SamplingOverrides { temperature: self.temperature, max_tokens: self.max_tokens, stop })
    }
}

/// Adds the stop string `stop` if the task file has none.
fn with_stop(drawing: SamplingOverrides, stop: &str) -> SamplingOverrides {
    SamplingOverrides { stop: drawing.stop.or_else(|| Some(vec![stop.to_string()])), ..drawing }
}

fn question(place: &Place<'_>, settings: PromptSettings) -> Result<QuestionTemplate> {
    PromptTemplate::new(place, settings).map(|template| QuestionTemplate(Box::new(template)))
}

fn extract(place: &Place<'_>, patterns: Pairs<String>) -> Result<Vec<(String, Regex)>> {
    let read = |(name, pattern): (String, String)| {
        let place = place.key(&name);
        if OWN_NAMES.contains(&name.as_str()) {
            let expected = format!("another name than {}, which are taken", listed(&OWN_NAMES));
            return Err(place.wrong_as(expected, format!("`{name}`")));
        }
        let pattern = compile(&place, &pattern)?;
        Ok((name, pattern))
    };
    patterns.0.into_iter().map(read).collect()
}
