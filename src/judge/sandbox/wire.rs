//! What caller, server and supervisor say to each other. The caller asks the server by a message that carries file
//! descriptors ([`CandidateFds`]) and nothing else; everything about one candidate then goes over its own control
//! stream: an [`CandidateSpec`] down, a
//! [`SupervisorReport`] up. The caller's closing that stream, or one byte on it, ends the candidate.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::How;
use super::probe::ProbeTarget;

/// One candidate, as the supervisor starts it.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct CandidateSpec {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub readable: Vec<PathBuf>,
    pub folder: PathBuf,
    pub cpu: Duration,
    pub memory_bytes: u64,
    pub output_bytes: u64,
    pub processes: u32,
    /// Instead of the program.
    pub probes: Option<ProbeTarget>,
}

/// What the supervisor reports of a candidate.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) enum SupervisorReport {
    Ended {
        how: How,
        wall: Duration,
        cpu: Duration,
        peak_bytes: u64,
    },
    /// The program never started: what could not be done, and why.
    NotStarted {
        doing: String,
        why: String,
    },
}

/// The descriptors of one candidate, in the order in which they are sent; a channel may be missing.
pub(super) struct CandidateFds {
    pub control: OwnedFd,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub channel: Option<OwnedFd>,
}

/// A request of the caller to the sandbox server.
pub(super) enum ServerRequest {
    Run(CandidateFds),
    /// The server shall end: the caller has removed its folders.
    Farewell,
    /// The caller ended without a farewell.
    Gone,
}

/// The caller's farewell: a byte without descriptors.
pub(super) const FAREWELL: &[u8] = b".";

impl CandidateFds {
    pub fn send(&self, server: &impl AsRawFd) -> io::Result<()> {
        let mut fds = vec![&self.control, &self.stdin, &self.stdout, &self.stderr];
        fds.extend(&self.channel);
        send_fds(server, &fds.iter().map(|fd| fd.as_raw_fd()).collect::<Vec<_>>())
    }

    pub fn receive(caller: &impl AsRawFd) -> io::Result<ServerRequest> {
        let Some((_, fds)) = receive_fds(caller)? else { return Ok(ServerRequest::Gone) };
        if fds.is_empty() {
            return Ok(ServerRequest::Farewell);
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| io::Error::other("a request without its file descriptors"));
        let (control, stdin, stdout, stderr) = (next()?, next()?, next()?, next()?);
        Ok(ServerRequest::Run(CandidateFds { control, stdin, stdout, stderr, channel: fds.next() }))
    }
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

/// One byte and the descriptors that come with it; None at the end of the stream.
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

pub(super) fn say(stream: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&text)
}

pub(super) fn hear<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
