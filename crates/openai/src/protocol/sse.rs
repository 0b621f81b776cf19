//! The frames of server-sent events: one JSON value each, and the end that OpenAI's clients wait for.

use serde::Serialize;

use super::refusal::Refusal;

/// The `Content-Type` of a stream.
pub const CONTENT_TYPE: &str = "text/event-stream";
/// The last frame.
pub const DONE: &[u8] = b"data: [DONE]\n\n";
/// A frame that clients skip; it shows that the connection lives.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

pub(super) const BEGIN: &[u8] = b"data: ";
pub(super) const END: &[u8] = b"\n\n";

/// Appends a frame.
pub fn frame(value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(BEGIN);
    write_json(value, out);
    out.extend_from_slice(END);
}

/// Appends a frame of an event that has a name.
pub fn event(name: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    frame(value, out);
}

/// Appends an error, and the end of the stream.
pub fn fail(refusal: &Refusal, out: &mut Vec<u8>) {
    frame(&refusal.body(), out);
    out.extend_from_slice(DONE);
}

pub(super) fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("memory takes it, and its keys are strings");
}
