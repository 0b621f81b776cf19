//! The task file's key `method`, read and range-checked: which search a task uses. `sampling` defines how tokens
//! are sampled.

pub mod choose;
mod sampling;
pub mod scoring;
pub mod steps;
pub mod tree_of_thought;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::Item;
use crate::figures::counted;
use crate::json::listed;
use crate::search::settings::{BestBy, Decide, Mcts, MctsDecide, StepSearch};
use crate::search::tree_of_thought::Generate;
use crate::search::vote::{Decided, VoteTally};

pub use choose::Choose;
pub use sampling::Sampling;
pub use scoring::{ThoughtScoring, Verdicts};

use tree_of_thought::TreeOfThought;

/// How an item is searched, and how its answer is chosen.
#[derive(Debug, PartialEq)]
pub enum Method {
    /// The most frequent answer wins. Sampling stops early once the vote is decided.
    SelfConsistency { samples: u32, stop: Decided },
    /// One sample is chosen by a measure of the sample itself. `stop_when_passed` (only with [`BestBy::Grade`]) stops
    /// the other samples as soon as one is right.
    BestOfN { samples: u32, by: BestBy, stop_when_passed: bool },
    /// One sample is chosen by a score: the model's answer to a question about it.
    BestByScorer { samples: u32, scorer: Verdicts },
    /// Samples are generated and graded; none is chosen (pass@k).
    Sample { samples: u32 },
    /// Thoughts are generated step by step; the model scores them and the best are expanded.
    TreeOfThought(Box<TreeOfThought>),
    /// Nothing is sampled: the most likely of the offered answers is chosen.
    Choose(Choose),
    /// Beam search by steps: the best partial solutions of all are kept.
    StepBeam { search: StepSearch, scorer: ThoughtScoring },
    /// Diverse verifier tree search: the best partial solution of each subtree is kept.
    Dvts { search: StepSearch, scorer: ThoughtScoring },
    /// Monte Carlo tree search. Without a `scorer` the value of a solution is its agreement with the others.
    Mcts { search: Mcts, scorer: Option<ThoughtScoring> },
}

/// What ends an item's sampling early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStop {
    /// The vote is decided.
    Decided,
    /// A sample has passed.
    Passed,
}

const METHODS: [&str; 8] =
    ["self_consistency", "best_of_n", "sample", "tree_of_thought", "choose", "step_beam", "dvts", "mcts"];
const MEASURES: [(&str, BestBy); 4] = [
    ("logprob", BestBy::Logprob),
    ("mean_logprob", BestBy::MeanLogprob),
    ("grade", BestBy::Grade),
    ("judge", BestBy::Grade),
];

