//! The jobs with samples that have not begun, and which of them is next. Lower priorities first, each aged by its wait,
//! so that nobody starves; among equals the client that has had the least, and of its jobs the lowest priority among
//! them, then the job that has had the least, so that a job of thousands of samples leaves room for one of a single
//! sample; among those that have had about the same, the one whose prompt has the most in common with the prompt begun
//! last, whose keys and values are cached.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::{Job, JobId};
use crate::keys::ClientId;
use offshoot_core::ids::TokenId;
use offshoot_core::mix::fnv1a;

/// A job's priority falls by 1 for each such wait.
const AGING: Duration = Duration::from_secs(20);
/// Service within which two clients or jobs count as equal, in tokens: samples of the usual length, so that order by
/// shared prefixes has room, and no job waits for more than some of them.
const QUANTUM: u64 = 4096;
/// Output tokens for which a sample counts at most: limits are often far above what is sampled.
const MOST_COUNTED: usize = 512;
/// Tokens of a prompt that are compared as one.
const PIECE: usize = 32;

/// A job in the queue, and what has begun of it.
struct WaitingJob {
    job: Arc<Job>,
    /// When it arrived, or a part of it began last: a job that is served does not age.
    waits_since: Instant,
    /// Number of its arrival.
    order: u64,
    /// Tokens' worth of service that its client's jobs of the same time have had.
    service: u64,
    /// The prompt that begins next, and how many of its samples have begun.
    prompt: usize,
    begun: usize,
    /// One hash for each piece of its next prompt, from the start.
    key: Vec<u64>,
}

/// Samples of one prompt that begin together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub job: JobId,
    pub prompt: usize,
    pub first: usize,
    pub samples: usize,
}

#[derive(Default)]
pub struct JobQueue {
    waiting: HashMap<JobId, WaitingJob>,
    /// Service that each client has had; `floor` for the others.
    clients: HashMap<ClientId, u64>,
    /// The service of the client, and of the job, that began last: newcomers begin there.
    floor: u64,
    job_floor: u64,
    arrivals: u64,
    /// The key of the prompt begun last.
    last: Vec<u64>,
}

impl JobQueue {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Jobs with samples that have not begun.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn add(&mut self, job: Arc<Job>, now: Instant) {
        let client = self.clients.entry(job.client).or_default();
        *client = (*client).max(self.floor);
        self.arrivals += 1;
        let key = key_of(job.request.prompts.first().map_or(&[][..], |prompt| &prompt.tokens));
        let (order, service) = (self.arrivals, self.job_floor);
        let waiting = WaitingJob { waits_since: now, order, service, prompt: 0, begun: 0, key, job };
        self.waiting.insert(waiting.job.id, waiting);
    }

    /// Takes a job out. Returns the samples of it that have not begun, of each of its prompts.
    pub fn remove(&mut self, job: JobId) -> Vec<Part> {
        let Some(mut waiting) = self.waiting.remove(&job) else { return Vec::new() };
        let mut left = Vec::new();
        while !waiting.is_begun() {
            left.push(waiting.take(usize::MAX));
        }
        left
    }

    /// Takes the samples of a job's prompt that have not begun, if some have.
    pub fn remove_rest(&mut self, job: JobId, prompt: usize) -> Option<Part> {
        let waiting = self.waiting.get_mut(&job).filter(|waiting| waiting.prompt == prompt && waiting.begun > 0)?;
        let rest = waiting.take(usize::MAX);
        if waiting.is_begun() {
            self.waiting.remove(&job);
        }
        Some(rest)
    }

    /// The next samples to begin, at most `room` of them, and their job.
    pub fn next(&mut self, room: usize, now: Instant) -> Option<(Part, Arc<Job>)> {
        let id = self.waiting.values().min_by_key(|waiting| self.rank(waiting, now))?.job.id;
        let waiting = self.waiting.get_mut(&id).expect("it was there just now");
        let part = waiting.take(room);
        waiting.waits_since = now;
        self.last.clone_from(&waiting.key);
        let cost = waiting.cost(part);
        waiting.service += cost;
        self.job_floor = self.job_floor.max(waiting.service.saturating_sub(cost));
        let client = self.clients.entry(waiting.job.client).or_default();
        self.floor = self.floor.max(*client);
        *client += cost;
        let job = waiting.job.clone();
        if waiting.is_begun() {
            self.waiting.remove(&id);
        }
        if self.waiting.is_empty() {
            self.clients.clear();
        }
        Some((part, job))
    }

