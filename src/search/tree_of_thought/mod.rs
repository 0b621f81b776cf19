//! Tree of thoughts (Yao et al., 2023): thoughts grow step by step (`grow`), the model judges them (`judge`), the best go on, and
//! the paths that reach an end are answered. Step by step with the best few at once (their algorithm 1) or one path down with
//! backtracking (their algorithm 2). Unlike in their program, equal thoughts are merged and counted; none is valued 0 for it.

mod answer;
mod grow;
mod judge;
mod settings;

use std::collections::{HashMap, HashSet};

use petgraph::graph::NodeIndex;

use super::{Job, Outcome, select};
use crate::engine::{SamplingParams, Stop};
use crate::error::Result;
use crate::ids::TokenId;
use crate::tree::SamplingTree;

pub use settings::{Answering, Drawing, Evaluate, Generate, Search, Select, ThoughtSearch, ValueBy};

/// What a search says to the model about one problem, and how it reads what the model says.
pub trait Texts {
    type Question;

    /// A question about the path of `thoughts`.
    fn ask(&self, question: &Self::Question, thoughts: &[String]) -> Result<Rendered>;

    /// A question about the path of `thoughts` and the answer that it has come to.
    fn ask_about_answer(&self, question: &Self::Question, thoughts: &[String], answer: &str) -> Result<Rendered>;

    /// A question about several paths.
    fn ask_for_choice(&self, question: &Self::Question, paths: &[&[String]]) -> Result<Rendered>;

    /// The thought that a generated text is; `None`: it is none.
    fn thought(&self, text: &str) -> Option<String>;

    /// Whether a path ends with this thought, however few they are.
    fn ends(&self, thought: &str) -> bool;

    /// Equal for paths that have come to the same state; `None`: only equal thoughts after the same path are the same.
    fn state(&self, thoughts: &[String]) -> Result<Option<String>>;

    /// The tokens of a text that goes on from another.
    fn continuation(&self, text: &str) -> Result<Vec<TokenId>>;
}

/// A prompt as text, and its tokens with whatever the model wants around them.
pub struct Rendered {
    pub text: String,
    pub tokens: Vec<TokenId>,
}

/// The best answer that the paths from the root come to, by the model's own judgement.
pub fn tree_of_thought<T: Texts>(
    tree: &mut SamplingTree,
    how: &ThoughtSearch<T::Question>,
    texts: &T,
    job: &mut Job<'_>,
) -> Result<Outcome> {
    let mut thinker = Thinker { tree, how, texts, job, values: HashMap::new(), uniforms: 0 };
    let paths = match how.search {
        Search::Bfs => thinker.breadth_first()?,
        Search::Dfs { threshold, visits } => thinker.depth_first(threshold, visits as usize)?,
    };
    thinker.answer(paths)
}

/// What the parts of one search work with.
struct Thinker<'a, 'j, T: Texts> {
    tree: &'a mut SamplingTree,
    how: &'a ThoughtSearch<T::Question>,
    texts: &'a T,
    job: &'a mut Job<'j>,
    /// Values by question: the same question is asked once.
    values: HashMap<String, f64>,
    /// Uniforms used for choosing.
    uniforms: u32,
}

/// A path of thoughts from the root; merged paths are one.
#[derive(Clone, Debug)]
struct Path {
    /// The last thought's.
    node: NodeIndex,
    /// From the root on.
    thoughts: Vec<String>,
    value: f64,
    /// How many times its last thought came up.
    count: u32,
    /// No thought can follow.
    ended: bool,
    /// Equal for paths that are merged.
    key: (Option<NodeIndex>, String),
}

impl<T: Texts> Thinker<'_, '_, T> {
    fn start(&self) -> Path {
        let node = self.tree.root();
        Path { node, thoughts: Vec::new(), value: 0.0, count: 1, ended: false, key: (None, String::new()) }
    }

    fn is_whole(&self, path: &Path) -> bool {
        path.ended || path.thoughts.len() == self.how.steps as usize
    }

    /// The paths that were the best at their ends, or those that found no next thought.
    fn breadth_first(&mut self) -> Result<Vec<Path>> {
        let mut frontier = vec![self.start()];
        let mut whole = Vec::new();
        while !frontier.is_empty() {
            let next = self.grow(&frontier)?;
            if next.is_empty() {
                break;
            }
            self.close(&frontier);
            let kept = self.choose(next, f64::NEG_INFINITY)?;
            let (ends, on) = kept.into_iter().partition(|path| self.is_whole(path));
            whole.extend::<Vec<Path>>(ends);
            frontier = on;
        }
        Ok(whole.into_iter().chain(frontier).collect())
    }

