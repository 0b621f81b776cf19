//! Diverse verifier tree search (Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models"): N/M
//! independent subtrees; each samples M next steps and continues with the best.

use super::decide::{Valued, conclude};
use super::settings::StepSearch;
use super::steps::{Solution, Stepper, largest_first};
use crate::job::SearchJob;
use crate::outcome::Outcome;
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// Searches N/M subtrees below `at` side by side, each by the best of M next steps at a time.
pub fn dvts(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &StepSearch,
    stepper: &mut Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    stepper.scorer.check(how.aggregate)?;
    let subtrees = (how.samples / how.expansions) as usize;
    let mut tips = vec![Solution::start(at); subtrees];
    let mut ended: Vec<Solution> = Vec::new();
    for depth in 1..=how.steps.most {
        let from: Vec<(&Solution, usize)> = tips.iter().map(|tip| (tip, how.expansions as usize)).collect();
        let mut said = stepper.step(tree, &from, how.then_at(depth), job)?;
        for tip in tips.iter().filter(|tip| tip.node != at) {
            tree.close(tip.node);
        }
        let mut all: Vec<&mut Solution> = said.iter_mut().flatten().collect();
        stepper.score_ahead(tree, &mut all, how.lookahead_at(depth), job)?;
        tips = said.into_iter().filter_map(|said| best(tree, said, how, &mut ended)).collect();
        if tips.is_empty() {
            break;
        }
    }
    // A subtree that reached the step limit ends with its unfinished solution.
    ended.append(&mut tips);
    let value = |solution: Solution| Valued { value: solution.value(how.aggregate), solution };
    conclude(tree, ended.into_iter().map(value).collect(), how.aggregate, how.by, stepper, job)
}

/// The solution that a subtree continues with: the best one, unless it has ended. Ended solutions are added to `ended`,
/// the rest are pruned.
fn best(
    tree: &mut SamplingTree,
    mut said: Vec<Solution>,
    how: &StepSearch,
    ended: &mut Vec<Solution>,
) -> Option<Solution> {
    said.sort_by(|a, b| largest_first(a.value(how.aggregate), b.value(how.aggregate)));
    let mut tip = None;
    for (rank, solution) in said.into_iter().enumerate() {
        match (rank, &solution.end) {
            (_, Some(_)) => ended.push(solution),
            (0, None) => tip = Some(solution),
            (_, None) => tree.prune(solution.node),
        }
    }
    tip
}
