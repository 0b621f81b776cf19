//! The settings of searches that go step by step: step-level beam search, DVTS and Monte-Carlo tree search.

use serde_json::Value;

use crate::error::Result;
use crate::eval::source::{Section, Source};
use crate::eval::task::method::scoring::Scoring;
use crate::json::listed;

/// How a solution is cut into steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Ends a step; part of it.
    pub delimiter: String,
    /// Steps of one solution at most.
    pub most: usize,
}

/// `{"samples": N, "expansions": M, "delimiter": "\n", "steps": 40, "scorer": …, "aggregate": "last", "by": "weighted_vote"}`
#[derive(Clone, Debug, PartialEq)]
pub struct StepSearch {
    /// Solutions kept in the end at most, and steps drawn in a round; a multiple of `expansions`.
    pub samples: u32,
    /// Next steps drawn for each beginning that is kept.
    pub expansions: u32,
    pub steps: Steps,
    pub scorer: Scoring,
    pub aggregate: Aggregate,
    pub by: Decide,
}

/// `{"samples": SIMULATIONS, "tokens": …, "expansions": 4, "parallel": 8, "delimiter": "\n", "steps": 40, "scorer": … or
/// "agreement", "select": "uct", "exploration": 1.4, "widening": …, "by": "weighted_vote"}`
#[derive(Clone, Debug, PartialEq)]
pub struct Mcts {
    /// Simulations at most.
    pub samples: u32,
    /// No simulation begins once so many tokens are drawn.
    pub tokens: Option<usize>,
    /// Next steps drawn when a beginning is expanded.
    pub expansions: u32,
    /// Simulations that are drawn in one batch.
    pub parallel: u32,
    pub steps: Steps,
    pub scorer: RolloutScoring,
    pub select: Select,
    /// What an uncertain child is granted: the factor of the confidence term.
    pub exploration: f64,
    /// Progressive widening: `expansions * visits^widening` next steps are drawn; `None`: `expansions`, however many visits.
    pub widening: Option<f64>,
    pub by: MctsDecide,
}

/// How a whole solution that a simulation ends in is valued.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutScoring {
    Scorer(Scoring),
    /// The share of the simulations so far that give the same answer.
    Agreement,
}

/// Which child a simulation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Mean value + exploration · sqrt(ln N / n) (Kocsis and Szepesvári 2006).
    Uct,
    /// Mean value + exploration · P · sqrt(N) / (1 + n), where P is the share of the draws that said this (Silver et al. 2017).
    Puct,
}

/// What the values of a solution's steps make of the solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    Last,
    Min,
    Product,
}

/// How one of the solutions, or one of their answers, is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decide {
    /// The solution of the largest value.
    Best,
    /// The answer that most draws ended in.
    Vote,
    /// The answer whose solutions have the largest sum of values.
    WeightedVote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MctsDecide {
    Rollouts(Decide),
    /// The solution simulated where the most visited path ends.
    Visits,
}

const DECIDE: [(&str, Decide); 3] =
    [("best", Decide::Best), ("vote", Decide::Vote), ("weighted_vote", Decide::WeightedVote)];
const AGGREGATE: [(&str, Aggregate); 3] =
    [("last", Aggregate::Last), ("min", Aggregate::Min), ("product", Aggregate::Product)];
const SELECT: [(&str, Select); 2] = [("uct", Select::Uct), ("puct", Select::Puct)];

const MOST_STEPS: u32 = 40;
const PARALLEL: u32 = 8;
const EXPANSIONS: u32 = 4;

impl StepSearch {
    pub(crate) fn read(source: &Source, at: String, value: &Value) -> Result<StepSearch> {
        let keys = ["samples", "expansions", "delimiter", "steps", "scorer", "aggregate", "by"];
        let s = Section::open(source, at, value, &keys)?;
        let (samples, expansions) = (super::samples(&s)?, expansions(&s)?);
        if samples % expansions != 0 {
            return Err(s.wrong("samples", format!("a multiple of `expansions`, {expansions}")));
        }
        Ok(StepSearch {
            samples,
            expansions,
            steps: Steps::read(&s)?,
            scorer: Scoring::read(source, &s.field("scorer"), s.get("scorer"))?,
            aggregate: named(&s, "aggregate", &AGGREGATE)?.unwrap_or(Aggregate::Last),
            by: named(&s, "by", &DECIDE)?.unwrap_or(Decide::WeightedVote),
        })
    }
}

impl Mcts {
    pub(crate) fn read(source: &Source, at: String, value: &Value) -> Result<Mcts> {
        let keys = [
            "samples",
            "tokens",
            "expansions",
            "parallel",
            "delimiter",
            "steps",
            "scorer",
            "select",
            "exploration",
            "widening",
            "by",
        ];
        let s = Section::open(source, at, value, &keys)?;
        let scorer = match s.text("scorer") {
            Ok(Some("agreement")) => RolloutScoring::Agreement,
            _ => RolloutScoring::Scorer(Scoring::read(source, &s.field("scorer"), s.get("scorer"))?),
        };
        let by = match s.text("by")? {
            Some("visits") => MctsDecide::Visits,
            _ => MctsDecide::Rollouts(named(&s, "by", &DECIDE)?.unwrap_or(Decide::WeightedVote)),
        };
        let exploration = s.real("exploration", "a number of at least 0", |c| c >= 0.0 && c.is_finite())?;
        Ok(Mcts {
            samples: crate::eval::task::method::samples(&s)?,
            tokens: s.count("tokens", 1)?.map(|tokens| tokens as usize),
            expansions: expansions(&s)?,
            parallel: s.count("parallel", 1)?.unwrap_or(PARALLEL),
            steps: Steps::read(&s)?,
            scorer,
            select: named(&s, "select", &SELECT)?.unwrap_or(Select::Uct),
            exploration: exploration.unwrap_or(std::f64::consts::SQRT_2),
            widening: s.real("widening", "a number above 0, below 1", |x| x > 0.0 && x < 1.0)?,
            by,
        })
    }

    /// Next steps that may be drawn after a beginning that was visited so often.
    pub fn breadth(&self, visits: u32) -> usize {
        let factor = self.widening.map_or(1.0, |power| f64::from(visits.max(1)).powf(power));
        (f64::from(self.expansions) * factor).ceil() as usize
    }
}

impl Steps {
    fn read(section: &Section) -> Result<Steps> {
        let delimiter = section.text("delimiter")?.unwrap_or("\n");
        if delimiter.is_empty() {
            return Err(section.wrong("delimiter", "a string that is not empty"));
        }
        let most = section.count("steps", 1)?.unwrap_or(MOST_STEPS) as usize;
        Ok(Steps { delimiter: delimiter.to_string(), most })
    }
}

fn expansions(section: &Section) -> Result<u32> {
    Ok(section.count("expansions", 1)?.unwrap_or(EXPANSIONS))
}

fn named<T: Copy, const N: usize>(section: &Section, key: &str, known: &[(&str, T); N]) -> Result<Option<T>> {
    let Some(given) = section.text(key)? else { return Ok(None) };
    let found = known.iter().find(|(name, _)| *name == given).map(|(_, value)| Some(*value));
    found.ok_or_else(|| section.wrong(key, format!("one of {}", listed(&known.each_ref().map(|(name, _)| *name)))))
}
