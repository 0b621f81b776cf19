//! The drivers' settings, as plain data: how many samples, how many next steps, by what measure one is taken. Reading them from a
//! task file is left to `eval::task`; those of tree of thoughts stand beside it.

use serde::Serialize;

/// How the best of several samples is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BestBy {
    /// Log-probability of the whole sample, in nats.
    Logprob,
    /// Log-probability a token, in nats.
    MeanLogprob,
    /// The task's grader or judge: a right sample is better than a wrong one.
    Grade,
}

/// The measure of a choice; the largest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChooseBy {
    /// Its log-probability after the prompt (lm-eval's `acc`).
    Logprob,
    /// That by the choice's tokens.
    MeanLogprob,
    /// That by the bytes of the choice's text, the separator left out (lm-eval's `acc_norm`).
    PerByte,
}

/// How a solution is cut into steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Ends a step; part of it.
    pub delimiter: String,
    /// Steps of one solution at most.
    pub most: usize,
}

/// Step-level beam search and DVTS. What scores a step is the [`Stepper`](super::steps::Stepper)'s scorer.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSearch {
    /// Solutions kept in the end at most, and steps drawn in a round; a multiple of `expansions`.
    pub samples: u32,
    /// Next steps drawn for each beginning that is kept.
    pub expansions: u32,
    pub steps: Steps,
    pub aggregate: Aggregate,
    pub by: Decide,
}

/// Monte-Carlo tree search.
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
    pub scoring: RolloutScoring,
    pub select: Select,
    /// What an uncertain child is granted: the factor of the confidence term.
    pub exploration: f64,
    /// Progressive widening: `expansions * visits^widening` next steps are drawn; `None`: `expansions`, however many visits.
    pub widening: Option<f64>,
    pub by: MctsDecide,
}

impl Mcts {
    /// Next steps that may be drawn after a beginning that was visited so often.
    pub fn breadth(&self, visits: u32) -> usize {
        let factor = self.widening.map_or(1.0, |power| f64::from(visits.max(1)).powf(power));
        (f64::from(self.expansions) * factor).ceil() as usize
    }
}

/// How a whole solution that a simulation ends in is valued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutScoring {
    /// By the [`Stepper`](super::steps::Stepper)'s scorer.
    Scorer,
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
