//! Sends the requests of a load at its pace and collects what their clients saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Pace;
use super::client::{AnswerTiming, Client, Failure};
use super::work::LoadRequest;

/// What came of a load.
pub struct LoadRecord {
    pub outcomes: Vec<Result<AnswerTiming, Failure>>,
    /// From the first request sent to the last answer's end.
    pub wall: Duration,
    /// The longest that a request was sent after its time.
    pub late: Duration,
    /// The most requests that ran at once.
    pub most_running: usize,
    /// CPU time of this program in the load.
    pub cpu: Duration,
}

struct LoadState {
    client: Client,
    requests: Vec<LoadRequest>,
    next: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

pub async fn load(client: Client, requests: Vec<LoadRequest>, pace: Pace) -> LoadRecord {
    let state = Arc::new(LoadState {
        client,
        requests,
        next: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
        most_running: AtomicUsize::new(0),
    });
    let (begun, cpu) = (Instant::now(), cpu_time());
    let (outcomes, late) = match pace {
        Pace::Concurrency(streams) => (closed(&state, streams).await, Duration::ZERO),
        Pace::Rate(_) | Pace::AsRecorded => open(&state, begun).await,
    };
    LoadRecord {
        outcomes,
        wall: begun.elapsed(),
        late,
        most_running: state.most_running.load(Ordering::Relaxed),
        cpu: cpu_time().saturating_sub(cpu),
    }
}

impl LoadState {
    async fn answer(&self, request: usize, due: Instant) -> Result<AnswerTiming, Failure> {
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_running.fetch_max(running, Ordering::Relaxed);
        let answer = self.client.answer(&self.requests[request], due).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
        answer
    }
}

/// `streams` at once, each of which sends the next request when it has an answer.
async fn closed(state: &Arc<LoadState>, streams: usize) -> Vec<Result<AnswerTiming, Failure>> {
    let mut tasks = JoinSet::new();
    for _ in 0..streams.min(state.requests.len()) {
        let state = Arc::clone(state);
        tasks.spawn(async move {
            let mut outcomes = Vec::new();
            loop {
                let request = state.next.fetch_add(1, Ordering::Relaxed);
                if request >= state.requests.len() {
                    return outcomes;
                }
                outcomes.push(state.answer(request, Instant::now()).await);
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Each request at its time, and the longest that one was late.
async fn open(state: &Arc<LoadState>, begun: Instant) -> (Vec<Result<AnswerTiming, Failure>>, Duration) {
    let (mut tasks, mut late) = (JoinSet::new(), Duration::ZERO);
    for (request, arrival) in state.requests.iter().map(|request| request.arrival).enumerate() {
        let (state, due) = (Arc::clone(state), begun + arrival);
        tokio::time::sleep_until(due).await;
        late = late.max(due.elapsed());
        tasks.spawn(async move { state.answer(request, due).await });
    }
    (tasks.join_all().await, late)
}

/// CPU time of all threads of this program.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which only writes it.
    match unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } {
        0 => Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32),
        _ => Duration::ZERO,
    }
}
