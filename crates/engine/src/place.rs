//! Where a branch stands in the engine's queue: by priority, then by the order of roots, then by the order in which
//! branches were made. Forks inherit the first two. What the queue decides is left to `scheduler`.

use serde::{Deserialize, Serialize};

use offshoot_core::ids::{AdapterVersion, BranchId};
use offshoot_kv::CacheSalt;

/// Lower numbers are served earlier; 0 unless something else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(pub i32);

/// The place of a new root in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootOptions {
    pub priority: Priority,
    /// The root whose order it shares, which may be released already: a question asked during a search does not wait
    /// for requests that came later. `None`: it comes after all roots made before.
    pub beside: Option<BranchId>,
    /// Where several replicas serve one handle: the part of its job, and so the replica, that it belongs to. `None`:
    /// the replica is chosen when it begins.
    pub home: Option<usize>,
    /// Branches of other salts share no cached prefix with it.
    pub salt: Option<CacheSalt>,
    /// The adapter that all of its tokens are computed with, those of its prompt included; `None`: none.
    pub adapter: Option<AdapterVersion>,
}

/// Orders branches in the queue: lower keys are admitted first and preempted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub priority: Priority,
    /// Its root, or the root whose order that one shares.
    pub order: BranchId,
    pub branch: BranchId,
}

impl QueueKey {
    /// Whether it may take rows and pages from a running branch at `other`.
    pub fn is_more_urgent_than(self, other: QueueKey) -> bool {
        self.priority < other.priority
    }
}
