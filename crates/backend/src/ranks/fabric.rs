//! What the ranks of a model exchange buffers through, as far as threads see it: they meet, and end together.

use super::meeting::Meeting;
use offshoot_core::error::Error;

/// Through which ranks exchange buffers. Their calls meet in the order in which each rank makes them.
pub trait Fabric: Send + Sync {
    /// Where the threads of all ranks meet.
    fn meeting(&self) -> &Meeting;
    /// Wakes all ranks that wait for others, now and later: what they computed since then is void. A rank that asks
    /// for an exchange afterwards panics with [`Aborted`](super::Aborted).
    fn abort(&self);
    fn is_aborted(&self) -> bool;
    /// Waits for what the ranks have enqueued, if anything, also where an error is known; it is ignored, as they are
    /// not used again.
    fn settle(&self) {}
}

/// The panic of a rank that cannot do its part of an exchange, for which the others wait.
#[derive(Debug)]
pub struct FailedExchange(pub Error);
