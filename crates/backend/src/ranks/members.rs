//! The ranks' backends, each with a thread that lasts as long as they do; the first rank's is the caller's. A call
//! returns when all have answered. A rank that fails or panics wakes those that wait for it, so no call waits for ever.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::{Aborted, FailedExchange, Rank, Ranked};
use offshoot_core::error::{Error, Result};

pub struct Members<B: Ranked> {
    backends: Vec<Mutex<B>>,
    fabric: B::Fabric,
    /// Of all ranks but the first.
    workers: Vec<Worker>,
}

/// What a rank's thread ended with.
type Ended<T> = std::result::Result<T, Box<dyn Any + Send>>;

/// A thread that does one job after the other, and says when each is done.
struct Worker {
    /// `None` only while it ends.
    jobs: Option<Sender<Job<'static>>>,
    done: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

/// It does not panic.
type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

impl Worker {
    fn start(rank: usize) -> Result<Self> {
        let (jobs, given) = channel::<Job<'static>>();
        let (says, done) = channel();
        let work = move || {
            for job in given {
                job();
                if says.send(()).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("rank {rank}")).spawn(work);
        let thread = thread.map_err(Error::io("a thread", "start"))?;
        Ok(Self { jobs: Some(jobs), done: Mutex::new(done), thread: Some(thread) })
    }

    /// Gives it a job, whose end the result waits for when it is dropped.
    fn begin<'a>(&'a self, job: Job<'a>) -> Running<'a> {
        // SAFETY: only the lifetime changes. The job is not run, and nothing of it is used, after `Running` is dropped:
        // that waits until the thread says that the job is done, or has ended. `Running` is made in this module alone,
        // which forgets none.
        let job = unsafe { mem::transmute::<Job<'a>, Job<'static>>(job) };
        let jobs = self.jobs.as_ref().expect("it ends only when it is dropped");
        jobs.send(job).expect("the thread lasts: its jobs do not panic");
        Running(self)
    }
}

/// A job that a worker does.
struct Running<'a>(&'a Worker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // An error: the thread has ended, and its job with it.
        let _ = lock(&self.0.done).recv();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::warn!("the thread of a rank has panicked");
        }
    }
}

impl<B: Ranked> Members<B> {
    /// # Errors
    ///
    /// No thread can be started.
    pub fn new(backends: Vec<B>, fabric: B::Fabric) -> Result<Self> {
        let workers = (1..backends.len()).map(Worker::start).collect::<Result<_>>()?;
        Ok(Self { backends: backends.into_iter().map(Mutex::new).collect(), fabric, workers })
    }

    pub fn count(&self) -> usize {
        self.backends.len()
    }

    pub fn fabric(&self) -> &B::Fabric {
        &self.fabric
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

    /// The same, one rank after the other on this thread: for work that takes less time than to wake another thread.
    ///
    /// # Errors
    ///
    /// Those of `try_each`.
    pub fn try_in_turn<T>(&self, work: impl Fn(Rank<'_, B>) -> Result<T>) -> Result<Vec<T>> {
        let work = |rank: Rank<'_, B>| work(rank).inspect_err(|error| self.abort_if(!error.is_shortage()));
        passed_on((0..self.count()).map(|number| self.on(number, work)).collect())
    }

    /// The same of work in which they do: any error on one ends them all, also a shortage, which is then no longer one
    /// that a smaller step would mend.
    pub fn try_together<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> Result<T> + Sync) -> Result<Vec<T>> {
        if self.count() == 1 {
            // Nobody waits for it, and a smaller step may be taken.
            return self.try_each(work);
        }
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

    /// `work` on one rank.
    fn on<T>(&self, number: usize, work: impl FnOnce(Rank<'_, B>) -> T) -> Ended<T> {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let backend = &mut *lock(&self.backends[number]);
            work(Rank { number, backend, fabric: &self.fabric })
        }));
        ended.inspect_err(|_| B::abort(&self.fabric))
    }

    fn ended<T: Send>(&self, work: impl Fn(Rank<'_, B>) -> Result<T> + Sync) -> Vec<Ended<Result<T>>> {
        let on = |number: usize| self.on(number, &work);
        let (on, others) = (&on, Mutex::new(Vec::with_capacity(self.workers.len())));
        let give = |number: usize, worker| {
            let others = &others;
            let job = move || {
                // Before the lock, or ranks would wait for each other's whole work.
                let ended = on(number);
                lock(others).push((number, ended));
            };
            Worker::begin(worker, Box::new(job))
        };
        let running: Vec<Running<'_>> = (1..).zip(&self.workers).map(|(number, worker)| give(number, worker)).collect();
        let first = on(0);
        drop(running);
        let mut others = others.into_inner().unwrap_or_else(PoisonError::into_inner);
        others.sort_by_key(|(number, _)| *number);
        std::iter::once(first).chain(others.into_iter().map(|(_, ended)| ended)).collect()
    }
}

/// The results of all ranks. A panic is passed on, but for those of ranks that were woken by another's failure, and of
/// ranks that failed in an exchange, whose error is given; an error comes before them too.
fn passed_on<T>(ended: Vec<Ended<Result<T>>>) -> Result<Vec<T>> {
    let (mut results, mut error, mut was_aborted) = (Vec::new(), None, false);
    for ended in ended {
        match ended {
            Ok(Ok(result)) => results.push(result),
            Ok(Err(failed)) => error = error.or(Some(failed)),
            Err(panic) if panic.is::<Aborted>() => was_aborted = true,
            Err(panic) => match panic.downcast::<FailedExchange>() {
                Ok(failed) => error = error.or(Some(failed.0)),
                Err(panic) => resume_unwind(panic),
            },
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
