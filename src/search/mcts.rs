//! Monte-Carlo tree search over steps (Kocsis and Szepesvári 2006): each simulation goes down to a beginning that was not tried
//! yet, draws it to its end, values that, and backs the value up. Several simulations are drawn in one batch; those under way
//! count as visits of value 0 (virtual loss), so that they take different ways.
//!
//! A beginning's first visit is its own simulation; at the second it is expanded, and all later ones go to its children. So a
//! beginning that can go on has one visit more than its children together.

use petgraph::graph::NodeIndex;

use super::decide::{Valued, decided, take};
use super::settings::{Mcts, MctsDecide, RolloutScoring, Select};
use super::steps::{Solution, Stepper, merged};
use super::{Job, Outcome, Sample, tally};
use crate::error::Result;
use crate::tree::SamplingTree;

pub fn mcts(
    tree: &mut SamplingTree,
    at: NodeIndex,
    how: &Mcts,
    stepper: &mut Stepper<'_>,
    job: &mut Job<'_>,
) -> Result<Outcome> {
    let root = Place::new(Solution::start(at), 0, 1.0);
    let mut search = Search { how, places: vec![root], solutions: Vec::new(), samples: Vec::new() };
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

/// A beginning in the search.
struct Place {
    solution: Solution,
    depth: usize,
    /// The share of its parent's draws that said it.
    prior: f64,
    /// Next steps drawn after it.
    drawn: usize,
    children: Vec<usize>,
    /// Simulations that went through it, and the sum of their values.
    visits: u32,
    total: f64,
    /// Simulations that are on their way through it.
    pending: u32,
    own: Own,
}

/// The simulation that begins at a place.
#[derive(Clone, Copy, PartialEq)]
enum Own {
    Never,
    UnderWay,
    /// Its solution's number.
    Done(usize),
    /// Its branch failed: it is worth nothing.
    Failed,
}

/// A simulation on its way: the places from the root to where it stands.
#[derive(Default)]
struct Walk {
    path: Vec<usize>,
    arrived: bool,
}

struct Search<'a> {
    how: &'a Mcts,
    /// The first is where the search began.
    places: Vec<Place>,
    /// What simulations ended in, each once, and the samples made of them.
    solutions: Vec<Solution>,
    samples: Vec<Sample>,
}

impl Place {
    fn new(solution: Solution, depth: usize, prior: f64) -> Place {
        let (drawn, children, own) = (0, Vec::new(), Own::Never);
        Place { solution, depth, prior, drawn, children, visits: 0, total: 0.0, pending: 0, own }
    }

    fn mean(&self) -> f64 {
        self.total / f64::from(self.visits.max(1))
    }
}

