//! What is kept of a response beside its branch: the conversation that it ends. Turns are shared by the responses that
//! go on from each other, and their bytes are counted as long as anybody has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use offshoot_core::ids::TokenId;
use offshoot_openai::protocol::Turn;

/// Bytes of all kept responses, at most: beyond it the responses that were used longest ago are forgotten.
const MOST_BYTES: usize = 512 << 20;

/// A conversation that a response ends.
pub struct KeptTurns {
    pub earlier: Vec<Arc<KeptTurn>>,
    /// The response's own turn.
    pub last: Turn,
}

/// A turn of a conversation, counted.
pub struct KeptTurn {
    pub turn: Turn,
    _counted: CountedBytes,
}

/// A response that is kept.
pub struct KeptResponse {
    /// Those of its conversation, its own last.
    turns: Vec<Arc<KeptTurn>>,
    last: Arc<KeptTurn>,
    _counted: CountedBytes,
}

impl KeptResponse {
    /// The turns of the conversation, the response's own last.
    pub fn turns(&self) -> &[Arc<KeptTurn>] {
        &self.turns
    }

    /// The response's own turn.
    pub fn last(&self) -> &Turn {
        &self.last.turn
    }
}

/// The memory that kept responses take.
#[derive(Default)]
pub struct ResponseMemory {
    bytes: Arc<AtomicUsize>,
}

/// Bytes that are counted until this is dropped.
struct CountedBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl ResponseMemory {
    /// Counts a response, whose branch has so many tokens.
    pub fn keep(&self, turns: KeptTurns, tokens: usize) -> KeptResponse {
        let KeptTurns { earlier, last } = turns;
        let last = Arc::new(KeptTurn { _counted: self.count(last.bytes()), turn: last });
        let turns: Vec<Arc<KeptTurn>> = earlier.into_iter().chain([last.clone()]).collect();
        let own = size_of_val(&turns[..]) + tokens * size_of::<TokenId>();
        KeptResponse { turns, last, _counted: self.count(own) }
    }

    /// Bytes of all that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether they take more than they may.
    pub fn is_full(&self) -> bool {
        self.bytes() > MOST_BYTES
    }

    fn count(&self, bytes: usize) -> CountedBytes {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        CountedBytes { bytes, all: self.bytes.clone() }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn turns_are_counted_once_and_as_long_as_anybody_has_them() {
        let memory = ResponseMemory::default();
        let turn = |text: &str| Turn { input: vec![json!({ "text": text })], response: json!({ "output": [] }) };
        let first = memory.keep(KeptTurns { earlier: Vec::new(), last: turn(&"a".repeat(1000)) }, 10);
        let alone = memory.bytes();
        assert!((1000..2000).contains(&alone), "{alone}");
        let second = memory.keep(KeptTurns { earlier: first.turns().to_vec(), last: turn("b") }, 20);
        let both = memory.bytes();
        assert!((1..1000).contains(&(both - alone)), "{both} - {alone}");
        assert_eq!((second.turns().len(), &second.last().input), (2, &turn("b").input));
        drop(first);
        assert!(memory.bytes() > 1000, "the second one has its text, too");
        drop(second);
        assert_eq!(memory.bytes(), 0);
    }
}
