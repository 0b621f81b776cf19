//! Reads the settings of stepwise searches, each with its scoring of solutions (a [`ThoughtScoring`]).
//!
//! `step_beam` and `dvts`, a [`StepSearch`]: `{"samples": N, "expansions": M, "delimiter": "\n", "steps": 40, "scorer":
//! …, "aggregate": "last", "by": "weighted_vote"}`
//!
//! `mcts`, a [`Mcts`]: `{"samples": SIMULATIONS, "tokens": …, "expansions": 4, "parallel": 8, "delimiter": "\n",
//! "steps": 40, "scorer": … or "agreement", "select": "uct", "exploration": 1.4, "widening": …, "by": "weighted_vote"}`

use serde_json::Value;

use crate::error::Result;
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::method::scoring::ThoughtScoring;
use crate::json::listed;
use crate::search::settings::{
    Aggregate, Decide, Mcts, MctsDecide, MctsSelect, RolloutScoring, StepSearch, StepSettings,
};

const DECIDE: [(&str, Decide); 3] =
    [("best", Decide::Best), ("vote", Decide::Vote), ("weighted_vote", Decide::WeightedVote)];
const AGGREGATE: [(&str, Aggregate); 3] =
    [("last", Aggregate::Last), ("min", Aggregate::Min), ("product", Aggregate::Product)];
const SELECT: [(&str, MctsSelect); 2] = [("uct", MctsSelect::Uct), ("puct", MctsSelect::Puct)];

const MOST_STEPS: u32 = 40;
const PARALLEL: u32 = 8;
const EXPANSIONS: u32 = 4;

/// The settings of `step_beam` or `dvts`, and what scores each step.
pub(crate) fn step_search(source: &TaskSource, at: String, value: &Value) -> Result<(StepSearch, ThoughtScoring)> {
    let keys = ["samples", "expansions", "delimiter", "steps", "scorer", "aggregate", "by"];
    let s = TaskSection::open(source, at, value, &keys)?;
    let (samples, expansions) = (super::samples(&s)?, expansions(&s)?);
    if samples % expansions != 0 {
        return Err(s.wrong("samples", format!("a multiple of `expansions`, {expansions}")));
    }
    let (steps, scorer) = (steps(&s)?, ThoughtScoring::read(source, &s.field("scorer"), s.get("scorer"))?);
    let aggregate = named(&s, "aggregate", &AGGREGATE)?.unwrap_or(Aggregate::Last);
    let by = named(&s, "by", &DECIDE)?.unwrap_or(Decide::WeightedVote);
    Ok((StepSearch { samples, expansions, steps, aggregate, by }, scorer))
}

/// The settings of `mcts`, and what scores the solutions; `None`: their agreement does.
pub(crate) fn mcts(source: &TaskSource, at: String, value: &Value) -> Result<(Mcts, Option<ThoughtScoring>)> {
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
    let s = TaskSection::open(source, at, value, &keys)?;
    let scorer = match s.text("scorer") {
        Ok(Some("agreement")) => None,
        _ => Some(ThoughtScoring::read(source, &s.field("scorer"), s.get("scorer"))?),
    };
    let by = match s.text("by")? {
        Some("visits") => MctsDecide::Visits,
        _ => MctsDecide::Rollouts(named(&s, "by", &DECIDE)?.unwrap_or(Decide::WeightedVote)),
    };
    let exploration = s.real("exploration", "a number of at least 0", |c| c >= 0.0 && c.is_finite())?;
    let mcts = Mcts {
        samples: super::samples(&s)?,
        tokens: s.count("tokens", 1)?.map(|tokens| tokens as usize),
        expansions: expansions(&s)?,
        parallel: s.count("parallel", 1)?.unwrap_or(PARALLEL),
        steps: steps(&s)?,
        scoring: scorer.as_ref().map_or(RolloutScoring::Agreement, |_| RolloutScoring::Scorer),
        select: named(&s, "select", &SELECT)?.unwrap_or(MctsSelect::Uct),
        exploration: exploration.unwrap_or(std::f64::consts::SQRT_2),
        widening: s.real("widening", "a number above 0, below 1", |x| x > 0.0 && x < 1.0)?,
        by,
    };
    Ok((mcts, scorer))
}

fn steps(section: &TaskSection) -> Result<StepSettings> {
    let delimiter = section.text("delimiter")?.unwrap_or("\n");
    if delimiter.is_empty() {
        return Err(section.wrong("delimiter", "a string that is not empty"));
    }
    let most = section.count("steps", 1)?.unwrap_or(MOST_STEPS) as usize;
    Ok(StepSettings { delimiter: delimiter.to_string(), most })
}

fn expansions(section: &TaskSection) -> Result<u32> {
    Ok(section.count("expansions", 1)?.unwrap_or(EXPANSIONS))
}

fn named<T: Copy, const N: usize>(section: &TaskSection, key: &str, known: &[(&str, T); N]) -> Result<Option<T>> {
    let Some(given) = section.text(key)? else { return Ok(None) };
    let found = known.iter().find(|(name, _)| *name == given).map(|(_, value)| Some(*value));
    found.ok_or_else(|| section.wrong(key, format!("one of {}", listed(&known.each_ref().map(|(name, _)| *name)))))
}
