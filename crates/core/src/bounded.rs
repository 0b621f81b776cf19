//! Bounds work on what strangers wrote, such as templates: a helper process does it, our own executable run again,
//! whose memory, CPU time and stack the system limits. Also catches the panics of libraries. What the work is, is up to
//! the callers.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::memory::{self, MemoryFault};

/// What one call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Memory in addition to that of a helper that has done nothing yet.
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
    /// The helper does not start, or ends for another reason.
    NoHelper(io::Error),
    /// Without a helper: the thread that would do it does not start.
    NoThread(io::Error),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A limit of the process, which its helpers inherit, may leave less than the bound.
            Stopped::Memory(bytes) => match memory::free() {
                free if free.is_limited_by_process() && free.bytes < *bytes => {
                    write!(f, "it takes more memory than there is; free are {free}")
                }
                _ => write!(f, "it takes more than {} MiB of memory", bytes >> 20),
            },
            Stopped::Time(cpu) => write!(f, "it takes more than {} s", cpu.as_secs_f64()),
            Stopped::Depth => write!(f, "it nests too deeply"),
            Stopped::Panic(message) => write!(f, "its library fails ({message})"),
            Stopped::NoHelper(error) => write!(f, "the helper process for it fails ({})", MemoryFault(error)),
            Stopped::NoThread(error) => write!(f, "no thread starts for it ({})", MemoryFault(error)),
        }
    }
}

/// A kind of work: makes bytes of bytes. Its calls are independent of each other.
pub struct Work {
    name: &'static str,
    run: fn(&[u8]) -> Vec<u8>,
    /// Helpers that have ended their last call.
    idle: Mutex<Vec<Helper>>,
}

impl Work {
    pub const fn new(name: &'static str, run: fn(&[u8]) -> Vec<u8>) -> Work {
        Work { name, run, idle: Mutex::new(Vec::new()) }
    }

    /// One call within `bounds`: by a helper where the program has one ([`enter_if_helper`], [`use_helper`]), else in
    /// this process, where nothing but the work itself bounds it.
    ///
    /// # Errors
    ///
    /// It exceeds a bound, or panics; the helper does not start.
    pub fn call(&self, bounds: Bounds, request: &[u8]) -> Result<Vec<u8>, Stopped> {
        let Some(executable) = EXECUTABLE.get() else {
            let done = on_large_stack(|| caught(|| (self.run)(request))).map_err(Stopped::NoThread)?;
            return done.map_err(Stopped::Panic);
        };
        let rested = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // A process forked from the one that started a helper has the same end of its stream.
        let own = rested.filter(|helper| helper.caller == std::process::id());
        let mut helper = own.map_or_else(|| Helper::start(executable, self.name), Ok).map_err(Stopped::NoHelper)?;
        let answer = helper.call(bounds, request)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
        Ok(answer)
    }
}

/// Runs `work` where recursion ends by limits of its own, such as a template's steps, and not by that of the stack.
///
/// # Errors
///
/// The thread does not start.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    /// Address space, of which what is not touched takes no memory.
    const BYTES: usize = 512 << 20;
    thread::scope(|scope| {
        let started = thread::Builder::new().stack_size(BYTES).spawn_scoped(scope, work);
        started.map(|started| started.join().expect("panics are caught inside"))
    })
}

/// The executable whose `main` begins with [`enter_if_helper`]; empty in a program that has none.
static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
/// The helper's argv[0]; no program has this path.
const NAME: &str = "offshoot [helper]";
/// Whether this process is a helper.
static IS_HELPER: OnceLock<()> = OnceLock::new();

/// Has the command `offshoot` at this path be the helper of a program that is not Rust's alone, such as Python.
pub fn use_helper(command: PathBuf) {
    let _ = EXECUTABLE.set(command);
}

/// Whether calls run in this process, where nothing bounds their memory and time.
pub fn is_unbounded() -> bool {
    IS_HELPER.get().is_none() && EXECUTABLE.get().is_none()
}

