//! Solutions built step by step: samples next steps, values them, and turns finished solutions into samples. The
//! drivers decide which solutions are kept.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::task::Poll;

use serde_json::Value;

use super::settings::{Aggregate, StepEnd, StepSettings};
use crate::assess::PATIENCE;
use crate::job::{SearchJob, token_records};
use crate::outcome::{Sample, SampleScore};
use crate::rollout::TreeLeaf;
use crate::scorer::{NodeText, Scorer};
use crate::tree::{SamplingTree, TreeEvent};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{FinishReason, ForkKind, SamplingParams, Stop};
use offshoot_text::StopMatcher;

/// Decodes the second list of tokens as the continuation of the first.
pub type Decode<'a> = &'a (dyn Fn(&[TokenId], &[TokenId]) -> String + Sync);

/// A whole or partial solution.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The node of its last step.
    pub node: NodeId,
    /// The text after the prompt, cut at a stop string.
    pub text: String,
    /// Tokens after the prompt.
    pub tokens: usize,
    /// Where each step ends in `text`, in bytes.
    pub ends: Vec<usize>,
    /// The value of the solution after each step; `None`: it could not be scored.
    pub scores: Vec<Option<f64>>,
    /// Why the newest step could not be scored.
    pub score_error: Option<String>,
    /// What a judge said of the solution as it is with the newest step.
    pub verdict: Option<Value>,
    /// How many samples of its last step had the same text.
    pub copies: u32,
    /// Why it ended; `None`: it can continue.
    pub end: Option<FinishReason>,
}

impl Solution {
    /// A solution without steps.
    pub fn start(at: NodeId) -> Solution {
        let (text, ends, scores, score_error, verdict) = (String::new(), Vec::new(), Vec::new(), None, None);
        Solution { node: at, text, tokens: 0, ends, scores, score_error, verdict, copies: 1, end: None }
    }

    /// The combined value of its steps, of those that have one; `None` if the newest has none.
    pub fn value(&self, aggregate: Aggregate) -> Option<f64> {
        let newest = *self.scores.last()?;
        let known: Vec<f64> = self.scores.iter().copied().flatten().collect();
        newest.and_then(|_| aggregate.of(&known))
    }

    /// What the search's scorer made of it; `None`: it was not asked.
    pub(crate) fn scored(&self, aggregate: Aggregate) -> Option<SampleScore> {
        let unscored = || SampleScore::Unscored { score_error: self.score_error.clone().unwrap_or_default() };
        // Of a search that values whole solutions alone, the earlier steps have none.
        let before = self.ends.len().saturating_sub(self.scores.len());
        let step_scores = || std::iter::repeat_n(None, before).chain(self.scores.iter().copied()).collect();
        let scored = |score| SampleScore::Scored {
            score,
            step_scores: step_scores(),
            part_scores: Vec::new(),
            score_tokens: None,
            verdict: self.verdict.clone(),
            score_error: None,
        };
        (!self.scores.is_empty()).then(|| self.value(aggregate).map_or_else(unscored, scored))
    }

    fn of_tree(&self) -> NodeText<'_> {
        NodeText { node: self.node, text: &self.text, ends: &self.ends }
    }
}

/// Extends solutions of one problem step by step, and values the steps.
pub struct Stepper<'a> {
    steps: &'a StepSettings,
    decode: Decode<'a>,
    /// Values the steps.
    pub scorer: Scorer<'a>,
    /// Tokens of the scorer's questions.
    pub(crate) asked: usize,
}

impl<'a> Stepper<'a> {
    /// Splits solutions into `steps`, which `scorer` values.
    pub fn new(steps: &'a StepSettings, decode: Decode<'a>, scorer: Scorer<'a>) -> Self {
        Stepper { steps, decode, scorer, asked: 0 }
    }

