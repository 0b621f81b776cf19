//! Has the engines of one device take turns ([`StepGate`]), where a step needs all of it while it is submitted: on the
//! CPU, where two steps at once would share the cores and take longer than one after the other. Which engines share a
//! gate is said by whoever starts them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets one engine compute at a time, in the order in which they come, so that none waits for more than one step of
/// each other. An engine passes it for each step and holds nothing else meanwhile, so no two can wait for each other.
#[derive(Debug, Default)]
pub struct StepGate {
    tickets: Mutex<Tickets>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// The number of the next one who comes.
    next: u64,
    /// The number of the one inside, or of the next one to enter.
    serving: u64,
}

/// A turn behind a gate, which ends when this is dropped.
#[must_use]
pub struct StepTurn<'g>(&'g StepGate);

impl StepGate {
    /// Waits until all who came before have left.
    pub fn enter(&self) -> StepTurn<'_> {
        let mut tickets = self.tickets();
        let own = tickets.next;
        tickets.next += 1;
        drop(self.moved.wait_while(tickets, |tickets| tickets.serving != own).unwrap_or_else(PoisonError::into_inner));
        StepTurn(self)
    }

    /// How many are inside or wait.
    pub fn queued(&self) -> u64 {
        let tickets = self.tickets();
        tickets.next - tickets.serving
    }

    /// Whoever panics inside leaves, too; the numbers are never half changed.
    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StepTurn<'_> {
    fn drop(&mut self) {
        self.0.tickets().serving += 1;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn those_who_come_enter_one_by_one_in_their_order() {
        let (gate, entered) = (Arc::new(StepGate::default()), Arc::new(Mutex::new(Vec::new())));
        let held = gate.enter();
        let waiting: Vec<_> = (0..8)
            .map(|number| {
                let (to_pass, log) = (gate.clone(), entered.clone());
                let thread = thread::spawn(move || {
                    let _turn = to_pass.enter();
                    log.try_lock().expect("one is inside at a time").push(number);
                });
                while gate.queued() < number + 2 {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        assert!(entered.lock().unwrap().is_empty(), "they wait");
        drop(held);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*entered.lock().unwrap(), (0..8).collect::<Vec<_>>());
        assert_eq!(gate.queued(), 0);
    }

    #[test]
    fn a_panic_inside_keeps_nobody_out() {
        let gate = StepGate::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = gate.enter();
            panic!("a step fails");
        }));
        assert!(panicked.is_err());
        drop(gate.enter());
        assert_eq!(gate.queued(), 0);
    }
}
