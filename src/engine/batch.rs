//! From a schedule to the flat arrays of one forward step.

use crate::backend::{RowToken, SampleRequest, StepBatch};
use crate::engine::cache::Branches;
use crate::engine::scheduler::{Ask, Row, Schedule};
use crate::plan::AttentionPlan;

/// The rows of a schedule as the decoder takes them. The schedule's asks are put in the order of their logits.
pub(super) fn step_batch(
    schedule: &mut Schedule,
    branches: &Branches,
    plans: Vec<AttentionPlan>,
    request: impl Fn(&Ask) -> SampleRequest,
) -> StepBatch {
    let token = |row: &Row| RowToken::Known(branches[&row.branch].tokens[row.at.position as usize]);
    let wanted = schedule.answer_rows();
    StepBatch {
        tokens: schedule.rows.iter().map(token).collect(),
        positions: schedule.rows.iter().map(|row| row.at.position).collect(),
        slots: schedule.rows.iter().map(|row| row.slot).collect(),
        wanted,
        plans,
        requests: schedule.asks.iter().map(request).collect(),
    }
}
