//! The dispatcher's loop: commands, the engine's events, deadlines.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::job::{Job, JobId};
use super::outbox::{Delivery, JobUsage, Outbox};
use super::queue::{JobQueue, Part};
use super::shared::{Command, Shared, stopped};
use crate::keys::ClientId;
use crate::leases::Leases;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::{EngineHandle, Event, Finish, FinishReason, First, Hear};
use offshoot_kv::DistinctTokens;
use offshoot_launch::{BeginOptions, ChoicesRequest, Generator, Release, SampleId, in_bytes};
use offshoot_openai::protocol::Refusal;

/// Longest time between two looks at deadlines and leases.
const PATIENCE: Duration = Duration::from_millis(100);
/// Most samples of one job that begin together while others wait.
const TOGETHER: usize = 16;

/// Samples of a prompt that have begun together, under a number of their own in the generator.
struct OpenPart {
    job: JobId,
    outbox: Arc<Outbox>,
    prompt: usize,
    /// Index of the first sample, and the number of samples; the prompt's scores come after them.
    first: usize,
    samples: usize,
    /// Samples of the whole prompt.
    of: usize,
    /// The samples are scored continuations.
    is_choices: bool,
    left: usize,
}

/// A job that has not ended.
struct OpenJob {
    client: ClientId,
    outbox: Arc<Outbox>,
    keep: Option<Duration>,
    deadline: Option<Instant>,
    arrived: Instant,
    /// Whether the engine reports each token, or only the end of each sample.
    is_streamed: bool,
    has_token: bool,
    prompts: Vec<Arc<[TokenId]>>,
    prompt_tokens: usize,
    /// Results that have not come.
    left: usize,
    /// Numbers of its parts in flight.
    parts: Vec<usize>,
    /// Whether it scores prompts or continuations, of which a part is no answer.
    scores: bool,
    /// Branches that were promised and not kept.
    promised: usize,
    usage: JobUsage,
}

pub struct DispatchLoop {
    generator: Generator,
    leases: Arc<Leases>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    queue: JobQueue,
    jobs: HashMap<JobId, OpenJob>,
    parts: HashMap<usize, OpenPart>,
    next_part: usize,
    /// By client: how much of a prompt another one has sent is not told.
    recent: HashMap<ClientId, RecentPrompts>,
    /// Distinct tokens that are remembered of a client: as many as the engine has room for.
    most_recent: usize,
    looked: Instant,
}

impl DispatchLoop {
    pub fn new(engine: EngineHandle, leases: Arc<Leases>, commands: Receiver<Command>, shared: Arc<Shared>) -> Self {
        let facts = engine.facts();
        let most_recent = facts.pool_tokens();
        DispatchLoop {
            generator: Generator::new(engine, Hear::Finishes, Release::EachSample),
            leases,
            commands,
            shared,
            queue: JobQueue::default(),
            jobs: HashMap::new(),
            parts: HashMap::new(),
            next_part: 0,
            recent: HashMap::new(),
            most_recent,
            looked: Instant::now(),
        }
    }

