//! Slots for the states of recurrent layers, and the runs of a step that read and write them. A state belongs to a
//! sequence at one position: it holds what the tokens before that position have left. Which state is where is recorded
//! by the prefix tree; what a state is, by the backends.

use std::ops::Range;

use offshoot_core::ids::StateId;

/// Consecutive rows of a step, of consecutive positions of one path, and the state that they continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRun {
    pub rows: Range<u32>,
    /// The state that the first row reads; `None`: that of an empty sequence.
    pub from: Option<StateId>,
    /// Whether that state holds the first row's token already: its row is computed again for its logits, and changes
    /// nothing.
    pub is_in: bool,
    /// Where the state after the last row is written; may be `from`. `None`: it is not kept.
    pub to: Option<StateId>,
}

impl StateRun {
    /// Moves runs of single rows on by one token each, to the states that they have written.
    pub fn advance(runs: &mut [StateRun]) {
        for run in runs {
            (run.from, run.is_in) = (run.to, false);
        }
    }
}
