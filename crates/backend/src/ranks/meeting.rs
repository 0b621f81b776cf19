//! Where the threads of all ranks meet on the host, and where they hear that one of them has failed.

use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, PoisonError};

/// The panic of a rank that waited for one that has failed.
#[derive(Debug)]
pub struct Aborted;

/// A barrier that can be ended for good.
pub struct Meeting {
    ranks: usize,
    state: Mutex<State>,
    woken: Condvar,
}

/// Who has come, until all have.
#[derive(Default)]
struct State {
    number: u64,
    came: usize,
    /// The largest number of those who have come, and of the last time.
    largest: u64,
    agreed: u64,
    is_aborted: bool,
}

impl Meeting {
    pub fn new(ranks: usize) -> Self {
        Self { ranks, state: Mutex::default(), woken: Condvar::new() }
    }

    /// Returns when all ranks have called it. Panics with [`Aborted`] if one has failed.
    pub fn meet(&self) {
        self.agree(0);
    }

    /// Returns the largest `own` of all ranks, when all have called it. Panics with [`Aborted`] if one has failed.
    pub fn agree(&self, own: u64) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.number;
        state.came += 1;
        state.largest = state.largest.max(own);
        if state.came == self.ranks {
            (state.number, state.came) = (number + 1, 0);
            state.agreed = std::mem::take(&mut state.largest);
            self.woken.notify_all();
        }
        while state.number == number && !state.is_aborted {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // The next one ends when this rank has come, too.
        let (is_aborted, agreed) = (state.is_aborted, state.agreed);
        drop(state);
        if is_aborted {
            resume_unwind(Box::new(Aborted));
        }
        agreed
    }

    /// Wakes all that wait, now and later.
    pub fn abort(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_aborted = true;
        self.woken.notify_all();
    }

    pub fn is_aborted(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hear_the_largest_number_of_each_time() {
        let meeting = Meeting::new(3);
        let agree = |rank: u64| [5, 1, 0].map(|of_time| meeting.agree(of_time * rank));
        let heard = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || agree(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("nothing panics")).collect::<Vec<_>>()
        });
        assert_eq!(heard, [[10, 2, 0]; 3]);
    }
}
