//! System calls about which the kernel asks the supervisor, by a seccomp filter: which they are, and how they are
//! answered. What is hostile is left to `calls`, what connects to `connections`.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;

use super::timer::Timer;

/// A call that the kernel asks about.
pub(super) struct AskedCall(libc::seccomp_notif);

impl AskedCall {
    /// The next one; `None` if its process has ended meanwhile. Call it when `listener` is readable.
    pub fn receive(listener: &OwnedFd) -> Option<AskedCall> {
        let _timer = Timer::start();
        // SAFETY: all zeros is a value of this plain struct, and what the kernel wants to find there.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes a struct of this type through the pointer, which outlives the call.
        let read = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
        (read >= 0).then_some(AskedCall(call))
    }

    pub fn number(&self) -> libc::c_long {
        libc::c_long::from(self.0.data.nr)
    }

    /// Whether it is this machine's `connect`, and not a call of another architecture with the same number.
    pub fn is_connect(&self) -> bool {
        self.number() == libc::SYS_connect && NATIVE.is_some_and(|native| self.0.data.arch == native)
    }

    /// The thread that makes it.
    pub fn thread(&self) -> u32 {
        self.0.pid
    }

    pub fn arguments(&self) -> [u64; 6] {
        self.0.data.args
    }

    /// Lets the call return; its process may have ended.
    pub fn answer(&self, listener: &OwnedFd, result: Result<(), Errno>) {
        let error = result.map_or_else(|why| -(why as i32), |()| 0);
        let mut answer = libc::seccomp_notif_resp { id: self.0.id, val: 0, error, flags: 0 };
        // SAFETY: the kernel reads a struct of this type through the pointer, which outlives the call.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }

    /// Whether its process still waits for the answer.
    pub fn is_waiting(&self, listener: &OwnedFd) -> bool {
        let mut id = self.0.id;
        // SAFETY: the kernel reads one number through the pointer, which outlives the call.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id) == 0 }
    }
}

/// `AUDIT_ARCH_X86_64` and its like: the number of the ELF machine, 64 bits wide, little-endian.
const NATIVE: Option<u32> = match () {
    () if cfg!(target_arch = "x86_64") => Some(0xc000_003e),
    () if cfg!(target_arch = "aarch64") => Some(0xc000_00b7),
    () if cfg!(target_arch = "riscv64") => Some(0xc000_00f3),
    () => None,
};
