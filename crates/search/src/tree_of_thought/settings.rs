//! The settings of tree of thoughts, as plain data. A question `Q` is any type that a [`Texts`](super::Texts) can
//! render: a task's template, or a function of a program.

use regex::Regex;
use serde::{Deserialize, Serialize};

/// Tree of thoughts (Yao et al., 2023).
#[derive(Debug)]
pub struct ThoughtSearch<Q> {
    /// Most thoughts on a path.
    pub steps: u32,
    /// Most paths that continue after a step (the paper's b).
    pub breadth: u32,
    pub generate: Generate<Q>,
    pub evaluate: Evaluate<Q>,
    pub select: ThoughtSelect,
    pub search: ThoughtTraversal,
    /// How the answer is sampled after the last thought. `None`: the path itself is the sample.
    pub answer: Option<AnswerSettings>,
}

/// Where next thoughts come from.
#[derive(Debug)]
pub enum Generate<Q> {
    /// Continuations of the path itself, `thoughts` times.
    Sample { thoughts: u32, drawing: SamplingOverrides },
    /// Answers to a question about the path: `lists` lists of thoughts, one per line.
    Propose { question: Q, lists: u32, drawing: SamplingOverrides },
}

/// How thoughts are judged.
#[derive(Debug)]
pub enum Evaluate<Q> {
    /// A question about each path, answered by a word with a value.
    Value { question: Q, last: Option<Q>, words: Vec<(String, f64)>, by: ValueBy },
    /// One question about all paths of a step, answered `samples` times; `choice` matches the number of the chosen
    /// path.
    Vote { question: Q, samples: u32, choice: Regex, drawing: SamplingOverrides },
}

#[derive(Debug)]
pub enum ValueBy {
    /// The mean value of `samples` answers.
    Samples { samples: u32, drawing: SamplingOverrides },
    /// The expectation of that mean, from the probabilities of the words at the start of the answer; nothing is
    /// sampled.
    Probability,
}

/// Which thoughts continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ThoughtSelect {
    /// The best; of equal ones, the first.
    #[default]
    Greedy,
    /// At random, in proportion to value times the number of times that the thought was generated.
    Sample,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThoughtTraversal {
    /// Breadth-first: step by step, the best `breadth` paths at once.
    Bfs,
    /// Depth-first: the best thought first, with backtracking if no thought has a value of at least `threshold`. Paths
    /// are extended by one thought at most `visits` times.
    Dfs { threshold: f64, visits: u32 },
}

/// The answers at the ends of paths.
#[derive(Debug)]
pub struct AnswerSettings {
    /// Number of paths that are answered, best first. `None`: all that are left.
    pub best: Option<u32>,
    pub drawing: SamplingOverrides,
}

/// Sampling settings that replace those of the [`SearchJob`](crate::SearchJob); `None`: the job's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    pub stop: Option<Vec<String>>,
}
