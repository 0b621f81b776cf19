//! What can be read of an engine at any time without waiting for it: its counters and what it holds, as of its last
//! turn, with the rows of a step once it is submitted. `EngineHandle::live` reads them.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::metrics::{Metrics, Sum, sums};

sums! {
    /// An engine after its last turn.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct LiveMetrics {
        pub metrics: Metrics,
        /// Number of running branches, and of those that wait for pages or rows, or for the end of a pause.
        pub running: usize,
        pub waiting: usize,
        /// Number of all branches, also those at rest.
        pub branches: usize,
        pub pages: PoolPages,
    }
}

sums! {
    /// The pages of the pool: each is held, cached or free.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PoolPages {
        pub total: usize,
        /// Pages that branches and pins hold, each counted once.
        pub held: usize,
        /// Pages of `held` that pins hold.
        pub pinned: usize,
        /// Pages that nobody holds, whose keys and values can still be found.
        pub cached: usize,
        pub free: usize,
    }
}

/// Where an engine publishes, and where those behind it do: what is read is the sum.
#[derive(Clone, Default)]
pub(crate) struct LivePlace {
    own: Arc<Mutex<LiveMetrics>>,
    behind: Arc<[LivePlace]>,
}

impl LivePlace {
    /// A place before those of several engines.
    pub fn before(behind: Vec<LivePlace>) -> Self {
        LivePlace { own: Arc::default(), behind: behind.into() }
    }

    fn lock(&self) -> MutexGuard<'_, LiveMetrics> {
        self.own.lock().expect("nothing panics while it holds the metrics")
    }

    pub fn read(&self) -> LiveMetrics {
        let mut live = self.lock().clone();
        self.behind.iter().for_each(|engine| live.add(&engine.read()));
        live
    }

    pub fn publish(&self, live: LiveMetrics) {
        *self.lock() = live;
    }
}
