//! What the dispatcher's thread and its clients share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::Sender;
use serde::Serialize;

use super::job::{Job, JobId};
use crate::metrics::ServeMetrics;
use offshoot_openai::protocol::{Refusal, RefusalKind};

/// What may wait to begin.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub jobs: usize,
    /// Prompt tokens of all jobs that have not ended.
    pub prompt_tokens: usize,
}

/// Messages to the dispatcher's thread.
pub enum Command {
    Submit(Job),
    Cancel(JobId),
    /// Ends the jobs of these names, or all, with the tokens that they have. The reply is their number.
    Abort {
        names: Option<Vec<String>>,
        reply: Sender<usize>,
    },
    /// Asks for the open jobs, oldest first, at most so many.
    List {
        most: usize,
        reply: Sender<Vec<OpenRequest>>,
    },
}

/// An open job, as the server's page shows it: without its texts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenRequest {
    /// "chat" or "completions".
    pub endpoint: &'static str,
    pub prompts: usize,
    pub prompt_tokens: usize,
    /// Samples and scores that it asks for, and those of them that have not come.
    pub results: usize,
    pub left: usize,
    pub is_stream: bool,
    pub has_begun: bool,
    /// Since it came.
    pub seconds: f64,
}

/// What the dispatcher and the HTTP tasks both see.
pub struct Shared {
    pub limits: QueueLimits,
    /// Jobs that were submitted and have not ended.
    pub open: AtomicUsize,
    /// Open jobs that the thread has not taken yet, and those with samples that have not begun.
    pub untaken: AtomicUsize,
    pub queued: AtomicUsize,
    pub prompt_tokens: AtomicUsize,
    pub next_job: AtomicU64,
    /// The engine has stopped.
    pub is_dead: AtomicBool,
    pub metrics: Arc<ServeMetrics>,
}

impl Shared {
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }
}

pub fn stopped() -> Refusal {
    Refusal::of_kind(RefusalKind::Unavailable, "engine_stopped", "the engine has stopped")
}