    /// Samples `draws` next steps after each of `from`, all in one batch. Returns the distinct next solutions of each,
    /// by first occurrence. Failed samples are left out.
    pub fn step(
        &mut self,
        tree: &mut SamplingTree,
        from: &[(&Solution, usize)],
        then: Then,
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Vec<Solution>>> {
        let mut forks = Vec::new();
        for &(solution, draws) in from {
            forks.extend(tree.fork(solution.node, draws)?.into_iter().map(|node| (solution, node)));
        }
        let mut drawn = self.grow(tree, &forks, Until::Step, job.params, then, job)?.into_iter();
        let next = from.iter().map(|&(_, draws)| merged(tree, drawn.by_ref().take(draws).flatten().collect()));
        Ok(next.collect())
    }

    /// Samples one next step after each of `from`, all in one batch; `None` for a failed one. Steps of equal text stay
    /// apart.
    pub fn step_apart(
        &mut self,
        tree: &mut SamplingTree,
        from: &[&Solution],
        then: Then,
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        let forks = forked(tree, ForkKind::Sample, from)?;
        self.grow(tree, &forks, Until::Step, job.params, then, job)
    }

    /// Samples each solution to its end, all in one batch, with forks whose ordinals are separate from those of steps.
    /// `None` for a failed one.
    pub fn rollout(
        &mut self,
        tree: &mut SamplingTree,
        from: &[&Solution],
        then: Then,
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        let forks = forked(tree, ForkKind::Value, from)?;
        let mut found = self.grow(tree, &forks, Until::End, job.params, then, job)?;
        for solution in found.iter_mut().flatten() {
            solution.end = solution.end.take().or_else(|| tree.node(solution.node).finish.clone());
        }
        Ok(found)
    }

    /// Extends nodes, each forked from the solution beside it, all in one batch; the tokens of these solutions count
    /// against the limits. The solutions at the nodes; `None` for a failed one.
    fn grow(
        &mut self,
        tree: &mut SamplingTree,
        forks: &[(&Solution, NodeId)],
        until: Until,
        params: &SamplingParams,
        then: Then,
        job: &SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        self.scorer.attend(tree)?;
        let mut stop = Stop { include_stop: true, ..job.stop.clone() };
        let most = match (until, &self.steps.end) {
            (Until::Step, StepEnd::Delimiter(delimiter)) => {
                stop.strings.push(delimiter.clone());
                usize::MAX
            }
            (Until::Step, StepEnd::Tokens(tokens)) => tokens.get(),
            (Until::End, _) => usize::MAX,
        };
        let left = |ix: usize, _: &_| {
            let before = forks[ix].0.tokens;
            let min_tokens = stop.min_tokens.saturating_sub(before).min(most);
            Stop { max_tokens: stop.max_tokens.saturating_sub(before).clamp(1, most), min_tokens, ..stop.clone() }
        };
        let nodes: Vec<NodeId> = forks.iter().map(|&(_, node)| node).collect();
        let places: HashMap<NodeId, usize> = nodes.iter().copied().zip(0..).collect();
        let mut found = vec![None; nodes.len()];
        let mut growing = tree.start_until(&nodes, params, left)?;
        loop {
            job.check_interrupted()?;
            match growing.poll_event(PATIENCE)? {
                Poll::Ready(None) => return Ok(found),
                Poll::Ready(Some(TreeEvent::Finished { id, .. })) => {
                    let ix = places[&id];
                    let solution = read(self.decode, growing.tree(), forks[ix].0, id, job.stop)?;
                    if then.values(&solution) {
                        self.scorer.begin(growing.tree(), &solution.of_tree())?;
                    }
                    found[ix] = Some(solution);
                }
                Poll::Ready(Some(TreeEvent::Failed { .. } | TreeEvent::Tokens { .. })) | Poll::Pending => {}
            }
            self.scorer.attend(growing.tree())?;
        }
    }

    /// Values the newest step of each solution and stores the value in the tree.
    pub fn score(
        &mut self,
        tree: &mut SamplingTree,
        solutions: &mut [&mut Solution],
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let of: Vec<NodeText<'_>> = solutions.iter().map(|solution| solution.of_tree()).collect();
        let values = self.values(tree, &of, job)?;
        keep(tree, solutions, values);
        Ok(())
    }

    /// Values the newest step of each solution by what the likeliest next `steps` steps make of it, and stores the
    /// value in the tree. The steps are sampled greedily and pruned; a solution that has ended has none.
    pub fn score_ahead(
        &mut self,
        tree: &mut SamplingTree,
        solutions: &mut [&mut Solution],
        steps: u32,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        if steps == 0 {
            return self.score(tree, solutions, job);
        }
        let params = SamplingParams { temperature: 0.0, ..job.params.clone() };
        let mut ahead: Vec<Solution> = solutions.iter().map(|solution| (**solution).clone()).collect();
        let (mut going, ended): (Vec<usize>, Vec<usize>) = (0..ahead.len()).partition(|&ix| ahead[ix].end.is_none());
        ended.iter().try_for_each(|&ix| self.scorer.begin(tree, &ahead[ix].of_tree()))?;
        let mut first: Vec<NodeId> = Vec::new();
        for step in 1..=steps {
            if going.is_empty() {
                break;
            }
            let from: Vec<&Solution> = going.iter().map(|&ix| &ahead[ix]).collect();
            let forks = forked(tree, ForkKind::Value, &from)?;
            let nodes: Vec<NodeId> = forks.iter().map(|&(_, node)| node).collect();
            let then = if step == steps { Then::Value } else { Then::ValueEnded };
            let next = self.grow(tree, &forks, Until::Step, &params, then, job)?;
            if first.is_empty() {
                first = nodes;
            }
            let mut next = next.into_iter();
            // What fails is valued as far as it came.
            going.retain(|&ix| match next.next().flatten() {
                Some(solution) => {
                    ahead[ix] = solution;
                    ahead[ix].end.is_none()
                }
                None => false,
            });
        }
        let of: Vec<NodeText<'_>> = ahead.iter().map(Solution::of_tree).collect();
        let values = self.values(tree, &of, job)?;
        keep(tree, solutions, values);
        first.retain(|&node| !tree.has_failed(node));
        first.into_iter().for_each(|node| tree.prune(node));
        Ok(())
    }

    /// The scorer's value of each text, after its last step.
    fn values(
        &mut self,
        tree: &SamplingTree,
        of: &[NodeText<'_>],
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<SampleScore>> {
        job.check_interrupted()?;
        let found = self.scorer.values(tree, of, Aggregate::Last, job)?;
        self.asked += found.prompt_tokens;
        Ok(found.values)
    }
}

/// One fork behind each solution, beside it.
fn forked<'s>(tree: &mut SamplingTree, kind: ForkKind, from: &[&'s Solution]) -> Result<Vec<(&'s Solution, NodeId)>> {
    let ends: Vec<NodeId> = from.iter().map(|solution| solution.node).collect();
    let nodes = tree.fork_each(kind, &ends)?;
    Ok(from.iter().copied().zip(nodes).collect())
}

/// How far solutions are sampled.
#[derive(Clone, Copy)]
enum Until {
    /// By a step.
    Step,
    /// To their ends.
    End,
}

/// What a search does with the texts that it samples. A scorer that works beside it is given those that are to be
/// valued as each is whole, while the others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It values them.
    Value,
    /// It values those that have ended, and goes on with the others.
    ValueEnded,
    /// It goes on with them.
    GoOn,
}

