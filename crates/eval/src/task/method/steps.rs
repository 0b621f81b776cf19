//! The settings of stepwise searches (`step_beam`, `dvts`, `mcts`), each with its scoring of solutions.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::source::Place;
use crate::task::method::scoring::{ScorerSettings, ThoughtScoring};
use crate::task::verdict::VerdictKey;
use offshoot_core::error::Result;
use offshoot_search::settings::{
    Aggregate, Decide, Mcts, MctsDecide, MctsSelect, ParticleSearch, Resampling, RolloutScoring, StepEnd, StepSearch,
    StepSettings,
};

/// How solutions are cut into steps.
#[derive(Deserialize, JsonSchema)]
struct StepKeys {
    /// The string that ends a step (default: the line end).
    #[schemars(length(min = 1), extend("x-expected" = "a string that is not empty"))]
    delimiter: Option<String>,
    /// Instead of a string, the tokens after which a step ends.
    #[schemars(range(min = 1))]
    step_tokens: Option<u32>,
    /// The most steps of a solution.
    #[serde(default = "steps")]
    #[schemars(range(min = 1))]
    steps: u32,
}

/// How particles take their steps, in one iteration or several.
#[derive(Deserialize, JsonSchema)]
struct ParticleKeys {
    #[serde(flatten)]
    split: StepKeys,
    /// What scores complete and partial solutions: from 0 to 1, or `reward`.
    scorer: ScorerSettings,
    /// How the scores of a solution's steps become its own.
    #[serde(default)]
    aggregate: Aggregate,
    /// How particles are drawn at each step.
    #[serde(default)]
    resampling: Resampling,
    /// How the answer is chosen among the solutions.
    #[serde(default = "best")]
    by: Decide,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct StepSearchSettings {
    /// The most solutions kept at the end, and steps sampled at once; a multiple of `expansions`.
    #[schemars(range(min = 1))]
    samples: u32,
    /// Next steps sampled after each kept solution.
    #[serde(default = "expansions")]
    #[schemars(range(min = 1))]
    expansions: u32,
    #[serde(flatten)]
    split: StepKeys,
    /// What scores complete and partial solutions.
    scorer: ScorerSettings,
    /// A step is scored by so many further ones behind it, sampled greedily and thrown away.
    #[serde(default)]
    lookahead: u32,
    /// How the scores of a solution's steps become its own.
    #[serde(default)]
    aggregate: Aggregate,
    /// How the answer is chosen among the solutions.
    #[serde(default = "weighted_vote")]
    by: Decide,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ParticleFilteringSettings {
    /// Particles.
    #[schemars(range(min = 1))]
    samples: u32,
    #[serde(flatten)]
    particles: ParticleKeys,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ParticleGibbsSettings {
    /// Particles of all iterations together; a multiple of `iterations`.
    #[schemars(range(min = 1))]
    samples: u32,
    /// Iterations, one after the other; the answer is chosen in the last one.
    #[serde(default = "iterations")]
    #[schemars(range(min = 1))]
    iterations: u32,
    /// Particles, drawn by weight, that stay in the next iteration; fewer than an iteration has.
    #[serde(default = "references")]
    #[schemars(range(min = 1))]
    references: u32,
    #[serde(flatten)]
    particles: ParticleKeys,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct MctsSettings {
    /// The most simulations.
    #[schemars(range(min = 1))]
    samples: u32,
    /// No simulation starts once this many tokens are sampled (default: no limit).
    #[schemars(range(min = 1))]
    tokens: Option<u32>,
    /// Next steps sampled when a node is expanded.
    #[serde(default = "expansions")]
    #[schemars(range(min = 1))]
    expansions: u32,
    /// Simulations at once.
    #[serde(default = "parallel")]
    #[schemars(range(min = 1))]
    parallel: u32,
    #[serde(flatten)]
    split: StepKeys,
    /// What scores the solution of a simulation.
    scorer: MctsScorerSettings,
    /// Which solution that is.
    #[serde(default)]
    value: MctsValue,
    /// How a simulation selects the next step.
    #[serde(default)]
    select: MctsSelect,
    /// The weight of rarely tried steps in that selection.
    #[serde(default = "exploration")]
    #[schemars(extend("minimum" = 0, "x-expected" = "a number of at least 0"))]
    exploration: f64,
    /// Progressive widening: a node with n visits has `expansions` times n to this power next steps (default: always
    /// `expansions`).
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1, "x-expected" = "a number above 0, below 1"))]
    widening: Option<f64>,
    /// How the answer is chosen among the solutions.
    #[serde(default = "weighted_rollouts")]
    by: MctsDecideSettings,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend(
    "x-expected" = "`agreement`, `mean_logprob`, `grade`, `reward`, or an object with `prompt` and `words` or `score`"
))]
enum MctsScorerSettings {
    Agreement(Agreement),
    Scorer(ScorerSettings),
}

