//! Bounds work on what strangers wrote, such as templates and tokenizers: it runs on a thread of its own, and a thread
//! that takes more memory, CPU time or stack than it may is left behind, stopped. What the work is, is up to the
//! callers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// What work may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Memory at any one time, beside that of the closure itself. Counted in programs whose global allocator is
    /// [`CountingAllocator`].
    pub bytes: usize,
    /// CPU time.
    pub cpu: Duration,
}

impl Bounds {
    /// For work that makes a text from others, which take `bytes` in memory.
    pub fn of_text(bytes: usize) -> Bounds {
        const LEAST: usize = 64 << 20;
        // A growing text is copied to room of twice its size, and its parts are held meanwhile.
        Bounds { bytes: LEAST + 8 * bytes, cpu: Duration::from_millis(500 + (bytes >> 16) as u64) }
    }
}

/// Why work has no result.
#[derive(Debug)]
pub enum Stopped {
    Memory(usize),
    Time(Duration),
    /// Its calls nest deeper than the stack, as when a value is shown that holds itself thousands of times.
    Depth,
    /// It panicked, with this message.
    Panic(String),
    /// It never began.
    NoThread(io::Error),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Memory(bytes) => write!(f, "it takes more than {} MiB of memory", bytes >> 20),
            Stopped::Time(cpu) => write!(f, "it takes more than {} s", cpu.as_secs_f64()),
            Stopped::Depth => write!(f, "it nests too deeply"),
            Stopped::Panic(message) => write!(f, "its library fails ({message})"),
            Stopped::NoThread(error) => write!(f, "no thread can be started for it ({error})"),
        }
    }
}

/// Runs `work` within `bounds` and returns its result.
///
/// # Errors
///
/// It exceeds a bound, and its thread stays, stopped, until the program ends; it panics; no thread can be started.
///
/// A thread that exceeds its time stops when it next asks for memory or ends its work, and until then goes on: nothing can
/// end a thread from outside that may hold a lock, such as that of the system's allocator, which a library in C takes
/// unseen. Templates ask for memory with each value that they make, and the regular expressions of tokenizers give up by
/// themselves after so many tries.
pub fn bounded<T: Send + 'static>(bounds: Bounds, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Stopped> {
    bounded_and_kept(bounds, work).map(|(result, _)| result)
}