impl Then {
    fn values(self, solution: &Solution) -> bool {
        match self {
            Then::Value => true,
            Then::ValueEnded => solution.end.is_some(),
            Then::GoOn => false,
        }
    }
}

/// Orders values from the largest to the smallest; those that are missing come last.
pub(crate) fn largest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// Adds the values of newest steps to their solutions and to the tree.
fn keep(tree: &mut SamplingTree, solutions: &mut [&mut Solution], values: Vec<SampleScore>) {
    for (solution, value) in solutions.iter_mut().zip(values) {
        value.score().into_iter().for_each(|score| tree.set_score(solution.node, score));
        solution.scores.push(value.score());
        (solution.score_error, solution.verdict) = match value {
            SampleScore::Scored { verdict, .. } => (None, verdict),
            SampleScore::Unscored { score_error } => (Some(score_error), None),
        };
    }
}

/// Extends forked nodes by segments of at most `tokens` tokens, all in one batch: the solution after each, `None` for a
/// failed one. `from`: each node with the solution before it; a node may have tokens already, which it goes on from.
/// `params`: the job's, with more records where a driver reads them.
pub(crate) fn segments(
    decode: Decode<'_>,
    tree: &mut SamplingTree,
    from: &[(&Solution, NodeId)],
    tokens: usize,
    params: &SamplingParams,
    job: &SearchJob<'_>,
) -> Result<Vec<Option<Solution>>> {
    let nodes: Vec<NodeId> = from.iter().map(|&(_, node)| node).collect();
    let before: Vec<usize> = from.iter().map(|&(parent, node)| parent.tokens + tree.node(node).tokens.len()).collect();
    let stop = Stop { include_stop: true, ..job.stop.clone() };
    let left = |ix: usize, _: &_| Stop {
        max_tokens: stop.max_tokens.saturating_sub(before[ix]).clamp(1, tokens),
        min_tokens: stop.min_tokens.saturating_sub(before[ix]).min(tokens),
        ..stop.clone()
    };
    job.finish(tree.start_until(&nodes, params, left)?)?;
    let read = |&(parent, node): &(&Solution, NodeId)| match tree.has_failed(node) {
        true => Ok(None),
        false => read(decode, tree, parent, node, job.stop).map(Some),
    };
    from.iter().map(read).collect()
}

