//! What a task does with its samples: the key `method`, read and range-checked. How tokens are drawn is left to `sampling`.

pub mod choose;
mod sampling;
pub mod scoring;
pub mod steps;

use serde::Serialize;
use serde_json::Value;

use super::file::{Section, Source, listed};
use crate::error::Result;

pub use choose::{Choose, ChooseBy};
pub use sampling::Sampling;
pub use scoring::Scoring;
pub use steps::{Mcts, StepSearch};

/// How an item's answer is made from its samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// The most frequent answer wins; where `stop_when_decided`, samples that can no longer change it are not drawn.
    SelfConsistency {
        samples: u32,
        stop_when_decided: bool,
    },
    /// One sample is chosen by a measure of the sample itself.
    BestOfN {
        samples: u32,
        by: BestBy,
    },
    /// Samples are drawn and graded, none is chosen (pass@k).
    Sample {
        samples: u32,
    },
    /// Nothing is drawn: of answers that are offered the likeliest is taken.
    Choose(Choose),
    /// Step by step, the best of all beginnings are kept.
    StepBeam(StepSearch),
    /// Step by step, the best of each subtree's beginnings is kept.
    Dvts(StepSearch),
    Mcts(Mcts),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BestBy {
    /// Log-probability of the whole sample, in nats.
    Logprob,
    /// Log-probability a token, in nats.
    MeanLogprob,
    /// The task's grader: a right sample is better than a wrong one.
    Grade,
}

const METHODS: [&str; 7] = ["self_consistency", "best_of_n", "sample", "choose", "step_beam", "dvts", "mcts"];
const MEASURES: [(&str, BestBy); 3] =
    [("logprob", BestBy::Logprob), ("mean_logprob", BestBy::MeanLogprob), ("grade", BestBy::Grade)];

impl Method {
    /// Samples of one item, and branches that it grows at once; of `mcts` the simulations.
    pub fn samples(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, .. } | Method::BestOfN { samples, .. } | Method::Sample { samples } => {
                *samples
            }
            Method::Choose(_) => 1,
            Method::StepBeam(search) | Method::Dvts(search) => search.samples,
            Method::Mcts(mcts) => mcts.samples,
        }
    }

    /// What it does, for the first line of a summary.
    pub fn described(&self) -> String {
        match self {
            Method::Choose(choose) => match choose.count() {
                Some(choices) => format!("{} of {choices}", self.name()),
                None => self.name().to_string(),
            },
            Method::Mcts(mcts) => format!("{} with {} simulations", self.name(), mcts.samples),
            _ => format!("{} with {} samples", self.name(), self.samples()),
        }
    }

    /// Whether its samples are independent draws of one distribution, so that pass@k and maj@k can be told from them.
    pub fn draws_alike(&self) -> bool {
        matches!(self, Method::SelfConsistency { .. } | Method::BestOfN { .. } | Method::Sample { .. })
    }

    /// How it values solutions and their beginnings.
    pub fn scoring(&self) -> Option<&Scoring> {
        match self {
            Method::StepBeam(search) | Method::Dvts(search) => Some(&search.scorer),
            Method::Mcts(Mcts { scorer: steps::RolloutScoring::Scorer(scorer), .. }) => Some(scorer),
            _ => None,
        }
    }

    /// Whether it counts answers.
    pub fn votes(&self) -> bool {
        use steps::{Decide, MctsDecide, RolloutScoring};
        match self {
            Method::SelfConsistency { .. } => true,
            Method::StepBeam(search) | Method::Dvts(search) => search.by != Decide::Best,
            Method::Mcts(mcts) => {
                mcts.scorer == RolloutScoring::Agreement
                    || matches!(mcts.by, MctsDecide::Rollouts(Decide::Vote | Decide::WeightedVote))
            }
            _ => false,
        }
    }

    /// The method's key in the task file.
    pub fn name(&self) -> &'static str {
        match self {
            Method::SelfConsistency { .. } => METHODS[0],
            Method::BestOfN { .. } => METHODS[1],
            Method::Sample { .. } => METHODS[2],
            Method::Choose(_) => METHODS[3],
            Method::StepBeam(_) => METHODS[4],
            Method::Dvts(_) => METHODS[5],
            Method::Mcts(_) => METHODS[6],
        }
    }

    pub(super) fn read(source: &Source, value: Option<&Value>) -> Result<Method> {
        let expected = format!("exactly one of {} with its settings", listed(&METHODS));
        let Some(value) = value else { return Err(source.wrong("method", expected, None)) };
        let section = Section::open(source, "method".to_string(), value, &METHODS)?;
        let keys: Vec<&str> = section.keys().collect();
        let [name] = keys[..] else {
            return Err(crate::Error::field(&source.path, "method", expected, format!("{} of them", keys.len())));
        };
        let inside = section.get(name).expect("`keys` lists what is there");
        let open = |keys| Section::open(source, section.field(name), inside, keys);
        match name {
            "self_consistency" => {
                let s = open(&["samples", "stop_when_decided"])?;
                Ok(Method::SelfConsistency { samples: samples(&s)?, stop_when_decided: s.flag("stop_when_decided")? })
            }
            "best_of_n" => {
                let s = open(&["samples", "by"])?;
                Ok(Method::BestOfN { samples: samples(&s)?, by: measure(&s)? })
            }
            "choose" => Ok(Method::Choose(Choose::read(source, section.field(name), inside)?)),
            "step_beam" => Ok(Method::StepBeam(StepSearch::read(source, section.field(name), inside)?)),
            "dvts" => Ok(Method::Dvts(StepSearch::read(source, section.field(name), inside)?)),
            "mcts" => Ok(Method::Mcts(Mcts::read(source, section.field(name), inside)?)),
            _ => Ok(Method::Sample { samples: samples(&open(&["samples"])?)? }),
        }
    }
}

fn samples(section: &Section) -> Result<u32> {
    section.count("samples", 1)?.ok_or_else(|| section.wrong("samples", "a whole number of at least 1"))
}

fn measure(section: &Section) -> Result<BestBy> {
    let wrong = || section.wrong("by", format!("one of {}", listed(&MEASURES.map(|(name, _)| name))));
    let Some(given) = section.text("by")? else { return Err(wrong()) };
    MEASURES.iter().find(|(name, _)| *name == given).map(|(_, by)| *by).ok_or_else(wrong)
}
