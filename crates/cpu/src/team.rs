//! A team of threads for the CPU's ops: the caller and its workers share out the parts of one op, and meet again at its
//! end, or once in between. A step has hundreds of such regions, a few microseconds long each, so workers wait for the
//! next one awake: they spin for some microseconds, then yield to other programs, and sleep only after a millisecond
//! without work. A worker that comes late is not waited for: the others take its parts.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Isa;

/// What ops run on: the code path, and the threads.
pub struct Cores {
    pub isa: Isa,
    pub team: Arc<Team>,
}

impl Cores {
    /// The path `isa` on as many threads as rayon's current pool has, which loads the weights.
    pub fn new(isa: Isa) -> Self {
        Self { isa, team: Arc::new(Team::new(rayon::current_num_threads())) }
    }
}

/// Looks for work without leaving the processor: about 5 us.
const SPINS: u32 = 128;

/// How long a worker without work yields before it sleeps: longer than the host's work between two steps.
pub const AWAKE: Duration = Duration::from_millis(1);

/// The calling thread and `threads - 1` workers, which are started by the first region that has parts for them, and end
/// with the team.
pub struct Team {
    threads: usize,
    shared: Arc<Shared>,
    workers: OnceLock<Vec<JoinHandle<()>>>,
    /// Whether a region runs. Another one, of another thread or inside a part, then runs on its calling thread alone.
    taken: AtomicBool,
    /// Nanoseconds that regions took.
    regions_ns: AtomicU64,
}

/// What a team's time went to, since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeamTimes {
    /// Time in regions, from their opening until all members had left.
    pub in_regions: Duration,
    /// Time that all members together spent in parts of regions, without that in which they waited for chunks.
    pub in_parts: Duration,
}

/// What the members of a team share. `gate`, `next` and the times have cache lines of their own: all members write
/// them.
#[derive(Default)]
struct Shared {
    gate: Gate,
    next: NextPart,
    /// Nanoseconds in parts of regions, of all members.
    parts_ns: MembersTime,
    /// Nanoseconds of `parts_ns` in which members waited for chunks.
    waited_ns: MembersTime,
    region: UnsafeCell<Option<Region>>,
    /// The first panic of a part.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Held by a worker from its last look at the gate to its sleep.
    sleep: Mutex<()>,
    woken: Condvar,
    /// How many workers sleep or are about to.
    asleep: AtomicUsize,
}

// SAFETY: `region` is written by the one thread that has `Team::taken`, while the gate is shut and no worker is inside
// (see `Gate`); workers read it between entering and leaving.
unsafe impl Sync for Shared {}
// SAFETY: a region's pointer is used in the same way from whichever thread.
unsafe impl Send for Shared {}

/// The number of the region (high half), whether workers may enter it, and how many are inside (low bits).
#[derive(Default)]
#[repr(align(128))]
struct Gate(AtomicU64);

impl Gate {
    const OPEN: u64 = 1 << 31;
    const NUMBER: u64 = 1 << 32;
    const INSIDE: u64 = Self::OPEN - 1;
    /// The number that ends the workers.
    const END: u64 = u64::MAX << 32;
}

#[derive(Default)]
#[repr(align(128))]
struct NextPart(AtomicUsize);

#[derive(Default)]
#[repr(align(128))]
struct MembersTime(AtomicU64);

/// The parts of the op that runs: `work` is called with each number below `parts`.
#[derive(Clone, Copy)]
struct Region {
    work: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

impl Team {
    pub fn new(threads: usize) -> Self {
        let (shared, workers) = (Arc::default(), OnceLock::new());
        let (taken, regions_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { threads: threads.max(1), shared, workers, taken, regions_ns }
    }

    /// What its time went to.
    pub fn times(&self) -> TeamTimes {
        let of = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed));
        // A member adds what it waited before the whole that this is part of.
        let in_parts = of(&self.shared.parts_ns.0).saturating_sub(of(&self.shared.waited_ns.0));
        TeamTimes { in_regions: of(&self.regions_ns), in_parts }
    }

    /// How many workers sleep or are about to.
    pub fn asleep(&self) -> usize {
        self.shared.asleep.load(Ordering::SeqCst)
    }

