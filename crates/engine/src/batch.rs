//! Converts a schedule to the flat arrays of one forward step.

use crate::branch::{Branch, BranchWork};
use crate::cache::Branches;
use crate::schedule::Schedule;
use offshoot_backend::{AdapterSlot, RowToken, StepBatch, StepRequests};
use offshoot_core::ids::{AdapterVersion, GroupIx};
use offshoot_kv::plan::AttentionPlan;
use offshoot_kv::{PrefixTree, StateRun};

/// The rows of a schedule as the decoder takes them. `logit_rows`: those of its requests, which are sorted
/// ([`Schedule::logit_rows`]), and `requests` what is asked for each. `slot`: where an adapter is loaded that a branch
/// has.
#[expect(clippy::too_many_arguments, reason = "each is one field of the batch, or what several are made from")]
pub(super) fn step_batch(
    schedule: &Schedule,
    logit_rows: Vec<u32>,
    requests: StepRequests,
    branches: &Branches,
    prefix: &PrefixTree,
    plans: Vec<AttentionPlan>,
    state_runs: Vec<StateRun>,
    slot: impl Fn(AdapterVersion) -> AdapterSlot,
) -> StepBatch {
    let slots_in = |group: GroupIx| match group {
        GroupIx(0) => schedule.rows.iter().map(|row| row.slot).collect(),
        _ => schedule.rows.iter().map(|row| prefix.slot_in(group, row.at.segment, row.at.position)).collect(),
    };
    let adapters: Vec<Option<AdapterSlot>> =
        schedule.rows.iter().map(|row| prefix.origin(row.at.segment).adapter.map(&slot)).collect();
    StepBatch {
        tokens: schedule.rows.iter().map(|row| token(&branches[&row.branch], row.at.position)).collect(),
        positions: schedule.rows.iter().map(|row| row.at.position).collect(),
        slots: prefix.groups().iter().map(slots_in).collect(),
        logit_rows,
        plans,
        expansions: None,
        state_runs,
        adapters: if adapters.iter().any(Option::is_some) { adapters } else { Vec::new() },
        requests,
    }
}

/// The token at `position`; if the host does not know it yet, the sample of the step before that will be it.
fn token(branch: &Branch, position: u32) -> RowToken {
    match (branch.tokens.get(position as usize), &branch.work) {
        (Some(&token), _) => RowToken::Known(token),
        (None, BranchWork::Sample(sampling)) => RowToken::Sampled(sampling.in_flight.request),
        (None, BranchWork::Idle | BranchWork::Score(_) | BranchWork::Values(_)) => {
            unreachable!("only a sampling branch has rows past its known tokens")
        }
    }
}
