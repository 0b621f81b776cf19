//! The messages between caller, server and supervisor. The caller's request to the server is a message with file
//! descriptors ([`CandidateFds`]) only; the rest goes over the candidate's own control stream: a [`CandidateSpec`] to
//! the supervisor, a [`SupervisorReport`] back. If the caller closes that stream, or sends a byte, the candidate is
//! killed.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::probe::ProbeTarget;
use super::{Confined, How};

/// A candidate to start.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct CandidateSpec {
    pub confined: Confined,
    /// Run these probes instead of the program.
    pub probes: Option<ProbeTarget>,
}

/// The supervisor's report on a candidate.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) enum SupervisorReport {
    Ended {
        how: How,
        wall: Duration,
        cpu: Duration,
        peak_bytes: u64,
    },
    /// The program never started, or its files cannot be kept: the step that failed, and why.
    Failed {
        doing: String,
        why: String,
    },
}

/// The descriptors of one candidate, in the order in which they are sent; a channel may be missing.
pub(super) struct CandidateFds {
    pub control: OwnedFd,
    /// The file of the candidate's clock ([`ClockFile`](crate::fair_clock::ClockFile)).
    pub clock: OwnedFd,
    pub program: ProgramFds,
}

/// The descriptors of a program.
pub(super) struct ProgramFds {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub channel: Option<OwnedFd>,
}

/// A request to the sandbox server, or of the server to a supervisor.
pub(super) enum ServerRequest {
    Run(CandidateFds),
    /// The server must end; the caller has removed its folders.
    Farewell,
    /// The other side ended without a farewell.
    Gone,
}

/// The caller's last message: a byte without descriptors.
pub(super) const FAREWELL: &[u8] = b".";

impl CandidateFds {
    pub fn send(&self, server: &impl AsRawFd) -> io::Result<()> {
        let mut fds = vec![self.control.as_raw_fd(), self.clock.as_raw_fd()];
        fds.extend(self.program.raw());
        send_fds(server, &fds)
    }

    pub fn receive(sender: &impl AsRawFd) -> io::Result<ServerRequest> {
        let Some((_, fds)) = receive_fds(sender)? else { return Ok(ServerRequest::Gone) };
        if fds.is_empty() {
            return Ok(ServerRequest::Farewell);
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(incomplete);
        let (control, clock) = (next()?, next()?);
        Ok(ServerRequest::Run(CandidateFds { control, clock, program: ProgramFds::of(fds)? }))
    }
}

impl ProgramFds {
    pub fn send(&self, to: &impl AsRawFd) -> io::Result<()> {
        send_fds(to, &self.raw().collect::<Vec<_>>())
    }

    /// `None` if the sender has ended.
    pub fn receive(from: &impl AsRawFd) -> io::Result<Option<ProgramFds>> {
        receive_fds(from)?.map(|(_, fds)| ProgramFds::of(fds.into_iter())).transpose()
    }

    fn of(mut fds: impl Iterator<Item = OwnedFd>) -> io::Result<ProgramFds> {
        let mut next = || fds.next().ok_or_else(incomplete);
        Ok(ProgramFds { stdin: next()?, stdout: next()?, stderr: next()?, channel: fds.next() })
    }

    fn raw(&self) -> impl Iterator<Item = RawFd> {
        [&self.stdin, &self.stdout, &self.stderr].into_iter().chain(&self.channel).map(|fd| fd.as_raw_fd())
    }
}

fn incomplete() -> io::Error {
    io::Error::other("a request without its file descriptors")
}

pub(super) fn send_fds(to: &impl AsRawFd, fds: &[RawFd]) -> io::Result<()> {
    sendmsg::<()>(
        to.as_raw_fd(),
        &[IoSlice::new(b"!")],
        &[ControlMessage::ScmRights(fds)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// One byte and its descriptors; `None` at the end of the stream.
pub(super) fn receive_fds(from: &impl AsRawFd) -> io::Result<Option<(u8, Vec<OwnedFd>)>> {
    let mut space = nix::cmsg_space!([RawFd; 8]);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(from.as_raw_fd(), &mut into, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just opened these descriptors for us, and nothing else knows of them.
            received.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(Some((byte[0], received)))
}

pub(super) fn send_message(stream: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&text)
}

pub(super) fn receive_message<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
