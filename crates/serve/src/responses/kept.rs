//! What is kept of a response beside its branch: the conversation that it ends. Turns are shared by the responses that
//! go on from each other, and their bytes are counted until the last of these responses is dropped.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offshoot_core::ids::TokenId;
use offshoot_openai::protocol::Turn;

use crate::keys::ClientId;

/// Bytes of all kept responses, at most: beyond it responses are forgotten.
const MOST_BYTES: usize = 512 << 20;

/// A conversation that a response ends.
pub struct KeptTurns {
    pub earlier: Vec<Arc<KeptTurn>>,
    /// The response's own turn.
    pub own: Turn,
}

/// A turn of a conversation, whose bytes count as long as it exists.
pub struct KeptTurn {
    pub turn: Turn,
    counted: CountedBytes,
}

/// A response that is kept.
pub struct KeptResponse {
    /// The turns of its conversation, its own last.
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

    /// Bytes of its own turn.
    pub fn last_bytes(&self) -> usize {
        self.last.counted.bytes
    }

    /// Bytes of its whole conversation.
    pub fn bytes(&self) -> usize {
        self.turns.iter().map(|kept| kept.counted.bytes).sum()
    }
}

/// The memory that kept responses take.
pub struct ResponseMemory {
    /// Bytes of all kept responses, at most.
    most: usize,
    bytes: Arc<AtomicUsize>,
    /// The bytes of each client's responses: clients share no turns.
    of_clients: Mutex<HashMap<ClientId, Arc<AtomicUsize>>>,
}

/// Bytes that are counted until this is dropped.
struct CountedBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
    of_client: Arc<AtomicUsize>,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        ResponseMemory::bounded(MOST_BYTES)
    }
}

impl ResponseMemory {
    /// Memory that is full beyond so many bytes.
    pub fn bounded(most: usize) -> ResponseMemory {
        ResponseMemory { most, bytes: Arc::default(), of_clients: Mutex::default() }
    }

    /// Counts a response of a client, whose branch has so many tokens.
    pub fn keep(&self, client: ClientId, turns: KeptTurns, tokens: usize) -> KeptResponse {
        let KeptTurns { earlier, own } = turns;
        let of_client = {
            let mut of_clients = self.of_clients();
            // A count with the map as its only owner has no bytes left.
            of_clients.retain(|_, bytes| Arc::strong_count(bytes) > 1);
            of_clients.entry(client).or_default().clone()
        };
        let last = Arc::new(KeptTurn { counted: self.count(&of_client, own.bytes()), turn: own });
        let turns: Vec<Arc<KeptTurn>> = earlier.into_iter().chain([last.clone()]).collect();
        let own = size_of_val(&turns[..]) + tokens * size_of::<TokenId>();
        KeptResponse { turns, last, _counted: self.count(&of_client, own) }
    }

    /// Bytes of all that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether they take more than they may.
    pub fn is_full(&self) -> bool {
        self.bytes() > self.most
    }

    /// The client whose responses take the most.
    pub fn largest_client(&self) -> Option<ClientId> {
        let of_clients = self.of_clients();
        let bytes = |client: &ClientId| Reverse(of_clients[client].load(Ordering::Relaxed));
        of_clients.keys().copied().min_by_key(|client| (bytes(client), *client))
    }

    fn of_clients(&self) -> MutexGuard<'_, HashMap<ClientId, Arc<AtomicUsize>>> {
        self.of_clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, of_client: &Arc<AtomicUsize>, bytes: usize) -> CountedBytes {
        let counted = CountedBytes { bytes, all: self.bytes.clone(), of_client: of_client.clone() };
        counted.all.fetch_add(bytes, Ordering::Relaxed);
        counted.of_client.fetch_add(bytes, Ordering::Relaxed);
        counted
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of_client.fetch_sub(self.bytes, Ordering::Relaxed);
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
        let first = memory.keep(ClientId(0), KeptTurns { earlier: Vec::new(), own: turn(&"a".repeat(1000)) }, 10);
        let alone = memory.bytes();
        assert!((1000..2000).contains(&alone), "{alone}");
        let second = memory.keep(ClientId(0), KeptTurns { earlier: first.turns().to_vec(), own: turn("b") }, 20);
        let both = memory.bytes();
        assert!((1..1000).contains(&(both - alone)), "{both} - {alone}");
        assert_eq!((second.turns().len(), &second.last().input), (2, &turn("b").input));
        drop(first);
        assert!(memory.bytes() > 1000, "the second one has its text, too");
        drop(second);
        assert_eq!(memory.bytes(), 0);
    }
}