    /// Threads that a region runs on at most.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How long its threads had no work, in the mean of all, in `elapsed` since its times were `before`: what its
    /// caller does outside of regions is one thread's.
    pub fn idle_since(&self, before: TeamTimes, elapsed: Duration) -> Duration {
        let now = self.times();
        let alone = elapsed.saturating_sub(now.in_regions - before.in_regions);
        let all = elapsed * self.threads as u32;
        all.saturating_sub(alone + (now.in_parts - before.in_parts)) / self.threads as u32
    }

    /// Calls `work` once for each of `0..parts`, on any member, and returns when all calls have. Numbers are taken
    /// in rising order, and whoever takes one calls `work`. A panic of a part is passed on, after the others.
    pub fn run(&self, parts: usize, work: impl Fn(usize) + Sync) {
        if parts <= 1 || self.threads == 1 || self.taken.swap(true, Ordering::Acquire) {
            return (0..parts).for_each(work);
        }
        self.workers.get_or_init(|| self.start());
        let erased: *const (dyn Fn(usize) + Sync) = &work;
        // SAFETY: only the lifetime is changed; workers use the pointer between entering and leaving, and `close` waits
        // for them before `work` goes.
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(erased)
        };
        let begun = Instant::now();
        self.shared.open(Region { work, parts });
        self.shared.work_through(Region { work, parts }, begun);
        self.shared.close();
        self.regions_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `work` once for each element, with its index.
    pub fn for_each<T: Send>(&self, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
        let base = Base(items.as_mut_ptr());
        self.run(items.len(), |i| {
            // SAFETY: `i` lies in the slice, and each index is given out once, so nothing else refers to the element.
            work(i, unsafe { &mut *base.at(i) });
        });
    }

    /// Calls `work` once for each chunk of `length` elements (the last may be shorter), with its index.
    pub fn for_chunks<T: Send>(&self, items: &mut [T], length: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let (all, base) = (items.len(), Base(items.as_mut_ptr()));
        self.run(all.div_ceil(length), |i| {
            let from = i * length;
            // SAFETY: the chunk lies in the slice, chunks are disjoint, and each index is given out once.
            work(i, unsafe { std::slice::from_raw_parts_mut(base.at(from), length.min(all - from)) });
        });
    }

    /// Calls `prepare` once for each chunk of `length` of `items`, with its index, and when all those calls have ended
    /// `work` once for each of `others`, with all items: two regions in one, whose members meet in between. If
    /// `prepare` panics, `work` is not called.
    pub fn for_chunks_then<T: Send + Sync, U: Send>(
        &self,
        items: &mut [T],
        length: usize,
        prepare: impl Fn(usize, &mut [T]) + Sync,
        others: &mut [U],
        work: impl Fn(usize, &mut U, &[T]) + Sync,
    ) {
        let (all, base, others_base) = (items.len(), Base(items.as_mut_ptr()), Base(others.as_mut_ptr()));
        let chunks = all.div_ceil(length);
        let chunk = |i: usize| {
            let from = i * length;
            // SAFETY: the chunk lies in the slice, chunks are disjoint, and each index is given out once. `other` reads
            // the items only after all calls of `chunk` have ended.
            prepare(i, unsafe { std::slice::from_raw_parts_mut(base.at(from), length.min(all - from)) });
        };
        let other = |i: usize| {
            // SAFETY: the element lies in the slice and its index is given out once; no chunk is written any more.
            work(i, unsafe { &mut *others_base.at(i) }, unsafe { std::slice::from_raw_parts(base.at(0), all) });
        };
        if chunks <= 1 && others.len() <= 1 {
            (0..chunks).for_each(chunk);
            return (0..others.len()).for_each(other);
        }
        let left = Left { chunks: AtomicUsize::new(chunks), failed: AtomicBool::new(false) };
        // Members take numbers in rising order: one that waits for a chunk waits for a member that prepares it.
        self.run(chunks + others.len(), |part| match part.checked_sub(chunks) {
            None => {
                let _prepared = Prepared(&left);
                chunk(part);
            }
            Some(i) => {
                self.await_none(&left);
                if !left.failed.load(Ordering::Relaxed) {
                    other(i);
                }
            }
        });
    }