/// The solution of a finished node, given its parent's. The text is decoded from the tokens, because a step's text
/// was cut at its stop string but the next step continues after it.
pub(crate) fn read(
    decode: Decode<'_>,
    tree: &SamplingTree,
    parent: &Solution,
    node: NodeId,
    stop: &Stop,
) -> Result<Solution> {
    let Some(finish) = tree.node(node).finish.clone() else {
        return Err(Error::Internal(format!("node {node} finished without a reason")));
    };
    let mut tokens: Vec<TokenId> = tree.path(node).iter().flat_map(|&node| tree.node(node).tokens.clone()).collect();
    let drawn = tokens.len();
    if matches!(finish, FinishReason::StopToken(_)) && !stop.include_stop {
        tokens.pop();
    }
    let text = decode(&tree.node(tree.root()).tokens, &tokens);
    let mut matcher = StopMatcher::new(&stop.strings, stop.include_stop)?;
    let mut stopped = matcher.push(&text);
    let end = match (&finish, stopped.by) {
        (_, Some(by)) if drawn >= stop.min_tokens => Some(FinishReason::StopString(stop.strings[by].clone())),
        // What a pause has ended stays ended, with what it has.
        (FinishReason::StopString(_) | FinishReason::Length | FinishReason::Cancelled, _)
            if drawn < stop.max_tokens =>
        {
            None
        }
        (FinishReason::StopString(_), _) => Some(FinishReason::Length),
        (other, _) => Some(other.clone()),
    };
    if stopped.by.is_none() {
        stopped.text.push_str(&matcher.finish());
    }
    let cut = matches!(end, Some(FinishReason::StopString(_)));
    let text = if cut || stopped.by.is_none() { stopped.text } else { text };
    // A character that the parent's tokens began may end here only: its step ends before it.
    let border = |end: usize| (0..=end.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    let mut ends: Vec<usize> = parent.ends.iter().filter_map(|&end| border(end)).collect();
    ends.push(text.len());
    let (scores, score_error, verdict) = (parent.scores.clone(), None, None);
    Ok(Solution { node, text, tokens: drawn, ends, scores, score_error, verdict, copies: 1, end })
}

/// Merges solutions with equal text: the first node is kept, the others are pruned and counted.
pub fn merged(tree: &mut SamplingTree, solutions: Vec<Solution>) -> Vec<Solution> {
    let mut places: HashMap<(String, bool), usize> = HashMap::new();
    let mut kept: Vec<Solution> = Vec::new();
    for solution in solutions {
        match places.entry((solution.text.clone(), solution.end.is_some())) {
            Entry::Occupied(first) => {
                kept[*first.get()].copies += solution.copies;
                tree.prune(solution.node);
            }
            Entry::Vacant(place) => {
                place.insert(kept.len());
                kept.push(solution);
            }
        }
    }
    kept
}

impl SearchJob<'_> {
    /// Turns a solution into sample number `index`: assessed, recorded and released. An unfinished solution counts as
    /// ended by its length. `scored`: what the search's scorer made of it.
    pub(super) fn take_solution(
        &mut self,
        tree: &mut SamplingTree,
        solution: &Solution,
        scored: Option<SampleScore>,
        index: u64,
    ) -> Result<Sample> {
        tree.close(solution.node);
        let path = tree.path(solution.node);
        let assessment = self.assess(&solution.text)?;
        self.leaves.push(TreeLeaf { node: solution.node, sample: index, reward: Some(assessment.value()) });
        let finish = solution.end.clone().unwrap_or(FinishReason::Length);
        let logprobs = path.iter().flat_map(|&node| token_records(tree.node(node)));
        let records = self.params.records_tokens();
        let sample = Sample {
            tokens: solution.tokens,
            logprob: path.iter().map(|&node| tree.node(node).logprob).sum(),
            logprobs: records.then(|| logprobs.collect()),
            ending: tree.node(solution.node).ending.clone().filter(|_| records),
            scored,
            ..Sample::new(index, solution.text.clone(), finish, assessment)
        };
        (self.record)(&sample)?;
        Ok(sample)
    }
}

/// Tokens of `tree` that are on none of the paths to `ends`.
pub fn tokens_off_paths(tree: &SamplingTree, ends: &[NodeId]) -> usize {
    let on_paths: HashSet<NodeId> = ends.iter().flat_map(|&end| tree.path(end)).collect();
    let beside = tree.nodes().filter(|&node| node != tree.root() && !on_paths.contains(&node));
    beside.map(|node| tree.node(node).tokens.len()).sum()
}
