//! Monte-Carlo tree search over steps (Kocsis and Szepesvári 2006): each simulation descends to a node without a
//! simulation of its own, samples it to the end, values the result and backs the value up. Several simulations run in
//! one batch; simulations under way count as visits of value 0 (virtual loss), so that they take different paths.
//!
//! A node's first visit is its own simulation; at the second visit it is expanded, and all later visits go to its
//! children. So a node that is not terminal has one visit more than its children together.

use petgraph::graph::NodeIndex;

use super::decide::{Valued, decided, take};
use super::settings::{Mcts, MctsDecide, MctsSelect, RolloutScoring};
use super::steps::{Solution, Stepper, merged};
use super::{Outcome, Sample, SearchJob, tally};
use crate::error::Result;
use crate::tree::SamplingTree;

pub fn mcts(
    tree: &mut SamplingTree,
    at: NodeIndex,
    how: &Mcts,
    stepper: &mut Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let root = MctsNode::new(Solution::start(at), 0, 1.0);
    let mut search = MctsSearch { how, places: vec![root], solutions: Vec::new(), samples: Vec::new() };
    let mut simulations = 0;
    while simulations < how.samples && how.tokens.is_none_or(|most| tree.spent().drawn < most) {
        let wave = how.parallel.min(how.samples - simulations);
        let walks = search.descend(tree, wave, stepper, job)?;
        search.simulate(tree, &walks, stepper, job)?;
        search.back_up(&walks);
        simulations += wave;
    }
    Ok(search.outcome(tree, stepper, job))
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
    Never,
    UnderWay,
    /// Index of its solution.
    Done(usize),
    /// Its branch failed; its value is 0.
    Failed,
}

/// A simulation: the nodes from the root to the current one.
#[derive(Default)]
struct Simulation {
    path: Vec<usize>,
    arrived: bool,
}

struct MctsSearch<'a> {
    how: &'a Mcts,
    /// The first node is the root of the search.
    places: Vec<MctsNode>,
    /// Solutions of the finished simulations, and their samples.
    solutions: Vec<Solution>,
    samples: Vec<Sample>,
}

impl MctsNode {
    fn new(solution: Solution, depth: usize, prior: f64) -> MctsNode {
        let (drawn, children, own) = (0, Vec::new(), OwnSimulation::Never);
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
        let mut walks: Vec<Simulation> = (0..wave).map(|_| Simulation::default()).collect();
        loop {
            let mut narrow: Vec<usize> = Vec::new();
            for walk in walks.iter_mut().filter(|walk| !walk.arrived) {
                if let Some(place) = self.walk(walk).filter(|place| !narrow.contains(place)) {
                    narrow.push(place);
                }
            }
            if narrow.is_empty() {
                return Ok(walks);
            }
            self.expand(tree, &narrow, stepper, job)?;
        }
    }

    /// Descends until the simulation reaches its start; otherwise returns the node that must be expanded first.
    fn walk(&mut self, walk: &mut Simulation) -> Option<usize> {
        if walk.path.is_empty() {
            self.enter(walk, 0);
        }
        loop {
            let here = walk.path[walk.path.len() - 1];
            let place = &mut self.places[here];
            let ends = place.solution.end.is_some() || place.depth >= self.how.steps.most;
            if ends || place.own == OwnSimulation::Never {
                walk.arrived = true;
                if place.own == OwnSimulation::Never {
                    place.own = OwnSimulation::UnderWay;
                }
                return None;
            }
            if place.drawn < self.how.breadth(place.visits) {
                return Some(here);
            }
            if place.children.is_empty() {
                // Every branch sampled from here failed.
                walk.arrived = true;
                return None;
            }
            let next = self.select(here);
            self.enter(walk, next);
        }
    }

    fn enter(&mut self, walk: &mut Simulation, place: usize) {
        self.places[place].pending += 1;
        walk.path.push(place);
    }

    /// The child with the highest selection score; of equal ones, the one sampled most often, then the first.
    fn select(&self, parent: usize) -> usize {
        let parent = &self.places[parent];
        let seen = f64::from(parent.visits + parent.pending);
        let promise = |&child: &usize| {
            let child = &self.places[child];
            let visits = f64::from(child.visits + child.pending);
            let mean = child.total / visits.max(1.0);
            let promise = match self.how.select {
                MctsSelect::Uct if visits == 0.0 => f64::INFINITY,
                MctsSelect::Uct => mean + self.how.exploration * (seen.ln() / visits).sqrt(),
                MctsSelect::Puct => {
                    let mean = if visits == 0.0 { parent.mean() } else { mean };
                    mean + self.how.exploration * child.prior * seen.sqrt() / (1.0 + visits)
                }
            };
            (promise, child.prior)
        };
        let better = |best: usize, next: usize| if promise(&next) > promise(&best) { next } else { best };
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
        let lacking = |place: &MctsNode| self.how.breadth(place.visits) - place.drawn;
        let draws: Vec<usize> = narrow.iter().map(|&at| lacking(&self.places[at])).collect();
        let from: Vec<(&Solution, usize)> =
            narrow.iter().zip(&draws).map(|(&at, &draws)| (&self.places[at].solution, draws)).collect();
        let said = stepper.step(tree, &from, job)?;
        for ((&at, draws), said) in narrow.iter().zip(draws).zip(said) {
            self.places[at].drawn += draws;
            self.adopt(tree, at, said);
        }
        Ok(())
    }

