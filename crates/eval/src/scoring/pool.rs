//! A thread pool that returns results in the order of the work. The waiting items are bounded in number and in bytes.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WORKERS;

/// Maximum number and bytes of items that wait for an earlier, slower item.
const MOST_WAITING: usize = 1024;
const MOST_WAITING_BYTES: usize = 128 << 20;

/// How often the interrupt flag is checked.
const LOOK: Duration = Duration::from_millis(100);

/// One item of the output, which needs the result of the work `number`.
pub struct PoolItem<T, J> {
    pub item: T,
    pub number: u64,
    /// The work; `None` if it was already submitted with an earlier item.
    pub job: Option<J>,
    pub bytes: usize,
}

/// Takes items from `source` until it ends, runs `work` on `workers` threads (fewer if no more can be started), and
/// passes every item with its result to `sink`, in order. `done`: results that are already known, by number. An error
/// of the source is returned after all items before it have been passed on. After any other error or an interrupt,
/// running work is finished and passed on first.
pub fn in_order<T, J: Send, R: Send + Sync>(
    workers: usize,
    interrupted: &AtomicBool,
    done: HashMap<u64, R>,
    mut source: impl FnMut() -> Result<Option<PoolItem<T, J>>>,
    work: impl Fn(J) -> Result<R> + Sync,
    mut sink: impl FnMut(T, &R) -> Result<()>,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    let (jobs, taken) = channel::<(u64, J)>();
    let taken = Mutex::new(taken);
    let (finished, results) = channel();
    std::thread::scope(|scope| {
        for started in 0..workers {
            let finished = finished.clone();
            let (taken, stop, work) = (&taken, &stop, &work);
            let work = move || {
                let next = || taken.lock().expect("taking a job does not panic").recv().ok();
                while let Some((number, job)) = next() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let result = catch_unwind(AssertUnwindSafe(|| work(job)));
                    let result = result.unwrap_or_else(|_| Err(Error::Internal("a judge panicked".to_string())));
                    if finished.send((number, result)).is_err() {
                        return;
                    }
                }
            };
            if let Err(error) = Builder::new().spawn_scoped(scope, work) {
                if started == 0 {
                    return Err(Error::value(WORKERS, "threads that can be started", format!("none: {error}")));
                }
                log::warn!("only {started} of {workers} judging threads could be started: {error}");
                break;
            }
        }
        drop(finished);
        let mut waiting = WaitingItems { queue: VecDeque::new(), bytes: 0, done };
        let (mut more, mut broken) = (true, None);
        let mut feed_and_collect = || -> Result<bool> {
            while more && waiting.has_room() && !interrupted.load(Ordering::Relaxed) {
                // A failed source has ended: the items before the error are finished first.
                let Some(step) = source().unwrap_or_else(|error| {
                    broken = Some(error);
                    None
                }) else {
                    more = false;
                    break;
                };
                waiting.bytes += step.bytes;
                waiting.queue.push_back((step.item, step.number, step.bytes));
                if let Some(job) = step.job {
                    jobs.send((step.number, job)).expect("the receiver outlives this scope");
                }
            }
            waiting.flush(&mut sink)?;
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            if !more && waiting.queue.is_empty() {
                return broken.take().map_or(Ok(false), Err);
            }
            match results.recv_timeout(LOOK) {
                Ok((number, result)) => drop(waiting.done.insert(number, result?)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("the threads that judge have ended".to_string()));
                }
            }
            Ok(true)
        };
        let ended = loop {
            match feed_and_collect() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Running work started before all waiting work, so finishing it leaves no gap.
        stop.store(true, Ordering::Relaxed);
        drop(jobs);
        for (number, result) in results {
            if let Ok(result) = result {
                waiting.done.insert(number, result);
            }
        }
        match ended {
            Ok(()) => Ok(()),
            Err(error) => waiting.flush(&mut sink).and(Err(error)),
        }
    })
}

/// The items that wait for their results, and all results so far.
struct WaitingItems<T, R> {
    queue: VecDeque<(T, u64, usize)>,
    bytes: usize,
    done: HashMap<u64, R>,
}

impl<T, R> WaitingItems<T, R> {
    fn has_room(&self) -> bool {
        self.queue.len() < MOST_WAITING && self.bytes < MOST_WAITING_BYTES
    }

    fn flush(&mut self, sink: &mut impl FnMut(T, &R) -> Result<()>) -> Result<()> {
        while let Some(result) = self.queue.front().and_then(|(_, number, _)| self.done.get(number)) {
            let (item, _, bytes) = self.queue.pop_front().expect("there is a front");
            self.bytes -= bytes;
            sink(item, result)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers 0.. with their squares; every third has the work of the one before.
    fn squares(count: u64) -> impl FnMut() -> Result<Option<PoolItem<u64, u64>>> {
        let mut next = 0;
        move || {
            let item = next;
            next += 1;
            let job = (item % 3 != 2).then_some(item);
            let number = if job.is_some() { item } else { item - 1 };
            Ok((item < count).then_some(PoolItem { item, number, job, bytes: 1 }))
        }
    }

    fn slow_square(n: u64) -> Result<u64> {
        std::thread::sleep(Duration::from_micros(n * 7919 % 500));
        Ok(n * n)
    }

    #[test]
    fn results_come_out_in_order_and_work_is_shared() {
        let mut out = Vec::new();
        let sink = |item, result: &u64| {
            out.push((item, *result));
            Ok(())
        };
        in_order(4, &AtomicBool::new(false), HashMap::new(), squares(3000), slow_square, sink).unwrap();
        let expected = (0..3000u64).map(|i| if i % 3 == 2 { (i, (i - 1) * (i - 1)) } else { (i, i * i) });
        assert_eq!(out, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_was_done_before_an_error_or_an_interrupt_comes_out_without_a_gap() {
        let interrupted = AtomicBool::new(false);
        let failing = |n: u64| match n {
            400 => Err(Error::Internal("no".to_string())),
            n => slow_square(n),
        };
        let stopping = |n: u64| {
            interrupted.fetch_or(n == 400, Ordering::Relaxed);
            slow_square(n)
        };
        type Work<'a> = &'a (dyn Fn(u64) -> Result<u64> + Sync);
        for (work, expected) in [(&failing as Work, "internal"), (&stopping as Work, "interrupted")] {
            let mut out = Vec::new();
            let sink = |item: u64, _: &u64| {
                out.push(item);
                Ok(())
            };
            let error = in_order(4, &interrupted, HashMap::new(), squares(100_000), work, sink).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(out.len() >= 390 && out.iter().copied().eq(0..out.len() as u64), "{}", out.len());
        }
    }
}