impl Method {
    /// Samples of one item. For a search: the most that it generates at once; for `mcts`: the simulations.
    pub fn samples(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, .. }
            | Method::BestOfN { samples, .. }
            | Method::BestByScorer { samples, .. }
            | Method::Sample { samples } => *samples,
            Method::TreeOfThought(how) => how.settings.breadth.saturating_mul(match how.settings.generate {
                Generate::Sample { thoughts, .. } => thoughts,
                Generate::Propose { lists, .. } => lists,
            }),
            Method::Choose(_) => 1,
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => search.samples,
            Method::Mcts { search, .. } => search.samples,
        }
    }

    /// The method in words, for the first line of a summary.
    pub fn described(&self) -> String {
        match self {
            Method::Choose(choose) => match choose.count() {
                Some(choices) => format!("{} of {choices}", self.name()),
                None => self.name().to_string(),
            },
            Method::Mcts { search, .. } => {
                format!("{} with {}", self.name(), counted(search.samples.into(), "simulation"))
            }
            Method::TreeOfThought(how) => format!("{} with {}", self.name(), how.described()),
            _ => format!("{} with {}", self.name(), counted(self.samples().into(), "sample")),
        }
    }

    /// What may end the sampling of an item before all samples are finished. `None`: nothing.
    pub fn spares(&self) -> Option<EarlyStop> {
        match self {
            Method::SelfConsistency { stop, .. } => (*stop != Decided::Never).then_some(EarlyStop::Decided),
            Method::BestOfN { stop_when_passed, .. } => stop_when_passed.then_some(EarlyStop::Passed),
            _ => None,
        }
    }

    /// Whether its samples are independent samples of one distribution, so that each can be kept without the others.
    pub fn draws_alike(&self) -> bool {
        match self {
            Method::SelfConsistency { .. }
            | Method::BestOfN { .. }
            | Method::BestByScorer { .. }
            | Method::Sample { .. } => true,
            Method::TreeOfThought(_)
            | Method::Choose(_)
            | Method::StepBeam { .. }
            | Method::Dvts { .. }
            | Method::Mcts { .. } => false,
        }
    }

    /// Whether all samples come from one distribution and none is omitted because of others; otherwise pass@k and maj@k
    /// cannot be computed.
    pub fn draws_all(&self) -> bool {
        self.draws_alike() && self.spares().is_none()
    }

    /// Its question to the model about complete or partial solutions.
    pub fn verdicts(&self) -> Option<&Verdicts> {
        match (self, self.scoring()) {
            (Method::BestByScorer { scorer, .. }, _) | (_, Some(ThoughtScoring::Verdicts(scorer))) => Some(scorer),
            _ => None,
        }
    }

    /// How a stepwise search scores complete and partial solutions.
    pub fn scoring(&self) -> Option<&ThoughtScoring> {
        match self {
            Method::StepBeam { scorer, .. } | Method::Dvts { scorer, .. } => Some(scorer),
            Method::Mcts { scorer, .. } => scorer.as_ref(),
            _ => None,
        }
    }

    /// Whether it votes on answers.
    pub fn votes(&self) -> bool {
        match self {
            Method::SelfConsistency { .. } => true,
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => search.by != Decide::Best,
            Method::Mcts { search, scorer } => {
                scorer.is_none() || matches!(search.by, MctsDecide::Rollouts(Decide::Vote | Decide::WeightedVote))
            }
            _ => false,
        }
    }

    /// Whether it generates further prompts during the search.
    pub fn asks(&self) -> bool {
        match self {
            Method::TreeOfThought(_) => true,
            Method::Choose(choose) => choose.neutral.is_some(),
            other => other.verdicts().is_some(),
        }
    }

    /// The files included in its prompts about `item` by paths that are templates.
    pub fn prompt_files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        match self {
            Method::TreeOfThought(how) => how.prompt_files(item),
            other => other.verdicts().map_or(Ok(Vec::new()), |verdicts| verdicts.prompt_files(item)),
        }
    }

    /// Checks the fields of an item that the method needs.
    pub fn check_item(&self, item: &Item) -> Result<()> {
        match self {
            Method::TreeOfThought(how) => how.check_item(item),
            _ => Ok(()),
        }
    }

    /// Samples of an item that run at once. If a vote may be decided early, the number that every vote needs.
    pub fn samples_at_once(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, stop } => stop.fewest_more(&VoteTally::default(), *samples),
            Method::Choose(choose) => choose.count().unwrap_or(1) as u32,
            Method::Mcts { search, .. } => search.parallel.saturating_mul(search.expansions),
            other => other.samples(),
        }
    }

    /// The method's key in the task file.
    pub fn name(&self) -> &'static str {
        match self {
            Method::SelfConsistency { .. } => METHODS[0],
            Method::BestOfN { .. } | Method::BestByScorer { .. } => METHODS[1],
            Method::Sample { .. } => METHODS[2],
            Method::TreeOfThought(_) => METHODS[3],
            Method::Choose(_) => METHODS[4],
            Method::StepBeam { .. } => METHODS[5],
            Method::Dvts { .. } => METHODS[6],
            Method::Mcts { .. } => METHODS[7],
        }
    }

    pub(crate) fn read(source: &TaskSource, value: Option<&Value>) -> Result<Method> {
        let expected = format!("exactly one of {} with its settings", listed(&METHODS));
        let Some(value) = value else { return Err(source.wrong("method", expected, None)) };
        let section = TaskSection::open(source, "method".to_string(), value, &METHODS)?;
        let keys: Vec<&str> = section.keys().collect();
        let [name] = keys[..] else {
            return Err(crate::Error::field(&source.path, "method", expected, format!("{} of them", keys.len())));
        };
        let inside = section.get(name).expect("`keys` lists what is there");
        let open = |keys| TaskSection::open(source, section.field(name), inside, keys);
        match name {
            "self_consistency" => {
                let s = open(&["samples", "stop_when_decided"])?;
                Ok(Method::SelfConsistency { samples: samples(&s)?, stop: decided(source, &s)? })
            }
            "best_of_n" => {
                let s = open(&["samples", "by", "stop_when_passed"])?;
                let (samples, stop_when_passed) = (samples(&s)?, s.flag("stop_when_passed")?);
                if let (Some(asked @ Value::Object(_)), false) = (s.get("by"), stop_when_passed) {
                    let scorer = Verdicts::read(source, &s.field("by"), asked)?;
                    return Ok(Method::BestByScorer { samples, scorer });
                }
                let by = measure(&s)?;
                if stop_when_passed && by != BestBy::Grade {
                    return Err(s.wrong("stop_when_passed", "false where `by` is neither `grade` nor `judge`"));
                }
                Ok(Method::BestOfN { samples, by, stop_when_passed })
            }
            "tree_of_thought" => {
                TreeOfThought::read(source, section.field(name), inside).map(|how| Method::TreeOfThought(Box::new(how)))
            }
            "choose" => Ok(Method::Choose(Choose::read(source, section.field(name), inside)?)),
            "step_beam" => steps::step_search(source, section.field(name), inside)
                .map(|(search, scorer)| Method::StepBeam { search, scorer }),
            "dvts" => steps::step_search(source, section.field(name), inside)
                .map(|(search, scorer)| Method::Dvts { search, scorer }),
            "mcts" => {
                steps::mcts(source, section.field(name), inside).map(|(search, scorer)| Method::Mcts { search, scorer })
            }
            _ => Ok(Method::Sample { samples: samples(&open(&["samples"])?)? }),
        }
    }
}