    /// Lowest first.
    fn rank(&self, waiting: &WaitingJob, now: Instant) -> (i64, u64, i64, u64, Reverse<usize>, u64) {
        let aged = now.saturating_duration_since(waiting.waits_since).as_secs() / AGING.as_secs();
        let aged = i64::try_from(aged).unwrap_or(i64::MAX / 2);
        let [among_all, own] = [waiting.job.among_all, waiting.job.request.priority].map(|of| i64::from(of.0) - aged);
        let client = self.clients.get(&waiting.job.client).copied().unwrap_or(self.floor);
        let shared = waiting.key.iter().zip(&self.last).take_while(|(own, last)| own == last).count();
        (among_all, client / QUANTUM, own, waiting.service / QUANTUM, Reverse(shared), waiting.order)
    }
}

impl WaitingJob {
    fn take(&mut self, room: usize) -> Part {
        let (prompt, first, of) = (self.prompt, self.begun, self.job.request.best_of);
        let samples = room.min(of - first);
        self.begun += samples;
        if self.begun == of {
            (self.prompt, self.begun) = (prompt + 1, 0);
            if let Some(next) = self.job.request.prompts.get(self.prompt) {
                self.key = key_of(&next.tokens);
            }
        }
        Part { job: self.job.id, prompt, first, samples }
    }

    fn is_begun(&self) -> bool {
        self.prompt >= self.job.request.prompts.len()
    }

    /// Tokens for which a part counts.
    fn cost(&self, part: Part) -> u64 {
        let of = &self.job.request.prompts[part.prompt];
        let given = if part.first == 0 { of.tokens.len() } else { 0 };
        (given + part.samples * of.stop.max_tokens.min(MOST_COUNTED)).max(1) as u64
    }
}

