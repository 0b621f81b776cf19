//! Tree of thoughts (Yao et al., 2023): generates thoughts step by step (`grow`), lets the model judge them (`judge`),
//! continues with the best, and answers the paths that reach an end. Breadth-first with the best few paths at once
//! (algorithm 1) or depth-first with backtracking (algorithm 2). Unlike in the authors' program, equal thoughts are
//! merged and counted; none gets value 0 for being a duplicate.

mod answer;
mod grow;
mod judge;
mod settings;

use std::collections::{HashMap, HashSet};

use crate::job::SearchJob;
use crate::model_scores::ModelScores;
use crate::outcome::Outcome;
use crate::select;
use crate::tree::{Prompt, SamplingTree};
use offshoot_core::error::Result;
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{SamplingParams, Stop};

pub use settings::{
    AnswerSettings, Evaluate, Generate, SamplingOverrides, ThoughtSearch, ThoughtSelect, ThoughtTraversal, ValueBy,
};

/// The texts of a search on one problem: questions to the model, and how its output is read.
pub trait Texts {
    /// What a question is made from: a template, a function, a name.
    type Question;

    /// A question about the path of `thoughts`.
    fn ask(&self, question: &Self::Question, thoughts: &[String]) -> Result<Prompt>;

    /// What could follow the path of `thoughts`: by default, the model is asked.
    fn propose(&self, question: &Self::Question, thoughts: &[String]) -> Result<Proposal> {
        self.ask(question, thoughts).map(Proposal::Ask)
    }

    /// The worth of the path of `thoughts`: by default, the model is asked.
    fn appraise(&self, question: &Self::Question, thoughts: &[String]) -> Result<Appraisal> {
        self.ask(question, thoughts).map(Appraisal::Ask)
    }

    /// A question about the path of `thoughts` and its answer.
    fn ask_about_answer(&self, question: &Self::Question, thoughts: &[String], answer: &str) -> Result<Prompt>;

    /// A question about several paths.
    fn ask_for_choice(&self, question: &Self::Question, paths: &[&[String]]) -> Result<Prompt>;

    /// The thought in a generated text; `None`: there is none.
    fn thought(&self, text: &str) -> Option<String>;

    /// Whether this thought ends its path, regardless of the path's length.
    fn ends(&self, thought: &str) -> bool;

    /// A key that is equal for paths in the same state; `None`: only equal thoughts after the same path are equal.
    fn state(&self, thoughts: &[String]) -> Result<Option<String>>;

    /// The tokens of a text that continues another.
    fn continuation(&self, text: &str) -> Result<Vec<TokenId>>;
}

/// Where the next thoughts after a path come from.
pub enum Proposal {
    /// The model lists them, one per line.
    Ask(Prompt),
    /// A program knows them.
    Thoughts(Vec<String>),
}

/// Where the value of a path comes from.
pub enum Appraisal {
    /// The model's answer.
    Ask(Prompt),
    /// A program knows it.
    Value(f64),
}

/// Finds the best answer among the paths from the root, by the model's own judgement or by `scores`, which
/// [`Evaluate::Scorer`] needs.
pub fn tree_of_thought<T: Texts>(
    tree: &mut SamplingTree,
    how: &ThoughtSearch<T::Question>,
    texts: &T,
    scores: Option<ModelScores>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let mut searcher = ThoughtSearcher { tree, how, texts, scores, job, values: HashMap::new(), uniforms: 0 };
    let paths = match how.search {
        ThoughtTraversal::Bfs => searcher.breadth_first()?,
        ThoughtTraversal::Dfs { threshold, visits } => searcher.depth_first(threshold, visits as usize)?,
    };
    searcher.answer(paths)
}

/// State of one search.
struct ThoughtSearcher<'a, 'j, T: Texts> {
    tree: &'a mut SamplingTree,
    how: &'a ThoughtSearch<T::Question>,
    texts: &'a T,
    scores: Option<ModelScores>,
    job: &'a mut SearchJob<'j>,
    /// Values by question, so that each question is asked once.
    values: HashMap<String, f64>,
    /// Number of uniforms used so far for choosing.
    uniforms: u32,
}

/// A path of thoughts from the root; equal paths are merged into one.
#[derive(Clone, Debug)]
struct ThoughtPath {
    /// Node of the last thought.
    node: NodeId,
    /// From the root on.
    thoughts: Vec<String>,
    /// Minus infinity if it could not be scored.
    value: f64,
    /// How many times its last thought was generated.
    count: u32,
    /// Whether no thought can follow.
    ended: bool,
    /// Equal for paths that are merged.
    key: (Option<NodeId>, String),
}