    /// Adds sampled steps as children of a node; a step with the text of an existing child counts for that child.
    fn adopt(&mut self, tree: &mut SamplingTree, at: usize, said: Vec<Solution>) {
        let known: Vec<Solution> =
            self.places[at].children.iter().map(|&child| self.places[child].solution.clone()).collect();
        let before = known.len();
        let all = merged(tree, known.into_iter().chain(said).collect());
        let (depth, drawn) = (self.places[at].depth + 1, self.places[at].drawn as f64);
        for (ix, solution) in all.into_iter().enumerate() {
            let prior = f64::from(solution.copies) / drawn;
            if ix < before {
                let child = self.places[at].children[ix];
                (self.places[child].prior, self.places[child].solution) = (prior, solution);
            } else {
                self.places.push(MctsNode::new(solution, depth, prior));
                let child = self.places.len() - 1;
                self.places[at].children.push(child);
            }
        }
    }

    /// Samples the new simulations to their ends, in one batch, and values the results.
    fn simulate(
        &mut self,
        tree: &mut SamplingTree,
        walks: &[Simulation],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        let mut begun: Vec<usize> = Vec::new();
        for here in
            walks.iter().map(Simulation::stands).filter(|&here| self.places[here].own == OwnSimulation::UnderWay)
        {
            if !begun.contains(&here) {
                begun.push(here);
            }
        }
        let solution = |here: usize| &self.places[here].solution;
        let going: Vec<&Solution> =
            begun.iter().map(|&here| solution(here)).filter(|from| from.end.is_none()).collect();
        let mut drawn = stepper.rollout(tree, &going, job)?.into_iter();
        let (mut stands, mut ends): (Vec<usize>, Vec<Solution>) = Default::default();
        for here in begun {
            let solution = &self.places[here].solution;
            let end = if solution.end.is_some() { Some(solution.clone()) } else { drawn.next().flatten() };
            match end {
                Some(end) => {
                    stands.push(here);
                    ends.push(end);
                }
                None => self.places[here].own = OwnSimulation::Failed,
            }
        }
        if self.how.scoring == RolloutScoring::Scorer {
            stepper.score(tree, &mut ends.iter_mut().collect::<Vec<_>>(), job)?;
        }
        for (here, end) in stands.into_iter().zip(ends) {
            let number = self.solutions.len();
            self.places[here].own = OwnSimulation::Done(number);
            self.samples.push(job.take_solution(tree, &end, number as u64)?);
            self.solutions.push(end);
        }
        Ok(())
    }

    fn back_up(&mut self, walks: &[Simulation]) {
        for walk in walks {
            let value = match self.places[walk.stands()].own {
                OwnSimulation::Done(number) => self.value(number),
                OwnSimulation::Failed => 0.0,
                OwnSimulation::Never | OwnSimulation::UnderWay => {
                    unreachable!("a simulation that is backed up has started and ended")
                }
            };
            for &place in &walk.path {
                let place = &mut self.places[place];
                (place.visits, place.pending) = (place.visits + 1, place.pending - 1);
                place.total += value;
            }
        }
    }

    /// The value of a solution; by agreement, among the samples so far.
    fn value(&self, number: usize) -> f64 {
        match (self.how.scoring, &self.samples[number].answer) {
            (RolloutScoring::Scorer, _) => self.solutions[number].scores.last().copied().unwrap_or(0.0),
            (RolloutScoring::Agreement, None) => 0.0,
            (RolloutScoring::Agreement, Some(answer)) => {
                let tally = tally(&self.samples);
                let votes = tally.votes().iter().find(|votes| votes.value == *answer).map_or(0, |votes| votes.count);
                f64::from(votes) / self.samples.len() as f64
            }
        }
    }

    /// The end of the most visited path; of equal visits, the larger mean, then the first.
    fn most_visited(&self) -> usize {
        let mut here = 0;
        let rank = |place: &usize| (self.places[*place].visits, self.places[*place].mean());
        let more = |best: usize, next: usize| if rank(&next) > rank(&best) { next } else { best };
        let visited = |here: usize| self.places[here].children.iter().copied().filter(|&c| self.places[c].visits > 0);
        while let Some(next) = visited(here).reduce(more) {
            here = next;
        }
        here
    }

    fn outcome(self, tree: &mut SamplingTree, stepper: &Stepper<'_>, job: &SearchJob<'_>) -> Outcome {
        for place in &self.places {
            tree.set_visits(place.solution.node, place.visits);
            tree.set_score(place.solution.node, place.mean());
            if place.solution.node != tree.root() {
                tree.close(place.solution.node);
            }
        }
        let own = self.places[self.most_visited()].own;
        let value =
            |(number, solution): (usize, &Solution)| Valued { value: self.value(number), solution: solution.clone() };
        let valued: Vec<Valued> = self.solutions.iter().enumerate().map(value).collect();
        match (self.how.by, own) {
            (MctsDecide::Rollouts(by), _) => decided(tree, valued, self.samples, by, stepper, job),
            (MctsDecide::Visits, OwnSimulation::Done(number)) => {
                take(tree, valued, self.samples, Some(number), stepper, job)
            }
            (MctsDecide::Visits, OwnSimulation::Never | OwnSimulation::UnderWay | OwnSimulation::Failed) => {
                take(tree, valued, self.samples, None, stepper, job)
            }
        }
    }
}

impl Simulation {
    /// The current node.
    fn stands(&self) -> usize {
        self.path[self.path.len() - 1]
    }
}
