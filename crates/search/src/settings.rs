//! The drivers' settings, as plain data: numbers of samples and steps, and the measures by which one is chosen.
//! `eval::task` reads them from a task file, the Python package from what its functions are called with; the settings
//! of tree of thoughts are in its own module.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

pub use super::particles::Resampling;
use super::steps::Then;
pub use offshoot_score::Aggregate;

/// How the best of several samples is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BestBy {
    /// Log-probability of the whole sample, in nats.
    Logprob,
    /// Mean log-probability per token, in nats.
    MeanLogprob,
    /// The task's grader or judge: a right sample is better than a wrong one.
    Grade,
}

/// Best-of-N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestOfN {
    /// Candidates sampled.
    pub samples: usize,
    /// What makes a candidate the best.
    pub by: BestBy,
    /// As soon as the grader accepts one candidate, the others stop within a step and release their pages; those that
    /// wait for the judge are not judged.
    pub stop_when_passed: bool,
}

impl BestOfN {
    /// The best of `samples` candidates.
    pub fn new(samples: usize, by: BestBy) -> Self {
        BestOfN { samples, by, stop_when_passed: false }
    }

    /// Stops the other candidates as soon as the grader accepts one.
    pub fn stopping_when_passed(self) -> Self {
        BestOfN { stop_when_passed: true, ..self }
    }
}

/// How whole samples are scored, where a scorer chooses among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleScoring {
    /// Ends a step; part of it.
    pub delimiter: String,
    /// How the scores of a sample's steps become its own.
    pub aggregate: Aggregate,
}

impl Default for SampleScoring {
    /// Steps are lines; the last one's score is the sample's.
    fn default() -> Self {
        SampleScoring { delimiter: "\n".to_owned(), aggregate: Aggregate::Last }
    }
}

/// The measure of a choice; the largest wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChooseBy {
    /// Its log-probability after the prompt (lm-eval's `acc`).
    #[default]
    Logprob,
    /// The same per token of the choice.
    MeanLogprob,
    /// The same per byte of the choice's text, without the separator (lm-eval's `acc_norm`).
    PerByte,
}

/// How a solution is split into steps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StepSettings {
    /// What ends a step.
    #[serde(flatten)]
    pub end: StepEnd,
    /// Most steps of one solution.
    pub most: usize,
}

/// What ends a step, unless the solution ends before.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepEnd {
    /// A string, which is part of it.
    Delimiter(String),
    /// Its number of tokens.
    Tokens(NonZeroUsize),
}

impl StepSettings {
    /// At most `most` steps, each ended by `delimiter`.
    pub fn delimited(delimiter: impl Into<String>, most: usize) -> StepSettings {
        StepSettings { end: StepEnd::Delimiter(delimiter.into()), most }
    }
}

/// Step-level beam search and DVTS. What scores a step is the [`Stepper`](super::steps::Stepper)'s scorer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSearch {
    /// Most solutions kept at the end, and steps sampled per round; a multiple of `expansions`.
    pub samples: u32,
    /// Next steps sampled after each kept solution.
    pub expansions: u32,
    /// How solutions are split.
    pub steps: StepSettings,
    /// Steps that a step is followed by, greedily, before it is scored; they are no part of the solution. 0: none.
    pub lookahead: u32,
    /// How a solution's value follows from those of its steps.
    pub aggregate: Aggregate,
    /// How a solution is chosen at the end.
    pub by: Decide,
}

impl StepSearch {
    /// Steps to look ahead from step number `depth`, from 1 up: none from the last one.
    pub(crate) fn lookahead_at(&self, depth: usize) -> u32 {
        if depth < self.steps.most { self.lookahead } else { 0 }
    }

    /// What happens to step number `depth` once it is sampled.
    pub(crate) fn then_at(&self, depth: usize) -> Then {
        if self.lookahead_at(depth) == 0 { Then::Value } else { Then::GoOn }
    }
}

