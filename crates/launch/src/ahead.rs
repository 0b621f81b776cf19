//! Computes results on a separate thread, a bounded number ahead of their use: prompts are encoded while the engine
//! works on earlier ones. Also defines [`guarded`], so that a panic over one input is that input's error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, Scope};

use crossbeam_channel::{Receiver, bounded};

use offshoot_core::error::{Error, Result};

/// Most results that wait to be received.
pub const LOOK_AHEAD: usize = 64;

/// Starts a thread that calls `next` until it returns `None` or every receiver is dropped. The results arrive in the
/// order in which they were made.
pub fn work_ahead<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut next: impl FnMut() -> Option<T> + Send + 'scope,
) -> Result<Receiver<T>> {
    let (sender, receiver) = bounded(LOOK_AHEAD);
    let work = move || while next().is_some_and(|result| sender.send(result).is_ok()) {};
    let thread = Builder::new().name("ahead".to_owned()).spawn_scoped(scope, work);
    thread.map(|_| receiver).map_err(Error::io("a thread", "start"))
}

/// Runs `work`; a panic becomes an error (its message is on standard error).
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::Internal("a worker panicked".to_string())))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_panic_is_an_error_of_ours() {
        let error = guarded(|| -> Result<()> { panic!("said on purpose, by a test") }).expect_err("it panicked");
        assert!(matches!(error, Error::Internal(_)), "{error}");
        assert_eq!(guarded(|| Ok(7)).expect("no panic"), 7);
    }

    #[test]
    fn results_come_in_order_and_no_more_are_made_than_may_wait() {
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let next = || Some(made.fetch_add(1, Ordering::Relaxed));
            let results = work_ahead(scope, next).expect("a thread starts");
            for at in 0..1000 {
                assert_eq!(results.recv(), Ok(at));
                // One more is made and waits for a place in the channel.
                assert!(made.load(Ordering::Relaxed) <= at + 1 + LOOK_AHEAD + 1);
            }
            drop(results);
        });
        assert!(made.load(Ordering::Relaxed) <= 1000 + LOOK_AHEAD + 1, "it ends with its receiver");
    }
}
