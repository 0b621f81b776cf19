//! Frames to and from a Python process: a length (four bytes, little-endian), a letter for the kind, a payload.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

pub(super) fn send(mut stream: &UnixStream, kind: u8, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len() + 1).map_err(|_| io::Error::other("a message of 4 GiB"))?;
    let mut head = length.to_le_bytes().to_vec();
    head.push(kind);
    if payload.len() < 4096 {
        head.extend_from_slice(payload);
        return stream.write_all(&head);
    }
    stream.write_all(&head)?;
    stream.write_all(payload)
}

/// How long to wait on a stream before asking again, more than zero; `None` if the time is over.
pub(super) type Patience<'a> = dyn FnMut() -> Option<Duration> + 'a;

/// Sends a frame to a process that may not read it.
pub(super) fn send_within(
    mut stream: &UnixStream,
    kind: u8,
    payload: &[u8],
    patience: &mut Patience<'_>,
) -> Result<(), StreamRead> {
    let length = u32::try_from(payload.len() + 1).map_err(|_| StreamRead::TooLong)?;
    let head = [&length.to_le_bytes()[..], &[kind]].concat();
    for mut part in [&head, payload] {
        while !part.is_empty() {
            let left = patience().ok_or(StreamRead::TimeOut)?;
            if stream.set_write_timeout(Some(left)).is_err() {
                return Err(StreamRead::End);
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
pub(super) fn receive(stream: &UnixStream, most: u64, patience: &mut Patience<'_>) -> StreamRead {
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

fn fill(mut stream: &UnixStream, mut into: &mut [u8], patience: &mut Patience<'_>) -> Result<(), StreamRead> {
    while !into.is_empty() {
        let left = patience().ok_or(StreamRead::TimeOut)?;
        if stream.set_read_timeout(Some(left)).is_err() {
            return Err(StreamRead::End);
        }
        match stream.read(into) {
            Ok(0) => return Err(StreamRead::End),
            Ok(read) => into = &mut into[read..],
            Err(error) if is_to_be_tried_again(&error) => {}
            Err(_) => return Err(StreamRead::End),
        }
    }
    Ok(())
}

fn is_to_be_tried_again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
