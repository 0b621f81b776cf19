//! What a task does with its samples: the key `method`, read and range-checked. How tokens are drawn is left to `sampling`.

mod sampling;
pub mod tree_of_thought;

use serde::Serialize;
use serde_json::Value;

use super::Item;
use super::file::{Section, Source, listed};
use crate::error::Result;

pub use sampling::Sampling;
use tree_of_thought::{Generate, TreeOfThought};

/// How an item's answer is made from its samples.
#[derive(Debug, PartialEq, Eq)]
pub enum Method {
    /// The most frequent answer wins; where `stop_when_decided`, samples that can no longer change it are not drawn.
    SelfConsistency { samples: u32, stop_when_decided: bool },
    /// One sample is chosen by a measure of the sample itself.
    BestOfN { samples: u32, by: BestBy },
    /// Samples are drawn and graded, none is chosen (pass@k).
    Sample { samples: u32 },
    /// Thoughts grow step by step, are judged by the model itself, and the best go on.
    TreeOfThought(Box<TreeOfThought>),
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

const METHODS: [&str; 4] = ["self_consistency", "best_of_n", "sample", "tree_of_thought"];
const MEASURES: [(&str, BestBy); 3] =
    [("logprob", BestBy::Logprob), ("mean_logprob", BestBy::MeanLogprob), ("grade", BestBy::Grade)];

impl Method {
    /// Samples of one item; of a search, what it draws at once at most.
    pub fn samples(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, .. } | Method::BestOfN { samples, .. } | Method::Sample { samples } => {
                *samples
            }
            Method::TreeOfThought(how) => how.breadth.saturating_mul(match how.generate {
                Generate::Sample { thoughts, .. } => thoughts,
                Generate::Propose { lists, .. } => lists,
            }),
        }
    }

    /// Whether it asks the model with prompts of its own beside the items'.
    pub fn asks(&self) -> bool {
        matches!(self, Method::TreeOfThought(_))
    }

    /// What the method demands of an item's fields.
    pub fn check_item(&self, item: &Item) -> Result<()> {
        match self {
            Method::TreeOfThought(how) => how.check_item(item),
            _ => Ok(()),
        }
    }

    /// The method's key in the task file.
    pub fn name(&self) -> &'static str {
        match self {
            Method::SelfConsistency { .. } => METHODS[0],
            Method::BestOfN { .. } => METHODS[1],
            Method::Sample { .. } => METHODS[2],
            Method::TreeOfThought(_) => METHODS[3],
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
            "tree_of_thought" => {
                TreeOfThought::read(source, section.field(name), inside).map(|how| Method::TreeOfThought(Box::new(how)))
            }
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