    /// Works until every client is gone and every job has ended.
    pub fn run(mut self) {
        loop {
            self.begin_more();
            self.look_at_clock();
            match self.generator.poll_beside(&self.commands, PATIENCE) {
                Poll::Ready(First::Message(command)) => self.execute(command),
                Poll::Ready(First::Event(Some(event))) => self.handle(event),
                Poll::Ready(First::Event(None)) => match self.commands.recv_timeout(PATIENCE) {
                    Ok(command) => self.execute(command),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) if self.jobs.is_empty() => return,
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PATIENCE),
                },
                Poll::Pending => {}
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Submit(job) => {
                self.take(job);
                // In this order, so that a job that waits is counted at every moment.
                self.shared.queued.store(self.queue.len(), Ordering::Release);
                self.shared.untaken.fetch_sub(1, Ordering::AcqRel);
            }
            Command::Cancel(job) => {
                if self.jobs.contains_key(&job) {
                    self.shared.metrics.cancelled.add(1);
                    self.drop_job(job);
                }
            }
        }
    }

    fn take(&mut self, job: Job) {
        let now = Instant::now();
        let keeps_prompts = job.keep.is_some() && job.samples == 0;
        let promised = job.promised();
        let open = OpenJob {
            client: job.client,
            outbox: job.outbox.clone(),
            keep: job.keep,
            deadline: job.deadline,
            arrived: now,
            is_streamed: job.hear == Hear::Tokens,
            has_token: false,
            prompts: job.prompts.iter().map(|prompt| prompt.tokens.clone()).collect(),
            prompt_tokens: job.prompt_tokens(),
            left: job.results(),
            parts: Vec::new(),
            scores: job.scores(),
            promised,
            usage: JobUsage { cached: vec![0; job.prompts.len()], timed_out: false },
        };
        let id = job.id;
        let is_late = open.deadline.is_some_and(|deadline| deadline <= now);
        self.jobs.insert(id, open);
        if is_late {
            return self.cut_short(id);
        }
        if keeps_prompts {
            self.keep_prompts(id);
        }
        if self.jobs[&id].left == 0 {
            return self.end(id);
        }
        self.queue.add(job, now);
    }

    /// Keeps the prompts of a job that samples nothing.
    fn keep_prompts(&mut self, id: JobId) {
        let job = self.jobs.get_mut(&id).expect("it was taken just now");
        let time_to_live = job.keep.unwrap_or_default();
        for (prompt, tokens) in job.prompts.iter().enumerate() {
            let Ok(branch) = self.generator.engine().root(tokens.to_vec()) else { continue };
            let lease = self.leases.keep(job.client, branch, tokens.clone(), time_to_live);
            job.promised -= 1;
            let (sample, finish) = (SampleId { prompt, sample: 0 }, Finish::empty(FinishReason::Length));
            job.outbox.put(Delivery::Finished { sample, finish, branch: Some(lease) });
        }
    }

    /// Begins samples while the engine can use them.
    fn begin_more(&mut self) {
        while !self.queue.is_empty() {
            let most = self.generator.engine().facts().max_branches;
            let room = (most + most / 4 + 8).saturating_sub(self.generator.samples());
            if room == 0 || self.generator.has_enough() {
                break;
            }
            let room = if self.queue.len() > 1 { room.min(TOGETHER) } else { room };
            let Some((part, job)) = self.queue.next(room, Instant::now()) else { break };
            if let Err(error) = self.begin(part, &job) {
                self.refuse(part.job, &error);
            }
        }
        self.shared.queued.store(self.queue.len(), Ordering::Release);
    }

    fn begin(&mut self, part: Part, job: &Job) -> Result<()> {
        let Part { job: id, prompt, first, samples } = part;
        let number = self.next_part;
        self.next_part += 1;
        let of = &job.prompts[prompt];
        let is_choices = !of.choices.is_empty();
        let left = match is_choices {
            true => {
                let (context, continuations) = (&*of.tokens, &*of.choices);
                let request = ChoicesRequest { context, continuations, tops: of.choices_top, priority: job.among_all };
                self.generator.begin_choices(number, &request)?;
                continuations.len()
            }
            false => {
                let request = job.part(prompt, first, samples);
                let keep = job.keep.is_some();
                let options = BeginOptions { first_sample: first, hear: Some(job.hear), keep, home: None };
                self.generator.begin_with(number, &request, options)?;
                request.results()
            }
        };
        let open = self.jobs.get_mut(&id).expect("a job is open while it waits");
        if first == 0 {
            open.usage.cached[prompt] = self.recent.entry(open.client).or_default().add(&of.tokens, self.most_recent);
        }
        open.parts.push(number);
        let outbox = open.outbox.clone();
        self.parts
            .insert(number, OpenPart { job: id, outbox, prompt, first, samples, of: job.samples, is_choices, left });
        Ok(())
    }

    fn handle(&mut self, event: Event<SampleId>) {
        match event {
            Event::Tokens { id: sample, tokens, text } => {
                let Some(part) = self.parts.get(&sample.prompt) else { return };
                let (job, sample) = (part.job, part.sample(sample.sample));
                part.outbox.put(Delivery::Tokens { sample, tokens, text });
                self.note_token(job);
            }
            Event::Finished { id, finish } => self.finish(id, finish),
            Event::Failed { id, error } => {
                if let Some(part) = self.parts.get(&id.prompt) {
                    self.refuse(part.job, &error);
                }
            }
        }
    }

    /// Records the time to a job's first token, where that is heard.
    fn note_token(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id)
            && !std::mem::replace(&mut job.has_token, true)
            && job.is_streamed
        {
            self.shared.metrics.first_token.note(job.arrived.elapsed());
        }
    }

    fn finish(&mut self, of: SampleId, finish: Finish) {
        let branch = self.generator.take_branch(of);
        let Some(part) = self.parts.get_mut(&of.prompt) else {
            return branch.into_iter().for_each(|branch| self.generator.engine().release(&[branch]));
        };
        part.left -= 1;
        let (id, sample, is_last) = (part.job, part.sample(of.sample), part.left == 0);
        let is_sampled = !part.is_choices && of.sample < part.samples;
        let outbox = part.outbox.clone();
        if is_last {
            self.parts.remove(&of.prompt);
        }
        self.note_token(id);
        let job = self.jobs.get_mut(&id).expect("a job is open while a part of it is");
        job.left -= 1;
        if is_last {
            job.parts.retain(|&number| number != of.prompt);
        }
        let kept = match (branch, job.keep.filter(|_| is_sampled)) {
            (Some(branch), Some(time_to_live)) => {
                let tokens = [&job.prompts[sample.prompt], &finish.tokens[..]].concat();
                self.recent.entry(job.client).or_default().add(&tokens, self.most_recent);
                job.promised -= 1;
                Some(self.leases.keep(job.client, branch, tokens.into(), time_to_live))
            }
            (branch, _) => {
                branch.into_iter().for_each(|branch| self.generator.engine().release(&[branch]));
                None
            }
        };
        if is_sampled {
            self.shared.metrics.tokens_sampled.add(finish.tokens.len() as u64);
            self.shared.metrics.samples.add(1);
        }
        let has_ended = job.left == 0;
        outbox.put(Delivery::Finished { sample, finish, branch: kept });
        if has_ended {
            self.end(id);
        }
    }

    /// All results of a job have come.
    fn end(&mut self, id: JobId) {
        let Some(job) = self.forget(id) else { return };
        self.shared.metrics.jobs.add(1);
        self.shared.metrics.job_seconds.note(job.arrived.elapsed());
        self.shared.metrics.prompt_tokens.add(job.prompt_tokens as u64);
        self.shared.metrics.cached_tokens.add(job.usage.cached.iter().sum::<usize>() as u64);
        job.outbox.put(Delivery::Done(job.usage));
    }

    /// Ends a job without an answer.
    fn refuse(&mut self, id: JobId, error: &Error) {
        if matches!(error, Error::EngineStopped { .. }) {
            self.shared.is_dead.store(true, Ordering::Relaxed);
        }
        let refusal = Refusal::of(error);
        let message = match error {
            Error::OutOfPages { needed, capacity, hint } => {
                let same = Error::OutOfPages { needed: *needed, capacity: *capacity, hint };
                in_bytes(same, self.generator.engine().facts()).to_string()
            }
            _ => refusal.message,
        };
        if let Some(outbox) = self.drop_job(id) {
            outbox.put(Delivery::Refused(Refusal { message, ..refusal }));
        }
    }

    /// Drops a job with all that it has in the engine.
    fn drop_job(&mut self, id: JobId) -> Option<Arc<Outbox>> {
        self.queue.remove(id);
        let job = self.forget(id)?;
        for number in &job.parts {
            self.generator.prune(*number);
            self.parts.remove(number);
        }
        Some(job.outbox)
    }

    fn forget(&mut self, id: JobId) -> Option<OpenJob> {
        let job = self.jobs.remove(&id)?;
        self.leases.take_back(job.client, job.promised);
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.prompt_tokens.fetch_sub(job.prompt_tokens, Ordering::Relaxed);
        Some(job)
    }

    /// Ends what is past its time.
    fn look_at_clock(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < PATIENCE {
            return;
        }
        self.looked = now;
        self.leases.expire(now);
        let is_past = |job: &OpenJob| job.deadline.is_some_and(|deadline| deadline <= now) && !job.usage.timed_out;
        let past: Vec<JobId> = self.jobs.iter().filter(|(_, job)| is_past(job)).map(|(&id, _)| id).collect();
        past.into_iter().for_each(|id| self.cut_short(id));
    }

    /// Ends a job's samples at its deadline. Those that have begun keep their tokens; a job of which nothing has begun, and
    /// one that scores, is refused.
    fn cut_short(&mut self, id: JobId) {
        let unbegun = self.queue.remove(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.usage.timed_out = true;
        let has_begun = !job.parts.is_empty() || job.has_token;
        if job.left > 0 && (job.scores || !has_begun) {
            let waited = job.arrived.elapsed().as_secs_f64();
            if let Some(outbox) = self.drop_job(id) {
                outbox.put(Delivery::Refused(Refusal::timeout((waited * 10.0).round() / 10.0)));
            }
            return;
        }
        job.parts.iter().for_each(|&number| self.generator.cancel_prompt(number));
        for part in unbegun {
            for sample in part.first..part.first + part.samples {
                let (sample, finish) =
                    (SampleId { prompt: part.prompt, sample }, Finish::empty(FinishReason::Cancelled));
                job.left -= 1;
                job.outbox.put(Delivery::Finished { sample, finish, branch: None });
            }
        }
        if job.left == 0 {
            self.end(id);
        }
    }
}

