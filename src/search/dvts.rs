//! Diverse verifier tree search (Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models"): N/M subtrees that
//! know nothing of each other, each of which draws M next steps and goes on with the best.

use petgraph::graph::NodeIndex;

use super::decide::{Valued, conclude};
use super::settings::StepSearch;
use super::steps::{Solution, Stepper};
use super::{Job, Outcome};
use crate::error::Result;
use crate::tree::SamplingTree;

pub fn dvts(
    tree: &mut SamplingTree,
    at: NodeIndex,
    how: &StepSearch,
    stepper: &mut Stepper<'_>,
    job: &mut Job<'_>,
) -> Result<Outcome> {
    let subtrees = (how.samples / how.expansions) as usize;
    let mut tips = vec![Solution::start(at); subtrees];
    let mut ended: Vec<Solution> = Vec::new();
    for _ in 0..how.steps.most {
        let from: Vec<(&Solution, usize)> = tips.iter().map(|tip| (tip, how.expansions as usize)).collect();
        let mut said = stepper.step(tree, &from, job)?;
        for tip in tips.iter().filter(|tip| tip.node != at) {
            tree.close(tip.node);
        }
        stepper.score(tree, &mut said.iter_mut().flatten().collect::<Vec<_>>(), job)?;
        tips = said.into_iter().filter_map(|said| best(tree, said, how, &mut ended)).collect();
        if tips.is_empty() {
            break;
        }
    }
    // A subtree that took too many steps ends with the beginning that it has.
    ended.append(&mut tips);
    let value = |solution: Solution| Valued { value: solution.value(how.aggregate), solution };
    conclude(tree, ended.into_iter().map(value).collect(), how.by, stepper, job)
}

/// What a subtree goes on with: the best of what was said, unless that has ended. Whatever has ended is put aside, the rest pruned.
fn best(
    tree: &mut SamplingTree,
    mut said: Vec<Solution>,
    how: &StepSearch,
    ended: &mut Vec<Solution>,
) -> Option<Solution> {
    said.sort_by(|a, b| b.value(how.aggregate).total_cmp(&a.value(how.aggregate)));
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
