//! The ranks' backends. A call starts a thread for each rank but the first, and returns when all have
//! answered. A rank that fails or panics wakes those that wait for it, so no call waits for ever.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::{Aborted, Rank, Ranked};
use crate::error::{Error, Result};

pub struct Members<B: Ranked> {
    backends: Vec<Mutex<B>>,
    fabric: B::Fabric,
}

/// What a rank's thread ended with.
type Ended<T> = std::result::Result<T, Box<dyn Any + Send>>;

impl<B: Ranked> Members<B> {
    pub fn new(backends: Vec<B>, fabric: B::Fabric) -> Self {
        Self { backends: backends.into_iter().map(Mutex::new).collect(), fabric }
    }

    pub fn count(&self) -> usize {
        self.backends.len()
    }

    /// The first rank's backend, for what is the same on all.
    pub fn first(&self) -> MutexGuard<'_, B> {
        lock(&self.backends[0])
    }

    /// What `work` gives on each rank.
    pub fn each<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> T + Sync) -> Vec<T> {
        passed_on(self.ended(|rank| Ok(work(rank)))).expect("`work` gives no error")
    }

    /// The same of work in which ranks do not wait for each other.
    ///
    /// # Errors
    ///
    /// The first rank's that has one. A shortage of memory leaves all as they were; any other error ends them all, for
    /// good.
    pub fn try_each<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> Result<T> + Sync) -> Result<Vec<T>> {
        let is_fatal = |error: &Error| !error.is_shortage();
        passed_on(self.ended(|rank| work(rank).inspect_err(|error| self.abort_if(is_fatal(error)))))
    }

    /// The same of work in which they do: any error on one ends them all, also a shortage, which is then no longer one
    /// that a smaller step would mend.
    pub fn try_together<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> Result<T> + Sync) -> Result<Vec<T>> {
        let lasting = |error: Error| match error.is_shortage() {
            true => Error::Internal(format!("{error}; devices that compute one model together end by it")),
            false => error,
        };
        let all = passed_on(self.ended(|rank| work(rank).inspect_err(|_| self.abort_if(true)))).map_err(lasting)?;
        match B::is_aborted(&self.fabric) {
            // What they have computed since may have missed what the failed one had to give.
            true => Err(another_failed()),
            false => Ok(all),
        }
    }

    fn abort_if(&self, is_fatal: bool) {
        if is_fatal {
            B::abort(&self.fabric);
        }
    }

    fn ended<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> Result<T> + Sync) -> Vec<Ended<Result<T>>> {
        let on = |number: usize| {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let backend = &mut *lock(&self.backends[number]);
                work(Rank { number, backend, fabric: &self.fabric })
            }));
            ended.inspect_err(|_| B::abort(&self.fabric))
        };
        let on = &on;
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.count()).map(|number| scope.spawn(move || on(number))).collect();
            let first = on(0);
            let others = others.into_iter().map(|other| other.join().expect("panics are caught in the thread"));
            std::iter::once(first).chain(others).collect()
        })
    }
}

/// The results of all ranks. A panic is passed on, but for those of ranks that were woken by another's failure; an
/// error comes before them too.
fn passed_on<T>(ended: Vec<Ended<Result<T>>>) -> Result<Vec<T>> {
    let (mut results, mut error, mut was_aborted) = (Vec::new(), None, false);
    for ended in ended {
        match ended {
            Ok(Ok(result)) => results.push(result),
            Ok(Err(failed)) => error = error.or(Some(failed)),
            Err(panic) if panic.is::<Aborted>() => was_aborted = true,
            Err(panic) => resume_unwind(panic),
        }
    }
    match error {
        Some(error) => Err(error),
        None if was_aborted => Err(another_failed()),
        None => Ok(results),
    }
}

fn another_failed() -> Error {
    Error::Internal("another rank has failed before".to_owned())
}

/// Nobody waits any more, and nobody reads the others' memory when it goes.
impl<B: Ranked> Drop for Members<B> {
    fn drop(&mut self) {
        B::abort(&self.fabric);
        self.backends.iter().for_each(|backend| lock(backend).settle());
    }
}

/// What a rank that panicked has left is not used again: every later call ends with `Aborted`.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