/// Which solution of a simulation is scored.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum MctsValue {
    /// The partial solution where it starts, sampled to its end.
    #[default]
    Rollout,
    /// That partial solution as it is. Those that have ended are the samples.
    Leaf,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Agreement {
    /// The share of the simulations so far that gave the same answer.
    Agreement,
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum MctsDecideSettings {
    Visits(Visits),
    Rollouts(Decide),
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Visits {
    /// The solution simulated where the most visited path ends.
    Visits,
}

fn expansions() -> u32 {
    4
}

fn steps() -> u32 {
    40
}

fn parallel() -> u32 {
    8
}

fn exploration() -> f64 {
    std::f64::consts::SQRT_2
}

fn iterations() -> u32 {
    2
}

fn references() -> u32 {
    1
}

fn best() -> Decide {
    Decide::Best
}

fn weighted_vote() -> Decide {
    Decide::WeightedVote
}

fn weighted_rollouts() -> MctsDecideSettings {
    MctsDecideSettings::Rollouts(Decide::WeightedVote)
}

impl StepKeys {
    /// `place`: of the method.
    fn read(self, place: &Place<'_>) -> Result<StepSettings> {
        let StepKeys { delimiter, step_tokens, steps } = self;
        let tokens = step_tokens.and_then(|tokens| NonZeroUsize::new(tokens as usize));
        let end = match (delimiter, tokens) {
            (Some(_), Some(_)) => {
                return Err(place.key("step_tokens").wrong("nothing where `delimiter` ends steps"));
            }
            (None, Some(tokens)) => StepEnd::Tokens(tokens),
            (delimiter, None) => StepEnd::Delimiter(delimiter.unwrap_or_else(|| "\n".to_owned())),
        };
        Ok(StepSettings { end, most: steps as usize })
    }
}

impl ParticleKeys {
    /// So many particles of all iterations together, and what scores each step. `place`: of the method.
    fn read(
        self,
        place: &Place<'_>,
        samples: u32,
        iterations: u32,
        references: u32,
    ) -> Result<(ParticleSearch, ThoughtScoring)> {
        let ParticleKeys { split, scorer, aggregate, resampling, by } = self;
        let scorer = ThoughtScoring::new(&place.key("scorer"), scorer, VerdictKey::Chances)?;
        let steps = split.read(place)?;
        Ok((ParticleSearch { samples, iterations, references, steps, aggregate, resampling, by }, scorer))
    }
}

/// The settings of `step_beam` or `dvts`, and what scores each step; `place`: theirs.
pub(crate) fn step_search(place: &Place<'_>, settings: StepSearchSettings) -> Result<(StepSearch, ThoughtScoring)> {
    let StepSearchSettings { samples, expansions, split, scorer, lookahead, aggregate, by } = settings;
    if samples % expansions != 0 {
        return Err(place.key("samples").wrong(format!("a multiple of `expansions`, {expansions}")));
    }
    let scorer = ThoughtScoring::new(&place.key("scorer"), scorer, VerdictKey::Steps)?;
    let steps = split.read(place)?;
    Ok((StepSearch { samples, expansions, steps, lookahead, aggregate, by }, scorer))
}

/// The settings of `particle_filtering`, which is one iteration, and what scores each step; `place`: theirs.
pub(crate) fn particle_filtering(
    place: &Place<'_>,
    settings: ParticleFilteringSettings,
) -> Result<(ParticleSearch, ThoughtScoring)> {
    let ParticleFilteringSettings { samples, particles } = settings;
    particles.read(place, samples, 1, 0)
}

/// The settings of `particle_gibbs`, and what scores each step; `place`: theirs.
pub(crate) fn particle_gibbs(
    place: &Place<'_>,
    settings: ParticleGibbsSettings,
) -> Result<(ParticleSearch, ThoughtScoring)> {
    let ParticleGibbsSettings { samples, iterations, references, particles } = settings;
    if samples % iterations != 0 {
        return Err(place.key("samples").wrong(format!("a multiple of `iterations`, {iterations}")));
    }
    if iterations > 1 && references >= samples / iterations {
        let expected = format!("less than the particles of an iteration, {}", samples / iterations);
        return Err(place.key("references").wrong(expected));
    }
    particles.read(place, samples, iterations, references)
}

/// The settings of `mcts`, and what scores the solutions; `None`: their agreement does. `place`: theirs.
pub(crate) fn mcts(place: &Place<'_>, settings: MctsSettings) -> Result<(Mcts, Option<ThoughtScoring>)> {
    let scorer = match settings.scorer {
        MctsScorerSettings::Agreement(Agreement::Agreement) => None,
        MctsScorerSettings::Scorer(scorer) => {
            Some(ThoughtScoring::new(&place.key("scorer"), scorer, VerdictKey::Steps)?)
        }
    };
    let scoring = match (&scorer, settings.value) {
        (None, MctsValue::Rollout) => RolloutScoring::Agreement,
        (None, MctsValue::Leaf) => {
            return Err(place.key("value").wrong("rollout, as only solutions that have ended can agree"));
        }
        (Some(_), MctsValue::Rollout) => RolloutScoring::Scorer,
        (Some(_), MctsValue::Leaf) => RolloutScoring::Leaf,
    };
    let mcts = Mcts {
        samples: settings.samples,
        tokens: settings.tokens.map(|tokens| tokens as usize),
        expansions: settings.expansions,
        parallel: settings.parallel,
        steps: settings.split.read(place)?,
        scoring,
        select: settings.select,
        exploration: settings.exploration,
        widening: settings.widening,
        by: match settings.by {
            MctsDecideSettings::Visits(Visits::Visits) => MctsDecide::Visits,
            MctsDecideSettings::Rollouts(by) => MctsDecide::Rollouts(by),
        },
    };
    Ok((mcts, scorer))
}
