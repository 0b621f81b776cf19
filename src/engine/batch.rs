//! From a schedule to the flat arrays of one forward step.

use crate::backend::{RowToken, SampleRequest, StepBatch};
use crate::engine::branch::{Branch, Work};
use crate::engine::cache::Branches;
use crate::engine::schedule::{Ask, Schedule};
use crate::plan::AttentionPlan;

/// The rows of a schedule as the decoder takes them. The schedule's asks are put in the order of their logits.
pub(super) fn step_batch(
    schedule: &mut Schedule,
    branches: &Branches,
    plans: Vec<AttentionPlan>,
    request: impl Fn(&Ask) -> SampleRequest,
) -> StepBatch {
    let wanted = schedule.answer_rows();
    StepBatch {
        tokens: schedule.rows.iter().map(|row| token(&branches[&row.branch], row.at.position)).collect(),
        positions: schedule.rows.iter().map(|row| row.at.position).collect(),
        slots: schedule.rows.iter().map(|row| row.slot).collect(),
        wanted,
        plans,
        requests: schedule.asks.iter().map(request).collect(),
    }
}

/// The token at `position`, or the draw of the step before that it will be.
fn token(branch: &Branch, position: u32) -> RowToken {
    match (branch.tokens.get(position as usize), &branch.work) {
        (Some(&token), _) => RowToken::Known(token),
        (None, Work::Draw(drawing)) => RowToken::Drawn(drawing.ahead.request),
        (None, Work::Rest | Work::Score(_)) => unreachable!("only what draws has rows ahead of its tokens"),
    }
}
