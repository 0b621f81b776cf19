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
    /// Where next thoughts come from.
    pub generate: Generate<Q>,
    /// How paths are valued.
    pub evaluate: Evaluate<Q>,
    /// Which thoughts continue.
    pub select: ThoughtSelect,
    /// In which order paths are tried.
    pub search: ThoughtTraversal,
    /// How the answer is sampled after the last thought. `None`: the path itself is the sample.
    pub answer: Option<AnswerSettings>,
}

/// Where next thoughts come from.
#[derive(Debug)]
pub enum Generate<Q> {
    /// Continuations of the path itself.
    Sample {
        /// Continuations of each path.
        thoughts: u32,
        /// How they are sampled.
        drawing: SamplingOverrides,
    },
    /// Answers to a question about the path: lists of thoughts, one per line.
    Propose {
        /// What is asked about the path.
        question: Q,
        /// Lists for each path.
        lists: u32,
        /// How they are sampled.
        drawing: SamplingOverrides,
    },
}

/// How thoughts are judged.
#[derive(Debug)]
pub enum Evaluate<Q> {
    /// A scorer of another model values each path, and at the end each path with its answer.
    Scorer,
    /// A question about each path, answered by a word with a value.
    Value {
        /// What is asked about a path.
        question: Q,
        /// What is asked about a path and its answer, at the end.
        last: Option<Q>,
        /// The words with their values.
        words: Vec<(String, f64)>,
        /// How the words become a value.
        by: ValueBy,
    },
    /// One question about all paths of a step, whose answers choose one.
    Vote {
        /// What is asked about the paths.
        question: Q,
        /// Number of answers.
        samples: u32,
        /// Matches the number of the chosen path in an answer.
        choice: Regex,
        /// How answers are sampled.
        drawing: SamplingOverrides,
    },
}

/// How the answers to a question become a value.
#[derive(Debug)]
pub enum ValueBy {
    /// The mean value of several answers.
    Samples {
        /// Number of answers.
        samples: u32,
        /// How they are sampled.
        drawing: SamplingOverrides,
    },
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

/// In which order paths are tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThoughtTraversal {
    /// Breadth-first: step by step, the best `breadth` paths at once.
    Bfs,
    /// Depth-first: the best thought first, with backtracking if no thought is worth enough.
    Dfs {
        /// The least value of a thought that continues.
        threshold: f64,
        /// How often a path is extended by one thought, at most.
        visits: u32,
    },
}

/// The answers at the ends of paths.
#[derive(Debug)]
pub struct AnswerSettings {
    /// Number of paths that are answered, best first. `None`: all that are left.
    pub best: Option<u32>,
    /// How answers are sampled.
    pub drawing: SamplingOverrides,
}

/// Sampling settings that replace those of the [`SearchJob`](crate::SearchJob); `None`: the job's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// The temperature.
    pub temperature: Option<f32>,
    /// Most tokens.
    pub max_tokens: Option<u32>,
    /// Stop strings.
    pub stop: Option<Vec<String>>,
}
