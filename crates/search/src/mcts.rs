//! Monte-Carlo tree search over steps (Kocsis and Szepesvári 2006): each simulation descends to a node without a
//! simulation of its own, samples it to the end, values the result and backs the value up. Several simulations run in
//! one batch; simulations under way count as visits of value 0 (virtual loss), so that they take different paths. With
//! [`RolloutScoring::Leaf`] a node is valued as it is: nothing is sampled behind it, and only solutions that have ended
//! become samples.
//!
//! A node's first visit is its own simulation; at the second visit it is expanded, and all later visits go to its
//! children. So a node that is not terminal has one visit more than its children together.

use super::decide::{Valued, decided, take};
use super::settings::{Aggregate, Mcts, MctsDecide, MctsSelect, RolloutScoring};
use super::steps::{Solution, Stepper, Then, merged};
use crate::job::SearchJob;
use crate::outcome::{Outcome, Sample, tally};
use crate::scorer::Scorer;
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// Simulates solutions below `at`, as many as `how` says, and chooses one.
pub fn mcts(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &Mcts,
    stepper: &mut Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let root = MctsNode::new(Solution::start(at), 0, 1.0);
    let mut search = MctsSearch { how, nodes: vec![root], solutions: Vec::new(), samples: Vec::new() };
    let mut done = 0;
    while done < how.samples && how.tokens.is_none_or(|most| tree.spent().drawn < most) {
        let wave = how.parallel.min(how.samples - done);
        let simulations = search.descend(tree, wave, stepper, job)?;
        search.simulate(tree, &simulations, stepper, job)?;
        search.back_up(&simulations, &stepper.scorer);
        done += wave;
    }
    search.outcome(tree, stepper, job)
}

/// A node of the search: a partial solution.
struct MctsNode {
    solution: Solution,
    depth: usize,
    /// Share of its parent's sampled steps that had this text.
    prior: f64,
    /// Next steps sampled after it.
    drawn: usize,
    children: Vec<usize>,
    /// Finished simulations that passed through it, and the sum of their values.
    visits: u32,
    total: f64,
    /// Simulations under way that passed through it.
    pending: u32,
    own: OwnSimulation,
}

/// State of the simulation that starts at a node.
#[derive(Clone, Copy, PartialEq)]
enum OwnSimulation {
    NotStarted,
    UnderWay,
    /// Index of its solution.
    Done(usize),
    /// Its value; it has not ended.
    Valued(f64),
    /// Its branch failed; its value is 0.
    Failed,
}

/// A simulation: the nodes from the root to the current one.
#[derive(Default)]
struct Simulation {
    path: Vec<usize>,
    has_arrived: bool,
}

struct MctsSearch<'a> {
    how: &'a Mcts,
    /// The first node is the root of the search.
    nodes: Vec<MctsNode>,
    /// Solutions of the finished simulations, and their samples.
    solutions: Vec<Solution>,
    samples: Vec<Sample>,
}

impl MctsNode {
    fn new(solution: Solution, depth: usize, prior: f64) -> MctsNode {
        let (drawn, children, own) = (0, Vec::new(), OwnSimulation::NotStarted);
        MctsNode { solution, depth, prior, drawn, children, visits: 0, total: 0.0, pending: 0, own }
    }

    fn mean(&self) -> f64 {
        self.total / f64::from(self.visits.max(1))
    }
}

