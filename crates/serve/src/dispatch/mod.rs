//! The thread between HTTP requests and the engine. It takes jobs, begins their samples in the order that `queue`
//! decides, so many that the engine always has work and no more, and puts the results into each job's outbox. It never
//! waits for a client.

mod job;
mod outbox;
mod queue;
mod shared;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use offshoot_engine::EngineHandle;
use offshoot_openai::protocol::Refusal;

use super::leases::Leases;
use super::metrics::ServeMetrics;

pub use job::{Job, JobForm, JobId};
pub use outbox::{Delivery, Outbox};
use shared::{Command, Shared, stopped};
pub use shared::{OpenRequest, QueueLimits};

/// The client of the dispatcher's thread, which ends when it is dropped and every job has ended.
pub struct Dispatcher {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

/// A job in progress. Dropping it cancels what has not ended, before the engine's next step.
pub struct OpenTicket {
    id: JobId,
    outbox: Arc<Outbox>,
    commands: Sender<Command>,
    has_ended: bool,
}

impl Dispatcher {
    /// A client and the loop that its thread is to run.
    pub fn new(
        engine: EngineHandle,
        leases: Arc<Leases>,
        limits: QueueLimits,
        metrics: Arc<ServeMetrics>,
    ) -> (Dispatcher, work::DispatchLoop) {
        let (commands, receiver): (_, Receiver<Command>) = unbounded();
        let shared = Arc::new(Shared {
            limits,
            open: AtomicUsize::new(0),
            untaken: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            prompt_tokens: AtomicUsize::new(0),
            next_job: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            metrics,
        });
        let work = work::DispatchLoop::new(engine, leases, receiver, shared.clone());
        (Dispatcher { commands, shared }, work)
    }

    pub fn name_job(&self) -> JobId {
        JobId(self.shared.next_job.fetch_add(1, Ordering::Relaxed))
    }

    /// Submits a job.
    ///
    /// # Errors
    ///
    /// The queue is full, or the engine has stopped.
    pub fn submit(&self, job: Job) -> Result<OpenTicket, Refusal> {
        let shared = &self.shared;
        self.check_alive()?;
        // Counted first: of two jobs that come together for one place, one is refused.
        let untaken = shared.untaken.fetch_add(1, Ordering::AcqRel);
        let (waiting, tokens) = (untaken + shared.queued(), shared.prompt_tokens.load(Ordering::Relaxed));
        if waiting >= shared.limits.jobs || tokens >= shared.limits.prompt_tokens {
            shared.untaken.fetch_sub(1, Ordering::AcqRel);
            return Err(Refusal::queue_full(waiting, shared.metrics.seconds_per_job(waiting)));
        }
        shared.open.fetch_add(1, Ordering::Relaxed);
        shared.prompt_tokens.fetch_add(job.prompt_tokens(), Ordering::Relaxed);
        let ticket =
            OpenTicket { id: job.id, outbox: job.outbox.clone(), commands: self.commands.clone(), has_ended: false };
        self.commands.send(Command::Submit(job)).map_err(|_| stopped())?;
        Ok(ticket)
    }

    /// Whether requests can be answered.
    pub fn check_alive(&self) -> Result<(), Refusal> {
        match self.shared.is_dead.load(Ordering::Relaxed) {
            true => Err(stopped()),
            false => Ok(()),
        }
    }

    /// The open jobs that came first, oldest first; none once the dispatcher has ended. Waits for its thread.
    pub fn list(&self, most: usize) -> Vec<OpenRequest> {
        let (reply, list) = bounded(1);
        let sent = self.commands.send(Command::List { most, reply });
        sent.ok().and_then(|()| list.recv().ok()).unwrap_or_default()
    }

    /// Ends the jobs of these names, or all, with the tokens that they have: their samples finish as aborted, and jobs
    /// that score are refused. The number of these jobs. Waits for the dispatcher's thread, not for their ends.
    pub fn abort(&self, names: Option<Vec<String>>) -> usize {
        let (reply, count) = bounded(1);
        let sent = self.commands.send(Command::Abort { names, reply });
        sent.ok().and_then(|()| count.recv().ok()).unwrap_or_default()
    }

    /// Jobs that have not ended.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Jobs with samples that have not begun.
    pub fn waiting(&self) -> usize {
        self.shared.untaken.load(Ordering::Acquire) + self.shared.queued()
    }
}

impl OpenTicket {
    /// What has come since the last call; waits until something has.
    pub async fn take(&mut self) -> Vec<Delivery> {
        let taken = self.outbox.take().await;
        self.has_ended = taken.iter().any(|delivery| matches!(delivery, Delivery::Done(_) | Delivery::Refused(_)));
        taken
    }

    /// Waits until the job has ended; what has come may still have to be taken.
    pub async fn ended(&self) {
        self.outbox.ended().await;
    }
}

impl Drop for OpenTicket {
    fn drop(&mut self) {
        if !self.has_ended {
            // Without a dispatcher there is nothing to cancel.
            drop(self.commands.send(Command::Cancel(self.id)));
        }
    }
}
