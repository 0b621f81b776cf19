//! Step-level beam search (Snell et al. 2024, "Scaling LLM Test-Time Compute", section 5.1): samples N next steps after
//! all kept solutions, values each with the scorer and keeps the best N/M. Ended solutions are set aside until there
//! are N of them.

use super::decide::{Valued, conclude};
use super::settings::StepSearch;
use super::steps::{Solution, Stepper, largest_first, merged};
use crate::job::SearchJob;
use crate::outcome::Outcome;
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// Searches beams of steps below `at`.
pub fn step_beam(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &StepSearch,
    stepper: &mut Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    stepper.scorer.check(how.aggregate)?;
    let samples = how.samples as usize;
    let kept = samples / how.expansions as usize;
    let (mut beams, mut ended) = (vec![Solution::start(at)], Vec::new());
    for depth in 1..=how.steps.most {
        let draws = shares(samples, beams.len());
        let from: Vec<(&Solution, usize)> = beams.iter().zip(draws).collect();
        let said = stepper.step(tree, &from, how.then_at(depth), job)?.concat();
        close(tree, &beams, at);
        let mut next = merged(tree, said);
        stepper.score_ahead(tree, &mut next.iter_mut().collect::<Vec<_>>(), how.lookahead_at(depth), job)?;
        next.sort_by(|a, b| largest_first(a.value(how.aggregate), b.value(how.aggregate)));
        let (over, mut going): (Vec<_>, Vec<_>) = next.into_iter().partition(|solution| solution.end.is_some());
        ended.extend(over);
        for rejected in going.drain(kept.min(going.len())..) {
            tree.prune(rejected.node);
        }
        beams = going;
        if beams.is_empty() || ended.len() >= samples {
            break;
        }
    }
    // If no solution has ended, the unfinished ones take their place.
    match ended.is_empty() {
        true => ended = beams,
        false => beams.iter().for_each(|cut| tree.prune(cut.node)),
    }
    let value = |solution: Solution| Valued { value: solution.value(how.aggregate), solution };
    let mut valued: Vec<Valued> = ended.into_iter().map(value).collect();
    valued.sort_by(|a, b| largest_first(a.value, b.value));
    for rejected in valued.drain(samples.min(valued.len())..) {
        tree.prune(rejected.solution.node);
    }
    conclude(tree, valued, how.aggregate, how.by, stepper, job)
}

/// `draws` split as evenly as possible over the beams, the better beams first.
fn shares(draws: usize, beams: usize) -> Vec<usize> {
    (0..beams).map(|ix| draws / beams + usize::from(ix < draws % beams)).collect()
}

/// Releases the beams that have been extended.
fn close(tree: &mut SamplingTree, beams: &[Solution], at: NodeId) {
    for beam in beams.iter().filter(|beam| beam.node != at) {
        tree.close(beam.node);
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn draws_are_shared_out_whole() {
        assert_eq!(shares(8, 3), [3, 3, 2]);
        assert_eq!(shares(8, 1), [8]);
        assert_eq!(shares(8, 8), [1; 8]);
    }
}