/// What is sampled from nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SampledText {
    /// The next thought of a path. Its stop string is kept, because the thought after it continues behind it; the job's
    /// form goes on from one thought to the next.
    Thought,
    /// The answer behind a path of thoughts, in the job's form.
    Answer,
    /// The reply to a question about paths. It has a form of its own, which its reader expects, and not the job's.
    Reply,
}

impl<T: Texts> ThoughtSearcher<'_, '_, T> {
    fn start(&self) -> ThoughtPath {
        let node = self.tree.root();
        ThoughtPath { node, thoughts: Vec::new(), value: 0.0, count: 1, ended: false, key: (None, String::new()) }
    }

    fn is_whole(&self, path: &ThoughtPath) -> bool {
        path.ended || path.thoughts.len() == self.how.steps as usize
    }

    /// The best paths at their ends, or the last ones if no next thought was found.
    fn breadth_first(&mut self) -> Result<Vec<ThoughtPath>> {
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
            whole.extend::<Vec<ThoughtPath>>(ends);
            frontier = on;
        }
        Ok(whole.into_iter().chain(frontier).collect())
    }

    /// The first path to reach an end, or the longest if nothing is left to try.
    fn depth_first(&mut self, threshold: f64, visits: usize) -> Result<Vec<ThoughtPath>> {
        let mut open = vec![self.start()];
        let mut furthest: Option<ThoughtPath> = None;
        let mut seen = HashSet::new();
        for _ in 0..visits {
            let Some(path) = open.pop_if(|path| !self.is_whole(path)) else { break };
            let mut next = self.grow(std::slice::from_ref(&path))?;
            let (new, again): (Vec<ThoughtPath>, Vec<ThoughtPath>) =
                next.drain(..).partition(|path| seen.insert(path.key.clone()));
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

    /// Values `paths`, keeps the best of those with a value of at least `threshold`, best first, and prunes the others.
    fn choose(&mut self, mut paths: Vec<ThoughtPath>, threshold: f64) -> Result<Vec<ThoughtPath>> {
        self.judge(&mut paths)?;
        let (good, bad): (Vec<ThoughtPath>, Vec<ThoughtPath>) =
            paths.into_iter().partition(|path| path.value >= threshold);
        self.prune(&bad);
        let most = self.how.breadth as usize;
        let chosen = match self.how.select {
            ThoughtSelect::Greedy => select::best(&good.iter().map(|path| path.value).collect::<Vec<_>>(), most),
            ThoughtSelect::Sample => {
                let weights: Vec<f64> = good.iter().map(|path| path.value.max(0.0) * f64::from(path.count)).collect();
                select::in_proportion(&weights, most, || self.uniform())
            }
        };
        let mut good: Vec<Option<ThoughtPath>> = good.into_iter().map(Some).collect();
        let kept = chosen.into_iter().filter_map(|at| good[at].take()).collect();
        self.prune(&good.into_iter().flatten().collect::<Vec<_>>());
        Ok(kept)
    }

    fn uniform(&mut self) -> f64 {
        self.uniforms += 1;
        self.tree.uniform(self.tree.root(), self.uniforms)
    }

    fn close(&mut self, paths: &[ThoughtPath]) {
        paths.iter().for_each(|path| self.tree.close(path.node));
    }

    fn prune(&mut self, paths: &[ThoughtPath]) {
        paths.iter().for_each(|path| self.tree.prune(path.node));
    }

    /// Samples from each of `nodes` until all have ended or failed.
    fn draw(&mut self, nodes: &[NodeId], drawing: &SamplingOverrides, what: SampledText) -> Result<()> {
        let (params, stop) = self.sampling(drawing, what);
        self.job.finish(self.tree.start(nodes, &params, &stop)?)
    }

    /// Appends given tokens to each node.
    fn give(&mut self, given: Vec<(NodeId, Vec<TokenId>)>, logprobs: bool) -> Result<()> {
        self.job.finish(self.tree.start_given(given, logprobs)?)
    }

    fn sampling(&self, drawing: &SamplingOverrides, what: SampledText) -> (SamplingParams, Stop) {
        let (mut params, mut stop) = (self.job.params.clone(), self.job.stop.clone());
        if what == SampledText::Reply {
            params.form = None;
        }
        params.temperature = drawing.temperature.unwrap_or(params.temperature);
        stop.max_tokens = drawing.max_tokens.map_or(stop.max_tokens, |most| most as usize);
        stop.min_tokens = stop.min_tokens.min(stop.max_tokens);
        stop.strings = drawing.stop.clone().unwrap_or(stop.strings);
        stop.include_stop |= what == SampledText::Thought;
        (params, stop)
    }
}

impl ThoughtPath {
    /// Longer is better, then the higher value.
    fn rank(&self) -> (usize, f64) {
        (self.thoughts.len(), self.value)
    }
}