/// If this process was started as a helper, works off its caller's calls and never returns. Otherwise the program's
/// executable is from now on the helper of all bounded work. `works`: all kinds that it can be asked for.
pub fn enter_if_helper(works: &[&'static Work]) {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != NAME) {
        // Also of a program whose file has been replaced meanwhile.
        let own = PathBuf::from("/proc/self/exe");
        if let Some(executable) = own.exists().then_some(own).or_else(|| std::env::current_exe().ok()) {
            use_helper(executable);
        }
        return;
    }
    let asked = arguments.next().unwrap_or_default();
    let Some(work) = works.iter().find(|work| asked == work.name) else { std::process::exit(2) };
    let served = io::stdin().as_fd().try_clone_to_owned().and_then(|stream| serve(work, &mut UnixStream::from(stream)));
    std::process::exit(i32::from(served.is_err()));
}

/// A call's head: its length, and its bounds in bytes and microseconds. An answer's head: its length and its kind.
const HEAD: usize = 24;
const ANSWER_HEAD: usize = 9;
const ANSWER: u8 = 0;
const PANIC: u8 = 1;

/// Answers calls until the caller closes the stream.
fn serve(work: &Work, stream: &mut UnixStream) -> io::Result<()> {
    /// Deep recursion of parsers has limits of its own, which are meant for stacks of this size or less.
    const STACK_BYTES: usize = 16 << 20;
    IS_HELPER.get_or_init(|| ());
    limits::take_defaults()?;
    let nothing_done = limits::held_bytes();
    let served = thread::scope(|scope| {
        let calls = || {
            let mut head = [0; HEAD];
            while stream.read_exact(&mut head).is_ok() {
                let [length, bytes, micros] = words(&head);
                let mut request = vec![0; length];
                stream.read_exact(&mut request)?;
                limits::set(nothing_done.saturating_add(bytes as u64), Duration::from_micros(micros as u64))?;
                let (kind, answer) = match caught(|| (work.run)(&request)) {
                    Ok(answer) => (ANSWER, answer),
                    Err(message) => (PANIC, message.into_bytes()),
                };
                limits::lift()?;
                stream.write_all(&[&answer.len().to_le_bytes()[..], &[kind]].concat())?;
                stream.write_all(&answer)?;
            }
            Ok(())
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, calls).map(|thread| thread.join())
    });
    served?.unwrap_or_else(|_| Err(io::Error::other("it panics")))
}

fn words(head: &[u8; HEAD]) -> [usize; 3] {
    let word = |ix: usize| usize::from_le_bytes(head[8 * ix..][..8].try_into().expect("8 bytes"));
    [word(0), word(1), word(2)]
}

/// A process that works off one call at a time.
struct Helper {
    stream: UnixStream,
    process: Child,
    /// The process that started it.
    caller: u32,
}

impl Helper {
    fn start(executable: &PathBuf, work: &str) -> io::Result<Helper> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new(executable);
        command.arg0(NAME).arg(work).env_clear().current_dir("/").stdin(Stdio::from(OwnedFd::from(theirs)));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Helper { stream, process, caller: std::process::id() })
    }

    fn call(&mut self, bounds: Bounds, request: &[u8]) -> Result<Vec<u8>, Stopped> {
        let micros = usize::try_from(bounds.cpu.as_micros()).unwrap_or(usize::MAX);
        let head = [request.len(), bounds.bytes, micros].map(usize::to_le_bytes).concat();
        let mut answered = || -> io::Result<(u8, Vec<u8>)> {
            self.stream.write_all(&head)?;
            self.stream.write_all(request)?;
            let mut head = [0; ANSWER_HEAD];
            self.stream.read_exact(&mut head)?;
            let (length, kind) = head.split_at(8);
            let mut answer = vec![0; usize::from_le_bytes(length.try_into().expect("8 bytes"))];
            self.stream.read_exact(&mut answer)?;
            Ok((kind[0], answer))
        };
        match answered() {
            Ok((ANSWER, answer)) => Ok(answer),
            Ok((_, message)) => Err(Stopped::Panic(String::from_utf8_lossy(&message).into_owned())),
            Err(error) => Err(match self.process.wait() {
                Ok(status) => why_it_ended(status, bounds),
                Err(_) => Stopped::NoHelper(error),
            }),
        }
    }
}

fn why_it_ended(status: ExitStatus, bounds: Bounds) -> Stopped {
    match status.signal() {
        // Rust's library aborts where memory is refused; the system kills where there is none.
        Some(libc::SIGABRT | libc::SIGKILL) => Stopped::Memory(bounds.bytes),
        Some(libc::SIGSEGV | libc::SIGBUS) => Stopped::Depth,
        Some(libc::SIGPROF) => Stopped::Time(bounds.cpu),
        _ => Stopped::NoHelper(io::Error::other(format!("it ends with {status}"))),
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.caller == std::process::id() {
            // It ends when its stream does.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            let _ = self.process.wait();
        }
    }
}

