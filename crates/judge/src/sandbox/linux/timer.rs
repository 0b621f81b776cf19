//! A bound on the time that one system call of a supervisor waits, so that it looks at its candidate often enough.

use std::io;

use nix::errno::Errno;

/// Longest wait, in microseconds.
const WAIT_MICROSECONDS: libc::suseconds_t = 2000;

/// Interrupts a call of this process that waits, again and again until dropped: the first time may be before the call.
pub(super) struct Timer;

impl Timer {
    pub fn start() -> Timer {
        Timer::set(WAIT_MICROSECONDS);
        Timer
    }

    fn set(microseconds: libc::suseconds_t) {
        let each = libc::timeval { tv_sec: 0, tv_usec: microseconds };
        let timer = libc::itimerval { it_interval: each, it_value: each };
        // SAFETY: the kernel reads one struct, which outlives the call, and writes nothing.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        Timer::set(0);
    }
}

/// Has the timer's signal interrupt a call, and do nothing else, in this process.
pub(super) fn be_interrupted() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeros is a value of this plain struct: no flags, so that the call is not begun again.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: the handler does nothing; the kernel reads one struct, which outlives the call.
    Errno::result(unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}
