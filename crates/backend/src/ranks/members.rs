//! What each rank of a model has, with a thread that lasts as long as it does; the first rank's is the caller's. A call
//! returns when all have answered. A rank that fails or panics wakes those that wait for it, so no call waits for ever.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::fabric::{Fabric, FailedExchange};
use super::meeting::Aborted;
use offshoot_core::error::{Error, Result};

/// A `T` of each rank, and the threads that work on them.
pub struct Members<T> {
    /// Dropped before what the ranks have.
    crew: Crew,
    each: Vec<Mutex<T>>,
}

/// The threads of all ranks.
struct Crew {
    fabric: Arc<dyn Fabric>,
    /// The threads of all ranks but the first.
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

impl<T: Send> Members<T> {
    /// Starts a thread for each of `ranks`, on which `make` makes what it has from now on.
    pub(super) fn start<R: Send>(
        ranks: Vec<R>,
        fabric: Arc<dyn Fabric>,
        make: impl Fn(R) -> Result<T> + Sync,
    ) -> Result<Self> {
        let workers = (1..ranks.len()).map(Worker::start).collect::<Result<_>>()?;
        let crew = Crew { fabric, workers };
        let given: Vec<_> = ranks.into_iter().map(|rank| Mutex::new(Some(rank))).collect();
        let make = |number: usize| make(lock(&given[number]).take().expect("each rank is taken once"));
        let made = passed_on(crew.ended(|number| crew.fatal(make(number))))?;
        Ok(Self { crew, each: made.into_iter().map(Mutex::new).collect() })
    }

    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// What rank `number` has.
    pub fn of(&self, number: usize) -> MutexGuard<'_, T> {
        lock(&self.each[number])
    }

    /// What `work` gives on each rank.
    pub fn each<G: Send>(&self, work: impl Fn(&mut T) -> G + Sync) -> Vec<G> {
        passed_on(self.crew.ended(|number| Ok(work(&mut self.of(number))))).expect("`work` gives no error")
    }

    /// What `work` gives on each rank; no rank may wait for another in it.
    ///
    /// # Errors
    ///
    /// The first rank's that has one. A shortage of memory leaves all as they were; any other error ends them all, for
    /// good.
    pub fn try_each<G: Send>(&self, work: impl Fn(&mut T) -> Result<G> + Sync) -> Result<Vec<G>> {
        passed_on(self.crew.ended(|number| self.crew.fatal(work(&mut self.of(number)))))
    }

    /// What `work` gives on each rank; ranks may wait for each other in it. Any error on one ends them all, also a
    /// shortage, which is then no longer one that a smaller step would mend.
    pub fn try_together<G: Send>(&self, work: impl Fn(&mut T) -> Result<G> + Sync) -> Result<Vec<G>> {
        if self.count() == 1 {
            // Nobody waits for it, and a smaller step may be taken.
            return self.try_each(work);
        }
        let lasting = |error: Error| match error.is_shortage() {
            true => Error::Internal(format!("{error}; devices that compute one model together end by it")),
            false => error,
        };
        let fabric = &self.crew.fabric;
        let ended = self.crew.ended(|number| work(&mut self.of(number)).inspect_err(|_| fabric.abort()));
        let all = passed_on(ended).map_err(lasting)?;
        match fabric.is_aborted() {
            // What they have computed since may have missed what the failed one had to give.
            true => Err(another_failed()),
            false => Ok(all),
        }
    }
}

impl Crew {
    /// Any error but a shortage of memory ends all ranks.
    fn fatal<G>(&self, result: Result<G>) -> Result<G> {
        result.inspect_err(|error| {
            if !error.is_shortage() {
                self.fabric.abort();
            }
        })
    }

    /// What `work(number)` ends with on the thread of each rank.
    fn ended<G: Send>(&self, work: impl Fn(usize) -> Result<G> + Sync) -> Vec<Ended<Result<G>>> {
        let ended: Vec<Mutex<Option<Ended<Result<G>>>>> = (0..=self.workers.len()).map(|_| Mutex::new(None)).collect();
        self.run(&|number| {
            let with = catch_unwind(AssertUnwindSafe(|| work(number))).inspect_err(|_| self.fabric.abort());
            *lock(&ended[number]) = Some(with);
        });
        let of_rank = |slot: Mutex<Option<_>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        ended.into_iter().map(|slot| of_rank(slot).expect("each rank's work has ended")).collect()
    }

    /// Does `work(number)`, which does not panic, on the thread of each rank.
    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let give = |(number, worker)| Worker::begin(worker, Box::new(move || work(number)));
        let running: Vec<Running<'_>> = (1..).zip(&self.workers).map(give).collect();
        work(0);
        drop(running);
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
impl Drop for Crew {
    fn drop(&mut self) {
        self.fabric.abort();
        self.fabric.settle();
    }
}

/// What a rank that panicked has left is not used again: every later call ends with `Aborted`.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
