//! From a schedule to the flat arrays of one forward step.

use crate::engine::cache::Branches;
use crate::engine::scheduler::{Row, Schedule};
use crate::ids::TokenId;
use crate::model::StepBatch;

/// The rows of a schedule as the decoder takes them. The schedule's asks are put in the order of their logits.
pub(super) fn step_batch(schedule: &mut Schedule, branches: &Branches) -> StepBatch {
    let token = |row: &Row| -> TokenId { branches[&row.branch].tokens[row.at.position as usize] };
    StepBatch {
        tokens: schedule.rows.iter().map(token).collect(),
        positions: schedule.rows.iter().map(|row| row.at.position).collect(),
        slots: schedule.rows.iter().map(|row| row.slot).collect(),
        wanted: schedule.answer_rows(),
    }
}