/// Prompts with a common beginning have keys with a common beginning.
fn key_of(tokens: &[TokenId]) -> Vec<u64> {
    let mut bytes = Vec::with_capacity(4 * PIECE);
    let hash = |piece: &[TokenId]| {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|token| token.0.to_le_bytes()));
        fnv1a(&bytes)
    };
    tokens.chunks(PIECE).map(hash).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::dispatch::JobForm;
    use offshoot_engine::{Priority, SamplingParams, Stop};
    use offshoot_openai::protocol::{EncodedPrompt, Endpoint, ProtocolRequest, Reasoning, RequestSeed};
    use offshoot_text::reasoning::TextStart;

    pub fn job(id: u64, client: usize, priority: i32, samples: usize, tokens: &[u32]) -> Job {
        let prompt = EncodedPrompt {
            tokens: tokens.iter().map(|&token| TokenId(token)).collect(),
            text: String::new(),
            stop: Stop::max_tokens(256),
            is_unlimited: false,
            start: TextStart::default(),
            repeated: None,
            choices: Vec::new(),
        };
        let request = ProtocolRequest {
            endpoint: Endpoint::Completions,
            model: String::new(),
            prompts: vec![prompt],
            n: samples,
            best_of: samples,
            min_finished: None,
            computes_prompts_alone: false,
            seed: RequestSeed::Own(0),
            echo: false,
            logprobs: false,
            prompt_logprobs: None,
            params: SamplingParams::default(),
            form: None,
            calls: None,
            stream: None,
            skips_special: true,
            return_token_ids: false,
            kept: None,
            shows_confidence: false,
            routes: None,
            ids_as_tokens: false,
            reasoning: Reasoning::Keep,
            priority: Priority(priority),
            timeout: None,
            keep: None,
            parent: None,
            salt: None,
            request_id: None,
            return_weight_versions: false,
            adapter: None,
        };
        Job {
            id: JobId(id),
            names: Vec::new(),
            client: ClientId(client),
            request: Arc::new(request),
            form: JobForm::default(),
            among_all: Priority(priority),
            keep: None,
            deadline: None,
            outbox: Arc::default(),
        }
    }

    /// The jobs in the order of their parts of at most 16 samples.
    fn order(queue: &mut JobQueue, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(16, now)).map(|(part, _)| part.job.0).collect()
    }

    #[test]
    fn a_job_of_one_sample_does_not_wait_for_all_of_a_large_one() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        queue.add(Arc::new(job(1, 0, 0, 4096, &[1; 64])), now);
        for _ in 0..10 {
            assert_eq!(queue.next(16, now).map(|(part, _)| part.samples), Some(16));
        }
        queue.add(Arc::new(job(2, 0, 0, 1, &[2; 64])), now);
        let order = order(&mut queue, now);
        let at = order.iter().position(|&id| id == 2);
        assert!(at <= Some(1), "it begins at place {at:?} of {}", order.len());
        assert_eq!(order.len(), 4096 / 16 - 10 + 1);
    }

    #[test]
    fn a_job_that_is_served_does_not_age() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        queue.add(Arc::new(job(1, 0, 0, 4096, &[1; 64])), now);
        let later = |turn: u32| now + AGING / 4 * turn;
        for turn in 0..40 {
            queue.next(16, later(turn)).expect("samples wait");
        }
        queue.add(Arc::new(job(2, 0, 0, 1, &[2; 64])), later(40));
        let next: Vec<u64> = (0..2).filter_map(|_| Some(queue.next(16, later(40))?.0.job.0)).collect();
        assert!(next.contains(&2), "{next:?}: it need not wait for the rest of a job that began long ago");
    }

    #[test]
    fn clients_share_equally_however_many_jobs_they_send() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        (0..100).for_each(|id| queue.add(Arc::new(job(id, 0, 0, 16, &[1; 32])), now));
        (100..110).for_each(|id| queue.add(Arc::new(job(id, 1, 0, 16, &[2; 32])), now));
        let first: Vec<u64> = order(&mut queue, now).into_iter().take(20).collect();
        let others = first.iter().filter(|&&id| id >= 100).count();
        assert!((9..=10).contains(&others), "{others} of the first 20 are the second client's: {first:?}");
    }

    #[test]
    fn lower_numbers_go_first_until_others_have_waited() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        queue.add(Arc::new(job(1, 0, 1, 1, &[1])), now);
        queue.add(Arc::new(job(2, 0, -1, 1, &[2])), now);
        queue.add(Arc::new(job(3, 0, 0, 1, &[3])), now);
        assert_eq!(order(&mut queue, now), [2, 3, 1]);
        queue.add(Arc::new(job(1, 0, 1, 1, &[1])), now);
        let later = now + 3 * AGING;
        queue.add(Arc::new(job(2, 0, -1, 1, &[2])), later);
        assert_eq!(order(&mut queue, later), [1, 2], "it has waited for three times what a priority is worth");
    }

    /// However low its numbers are, a client's jobs only go before its own others.
    #[test]
    fn a_priority_of_its_own_takes_no_turn_from_another_client() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        let own = |id, client, priority| Job { among_all: Priority(0), ..job(id, client, priority, 16, &[1; 32]) };
        (0..40).for_each(|id| queue.add(Arc::new(own(id, 0, if id < 30 { 0 } else { -20 })), now));
        (40..60).for_each(|id| queue.add(Arc::new(own(id, 1, 0)), now));
        let first: Vec<u64> = order(&mut queue, now).into_iter().take(20).collect();
        let others = first.iter().filter(|&&id| id >= 40).count();
        assert!((9..=11).contains(&others), "{others} of the first 20 are the second client's: {first:?}");
        let foremost: Vec<u64> = first.into_iter().filter(|&id| id < 40).take(9).collect();
        assert!(foremost.iter().all(|&id| id >= 30), "the first client's own order: {foremost:?}");
    }

    #[test]
    fn prompts_with_a_common_beginning_go_together() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        let prompts = [[vec![1; 96], vec![7; 32]].concat(), vec![2; 128], [vec![1; 96], vec![8; 32]].concat()];
        for (id, tokens) in prompts.iter().enumerate() {
            queue.add(Arc::new(job(id as u64, 0, 0, 1, tokens)), now);
        }
        assert_eq!(order(&mut queue, now), [0, 2, 1]);
    }

    #[test]
    fn what_has_not_begun_of_a_removed_job_is_known() {
        let (mut queue, now) = (JobQueue::default(), Instant::now());
        queue.add(Arc::new(job(1, 0, 0, 40, &[1; 8])), now);
        queue.next(16, now).expect("it waits");
        let left = [Part { job: JobId(1), prompt: 0, first: 16, samples: 24 }];
        assert_eq!(queue.remove(JobId(1)), left);
        assert!(queue.is_empty());
        assert_eq!(queue.remove(JobId(1)), []);
    }
}