fn samples(section: &TaskSection) -> Result<u32> {
    section.count("samples", 1)?.ok_or_else(|| section.wrong("samples", "a whole number of at least 1"))
}

/// `true`, `false` or `{"confidence": P}`.
fn decided(source: &TaskSource, section: &TaskSection) -> Result<Decided> {
    const KEY: &str = "stop_when_decided";
    match section.get(KEY) {
        None | Some(Value::Bool(false)) => Ok(Decided::Never),
        Some(Value::Bool(true)) => Ok(Decided::Certain),
        Some(value @ Value::Object(_)) => {
            let inside = TaskSection::open(source, section.field(KEY), value, &["confidence"])?;
            let expected = "a number above 0.5, below 1";
            let enough = inside.real("confidence", expected, |p| p > 0.5 && p < 1.0)?;
            enough.map(Decided::Confident).ok_or_else(|| inside.wrong("confidence", expected))
        }
        Some(_) => Err(section.wrong(KEY, "true, false or {\"confidence\": P}")),
    }
}

fn measure(section: &TaskSection) -> Result<BestBy> {
    let names = listed(&MEASURES.map(|(name, _)| name));
    let wrong = || {
        section.wrong("by", format!("one of {names}, or, without `stop_when_passed`, {{\"prompt\": …, \"words\": …}}"))
    };
    let Some(given) = section.get("by").and_then(Value::as_str) else { return Err(wrong()) };
    MEASURES.iter().find(|(name, _)| *name == given).map(|(_, by)| *by).ok_or_else(wrong)
}