impl Drop for DispatchLoop {
    /// Refuses the open jobs, so that no request waits for ever. There are some only if this thread panics.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.is_dead.store(true, Ordering::Relaxed);
        }
        for job in self.jobs.values() {
            job.outbox.put(Delivery::Refused(stopped()));
        }
    }
}

impl OpenPart {
    /// The sample of its job with this index in the part.
    fn sample(&self, index: usize) -> SampleId {
        let is_prompt = !self.is_choices && index == self.samples;
        SampleId { prompt: self.prompt, sample: if is_prompt { self.of } else { self.first + index } }
    }
}

/// The prompts begun lately: what of a new one is in the cache, at most. Forgotten together from time to time, so that
/// they do not grow.
#[derive(Default)]
struct RecentPrompts {
    tokens: DistinctTokens,
}

impl RecentPrompts {
    /// The number of tokens at the beginning of `prompt` that begin a recent prompt, too. Remembers about `most` tokens.
    fn add(&mut self, prompt: &[TokenId], most: usize) -> usize {
        if self.tokens.count() > most {
            self.tokens = DistinctTokens::default();
        }
        self.tokens.insert(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::job;
    use super::super::{Dispatcher, OpenTicket, QueueLimits};
    use super::*;
    use crate::leases::LeaseLimits;
    use crate::metrics::ServeMetrics;
    use offshoot_engine::ScriptedReply;

    #[test]
    fn jobs_that_were_not_taken_yet_fill_the_queue() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("a").until_cancelled());
        let most_branches = engine.facts().max_branches;
        let limits = LeaseLimits { each: 0, time_to_live: PATIENCE };
        let leases = Arc::new(Leases::new(engine.clone(), limits));
        let limits = QueueLimits { jobs: 2, prompt_tokens: usize::MAX };
        let (dispatcher, mut work) = Dispatcher::new(engine, leases, limits, Arc::new(ServeMetrics::new()));
        let submit = |id, samples| dispatcher.submit(job(id, 0, 0, samples, &[1; 8]));
        let code = |refused: Result<OpenTicket, Refusal>| refused.err().map(|refusal| refusal.code);
        let open: Vec<_> = (0..2).map(|id| submit(id, 1).expect("there is room")).collect();
        // The loop goes on, before it has seen them.
        work.begin_more();
        assert_eq!((dispatcher.waiting(), code(submit(2, 1))), (2, Some("queue_full")));
        // Taken, each waits until its samples have begun.
        for waiting in [1, 0] {
            let command = work.commands.recv().expect("two were sent");
            work.execute(command);
            work.begin_more();
            assert_eq!(dispatcher.waiting(), waiting);
        }
        let more = submit(3, 4 * most_branches).expect("there is room");
        let command = work.commands.recv().expect("it was sent");
        work.execute(command);
        assert_eq!(dispatcher.waiting(), 1);
        work.begin_more();
        assert_eq!(dispatcher.waiting(), 1, "most of its samples have not begun");
        drop((open, more));
    }
}
