//! Solutions built step by step: samples next steps, values them, and turns finished solutions into samples. The
//! drivers decide which solutions are kept.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::settings::{Aggregate, StepSettings};
use crate::job::{SearchJob, token_records};
use crate::outcome::Sample;
use crate::rollout::TreeLeaf;
use crate::scorer::Scorer;
use crate::tree::SamplingTree;
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
    /// The value of the solution after each step.
    pub scores: Vec<f64>,
    /// How many samples of its last step had the same text.
    pub copies: u32,
    /// Why it ended; `None`: it can continue.
    pub end: Option<FinishReason>,
}

impl Solution {
    /// A solution without steps.
    pub fn start(at: NodeId) -> Solution {
        Solution { node: at, text: String::new(), tokens: 0, scores: Vec::new(), copies: 1, end: None }
    }

    /// The combined value of its steps; 0 without steps.
    pub fn value(&self, aggregate: Aggregate) -> f64 {
        aggregate.of(&self.scores).unwrap_or(0.0)
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
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Vec<Solution>>> {
        let mut drawn = Vec::new();
        for &(solution, draws) in from {
            drawn.push(tree.fork(solution.node, draws)?);
        }
        let before =
            from.iter().zip(&drawn).flat_map(|(&(solution, _), nodes)| nodes.iter().map(move |_| solution.tokens));
        let stop = self.step_stop(job.stop);
        self.grow(tree, &drawn.concat(), &before.collect::<Vec<_>>(), &stop, job.params, job)?;
        let mut solutions = Vec::new();
        for (&(parent, _), nodes) in from.iter().zip(drawn) {
            let drawn = nodes.into_iter().filter(|&node| !tree.has_failed(node));
            let said = drawn.map(|node| read(self.decode, tree, parent, node, job.stop));
            solutions.push(merged(tree, said.collect::<Result<Vec<_>>>()?));
        }
        Ok(solutions)
    }

    /// Samples one next step after each of `from`, all in one batch; `None` for a failed one. Steps of equal text stay
    /// apart.
    pub fn step_apart(
        &mut self,
        tree: &mut SamplingTree,
        from: &[&Solution],
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        let ends: Vec<NodeId> = from.iter().map(|solution| solution.node).collect();
        let nodes = tree.fork_each(ForkKind::Sample, &ends)?;
        self.one_each(tree, from, nodes, &self.step_stop(job.stop), job.params, job)
    }

    /// What each of `from` goes on with in the fork of it until `stop`, all in one batch; `None` for a failed one.
    fn one_each(
        &self,
        tree: &mut SamplingTree,
        from: &[&Solution],
        nodes: Vec<NodeId>,
        stop: &Stop,
        params: &SamplingParams,
        job: &SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        let before: Vec<usize> = from.iter().map(|solution| solution.tokens).collect();
        self.grow(tree, &nodes, &before, stop, params, job)?;
        let sampled = |(&parent, node): (&&Solution, NodeId)| match tree.has_failed(node) {
            true => Ok(None),
            false => read(self.decode, tree, parent, node, job.stop).map(Some),
        };
        from.iter().zip(nodes).map(sampled).collect()
    }

    /// Samples each solution to its end, all in one batch, with forks whose ordinals are separate from those of steps.
    /// `None` for a failed one.
    pub fn rollout(
        &mut self,
        tree: &mut SamplingTree,
        from: &[&Solution],
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Option<Solution>>> {
        let ends: Vec<NodeId> = from.iter().map(|solution| solution.node).collect();
        let nodes = tree.fork_each(ForkKind::Value, &ends)?;
        let stop = Stop { include_stop: true, ..job.stop.clone() };
        let mut found = self.one_each(tree, from, nodes, &stop, job.params, job)?;
        for solution in found.iter_mut().flatten() {
            solution.end = solution.end.take().or_else(|| tree.node(solution.node).finish.clone());
        }
        Ok(found)
    }

    /// Extends `nodes`; the `before` tokens already sampled on each path count against the limits.
    fn grow(
        &self,
        tree: &mut SamplingTree,
        nodes: &[NodeId],
        before: &[usize],
        stop: &Stop,
        params: &SamplingParams,
        job: &SearchJob<'_>,
    ) -> Result<()> {
        let left = |ix: usize, _: &_| Stop {
            max_tokens: stop.max_tokens.saturating_sub(before[ix]).max(1),
            min_tokens: stop.min_tokens.saturating_sub(before[ix]),
            ..stop.clone()
        };
        job.finish(tree.start_until(nodes, params, left)?)
    }

    /// What ends a step; `stop`: what ends a solution.
    fn step_stop(&self, stop: &Stop) -> Stop {
        let strings = stop.strings.iter().chain([&self.steps.delimiter]).cloned().collect();
        Stop { include_stop: true, strings, ..stop.clone() }
    }

    /// Values the newest step of each solution and stores the value in the tree.
    pub fn score(
        &mut self,
        tree: &mut SamplingTree,
        solutions: &mut [&mut Solution],
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let of: Vec<_> = solutions.iter().map(|solution| (solution.node, solution.text.as_str())).collect();
        let values = self.values(tree, &of, job)?;
        keep(tree, solutions, &values);
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
        let mut going: Vec<usize> = (0..ahead.len()).collect();
        let mut first: Vec<NodeId> = Vec::new();
        for _ in 0..steps {
            going.retain(|&ix| ahead[ix].end.is_none());
            if going.is_empty() {
                break;
            }
            let from: Vec<&Solution> = going.iter().map(|&ix| &ahead[ix]).collect();
            let nodes = tree.fork_each(ForkKind::Value, &from.iter().map(|from| from.node).collect::<Vec<_>>())?;
            let next = self.one_each(tree, &from, nodes.clone(), &self.step_stop(job.stop), &params, job)?;
            if first.is_empty() {
                first = nodes;
            }
            let mut next = next.into_iter();
            // What fails is valued as far as it came.
            going.retain(|&ix| match next.next().flatten() {
                Some(solution) => {
                    ahead[ix] = solution;
                    true
                }
                None => false,
            });
        }
        let of: Vec<_> = ahead.iter().map(|solution| (solution.node, solution.text.as_str())).collect();
        let values = self.values(tree, &of, job)?;
        keep(tree, solutions, &values);
        first.retain(|&node| !tree.has_failed(node));
        first.into_iter().for_each(|node| tree.prune(node));
        Ok(())
    }

    /// The scorer's value of each text, which is that of the path to its node.
    fn values(&mut self, tree: &SamplingTree, of: &[(NodeId, &str)], job: &mut SearchJob<'_>) -> Result<Vec<f64>> {
        job.check_interrupted()?;
        let found = self.scorer.values(tree, of, job)?;
        self.asked += found.prompt_tokens;
        Ok(found.values)
    }
}

/// Adds the values of newest steps to their solutions and to the tree.
fn keep(tree: &mut SamplingTree, solutions: &mut [&mut Solution], values: &[f64]) {
    for (solution, &value) in solutions.iter_mut().zip(values) {
        tree.set_score(solution.node, value);
        solution.scores.push(value);
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
    let scores = parent.scores.clone();
    Ok(Solution { node, text, tokens: drawn, scores, copies: 1, end })
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
    /// ended by its length.
    pub(super) fn take_solution(&mut self, tree: &mut SamplingTree, solution: &Solution, index: u64) -> Result<Sample> {
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