impl MctsSearch<'_> {
    /// Selection and expansion: `wave` simulations descend, one after the other, each to the node where it starts.
    fn descend(
        &mut self,
        tree: &mut SamplingTree,
        wave: u32,
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<Simulation>> {
        let mut simulations: Vec<Simulation> = (0..wave).map(|_| Simulation::default()).collect();
        loop {
            let mut narrow: Vec<usize> = Vec::new();
            for simulation in simulations.iter_mut().filter(|simulation| !simulation.has_arrived) {
                if let Some(node) = self.advance(simulation).filter(|node| !narrow.contains(node)) {
                    narrow.push(node);
                }
            }
            if narrow.is_empty() {
                return Ok(simulations);
            }
            self.expand(tree, &narrow, stepper, job)?;
        }
    }

    /// Descends to the node where the simulation starts and returns `None`, or returns the node that must be expanded
    /// before.
    fn advance(&mut self, simulation: &mut Simulation) -> Option<usize> {
        if simulation.path.is_empty() {
            self.enter(simulation, 0);
        }
        loop {
            let at = simulation.path[simulation.path.len() - 1];
            let node = &mut self.nodes[at];
            let ends = node.solution.end.is_some() || node.depth >= self.how.steps.most;
            if ends || node.own == OwnSimulation::NotStarted {
                simulation.has_arrived = true;
                if node.own == OwnSimulation::NotStarted {
                    node.own = OwnSimulation::UnderWay;
                }
                return None;
            }
            if node.drawn < self.how.breadth(node.visits) {
                return Some(at);
            }
            if node.children.is_empty() {
                // Every branch sampled from here failed.
                simulation.has_arrived = true;
                return None;
            }
            let next = self.select(at);
            self.enter(simulation, next);
        }
    }

    fn enter(&mut self, simulation: &mut Simulation, node: usize) {
        self.nodes[node].pending += 1;
        simulation.path.push(node);
    }

    /// The child with the highest selection score; of equal ones, the one sampled most often, then the first.
    fn select(&self, parent: usize) -> usize {
        let parent = &self.nodes[parent];
        let seen = f64::from(parent.visits + parent.pending);
        let score = |&child: &usize| {
            let child = &self.nodes[child];
            let visits = f64::from(child.visits + child.pending);
            let mean = child.total / visits.max(1.0);
            let score = match self.how.select {
                MctsSelect::Uct if visits == 0.0 => f64::INFINITY,
                MctsSelect::Uct => mean + self.how.exploration * (seen.ln() / visits).sqrt(),
                MctsSelect::Puct => {
                    let mean = if visits == 0.0 { parent.mean() } else { mean };
                    mean + self.how.exploration * child.prior * seen.sqrt() / (1.0 + visits)
                }
            };
            (score, child.prior)
        };
        let better = |best: usize, next: usize| if score(&next) > score(&best) { next } else { best };
        parent.children.iter().copied().reduce(better).expect("the caller found children")
    }

    /// Samples the next steps that these nodes lack, in one batch.
    fn expand(
        &mut self,
        tree: &mut SamplingTree,
        narrow: &[usize],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let lacking = |node: &MctsNode| self.how.breadth(node.visits) - node.drawn;
        let draws: Vec<usize> = narrow.iter().map(|&at| lacking(&self.nodes[at])).collect();
        let from: Vec<(&Solution, usize)> =
            narrow.iter().zip(&draws).map(|(&at, &draws)| (&self.nodes[at].solution, draws)).collect();
        let sampled = stepper.step(tree, &from, Then::GoOn, job)?;
        for ((&at, draws), sampled) in narrow.iter().zip(draws).zip(sampled) {
            self.nodes[at].drawn += draws;
            self.add_children(tree, at, sampled);
        }
        Ok(())
    }

    /// Adds sampled steps as children of a node; a step with the text of an existing child counts for that child.
    fn add_children(&mut self, tree: &mut SamplingTree, at: usize, sampled: Vec<Solution>) {
        let known: Vec<Solution> =
            self.nodes[at].children.iter().map(|&child| self.nodes[child].solution.clone()).collect();
        let before = known.len();
        let all = merged(tree, known.into_iter().chain(sampled).collect());
        let (depth, drawn) = (self.nodes[at].depth + 1, self.nodes[at].drawn as f64);
        for (ix, solution) in all.into_iter().enumerate() {
            let prior = f64::from(solution.copies) / drawn;
            if ix < before {
                let child = self.nodes[at].children[ix];
                (self.nodes[child].prior, self.nodes[child].solution) = (prior, solution);
            } else {
                self.nodes.push(MctsNode::new(solution, depth, prior));
                let child = self.nodes.len() - 1;
                self.nodes[at].children.push(child);
            }
        }
    }

    /// Finds the values of the new simulations, in one batch: of their ends, which are sampled, or of their leaves.
    fn simulate(
        &mut self,
        tree: &mut SamplingTree,
        simulations: &[Simulation],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let mut begun: Vec<usize> = Vec::new();
        for at in
            simulations.iter().map(Simulation::current).filter(|&at| self.nodes[at].own == OwnSimulation::UnderWay)
        {
            if !begun.contains(&at) {
                begun.push(at);
            }
        }
        match self.how.scoring {
            RolloutScoring::Scorer | RolloutScoring::Agreement => self.simulate_ends(tree, &begun, stepper, job),
            RolloutScoring::Leaf => self.simulate_leaves(tree, &begun, stepper, job),
        }
    }

    /// Samples solutions from these nodes to their ends, in one batch, and values them.
    fn simulate_ends(
        &mut self,
        tree: &mut SamplingTree,
        begun: &[usize],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let is_scored = self.how.scoring != RolloutScoring::Agreement;
        let then = if is_scored { Then::Value } else { Then::GoOn };
        let solutions = begun.iter().map(|&at| &self.nodes[at].solution);
        let unfinished: Vec<&Solution> = solutions.filter(|solution| solution.end.is_none()).collect();
        let mut drawn = stepper.rollout(tree, &unfinished, then, job)?.into_iter();
        let (mut stands, mut ends): (Vec<usize>, Vec<Solution>) = Default::default();
        for &at in begun {
            let solution = &self.nodes[at].solution;
            let end = if solution.end.is_some() { Some(solution.clone()) } else { drawn.next().flatten() };
            match end {
                Some(end) => {
                    stands.push(at);
                    ends.push(end);
                }
                None => self.nodes[at].own = OwnSimulation::Failed,
            }
        }
        if is_scored {
            stepper.score(tree, &mut ends.iter_mut().collect::<Vec<_>>(), job)?;
        }
        for (at, end) in stands.into_iter().zip(ends) {
            self.take(tree, at, end, job)?;
        }
        Ok(())
    }

    /// Values the solutions of these nodes as they are.
    fn simulate_leaves(
        &mut self,
        tree: &mut SamplingTree,
        begun: &[usize],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        // The prompt alone has no value.
        let (said, bare): (Vec<usize>, Vec<usize>) =
            begun.iter().partition(|&&at| !self.nodes[at].solution.ends.is_empty());
        bare.into_iter().for_each(|at| self.nodes[at].own = OwnSimulation::Valued(0.0));
        let mut leaves: Vec<Solution> = said.iter().map(|&at| self.nodes[at].solution.clone()).collect();
        stepper.score(tree, &mut leaves.iter_mut().collect::<Vec<_>>(), job)?;
        for (at, leaf) in said.into_iter().zip(leaves) {
            let value = stepper.scorer.weight(leaf.value(Aggregate::Last));
            match leaf.end.is_some() || self.nodes[at].depth >= self.how.steps.most {
                true => self.take(tree, at, leaf, job)?,
                false => self.nodes[at].own = OwnSimulation::Valued(value),
            }
        }
        Ok(())
    }

    /// The solution that the simulation of a node has found becomes a sample.
    fn take(&mut self, tree: &mut SamplingTree, at: usize, end: Solution, job: &mut SearchJob<'_>) -> Result<()> {
        let number = self.solutions.len();
        self.nodes[at].own = OwnSimulation::Done(number);
        let scored = end.scored(Aggregate::Last);
        self.samples.push(job.take_solution(tree, &end, scored, number as u64)?);
        self.solutions.push(end);
        Ok(())
    }

    fn back_up(&mut self, simulations: &[Simulation], scorer: &Scorer<'_>) {
        for simulation in simulations {
            let value = match self.nodes[simulation.current()].own {
                OwnSimulation::Done(number) => scorer.weight(self.value(number)),
                OwnSimulation::Valued(value) => value,
                OwnSimulation::Failed => 0.0,
                OwnSimulation::NotStarted | OwnSimulation::UnderWay => {
                    unreachable!("a simulation that is backed up has started and ended")
                }
            };
            for &node in &simulation.path {
                let node = &mut self.nodes[node];
                (node.visits, node.pending) = (node.visits + 1, node.pending - 1);
                node.total += value;
            }
        }
    }

    /// The value of a solution; by agreement, among the samples so far.
    fn value(&self, number: usize) -> Option<f64> {
        match (self.how.scoring, &self.samples[number].answer) {
            (RolloutScoring::Scorer | RolloutScoring::Leaf, _) => self.solutions[number].value(Aggregate::Last),
            (RolloutScoring::Agreement, None) => Some(0.0),
            (RolloutScoring::Agreement, Some(answer)) => {
                let tally = tally(&self.samples);
                let votes = tally.votes().iter().find(|votes| votes.value == *answer).map_or(0, |votes| votes.count);
                Some(f64::from(votes) / self.samples.len() as f64)
            }
        }
    }

    /// The end of the most visited path; of equal visits, the larger mean, then the first.
    fn most_visited(&self) -> usize {
        let mut at = 0;
        let rank = |node: &usize| (self.nodes[*node].visits, self.nodes[*node].mean());
        let more = |best: usize, next: usize| if rank(&next) > rank(&best) { next } else { best };
        let visited = |at: usize| self.nodes[at].children.iter().copied().filter(|&c| self.nodes[c].visits > 0);
        while let Some(next) = visited(at).reduce(more) {
            at = next;
        }
        at
    }

    fn outcome(
        mut self,
        tree: &mut SamplingTree,
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<Outcome> {
        let end = self.most_visited();
        let is_needed = self.samples.is_empty() || self.how.by == MctsDecide::Visits;
        // A leaf where the search stops is no solution yet.
        if is_needed && matches!(self.nodes[end].own, OwnSimulation::Valued(_)) {
            self.simulate_ends(tree, &[end], stepper, job)?;
        }
        for node in &self.nodes {
            tree.set_visits(node.solution.node, node.visits);
            tree.set_score(node.solution.node, node.mean());
            if node.solution.node != tree.root() {
                tree.close(node.solution.node);
            }
        }
        let most_visited = match self.nodes[end].own {
            OwnSimulation::Done(number) => vec![number],
            _ => Vec::new(),
        };
        let value =
            |(number, solution): (usize, &Solution)| Valued { value: self.value(number), solution: solution.clone() };
        let valued: Vec<Valued> = self.solutions.iter().enumerate().map(value).collect();
        Ok(match self.how.by {
            MctsDecide::Rollouts(by) => decided(tree, valued, self.samples, by, stepper, job),
            MctsDecide::Visits => take(tree, valued, self.samples, &most_visited, stepper, job),
        })
    }
}

impl Simulation {
    /// The current node.
    fn current(&self) -> usize {
        self.path[self.path.len() - 1]
    }
}