/// The limits of a helper's process.
mod limits {
    use std::io;
    use std::mem::MaybeUninit;
    use std::time::Duration;

    /// Faults and aborts end the process, without a core.
    pub fn take_defaults() -> io::Result<()> {
        // SAFETY: sets the default action, of a signal that exists; Rust's library would say and do more.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        set_limit(libc::RLIMIT_CORE as i32, 0)
    }

    /// The process may hold so much memory, and take so much CPU time from now, before it is ended.
    pub fn set(bytes: u64, cpu: Duration) -> io::Result<()> {
        set_limit(libc::RLIMIT_DATA as i32, bytes)?;
        // 0 would be no limit.
        set_timer(cpu.max(Duration::from_micros(1)))
    }

    pub fn lift() -> io::Result<()> {
        set_timer(Duration::ZERO)?;
        set_limit(libc::RLIMIT_DATA as i32, u64::MAX)
    }

    /// Memory that counts towards `RLIMIT_DATA`; 0 where the system does not say.
    pub fn held_bytes() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmData:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kilobytes.unwrap_or(0) << 10
    }

    /// Sets the limit that the process itself may raise again, up to the one that it was started with.
    fn set_limit(which: i32, most: u64) -> io::Result<()> {
        let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
        // SAFETY: `limit` has room for the value, any bytes of which are one; `which` is a limit of this system.
        let done = unsafe {
            libc::getrlimit(which as _, limit.as_mut_ptr());
            let mut limit = limit.assume_init();
            limit.rlim_cur = most.min(limit.rlim_max);
            libc::setrlimit(which as _, &raw const limit)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// SIGPROF ends the process after so much CPU time; never, if it is 0.
    fn set_timer(cpu: Duration) -> io::Result<()> {
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let value = libc::timeval { tv_sec: cpu.as_secs() as _, tv_usec: cpu.subsec_micros() as _ };
        let timer = libc::itimerval { it_interval: none, it_value: value };
        // SAFETY: `timer` outlives the call, and the old value is not asked for.
        let done = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

thread_local! {
    /// Whether this thread's panics are caught, and their messages reported by whoever catches them.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may panic: a library, on input that it does not expect. Returns the panic's message, and prints nothing.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                before(info);
            }
        }));
    });
    let outer = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(outer);
    result.map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test has no helper.
    static ECHO: Work = Work::new("echo", |request| match request {
        b"panic" => panic!("type {}", f64::NAN),
        other => other.to_vec(),
    });
    const SMALL: Bounds = Bounds { bytes: 8 << 20, cpu: Duration::from_millis(200) };

    #[test]
    fn without_a_helper_work_is_done_here() {
        assert!(is_unbounded());
        assert_eq!(ECHO.call(SMALL, b"seven").unwrap(), b"seven");
    }

    #[test]
    fn a_panic_is_an_error_and_the_next_work_is_done() {
        let ended = ECHO.call(SMALL, b"panic");
        assert!(matches!(&ended, Err(Stopped::Panic(why)) if why == "type NaN"), "{ended:?}");
        assert_eq!(ECHO.call(SMALL, b"seven").unwrap(), b"seven");
        assert_eq!(caught(|| -> () { panic!("plainly") }).unwrap_err(), "plainly");
    }

    #[test]
    fn ends_say_which_bound_was_exceeded() {
        let ended = |signal| why_it_ended(ExitStatus::from_raw(signal), SMALL).to_string();
        assert_eq!(ended(libc::SIGABRT), "it takes more than 8 MiB of memory");
        assert_eq!(ended(libc::SIGPROF), "it takes more than 0.2 s");
        assert_eq!(ended(libc::SIGSEGV), "it nests too deeply");
        assert!(ended(libc::SIGTERM).contains("helper process"));
    }

    #[test]
    fn a_helper_that_is_none_is_an_error() {
        let mut helper = Helper::start(&PathBuf::from("/bin/true"), "echo").unwrap();
        let ended = helper.call(SMALL, b"seven");
        assert!(matches!(ended, Err(Stopped::NoHelper(_))), "{ended:?}");
    }
}
