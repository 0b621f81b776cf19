//! Handles signals: Ctrl-C and requests to terminate end a command that still prepares its work; one that works is
//! asked to stop. A signal that the parent process ignores (`nohup`, a shell's background job) stays ignored.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use offshoot_core::error::{Error, Result};
use offshoot_core::interrupt::Interrupt;
use offshoot_core::out;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// The first signal received; 0 before.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// The request that the first signal makes. A second one, or the first of a command that does not listen yet, ends the
/// program at once.
pub fn on_signals() -> Result<Arc<Interrupt>> {
    let interrupt = Arc::new(Interrupt::default());
    let seen = interrupt.clone();
    let failed = |error| Error::Internal(format!("signals cannot be handled: {error}"));
    let ignored = ignored_signals();
    let handled = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(handled).map_err(failed)?;
    let wait = move || {
        for signal in signals.forever() {
            FIRST.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).ok();
            if !seen.request() {
                if !seen.is_heard() {
                    out::aside("stopped while preparing: nothing was begun");
                }
                std::process::exit(128 + signal);
            }
            out::aside("stopping: what is finished is kept, and a server ends what it began (again: stop at once)");
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(wait).map_err(failed)?;
    Ok(interrupt)
}

/// Has a file that grows beyond the limit of `ulimit -f` be an error of the write, like a full disk, instead of the end
/// of the process in the middle of a line. Programs that this one starts do not inherit that.
pub fn survive_file_limit() -> Result<()> {
    let failed = |error| Error::Internal(format!("signals cannot be handled: {error}"));
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop).map_err(failed)
}

/// Signals ignored since the start of the process, as a bit mask (bit number - 1); 0 if the system does not report
/// them.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The error's exit code; after a signal, 128 plus the signal's number, as in shells.
pub fn exit_code(error: &Error) -> u8 {
    match (error, FIRST.load(Ordering::Relaxed)) {
        (Error::Interrupted, signal @ 1..=127) => 128 + signal as u8,
        _ => error.exit_code(),
    }
}
