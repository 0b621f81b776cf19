//! Frames to and from a Python process: a length (four bytes, little-endian), a letter for the kind, a payload. Streams
//! do not block; how long a process is waited for is its [`Patience`]'s to say.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::fair_clock::Patience;

/// Who has sent so many bytes and not been read waits for its reader, as a stream holds little more.
const MUCH: usize = 64 << 10;

/// The result of reading from a stream, or why nothing can be sent.
pub(super) enum StreamRead {
    Frame {
        kind: u8,
        payload: Vec<u8>,
    },
    /// The other side has closed the stream.
    End,
    /// The deadline has passed.
    TimeOut,
    /// The frame would be longer than allowed; it is not read.
    TooLong,
}

/// Sends a frame to a process that may not read it.
pub(super) fn send(
    mut stream: &UnixStream,
    kind: u8,
    payload: &[u8],
    patience: &mut dyn Patience,
) -> Result<(), StreamRead> {
    let length = u32::try_from(payload.len() + 1).map_err(|_| StreamRead::TooLong)?;
    let mut head = length.to_le_bytes().to_vec();
    head.push(kind);
    // A short frame wakes its reader once.
    let (short, long) = if payload.len() < 4096 { (payload, &[][..]) } else { (&[][..], payload) };
    head.extend_from_slice(short);
    for mut part in [&head[..], long] {
        while !part.is_empty() {
            if wait_until(stream, libc::POLLOUT, patience)? {
                patience.end(true);
            }
            match stream.write(part) {
                Ok(written) => part = &part[written..],
                Err(error) if is_to_be_tried_again(&error) => {}
                Err(_) => return Err(StreamRead::End),
            }
        }
    }
    Ok(())
}

/// Reads the next frame, of at most `most` bytes.
pub(super) fn receive(stream: &UnixStream, most: u64, patience: &mut dyn Patience) -> StreamRead {
    let mut head = [0; 5];
    if let Err(why) = fill(stream, &mut head, patience) {
        return why;
    }
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    let Some(length) = length.checked_sub(1) else { return StreamRead::End };
    if u64::from(length) > most {
        return StreamRead::TooLong;
    }
    // The announced bytes may never come, so memory is allocated as they arrive.
    let mut payload = Vec::new();
    while payload.len() < length as usize {
        let had = payload.len();
        payload.resize((length as usize).min(had + (1 << 20)), 0);
        if let Err(why) = fill(stream, &mut payload[had..], patience) {
            return why;
        }
    }
    StreamRead::Frame { kind, payload }
}

fn fill(mut stream: &UnixStream, mut into: &mut [u8], patience: &mut dyn Patience) -> Result<(), StreamRead> {
    while !into.is_empty() {
        let waited = wait_until(stream, libc::POLLIN, patience)?;
        let read = stream.read(into);
        if waited {
            // It goes on while this thread comes late, unless it has said all or cannot say more.
            patience.end(read.as_ref().is_ok_and(|&read| read == into.len() || read >= MUCH));
        }
        match read {
            Ok(0) => return Err(StreamRead::End),
            Ok(read) => into = &mut into[read..],
            Err(error) if is_to_be_tried_again(&error) => {}
            Err(_) => return Err(StreamRead::End),
        }
    }
    Ok(())
}

/// Waits until the stream can be read or written. Returns whether it had to, and then `patience` is still to end. What
/// is there when the time is over is still taken: this thread may come late.
fn wait_until(stream: &UnixStream, event: libc::c_short, patience: &mut dyn Patience) -> Result<bool, StreamRead> {
    if is_ready(stream, event, Duration::ZERO) {
        return Ok(false);
    }
    loop {
        let left = patience.begin().ok_or(StreamRead::TimeOut)?;
        if is_ready(stream, event, left) {
            return Ok(true);
        }
        patience.end(false);
    }
}

/// Whether the stream can be read or written, or has ended, within `wait`.
fn is_ready(stream: &UnixStream, event: libc::c_short, wait: Duration) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: event, revents: 0 };
    let milliseconds = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads and writes one entry, which outlives the call.
    unsafe { libc::poll(&raw mut polled, 1, milliseconds) > 0 }
}

fn is_to_be_tried_again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side sends one byte more whenever it is waited for.
    struct Trickle {
        other: UnixStream,
        rest: Vec<u8>,
        moved: Vec<bool>,
    }

    impl Patience for Trickle {
        fn begin(&mut self) -> Option<Duration> {
            self.other.write_all(&[self.rest.remove(0)]).unwrap();
            Some(Duration::from_millis(1))
        }

        fn end(&mut self, moved: bool) {
            self.moved.push(moved);
        }
    }

    #[test]
    fn who_sends_byte_by_byte_has_its_turn_until_the_last() {
        let (ours, other) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut trickle = Trickle { other, rest: b"\x04\0\0\0Rabc".to_vec(), moved: Vec::new() };
        assert!(
            matches!(receive(&ours, 3, &mut trickle), StreamRead::Frame { kind: b'R', payload } if payload == b"abc")
        );
        assert_eq!(trickle.moved, [false, false, false, false, true, false, false, true]);
    }
}