/// Like [`bounded`], for work in several calls that hands a state on: also returns how many bytes more the result holds
/// than the closure held, so that the next call's bound is less by as much.
pub fn bounded_and_kept<T: Send + 'static>(
    bounds: Bounds,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, isize), Stopped> {
    /// How often a long work's time is looked at.
    const LOOK: Duration = Duration::from_millis(10);
    if LEFT_BEHIND.load(Ordering::Relaxed) >= MOST_LEFT_BEHIND {
        return Err(Stopped::NoThread(io::Error::other("too many that took too much wait in memory for the end")));
    }
    let left_behind = |why: Stopped| {
        LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
        Err(why)
    };
    let worker = Worker::idle().map_err(Stopped::NoThread)?;
    let (answer, answered) = channel();
    let begun = worker.cpu();
    let most = isize::try_from(bounds.bytes).unwrap_or(isize::MAX);
    let account = worker.account.clone();
    let job = Box::new(move || {
        // By this thread: what the job before gave back at its very end is counted by now.
        account.left.store(most, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(work));
        let kept = most.saturating_sub(account.left.load(Ordering::Relaxed));
        // The caller waits for it, unless it has given this thread up.
        let _ = answer.send(result.map(|result| (result, kept)));
    });
    worker.jobs.send(job).expect("a worker that is idle waits for jobs");
    loop {
        match answered.recv_timeout(LOOK) {
            Ok(result) => {
                worker.rest();
                return result.map_err(|panic| Stopped::Panic(message(&*panic)));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Panic("its thread has ended".to_string())),
            Err(RecvTimeoutError::Timeout) if worker.account.is_overdrawn.load(Ordering::Acquire) => {
                return left_behind(Stopped::Memory(bounds.bytes));
            }
            Err(RecvTimeoutError::Timeout) if worker.account.is_too_deep.load(Ordering::Acquire) => {
                return left_behind(Stopped::Depth);
            }
            Err(RecvTimeoutError::Timeout) if worker.cpu().saturating_sub(begun) > bounds.cpu => {
                // It stops when it next asks for memory.
                worker.account.left.store(isize::MIN / 2, Ordering::Relaxed);
                return left_behind(Stopped::Time(bounds.cpu));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_string())
}

/// The name of the threads that run bounded work; their panics are errors and print nothing.
const THREAD: &str = "bounded";
/// Deep recursion of parsers has limits of its own, which are meant for stacks of this size or less.
const STACK_BYTES: usize = 16 << 20;

/// Threads that were left behind with what they had asked for.
static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);
/// So many may be: each keeps at most what its bounds gave it.
const MOST_LEFT_BEHIND: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs bounded work, one job after another.
struct Worker {
    jobs: Sender<Job>,
    account: Arc<Account>,
    /// The clock of the thread's CPU time, which lives as long as this value: the thread waits for jobs till then.
    clock: libc::clockid_t,
}

/// The memory and the stack of a worker's job.
struct Account {
    /// Bytes that it may still ask for.
    left: AtomicIsize,
    /// Whether it has asked for more, and its thread has stopped.
    is_overdrawn: AtomicBool,
    /// The lowest address of the thread's stack.
    stack_end: AtomicUsize,
    /// Whether it has passed that, and its thread has stopped.
    is_too_deep: AtomicBool,
}

static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

impl Worker {
    fn idle() -> io::Result<Worker> {
        let rested = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        rested.map_or_else(Worker::start, Ok)
    }

    fn start() -> io::Result<Worker> {
        silence_panics();
        stop_overflows()?;
        let account = Arc::new(Account {
            left: AtomicIsize::new(isize::MAX),
            is_overdrawn: AtomicBool::new(false),
            stack_end: AtomicUsize::new(0),
            is_too_deep: AtomicBool::new(false),
        });
        let (jobs, received) = channel();
        let (clock, clocked) = channel();
        let own = account.clone();
        thread::Builder::new().name(THREAD.to_string()).stack_size(STACK_BYTES).spawn(move || {
            let _ = clock.send(own_stack_end().and_then(|end| {
                own.stack_end.store(end, Ordering::Relaxed);
                own_clock()
            }));
            work_off(&received, own);
        })?;
        let clock = clocked.recv().map_err(io::Error::other)??;
        Ok(Worker { jobs, account, clock })
    }

    /// The thread's CPU time.
    fn cpu(&self) -> Duration {
        let mut now = MaybeUninit::<libc::timespec>::zeroed();
        // SAFETY: `now` has room for one value, and any bytes are one; the clock is that of a thread that lives.
        let now = unsafe {
            libc::clock_gettime(self.clock, now.as_mut_ptr());
            now.assume_init()
        };
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn rest(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

/// The clock of the calling thread's CPU time, for any thread.
fn own_clock() -> io::Result<libc::clockid_t> {
    let mut clock = 0;
    // SAFETY: the calling thread lives, and `clock` has room for its clock.
    match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } {
        0 => Ok(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The lowest address of the calling thread's stack.
fn own_stack_end() -> io::Result<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::zeroed();
    let (mut end, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the calling thread lives; the attributes are read after they were filled and before they are destroyed.
    let error = unsafe {
        match libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) {
            0 => {
                let error = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut end, &raw mut size);
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                error
            }
            error => error,
        }
    };
    if error == 0 { Ok(end.addr()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// What a fault of memory did before [`stop_overflows`].
static FAULT_BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Has a thread whose bounded work passes the end of its stack stop. Other faults end the program as before.
fn stop_overflows() -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if FAULT_BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a value of this plain struct; both structs outlive the calls, and the handler may run at any
    // time: what was done before is known before it is replaced.
    unsafe {
        if libc::sigaction(libc::SIGSEGV, ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        FAULT_BEFORE.get_or_init(|| before.assume_init());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
        // On the stack for signals that the standard library gives each thread.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // A thread that stops stays on that stack, which has no room for the handlers of other signals.
        libc::sigfillset(&raw mut action.sa_mask);
        match libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

extern "C" fn on_fault(signal: libc::c_int, fault: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// Larger than the guard that the system puts behind a stack.
    const NEAR: usize = 64 << 10;
    // SAFETY: the kernel passes what it knows of the signal; an address, if a fault is the cause, and no process is.
    let (is_fault, at) = unsafe { ((*fault).si_code > 0, (*fault).si_addr().addr()) };
    // SAFETY: see `CountingAllocator::account`.
    if let Some(account) = unsafe { ACCOUNT.get().as_ref() }.filter(|_| is_fault)
        && at.abs_diff(account.stack_end.load(Ordering::Relaxed)) <= NEAR
    {
        account.is_too_deep.store(true, Ordering::Release);
        stop();
    }
    if !is_fault {
        // SAFETY: the signal that another process sent ends this one as soon as the handler returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    if let Some(before) = FAULT_BEFORE.get() {
        // SAFETY: the struct is static. The instruction that failed is tried again, and then does what it did before.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
}

/// Stops the calling thread for ever.
fn stop() -> ! {
    loop {
        // SAFETY: it waits for a signal and touches no memory.
        unsafe { libc::pause() };
    }
}

/// `account` is given up when the thread ends, which it does not while a job runs.
fn work_off(jobs: &Receiver<Job>, account: Arc<Account>) {
    while let Ok(job) = jobs.recv() {
        ACCOUNT.set(Arc::as_ptr(&account));
        job();
        ACCOUNT.set(ptr::null());
    }
}

/// Has panics of bounded work, which their callers report, print nothing.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD) {
                before(info);
            }
        }));
    });
}

thread_local! {
    /// The account of the job that this thread runs; null outside of jobs.
    static ACCOUNT: Cell<*const Account> = const { Cell::new(ptr::null()) };
}

/// The system's allocator, which bounds the memory of [`bounded`] work: a program names it as its `#[global_allocator]`.
pub struct CountingAllocator;

impl CountingAllocator {
    /// The account of this thread's job, if it runs one. Stops the thread if little is left of its stack: were it to
    /// pass the end inside the system's allocator, it would keep a lock that other threads wait for.
    fn account<'a>() -> Option<&'a Account> {
        /// More than the system's allocator takes of a stack.
        const ROOM: usize = 64 << 10;
        let account = ACCOUNT.get();
        // SAFETY: it is null, or set for the time of a job alone, in which the thread's `Arc` keeps the account.
        let account = unsafe { account.as_ref() }?;
        let here = 0u8;
        if (&raw const here).addr().saturating_sub(account.stack_end.load(Ordering::Relaxed)) < ROOM {
            account.is_too_deep.store(true, Ordering::Release);
            stop();
        }
        Some(account)
    }

    /// Books `bytes` more on the account of this thread's job, if it runs one; stops the thread if they are too many.
    fn take(bytes: usize) {
        let Some(account) = CountingAllocator::account() else { return };
        let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
        if account.left.fetch_sub(bytes, Ordering::Relaxed) < bytes {
            account.is_overdrawn.store(true, Ordering::Release);
            stop();
        }
    }

    fn give_back(bytes: usize) {
        if let Some(account) = CountingAllocator::account() {
            account.left.fetch_add(isize::try_from(bytes).unwrap_or(isize::MAX), Ordering::Relaxed);
        }
    }
}

// SAFETY: all memory is the system allocator's, asked for and given back with the caller's own layouts. The count
// neither allocates nor unwinds; a thread that it stops never returns.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CountingAllocator::take(layout.size());
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CountingAllocator::take(layout.size());
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CountingAllocator::give_back(layout.size());
        // SAFETY: the caller's promise that `memory` is of this allocator and `layout`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        CountingAllocator::take(bytes);
        CountingAllocator::give_back(layout.size());
        // SAFETY: the caller's promise about `memory`, `layout` and `bytes`.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bounds = Bounds { bytes: 8 << 20, cpu: Duration::from_millis(200) };

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn work_within_its_bounds_returns_its_result() {
        for size in [0, 1000, 7 << 20] {
            assert_eq!(bounded(SMALL, move || vec![1u8; size].len()).unwrap(), size);
        }
        // Memory that was given back counts no more.
        let grown = bounded(SMALL, || (0..100).map(|_| vec![1u8; 1 << 20].len()).sum::<usize>());
        assert_eq!(grown.unwrap(), 100 << 20);
    }

    #[test]
    fn what_a_result_holds_is_told() {
        let (held, kept) = bounded_and_kept(SMALL, || vec![1u8; 1 << 20]).unwrap();
        assert_eq!(kept, 1 << 20);
        let (rest, given_back) = bounded_and_kept(SMALL, move || held.len()).unwrap();
        assert_eq!((rest, given_back), (1 << 20, -(1 << 20)));
    }

    #[test]
    fn work_that_exceeds_its_memory_stops() {
        let whole = bounded(SMALL, || vec![1u8; 9 << 20].len());
        assert!(matches!(whole, Err(Stopped::Memory(_))), "{whole:?}");
        let doubling = bounded(SMALL, || (0..40).fold("a".to_string(), |text, _| text.clone() + &text).len());
        assert!(matches!(doubling, Err(Stopped::Memory(_))), "{doubling:?}");
    }

    #[test]
    fn work_that_exceeds_its_time_is_left_behind() {
        let ended = bounded(SMALL, || {
            loop {
                std::hint::black_box(vec![1u8; 100]);
            }
        });
        let ended: Result<(), Stopped> = ended;
        assert!(matches!(ended, Err(Stopped::Time(_))), "{ended:?}");
        // Sleep is no CPU time.
        let slept = bounded(SMALL, || thread::sleep(2 * SMALL.cpu));
        slept.unwrap();
    }

    #[test]
    fn work_that_nests_deeper_than_the_stack_stops() {
        /// A list of one list, and so on; it is dropped from the outside.
        struct List(#[expect(dead_code, reason = "held to be dropped")] Option<Box<List>>);
        let bounds = Bounds { bytes: 256 << 20, cpu: Duration::from_secs(60) };
        for _ in 0..2 {
            let ended = bounded(bounds, || drop((0..2_000_000).fold(List(None), |list, _| List(Some(Box::new(list))))));
            assert!(matches!(ended, Err(Stopped::Depth)), "{ended:?}");
            assert_eq!(bounded(SMALL, || 7).unwrap(), 7);
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_next_work_is_done() {
        let ended = bounded(SMALL, || -> () { panic!("type {}", f64::NAN) });
        assert!(matches!(&ended, Err(Stopped::Panic(why)) if why == "type NaN"), "{ended:?}");
        assert_eq!(bounded(SMALL, || 7).unwrap(), 7);
    }
}
