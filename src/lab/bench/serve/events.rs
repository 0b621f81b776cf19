//! Reads server-sent events of a stream of completions, without parsing what is not needed: at thousands of streams the
//! load's own work must not be what is measured.

use memchr::{memchr, memmem};
use serde_json::Value;

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Text of the choice with this index.
    Text(usize),
    /// The last event of a choice, or one without text.
    Other,
    Usage(StreamUsage),
    /// What the server says in place of an answer.
    Error(String),
    /// The stream's last event.
    Done,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamUsage {
    pub prompt: u64,
    pub completion: u64,
    pub cached: u64,
}

impl StreamUsage {
    /// The `usage` of an answer or of an event; `None`: it has none.
    pub fn of(answer: &Value) -> Option<StreamUsage> {
        let usage = answer.get("usage").filter(|usage| usage.is_object())?;
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        Some(StreamUsage {
            prompt: count(&usage["prompt_tokens"]),
            completion: count(&usage["completion_tokens"]),
            cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
        })
    }
}

/// Cuts a stream's bytes into events, wherever they are cut when they arrive.
#[derive(Default)]
pub struct EventReader {
    /// The beginning of a line whose end has not arrived.
    cut: Vec<u8>,
    /// Whether events name several choices.
    has_choices: bool,
}

impl EventReader {
    pub fn new(has_choices: bool) -> EventReader {
        EventReader { cut: Vec::new(), has_choices }
    }

    /// Calls `each` with every event that ends in `bytes`.
    pub fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Event)) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            let event = if self.cut.is_empty() {
                self.event(line)
            } else {
                self.cut.extend_from_slice(line);
                let line = std::mem::take(&mut self.cut);
                self.event(&line)
            };
            event.into_iter().for_each(&mut each);
        }
        self.cut.extend_from_slice(bytes);
    }

    fn event(&self, line: &[u8]) -> Option<Event> {
        let data = line.strip_prefix(b"data:")?.trim_ascii();
        if data == b"[DONE]" {
            return Some(Event::Done);
        }
        let has = |what: &[u8]| memmem::find(data, what).is_some();
        if has(b"\"usage\":{") || data.starts_with(b"{\"error\"") {
            return Some(Self::parsed(data));
        }
        // An event that ends a choice, or only names the role, has no token's time.
        let is_empty = has(b"\"content\":\"\"") || has(b"\"text\":\"\"");
        if is_empty || has(b"\"finish_reason\":\"") {
            return Some(Event::Other);
        }
        Some(Event::Text(if self.has_choices { index(data) } else { 0 }))
    }

    fn parsed(data: &[u8]) -> Event {
        let Ok(value) = serde_json::from_slice::<Value>(data) else { return Event::Other };
        match (value.get("error"), StreamUsage::of(&value)) {
            (Some(error), _) => {
                Event::Error(error["message"].as_str().unwrap_or("an error without a message").to_owned())
            }
            (None, Some(usage)) => Event::Usage(usage),
            (None, None) => Event::Other,
        }
    }
}

/// The number behind the first `"index":`; 0 if there is none.
fn index(data: &[u8]) -> usize {
    const KEY: &[u8] = b"\"index\":";
    let Some(at) = memmem::find(data, KEY) else { return 0 };
    let digits = data[at + KEY.len()..].trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: usize, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        : a comment\n\n\
        data: {\"choices\":[{\"index\":12,\"delta\":{\"content\":\"a\\nb\"},\"finish_reason\":null}],\"usage\":null}\r\n\r\n\
        data: {\"choices\":[{\"index\":3,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\
        \"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n\
        data: {\"error\":{\"message\":\"the engine has stopped\"}}\n\n\
        data: [DONE]\n\n";

    proptest! {
        #[test]
        fn events_are_the_same_wherever_the_stream_is_cut(mut cuts in prop::collection::vec(0..STREAM.len(), 0..20)) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let (mut reader, mut events) = (EventReader::new(true), Vec::new());
            for pair in cuts.windows(2) {
                reader.feed(&STREAM.as_bytes()[pair[0]..pair[1]], |event| events.push(event));
            }
            prop_assert_eq!(events, vec![
                Event::Other,
                Event::Text(12),
                Event::Other,
                Event::Usage(StreamUsage { prompt: 7, completion: 2, cached: 5 }),
                Event::Error("the engine has stopped".to_owned()),
                Event::Done,
            ]);
        }
    }
}