    /// The first path to reach an end, or the furthest there is once nothing is left to try.
    fn depth_first(&mut self, threshold: f64, visits: usize) -> Result<Vec<Path>> {
        let mut open = vec![self.start()];
        let mut furthest: Option<Path> = None;
        let mut seen = HashSet::new();
        for _ in 0..visits {
            let Some(path) = open.pop_if(|path| !self.is_whole(path)) else { break };
            let mut next = self.grow(std::slice::from_ref(&path))?;
            let (new, again): (Vec<Path>, Vec<Path>) = next.drain(..).partition(|path| seen.insert(path.key.clone()));
            self.prune(&again);
            let kept = self.choose(new, threshold)?;
            match (kept.is_empty(), &furthest) {
                (false, _) => self.close(&[path]),
                (true, Some(best)) if best.rank() >= path.rank() => self.prune(&[path]),
                (true, best) => {
                    self.prune(best.as_slice());
                    furthest = Some(path);
                }
            }
            open.extend(kept.into_iter().rev());
        }
        let end = open.pop();
        self.prune(&open);
        if end.is_some() {
            self.prune(furthest.as_slice());
        }
        Ok(end.or(furthest).into_iter().collect())
    }

    /// Values `paths` and keeps the best of those that reach `threshold`, best first; prunes the others.
    fn choose(&mut self, mut paths: Vec<Path>, threshold: f64) -> Result<Vec<Path>> {
        self.judge(&mut paths)?;
        let (good, bad): (Vec<Path>, Vec<Path>) = paths.into_iter().partition(|path| path.value >= threshold);
        self.prune(&bad);
        let most = self.how.breadth as usize;
        let chosen = match self.how.select {
            Select::Greedy => select::best(&good.iter().map(|path| path.value).collect::<Vec<_>>(), most),
            Select::Sample => {
                let weights: Vec<f64> = good.iter().map(|path| path.value * f64::from(path.count)).collect();
                select::in_proportion(&weights, most, || self.uniform())
            }
        };
        let mut good: Vec<Option<Path>> = good.into_iter().map(Some).collect();
        let kept = chosen.into_iter().filter_map(|at| good[at].take()).collect();
        self.prune(&good.into_iter().flatten().collect::<Vec<_>>());
        Ok(kept)
    }

    fn uniform(&mut self) -> f64 {
        self.uniforms += 1;
        self.tree.uniform(self.tree.root(), self.uniforms)
    }

    fn close(&mut self, paths: &[Path]) {
        paths.iter().for_each(|path| self.tree.close(path.node));
    }

    fn prune(&mut self, paths: &[Path]) {
        paths.iter().for_each(|path| self.tree.prune(path.node));
    }

    /// Draws on from each of `nodes` until all have ended or failed.
    fn draw(&mut self, nodes: &[NodeIndex], drawing: &Drawing, include_stop: bool) -> Result<()> {
        let (params, stop) = self.how_to_draw(drawing, include_stop);
        let mut growing = self.tree.start(nodes, &params, &stop)?;
        while self.job.next_finished(&mut growing)?.is_some() {}
        Ok(())
    }

    /// Appends to each node tokens of its own.
    fn give(&mut self, given: Vec<(NodeIndex, Vec<TokenId>)>, logprobs: bool) -> Result<()> {
        let mut growing = self.tree.start_given(given, logprobs)?;
        while self.job.next_finished(&mut growing)?.is_some() {}
        Ok(())
    }

    fn how_to_draw(&self, drawing: &Drawing, include_stop: bool) -> (SamplingParams, Stop) {
        let (mut params, mut stop) = (self.job.params.clone(), self.job.stop.clone());
        params.temperature = drawing.temperature.unwrap_or(params.temperature);
        stop.max_tokens = drawing.max_tokens.map_or(stop.max_tokens, |most| most as usize);
        stop.min_tokens = stop.min_tokens.min(stop.max_tokens);
        stop.strings = drawing.stop.clone().unwrap_or(stop.strings);
        stop.include_stop |= include_stop;
        (params, stop)
    }
}

impl Path {
    /// Further is better, then of more value.
    fn rank(&self) -> (usize, f64) {
        (self.thoughts.len(), self.value)
    }
}