/// Particle filtering, and particle Gibbs where there are several iterations. What scores a step is the
/// [`Stepper`](super::steps::Stepper)'s scorer: in [0, 1], or by logits.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParticleSearch {
    /// Particles of all iterations together; a multiple of `iterations`, which is at least 1.
    pub samples: u32,
    /// Iterations, one after the other.
    pub iterations: u32,
    /// Particles, drawn by weight, that stay as references in the next iteration; less than an iteration has.
    pub references: u32,
    /// How solutions are split; from the last step on a particle counts as ended.
    pub steps: StepSettings,
    /// How a solution's value follows from those of its steps.
    pub aggregate: Aggregate,
    /// How particles are drawn at each step.
    pub resampling: Resampling,
    /// How a solution is chosen at the end.
    pub by: Decide,
}

/// Monte-Carlo tree search.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mcts {
    /// Most simulations.
    pub samples: u32,
    /// No simulation starts once this many tokens are sampled; `None`: no limit.
    pub tokens: Option<usize>,
    /// Next steps sampled when a node is expanded.
    pub expansions: u32,
    /// Simulations per batch.
    pub parallel: u32,
    /// How solutions are split.
    pub steps: StepSettings,
    /// What values the end of a simulation.
    pub scoring: RolloutScoring,
    /// How a simulation finds its way.
    pub select: MctsSelect,
    /// Factor of the confidence term.
    pub exploration: f64,
    /// Progressive widening: `expansions * visits^widening` next steps are sampled; `None`: always `expansions`.
    pub widening: Option<f64>,
    /// How a solution is chosen at the end.
    pub by: MctsDecide,
}

impl Mcts {
    /// Next steps to sample after a node with this many visits.
    pub fn breadth(&self, visits: u32) -> usize {
        let factor = self.widening.map_or(1.0, |power| f64::from(visits.max(1)).powf(power));
        (f64::from(self.expansions) * factor).ceil() as usize
    }
}

/// Rollouts by segments, as [`tree_po`](super::tree_po()) samples them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreePo {
    /// Most samples.
    pub samples: u32,
    /// Most tokens of a segment.
    pub segment: usize,
    /// Most samples that one becomes at the end of a segment, and that begin at the prompt.
    pub branches: u32,
    /// Most tokens that all samples together have, shared ones counted once.
    pub tokens: usize,
}

/// Rollouts that fork where entropy is highest, as [`entropy_branching`](super::entropy_branching()) samples them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyBranching {
    /// Samples that are drawn first.
    pub paths: u32,
    /// Tokens of each of these at which it is forked.
    pub forks: u32,
    /// Samples from each of these tokens.
    pub branches: u32,
}

impl EntropyBranching {
    /// Samples of all kinds together.
    pub fn samples(&self) -> u32 {
        self.paths.saturating_mul(self.forks.saturating_mul(self.branches).saturating_add(1))
    }
}

/// What a simulation values, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutScoring {
    /// A solution that is sampled to its end, by the [`Stepper`](super::steps::Stepper)'s scorer.
    Scorer,
    /// The partial solution where the simulation starts, by that scorer: nothing is sampled behind it.
    Leaf,
    /// A solution that is sampled to its end, by the share of the simulations so far that gave the same answer.
    Agreement,
}

/// How a simulation selects a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MctsSelect {
    /// Mean value + exploration · sqrt(ln N / n) (Kocsis and Szepesvári 2006).
    #[default]
    Uct,
    /// Mean value + exploration · P · sqrt(N) / (1 + n), where P is the share of sampled steps with this text (Silver
    /// et al. 2017).
    Puct,
}

/// How a solution, or an answer, is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decide {
    /// The solution of the largest value.
    Best,
    /// The most frequent answer.
    Vote,
    /// The answer with the largest sum of values over its solutions.
    WeightedVote,
}

/// How Monte-Carlo tree search chooses a solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MctsDecide {
    /// Among the ends of all simulations.
    Rollouts(Decide),
    /// The solution simulated where the most visited path ends.
    Visits,
}