    /// Waits until none is left.
    fn await_none(&self, left: &Left) {
        let none_left = || left.chunks.load(Ordering::Acquire) == 0;
        if none_left() {
            return;
        }
        let (begun, mut spins) = (Instant::now(), 0);
        while !none_left() {
            pause(&mut spins);
        }
        self.shared.waited_ns.0.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Starts the workers, or as many as the system grants.
    fn start(&self) -> Vec<JoinHandle<()>> {
        let start = |number: usize| {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new().name(format!("cpu-{number}")).spawn(move || shared.serve())
        };
        (1..self.threads).map_while(|number| start(number).ok()).collect()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.gate.0.store(Gate::END, Ordering::Release);
        self.shared.wake();
        for worker in self.workers.take().into_iter().flatten() {
            // Its panics are caught: those of parts were passed on, and there are no others.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Lets workers into `region`. By the thread that has `Team::taken`.
    fn open(&self, region: Region) {
        // SAFETY: the gate is shut and nobody is inside, by `close` of the region before.
        unsafe { *self.region.get() = Some(region) };
        self.next.0.store(0, Ordering::Relaxed);
        let number = self.gate.0.load(Ordering::Relaxed) & !(Gate::NUMBER - 1);
        // The last number but one is followed by the first: that of `END` stays free.
        let number = if number.wrapping_add(Gate::NUMBER) == Gate::END { 0 } else { number + Gate::NUMBER };
        // In one order with `asleep`: a worker that goes to sleep sees the new number, or is seen here.
        self.gate.0.store(number | Gate::OPEN, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// Shuts the gate and waits until all workers have left.
    fn close(&self) {
        self.gate.0.fetch_and(!Gate::OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.gate.0.load(Ordering::Acquire) & Gate::INSIDE != 0 {
            pause(&mut spins);
        }
    }

    /// Takes parts of `region` until none is left, and counts the time since `begun`.
    fn work_through(&self, region: Region, begun: Instant) {
        loop {
            let part = self.next.0.fetch_add(1, Ordering::Relaxed);
            if part >= region.parts {
                self.parts_ns.0.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                return;
            }
            // SAFETY: the op's caller keeps `work` until everybody has left the region.
            let work = unsafe { &*region.work };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(part))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
    }

    /// A worker's life: enters each region it sees, until the team ends.
    fn serve(&self) {
        let mut seen = 0;
        loop {
            let gate = self.await_region(seen);
            let number = gate & !(Gate::NUMBER - 1);
            if number == Gate::END {
                return;
            }
            if self.gate.0.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = number;
            // SAFETY: the gate was open, so the region is set, and it stays while this worker is inside.
            let region = unsafe { (*self.region.get()).expect("a region is set before its gate opens") };
            self.work_through(region, Instant::now());
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the gate is open for a region other than number `seen`, or the team ends. Returns the gate.
    fn await_region(&self, seen: u64) -> u64 {
        let news = || {
            let gate = self.gate.0.load(Ordering::SeqCst);
            let number = gate & !(Gate::NUMBER - 1);
            (number == Gate::END || (gate & Gate::OPEN != 0 && number != seen)).then_some(gate)
        };
        let (mut spins, mut since) = (0, None);
        loop {
            if let Some(gate) = news() {
                return gate;
            }
            if !pause(&mut spins) {
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() < AWAKE {
                continue;
            }
            let sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.asleep.fetch_add(1, Ordering::SeqCst);
            drop(self.woken.wait_while(sleep, |()| news().is_none()).unwrap_or_else(PoisonError::into_inner));
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            (spins, since) = (0, None);
        }
    }

    fn wake(&self) {
        // Under the lock, so that no worker is between its last look and its sleep.
        let _sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.woken.notify_all();
    }
}

/// Spins once, or yields to other threads after `SPINS` spins. Returns whether it yielded.
fn pause(spins: &mut u32) -> bool {
    if *spins < SPINS {
        *spins += 1;
        spin_loop();
        return false;
    }
    thread::yield_now();
    true
}

/// The chunks that have not been prepared. On cache lines of its own: members poll it while the caller writes to its
/// stack.
#[repr(align(128))]
struct Left {
    chunks: AtomicUsize,
    /// Whether preparing one of them panicked.
    failed: AtomicBool,
}

/// Counts a chunk as prepared when it is dropped, also by a panic: nobody waits for a chunk that is given up.
struct Prepared<'a>(&'a Left);

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        self.0.chunks.fetch_sub(1, Ordering::Release);
    }
}

/// A pointer to elements of which each thread takes different ones.
struct Base<T>(*mut T);

// SAFETY: elements are `Send`, and each is used by one thread at a time, as the users of `at` promise.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}
