//! The settings of tree of thoughts, as plain data. A question `Q` is whatever its [`Texts`](super::Texts) can put into words: a
//! task's template, a function of a script.

use regex::Regex;

/// Tree of thoughts (Yao et al., 2023).
#[derive(Debug)]
pub struct ThoughtSearch<Q> {
    /// Thoughts on a path, at most.
    pub steps: u32,
    /// Paths that go on after a step, at most (the paper's b).
    pub breadth: u32,
    pub generate: Generate<Q>,
    pub evaluate: Evaluate<Q>,
    pub select: Select,
    pub search: Search,
    /// What is drawn after the last thought. `None`: the path itself is the sample.
    pub answer: Option<Answering>,
}

/// Where next thoughts come from.
#[derive(Debug)]
pub enum Generate<Q> {
    /// From the path itself, which is continued `thoughts` times.
    Sample { thoughts: u32, drawing: Drawing },
    /// From a question about the path, answered `lists` times by thoughts, one a line.
    Propose { question: Q, lists: u32, drawing: Drawing },
}

/// How thoughts are judged.
#[derive(Debug)]
pub enum Evaluate<Q> {
    /// A question about each path, answered by a word that has a value.
    Value { question: Q, last: Option<Q>, words: Vec<(String, f64)>, by: ValueBy },
    /// One question about all paths of a step, answered `samples` times; `choice` finds the number of the path chosen.
    Vote { question: Q, samples: u32, choice: Regex, drawing: Drawing },
}

#[derive(Debug)]
pub enum ValueBy {
    /// The mean of so many answers' values.
    Samples { samples: u32, drawing: Drawing },
    /// What that mean tends to, from the probabilities with which the words come first in the answer; nothing is drawn.
    Probability,
}

/// Which thoughts go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The best; of equals the first.
    Greedy,
    /// Drawn in proportion to value times number of times that the thought came up.
    Sample,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// Step by step, the best `breadth` paths at once.
    Bfs,
    /// The best thought first, down to the end; back where no thought has a value of `threshold` at least. Paths are followed
    /// one thought further `visits` times at most.
    Dfs { threshold: f64, visits: u32 },
}

/// The answers at the ends of paths.
#[derive(Debug)]
pub struct Answering {
    /// How many paths are answered, the best first. `None`: all that are left.
    pub best: Option<u32>,
    pub drawing: Drawing,
}

/// How an answer is drawn; where these say nothing, as the [`Job`](crate::search::Job) says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawing {
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    pub stop: Option<Vec<String>>,
}
