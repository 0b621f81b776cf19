//! Signals as a program finds them that a shell starts: none ignored, none handled, none blocked, whatever this process
//! has inherited from its caller (`nohup` ignores SIGHUP). Who sends signals, and which a supervisor heeds, is said
//! where that is done.

use std::ffi::c_int;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

/// Sets all signals but those in `kept` to their default action, and blocks none.
pub(super) fn reset(kept: &[Signal]) -> nix::Result<()> {
    let fixed = [Signal::SIGKILL, Signal::SIGSTOP];
    let is_left = |number: c_int| fixed.iter().chain(kept).any(|&signal| signal as c_int == number);
    // The C library keeps two numbers below its real-time signals for itself.
    for number in (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|&number| !is_left(number)) {
        // SAFETY: the default action runs no code of ours.
        if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(Errno::last());
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}