impl Search<'_> {
    /// Selection and expansion: `wave` simulations go down, one after the other, each until it is where it begins.
    fn descend(
        &mut self,
        tree: &mut SamplingTree,
        wave: u32,
        stepper: &mut Stepper<'_>,
        job: &mut Job<'_>,
    ) -> Result<Vec<Walk>> {
        let mut walks: Vec<Walk> = (0..wave).map(|_| Walk::default()).collect();
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

    /// Goes down until the simulation has arrived; else the place that needs more children before it can go on.
    fn walk(&mut self, walk: &mut Walk) -> Option<usize> {
        if walk.path.is_empty() {
            self.enter(walk, 0);
        }
        loop {
            let here = walk.path[walk.path.len() - 1];
            let place = &mut self.places[here];
            let ends = place.solution.end.is_some() || place.depth >= self.how.steps.most;
            if ends || place.own == Own::Never {
                walk.arrived = true;
                if place.own == Own::Never {
                    place.own = Own::UnderWay;
                }
                return None;
            }
            if place.drawn < self.how.breadth(place.visits) {
                return Some(here);
            }
            if place.children.is_empty() {
                // Every branch that was drawn from here failed.
                walk.arrived = true;
                return None;
            }
            let next = self.select(here);
            self.enter(walk, next);
        }
    }

    fn enter(&mut self, walk: &mut Walk, place: usize) {
        self.places[place].pending += 1;
        walk.path.push(place);
    }

    /// The child that promises most; of equals the one said most often, then the first.
    fn select(&self, parent: usize) -> usize {
        let parent = &self.places[parent];
        let seen = f64::from(parent.visits + parent.pending);
        let promise = |&child: &usize| {
            let child = &self.places[child];
            let visits = f64::from(child.visits + child.pending);
            let mean = child.total / visits.max(1.0);
            let promise = match self.how.select {
                Select::Uct if visits == 0.0 => f64::INFINITY,
                Select::Uct => mean + self.how.exploration * (seen.ln() / visits).sqrt(),
                Select::Puct => {
                    let mean = if visits == 0.0 { parent.mean() } else { mean };
                    mean + self.how.exploration * child.prior * seen.sqrt() / (1.0 + visits)
                }
            };
            (promise, child.prior)
        };
        let better = |best: usize, next: usize| if promise(&next) > promise(&best) { next } else { best };
        parent.children.iter().copied().reduce(better).expect("the caller found children")
    }

    /// Draws what these places lack of next steps, in one batch.
    fn expand(
        &mut self,
        tree: &mut SamplingTree,
        narrow: &[usize],
        stepper: &mut Stepper<'_>,
        job: &mut Job<'_>,
    ) -> Result<()> {
        let lacking = |place: &Place| self.how.breadth(place.visits) - place.drawn;
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

    /// Makes children of what was said after a place; what a child said already is counted to it.
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
                self.places.push(Place::new(solution, depth, prior));
                let child = self.places.len() - 1;
                self.places[at].children.push(child);
            }
        }
    }

    /// Draws the simulations that have just begun to their ends, in one batch, and values those.
    fn simulate(
        &mut self,
        tree: &mut SamplingTree,
        walks: &[Walk],
        stepper: &mut Stepper<'_>,
        job: &mut Job<'_>,
    ) -> Result<()> {
        let mut begun: Vec<usize> = Vec::new();
        for here in walks.iter().map(Walk::stands).filter(|&here| self.places[here].own == Own::UnderWay) {
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
                None => self.places[here].own = Own::Failed,
            }
        }
        if self.how.scoring == RolloutScoring::Scorer {
            stepper.score(tree, &mut ends.iter_mut().collect::<Vec<_>>(), job)?;
        }
        for (here, end) in stands.into_iter().zip(ends) {
            let number = self.solutions.len();
            self.places[here].own = Own::Done(number);
            self.samples.push(job.take_solution(tree, &end, number as u64)?);
            self.solutions.push(end);
        }
        Ok(())
    }

    fn back_up(&mut self, walks: &[Walk]) {
        for walk in walks {
            let value = match self.places[walk.stands()].own {
                Own::Done(number) => self.value(number),
                Own::Failed => 0.0,
                Own::Never | Own::UnderWay => unreachable!("a simulation begins where it stands, and is done"),
            };
            for &place in &walk.path {
                let place = &mut self.places[place];
                (place.visits, place.pending) = (place.visits + 1, place.pending - 1);
                place.total += value;
            }
        }
    }

    /// What a solution is worth; by agreement, as of now.
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

    /// Where the most visited path ends: of equals the larger mean, then the first.
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

    fn outcome(self, tree: &mut SamplingTree, stepper: &Stepper<'_>, job: &Job<'_>) -> Outcome {
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
            (MctsDecide::Visits, Own::Done(number)) => take(tree, valued, self.samples, Some(number), stepper, job),
            (MctsDecide::Visits, Own::Never | Own::UnderWay | Own::Failed) => {
                take(tree, valued, self.samples, None, stepper, job)
            }
        }
    }
}

impl Walk {
    /// Where it is.
    fn stands(&self) -> usize {
        self.path[self.path.len() - 1]
    }
}
