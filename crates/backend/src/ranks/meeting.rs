//! Where the threads of all ranks meet on the host, and where they hear that one of them has failed.

use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, PoisonError};

use super::Aborted;

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
    is_aborted: bool,
}

impl Meeting {
    pub fn new(ranks: usize) -> Self {
        Self { ranks, state: Mutex::default(), woken: Condvar::new() }
    }

    /// Returns when all ranks have called it. Panics with [`Aborted`] if one has failed.
    pub fn meet(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.number;
        state.came += 1;
        if state.came == self.ranks {
            (state.number, state.came) = (number + 1, 0);
            self.woken.notify_all();
        }
        while state.number == number && !state.is_aborted {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_aborted = state.is_aborted;
        drop(state);
        if is_aborted {
            resume_unwind(Box::new(Aborted));
        }
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
