//! Particle filtering and particle Gibbs over steps (Puri et al. 2025, "A Probabilistic Inference Approach to
//! Inference-Time Scaling of LLMs using Particle-Based Monte Carlo Methods"), with the formulas of its_hub 1.2.
//!
//! All particles of an iteration take one step; then as many are drawn from them, with replacement, in proportion to
//! the odds of their values. One that has ended stays as it is and is drawn like the others. This goes on until all
//! have ended, and the last draw, too, is made: the best particle may be lost by it. From the second iteration on, some
//! particles of the one before take part as references: drawn at a step, they are cut there and go on from it; as
//! references they stay whole.

mod resample;

use super::decide::{Valued, conclude};
use super::settings::ParticleSearch;
use super::steps::{Solution, Stepper, Then};
use crate::job::SearchJob;
use crate::outcome::Outcome;
use crate::scorer::Scorer;
use crate::tree::{NodeState, SamplingTree};
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

pub use resample::{Resampling, log_odds, multinomial, probabilities, systematic};

/// Searches below `at`. With one iteration this is particle filtering. Particles are the last iteration's, references
/// included; equal texts are several particles, and one that was drawn several times counts as so many votes.
///
/// # Errors
///
/// A value of a step is neither a logit nor in [0, 1]. A step without a value is drawn only where all are without.
pub fn particle_gibbs(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &ParticleSearch,
    stepper: &mut Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    stepper.scorer.check(how.aggregate)?;
    let of_iteration = (how.samples / how.iterations) as usize;
    let mut cloud = Cloud::new(at, how);
    let (mut particles, mut references) = (Vec::new(), Vec::new());
    for iteration in 1..=how.iterations {
        let is_last = iteration == how.iterations;
        let free = of_iteration - references.len();
        particles = vec![START; free];
        for depth in 1.. {
            if !particles.iter().any(|&particle| cloud.is_running(particle)) {
                break;
            }
            let mut all = cloud.take_step(tree, &particles, stepper, job)?;
            all.extend(&references);
            let drawn = match all.is_empty() {
                true => Vec::new(),
                false => cloud.draw(tree, &all, free, how.resampling),
            };
            particles = drawn.into_iter().map(|ix| cloud.cut(all[ix], depth)).collect();
            // A later iteration may cut a path at any of its steps.
            let cuts = !is_last || !references.is_empty();
            cloud.release(tree, particles.iter().chain(&references), cuts);
        }
        particles.extend(&references);
        if !is_last && !particles.is_empty() {
            let drawn = cloud.draw(tree, &particles, how.references as usize, Resampling::Multinomial);
            references = drawn.into_iter().map(|ix| particles[ix]).collect();
            cloud.release(tree, references.iter(), true);
        }
    }
    cloud.release(tree, particles.iter(), false);
    conclude(tree, cloud.valued(&particles), how.aggregate, how.by, stepper, job)
}

/// The entry of the particle that has no step.
const START: usize = 0;

/// All steps that were taken; a particle is an index of the last of its own.
struct Cloud<'a> {
    how: &'a ParticleSearch,
    steps: Vec<ParticleStep>,
    /// Uniforms used so far.
    uniforms: u32,
}

struct ParticleStep {
    /// The solution up to here.
    solution: Solution,
    /// The step before; of the first entry, itself.
    parent: usize,
    /// Steps up to here.
    depth: usize,
    /// The log-odds of the solution's value.
    weight: f64,
}

