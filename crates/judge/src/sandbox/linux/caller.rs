//! The process for which a sandbox server works. Its sockets do not say that it has ended: a fork of it that executes
//! nothing holds them too, and may live on. So the server and its supervisors watch the process itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A descriptor of the process, which forks inherit; readable when the process has ended.
pub(super) struct CallerProcess(OwnedFd);

impl CallerProcess {
    /// Fails with `ESRCH` if there is no such process any more.
    pub fn open(process: u32) -> Result<CallerProcess, Errno> {
        // SAFETY: takes numbers and returns a new descriptor, of which nothing else knows.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0);
            Errno::result(fd).map(|fd| CallerProcess(OwnedFd::from_raw_fd(fd as RawFd)))
        }
    }

    /// Waits until `stream` has something to read, or its end; `false` if the caller has ended.
    pub fn waits_for(&self, stream: &impl AsFd) -> io::Result<bool> {
        let mut sources = [self.as_fd(), stream.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        loop {
            match poll(&mut sources, PollTimeout::NONE) {
                Ok(_) => return Ok(!sources[0].any().unwrap_or(true)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for CallerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
