//! Which segments a walk has seen.

use std::cell::Cell;

use offshoot_core::ids::SegmentId;

/// A number for each segment visited in the current round. Starting a round clears all numbers in constant time.
#[derive(Debug, Default)]
pub(super) struct Visits {
    round: Cell<u64>,
    /// For each segment, the round of the last visit, and the number given then.
    notes: Vec<Cell<(u64, u32)>>,
}

impl Visits {
    pub fn grow(&mut self) {
        self.notes.push(Cell::new((0, 0)));
    }

    pub fn begin(&self) {
        self.round.set(self.round.get() + 1);
    }

    pub fn note(&self, id: SegmentId, number: u32) {
        self.notes[id.ix()].set((self.round.get(), number));
    }

    pub fn number(&self, id: SegmentId) -> Option<u32> {
        let (round, number) = self.notes[id.ix()].get();
        (round == self.round.get()).then_some(number)
    }
}