impl<'a> Cloud<'a> {
    fn new(at: NodeId, how: &'a ParticleSearch) -> Cloud<'a> {
        let start = ParticleStep { solution: Solution::start(at), parent: START, depth: 0, weight: 0.0 };
        Cloud { how, steps: vec![start], uniforms: 0 }
    }

    fn is_running(&self, particle: usize) -> bool {
        let step = &self.steps[particle];
        step.solution.end.is_none() && step.depth < self.how.steps.most
    }

    /// The particles, in their order, after one more step of those that run. Those whose branch failed are left out.
    fn take_step(
        &mut self,
        tree: &mut SamplingTree,
        particles: &[usize],
        stepper: &mut Stepper<'_>,
        job: &mut SearchJob<'_>,
    ) -> Result<Vec<usize>> {
        let running = particles.iter().filter(|&&particle| self.is_running(particle));
        let from: Vec<&Solution> = running.map(|&particle| &self.steps[particle].solution).collect();
        let mut sampled = stepper.step_apart(tree, &from, Then::Value, job)?;
        stepper.score(tree, &mut sampled.iter_mut().flatten().collect::<Vec<_>>(), job)?;
        let mut sampled = sampled.into_iter();
        let mut after = Vec::with_capacity(particles.len());
        for &particle in particles {
            match self.is_running(particle) {
                false => after.push(particle),
                true => {
                    if let Some(solution) = sampled.next().expect("one for each that runs") {
                        after.push(self.add(particle, solution, &stepper.scorer)?);
                    }
                }
            }
        }
        Ok(after)
    }

    fn add(&mut self, parent: usize, solution: Solution, scorer: &Scorer<'_>) -> Result<usize> {
        let weight = scorer.log_odds(solution.value(self.how.aggregate))?;
        let depth = self.steps[parent].depth + 1;
        self.steps.push(ParticleStep { solution, parent, depth, weight });
        Ok(self.steps.len() - 1)
    }

    /// The indices of `n` of the particles, drawn by their weights with replacement.
    fn draw(&mut self, tree: &SamplingTree, particles: &[usize], n: usize, how: Resampling) -> Vec<usize> {
        let weights: Vec<f64> = particles.iter().map(|&particle| self.steps[particle].weight).collect();
        let probabilities = probabilities(&weights);
        let uniform = || {
            self.uniforms += 1;
            tree.uniform(tree.root(), self.uniforms)
        };
        match how {
            Resampling::Multinomial => multinomial(&probabilities, n, uniform),
            Resampling::Systematic => systematic(&probabilities, n, uniform),
        }
    }

    /// The particle without its steps beyond `depth`.
    fn cut(&self, mut particle: usize, depth: usize) -> usize {
        while self.steps[particle].depth > depth {
            particle = self.steps[particle].parent;
        }
        particle
    }

    /// Prunes the steps that none of `particles` has, and closes those from which none goes on. `cuts`: a particle may
    /// go on from any of its steps, not from its last one alone.
    fn release<'p>(&self, tree: &mut SamplingTree, particles: impl Iterator<Item = &'p usize>, cuts: bool) {
        let mut goes_on = vec![None; self.steps.len()];
        goes_on[START] = Some(true);
        for &particle in particles {
            goes_on[particle] = Some(self.is_running(particle));
            let mut above = self.steps[particle].parent;
            while goes_on[above].is_none() {
                goes_on[above] = Some(cuts);
                above = self.steps[above].parent;
            }
        }
        for (step, goes_on) in self.steps.iter().zip(goes_on) {
            let node = step.solution.node;
            match goes_on {
                Some(true) => {}
                Some(false) => tree.close(node),
                None if tree.node(node).state() != NodeState::Pruned => tree.prune(node),
                None => {}
            }
        }
    }

    /// Each of the particles once, in the order of their first occurrences.
    fn valued(&self, particles: &[usize]) -> Vec<Valued> {
        let mut copies = vec![0; self.steps.len()];
        let mut order = Vec::new();
        for &particle in particles {
            if copies[particle] == 0 {
                order.push(particle);
            }
            copies[particle] += 1;
        }
        let valued = |particle: usize| {
            let solution = Solution { copies: copies[particle], ..self.steps[particle].solution.clone() };
            Valued { value: solution.value(self.how.aggregate), solution }
        };
        order.into_iter().map(valued).collect()
    }
}
