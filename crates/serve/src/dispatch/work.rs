//! The dispatcher's loop: commands, the engine's events, deadlines.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::job::{Job, JobId};
use super::outbox::Delivery;
use super::queue::{JobQueue, Part};
use super::shared::{Command, OpenRequest, Shared, stopped};
use crate::keys::ClientId;
use crate::leases::{KeptPrompt, Leases};
use crate::recent::RecentPrompts;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::WeightVersion;
use offshoot_engine::{
    EngineHandle, Event, Finish, FinishReason, First, GroupEnd, Hear, KeptAdapter, OpenGroup, RootOptions,
};
use offshoot_kv::Origin;
use offshoot_launch::{BeginOptions, ChoicesRequest, Generator, Release, SampleId, in_bytes};
use offshoot_openai::protocol::{EncodedPrompt, Endpoint, ProtocolRequest, Refusal, RefusalKind};

/// Longest time between two looks at deadlines and leases.
const PATIENCE: Duration = Duration::from_millis(100);
/// Most samples of one job that begin together while others wait.
const TOGETHER: usize = 16;

/// Samples of a prompt that have begun together, under a number of their own in the generator.
struct OpenPart {
    job: Arc<Job>,
    /// Its prompt's scores come after its samples.
    part: Part,
    /// Results that have not come.
    left: usize,
}

/// A job that has not ended.
struct OpenJob {
    job: Arc<Job>,
    arrived: Instant,
    has_token: bool,
    /// Results that have not come.
    left: usize,
    /// The samples of each prompt.
    groups: Vec<OpenGroup>,
    /// Numbers of its parts in flight.
    parts: Vec<usize>,
    /// Branches that were promised and not kept.
    promised: usize,
    /// As [`Delivery::Done`] has them.
    cached: Vec<usize>,
    /// Why its samples were cut short, if they were.
    cut: Option<Cut>,
    /// Its adapter, if it has one: parts of it may begin after the adapter was unloaded.
    _adapter: Option<KeptAdapter>,
}

/// Why a job's samples end before they are complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Its deadline.
    Deadline,
    /// Whoever operates the server.
    Abort,
}

impl Cut {
    /// How samples end that have not begun.
    fn reason(self) -> FinishReason {
        match self {
            Cut::Deadline => FinishReason::OutOfTime,
            Cut::Abort => FinishReason::Aborted,
        }
    }
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
    /// Recent prompts by client: no client is told how much of a prompt another one has sent.
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

    /// Starts the thread.
    pub fn start(self) -> Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("dispatch".to_owned()).spawn(move || self.run());
        thread.map_err(Error::io("a thread", "start"))
    }

    /// Works until every client is gone and every job has ended.
    fn run(mut self) {
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
                self.take(Arc::new(job));
                // In this order, so that a job that waits is counted at every moment.
                self.shared.queued.store(self.queue.len(), Ordering::Release);
                self.shared.untaken.fetch_sub(1, Ordering::AcqRel);
            }
            Command::Cancel(job) => {
                self.drop_job(job);
            }
            // The receivers of the replies may be gone.
            Command::List { most, reply } => drop(reply.send(self.list(most))),
            Command::Abort { names, reply } => drop(reply.send(self.abort(names.as_deref()))),
        }
    }

    /// Ends jobs of these names, or all; how many.
    fn abort(&mut self, names: Option<&[String]>) -> usize {
        let is_named =
            |open: &OpenJob| names.is_none_or(|names| open.job.names.iter().any(|name| names.contains(name)));
        let named = self.jobs.iter().filter(|(_, open)| open.cut != Some(Cut::Abort) && is_named(open));
        let named: Vec<JobId> = named.map(|(&id, _)| id).collect();
        named.iter().for_each(|&id| self.cut_short(id, Cut::Abort));
        named.len()
    }

    fn list(&self, most: usize) -> Vec<OpenRequest> {
        let mut open: Vec<&OpenJob> = self.jobs.values().collect();
        open.sort_unstable_by_key(|open| open.job.id);
        let shown = |open: &OpenJob| OpenRequest {
            endpoint: match open.job.request.endpoint {
                Endpoint::Chat => "chat",
                Endpoint::Completions => "completions",
            },
            prompts: open.job.request.prompts.len(),
            prompt_tokens: open.job.prompt_tokens(),
            results: open.job.results(),
            left: open.left,
            is_stream: open.job.request.stream.is_some(),
            has_begun: !open.parts.is_empty() || open.has_token,
            seconds: open.arrived.elapsed().as_secs_f64(),
        };
        open.into_iter().take(most).map(shown).collect()
    }

    fn take(&mut self, job: Arc<Job>) {
        let (id, now) = (job.id, Instant::now());
        // Where it fails, the job's own branches do, too, and say why.
        let adapter = job.request.adapter.and_then(|adapter| self.generator.engine().keep_adapter(adapter).ok());
        let open = OpenJob {
            job: job.clone(),
            arrived: now,
            has_token: false,
            left: job.results(),
            groups: vec![OpenGroup::new(job.request.min_finished.map(GroupEnd::new)); job.request.prompts.len()],
            parts: Vec::new(),
            promised: job.promised(),
            cached: vec![0; job.request.prompts.len()],
            cut: None,
            _adapter: adapter,
        };
        self.jobs.insert(id, open);
        if job.deadline.is_some_and(|deadline| deadline <= now) {
            return self.cut_short(id, Cut::Deadline);
        }
        if job.keep.is_some() && job.request.best_of == 0 && !job.has_choices() {
            self.keep_prompts(id);
        }
        if self.jobs[&id].left == 0 {
            return self.end(id);
        }
        self.queue.add(job, now);
    }

    /// Keeps the prompts of a job that samples nothing.
    fn keep_prompts(&mut self, id: JobId) {
        let open = self.jobs.get_mut(&id).expect("it was taken just now");
        let job = &open.job;
        let time_to_live = job.keep.unwrap_or_default();
        for (prompt, EncodedPrompt { tokens, .. }) in job.request.prompts.iter().enumerate() {
            let (salt, adapter) = (job.request.salt, job.request.adapter);
            let place = RootOptions { salt, adapter, ..RootOptions::default() };
            let Ok(branch) = self.generator.engine().root_with(tokens.clone(), place) else { continue };
            let adapter = job.request.adapter_name().map(str::to_owned);
            let form = job.form.of_parent.clone();
            let kept = KeptPrompt { tokens: tokens.as_slice().into(), salt, adapter, form };
            let lease = self.leases.keep(job.client, branch, kept, time_to_live);
            open.promised -= 1;
            let (sample, finish) = (SampleId { prompt, sample: 0 }, Finish::empty(FinishReason::Length));
            job.outbox.put(Delivery::Finished { sample, finish: Box::new(finish), branch: Some(lease) });
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
                self.refuse(part.job, error);
            }
        }
        self.shared.queued.store(self.queue.len(), Ordering::Release);
    }

    fn begin(&mut self, part: Part, job: &Arc<Job>) -> Result<()> {
        let Part { job: id, prompt, first, samples } = part;
        let number = self.next_part;
        self.next_part += 1;
        let of = &job.request.prompts[prompt];
        let (keep, salt, adapter) = (job.keep.is_some(), job.request.salt, job.request.adapter);
        let left = match of.choices.is_empty() {
            false => {
                let continuations: Vec<_> = of.choices.iter().map(|choice| choice.tokens.clone()).collect();
                let (context, tops, priority) = (&*of.tokens, job.request.choices_top(), job.among_all);
                let request = ChoicesRequest { context, continuations: &continuations, tops, priority };
                let options = BeginOptions { keep, salt, adapter, ..BeginOptions::default() };
                self.generator.begin_choices(number, &request, options)?;
                continuations.len()
            }
            true => {
                let request = job.part(prompt, first, samples);
                let hear = Some(if job.request.stream.is_some() { Hear::Tokens } else { Hear::Finishes });
                let form_begun = job.form.begun().cloned();
                let options = BeginOptions {
                    first_sample: first,
                    hear,
                    keep,
                    salt,
                    adapter,
                    form_begun,
                    ..BeginOptions::default()
                };
                self.generator.begin_with(number, &request, options)?;
                request.results()
            }
        };
        let open = self.jobs.get_mut(&id).expect("a job is open while it waits");
        if first == 0 {
            let (recent, weights) = (self.recent.entry(job.client), self.generator.engine().weights().version);
            open.cached[prompt] = recent.or_default().add(origin(job, weights), &of.tokens, self.most_recent);
        }
        open.parts.push(number);
        self.parts.insert(number, OpenPart { job: job.clone(), part, left });
        Ok(())
    }

    fn handle(&mut self, event: Event<SampleId>) {
        match event {
            Event::Tokens { id: sample, tokens, text, .. } => {
                let Some(part) = self.parts.get(&sample.prompt) else { return };
                let (job, sample) = (part.job.id, part.sample(sample.sample));
                part.job.outbox.put(Delivery::Tokens { sample, tokens, text });
                self.note_token(job);
            }
            Event::Finished { id, finish } => self.finish(id, finish),
            Event::Failed { id, error } => {
                if let Some(part) = self.parts.get(&id.prompt) {
                    self.refuse(part.job.id, error);
                }
            }
        }
    }

    /// Records the time to a job's first token, where that is heard.
    fn note_token(&mut self, id: JobId) {
        if let Some(open) = self.jobs.get_mut(&id)
            && !std::mem::replace(&mut open.has_token, true)
            && open.job.request.stream.is_some()
        {
            self.shared.metrics.note_first_token(open.arrived.elapsed());
        }
    }

    fn finish(&mut self, of: SampleId, mut finish: Finish) {
        let branch = self.generator.take_branch(of);
        let Some(part) = self.parts.get_mut(&of.prompt) else {
            return branch.into_iter().for_each(|branch| self.generator.engine().release(&[branch]));
        };
        part.left -= 1;
        let (id, sample, is_last) = (part.job.id, part.sample(of.sample), part.left == 0);
        let is_choice = part.is_choices();
        let is_sampled = !is_choice && of.sample < part.part.samples;
        if is_last {
            self.parts.remove(&of.prompt);
        }
        self.note_token(id);
        let open = self.jobs.get_mut(&id).expect("a job is open while a part of it is");
        open.left -= 1;
        if let (Some(cut), FinishReason::Cancelled) = (open.cut, &finish.reason) {
            finish.reason = cut.reason();
        }
        if is_last {
            open.parts.retain(|&number| number != of.prompt);
        }
        let job = &open.job;
        let kept = match (branch, job.keep.filter(|_| is_sampled || is_choice)) {
            (Some(branch), Some(time_to_live)) => {
                let prompt = &job.request.prompts[sample.prompt];
                let own = if is_choice { &prompt.choices[sample.sample].tokens } else { &finish.tokens };
                let tokens = [&prompt.tokens[..], own].concat();
                let (recent, weights) = (self.recent.entry(job.client), self.generator.engine().weights().version);
                recent.or_default().add(origin(job, weights), &tokens, self.most_recent);
                open.promised -= 1;
                let adapter = job.request.adapter_name().map(str::to_owned);
                let form = if is_sampled { job.kept_form(&finish) } else { None };
                let kept = KeptPrompt { tokens: tokens.into(), salt: job.request.salt, adapter, form };
                Some(self.leases.keep(job.client, branch, kept, time_to_live))
            }
            (branch, _) => {
                branch.into_iter().for_each(|branch| self.generator.engine().release(&[branch]));
                None
            }
        };
        if is_sampled {
            self.shared.metrics.tokens_sampled.add(finish.sampled() as u64);
            self.shared.metrics.samples.add(1);
        }
        let ends_group = is_sampled && open.groups[sample.prompt].ends_with(&finish.reason);
        job.outbox.put(Delivery::Finished { sample, finish: Box::new(finish), branch: kept });
        if ends_group {
            self.end_group(id, sample.prompt);
        }
        if self.jobs.get(&id).is_some_and(|open| open.left == 0) {
            self.end(id);
        }
    }

    /// Cancels the samples of a job's prompt that have not ended, because enough have finished.
    fn end_group(&mut self, id: JobId, prompt: usize) {
        let rest = self.queue.remove_rest(id, prompt);
        let open = self.jobs.get_mut(&id).expect("a job is open while a part of it is");
        for number in &open.parts {
            if let Some(part) = self.parts.get(number).filter(|part| part.part.prompt == prompt) {
                let samples = (0..part.part.samples).map(|sample| SampleId { prompt: *number, sample });
                self.generator.cancel(&samples.collect::<Vec<_>>());
            }
        }
        if let Some(rest) = rest {
            open.end_unbegun(&rest, FinishReason::Cancelled);
        }
    }

    /// All results of a job have come.
    fn end(&mut self, id: JobId) {
        let Some(OpenJob { job, arrived, cached, .. }) = self.forget(id) else { return };
        self.shared.metrics.jobs.add(1);
        self.shared.metrics.note_job(arrived.elapsed());
        self.shared.metrics.prompt_tokens.add(job.prompt_tokens() as u64);
        self.shared.metrics.cached_tokens.add(cached.iter().sum::<usize>() as u64);
        job.outbox.put(Delivery::Done(cached));
    }

    /// Ends a job without an answer.
    fn refuse(&mut self, id: JobId, error: Error) {
        if matches!(error, Error::EngineStopped { .. }) {
            self.shared.is_dead.store(true, Ordering::Relaxed);
        }
        let refusal = Refusal::of(&error);
        let message = match error {
            Error::OutOfPages { .. } => in_bytes(error, self.generator.engine().facts()).to_string(),
            _ => refusal.message,
        };
        if let Some(job) = self.drop_job(id) {
            job.outbox.put(Delivery::Refused(Refusal { message, ..refusal }));
        }
    }

    /// Drops a job with all that it has in the engine.
    fn drop_job(&mut self, id: JobId) -> Option<Arc<Job>> {
        self.queue.remove(id);
        let open = self.forget(id)?;
        for number in &open.parts {
            self.generator.prune(*number);
            self.parts.remove(number);
        }
        Some(open.job)
    }

    fn forget(&mut self, id: JobId) -> Option<OpenJob> {
        let open = self.jobs.remove(&id)?;
        self.leases.take_back(open.job.client, open.promised);
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.prompt_tokens.fetch_sub(open.job.prompt_tokens(), Ordering::Relaxed);
        Some(open)
    }

    /// Ends what is past its time.
    fn look_at_clock(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < PATIENCE {
            return;
        }
        self.looked = now;
        self.leases.expire(now);
        let is_past = |open: &OpenJob| open.job.deadline.is_some_and(|deadline| deadline <= now) && open.cut.is_none();
        let past: Vec<JobId> = self.jobs.iter().filter(|(_, open)| is_past(open)).map(|(&id, _)| id).collect();
        past.into_iter().for_each(|id| self.cut_short(id, Cut::Deadline));
    }

    /// Ends a job's samples early. Those that have begun keep their tokens. A job that scores is refused, and at its
    /// deadline one of which nothing has begun, too.
    fn cut_short(&mut self, id: JobId, cut: Cut) {
        let unbegun = self.queue.remove(id);
        let Some(open) = self.jobs.get_mut(&id) else { return };
        open.cut = Some(cut);
        let has_begun = !open.parts.is_empty() || open.has_token;
        let refusal = match cut {
            Cut::Deadline if open.job.scores() || !has_begun => {
                let waited = open.arrived.elapsed().as_secs_f64();
                Some(Refusal::timeout((waited * 10.0).round() / 10.0))
            }
            Cut::Abort if open.job.scores() => {
                let what = "the request was ended by whoever operates the server; it may be sent again";
                Some(Refusal::of_kind(RefusalKind::Unavailable, "aborted", what))
            }
            Cut::Deadline | Cut::Abort => None,
        };
        if let Some(refusal) = refusal.filter(|_| open.left > 0) {
            if let Some(job) = self.drop_job(id) {
                job.outbox.put(Delivery::Refused(refusal));
            }
            return;
        }
        open.parts.iter().for_each(|&number| self.generator.cancel_prompt(number));
        unbegun.iter().for_each(|part| open.end_unbegun(part, cut.reason()));
        if open.left == 0 {
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
        for open in self.jobs.values() {
            open.job.outbox.put(Delivery::Refused(stopped()));
        }
    }
}

impl OpenJob {
    /// Ends samples that have not begun.
    fn end_unbegun(&mut self, part: &Part, reason: FinishReason) {
        for sample in part.first..part.first + part.samples {
            let (sample, finish) = (SampleId { prompt: part.prompt, sample }, Finish::empty(reason.clone()));
            self.left -= 1;
            self.job.outbox.put(Delivery::Finished { sample, finish: Box::new(finish), branch: None });
        }
    }
}

impl OpenPart {
    /// The sample of its job with this index in the part.
    fn sample(&self, index: usize) -> SampleId {
        let Part { prompt, first, samples, .. } = self.part;
        let is_prompt = !self.is_choices() && index == samples;
        SampleId { prompt, sample: if is_prompt { self.job.request.best_of } else { first + index } }
    }

    /// Whether its samples are scored continuations.
    fn is_choices(&self) -> bool {
        !self.job.request.prompts[self.part.prompt].choices.is_empty()
    }
}

/// Where the keys and values of a job's prompts come from.
fn origin(job: &Job, weights: WeightVersion) -> Origin {
    let ProtocolRequest { salt, adapter, .. } = *job.request;
    Origin { weights, salt, adapter }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::queue::tests::job;
    use super::super::{Dispatcher, OpenTicket, QueueLimits};
    use super::*;
    use crate::leases::LeaseLimits;
    use crate::metrics::ServeMetrics;
    use offshoot_core::ids::TokenId;
    use offshoot_engine::{AdapterSource, EngineFacts, ScriptedCall, ScriptedReply};
    use offshoot_model::{Adapter, ModelFolder};

    fn dispatching(engine: EngineHandle, jobs: usize) -> (Dispatcher, DispatchLoop) {
        let limits = LeaseLimits { each: 0, time_to_live: PATIENCE };
        let leases = Arc::new(Leases::new(engine.clone(), limits));
        let limits = QueueLimits { jobs, prompt_tokens: usize::MAX };
        Dispatcher::new(engine, leases, limits, Arc::new(ServeMetrics::default()))
    }

    impl DispatchLoop {
        /// Works until every job has ended.
        fn end_all(&mut self) {
            while !self.jobs.is_empty() {
                self.begin_more();
                if let Poll::Ready(Some(event)) = self.generator.poll(PATIENCE) {
                    self.handle(event);
                }
            }
        }
    }

    /// Three of 400 samples end by themselves; 100 begin at most before others have.
    #[test]
    fn a_group_ends_when_enough_have_finished_with_what_had_not_begun() {
        let mut begun = 0;
        let script = move |_: &ScriptedCall<'_>| {
            begun += 1;
            if begun <= 3 { ScriptedReply::text("done") } else { ScriptedReply::text("on").until_cancelled() }
        };
        let engine = EngineHandle::scripted_with(|facts| EngineFacts { max_branches: 70, ..facts }, script);
        let (dispatcher, mut work) = dispatching(engine, 2);
        let mut job = job(0, 0, 0, 400, &[1; 8]);
        let request = Arc::get_mut(&mut job.request).expect("nobody else has it yet");
        request.min_finished = Some(3.try_into().expect("not 0"));
        let outbox = job.outbox.clone();
        let open = dispatcher.submit(job).expect("there is room");
        let command = work.commands.recv().expect("it was sent");
        work.execute(command);
        work.end_all();
        let ends: Vec<(usize, bool)> = outbox
            .take_now()
            .into_iter()
            .filter_map(|delivery| match delivery {
                Delivery::Finished { sample, finish, .. } => {
                    Some((sample.sample, finish.reason == FinishReason::Cancelled))
                }
                _ => None,
            })
            .collect();
        let indices: std::collections::BTreeSet<usize> = ends.iter().map(|&(sample, _)| sample).collect();
        assert_eq!((ends.len(), indices.len()), (400, 400), "each sample ends once");
        assert_eq!(ends.iter().filter(|(_, is_cancelled)| !is_cancelled).count(), 3);
        assert!(work.queue.is_empty() && work.parts.is_empty());
        drop(open);
    }

    #[test]
    fn requests_that_an_update_fails_may_be_sent_again() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("on").losing_weights());
        let (dispatcher, mut work) = dispatching(engine, 2);
        let mut open = Vec::new();
        // The first is sampled when the weights are lost, the second one begins afterwards.
        for id in 0..2 {
            let job = job(id, 0, 0, 2, &[1; 8]);
            let outbox = job.outbox.clone();
            open.push(dispatcher.submit(job).expect("there is room"));
            let command = work.commands.recv().expect("it was sent");
            work.execute(command);
            work.end_all();
            let [Delivery::Refused(refusal)] = &outbox.take_now()[..] else { panic!("it is refused") };
            assert_eq!((refusal.status(), refusal.code), (503, "no_weights"));
        }
    }

    #[test]
    fn requests_that_wait_keep_an_adapter_that_is_unloaded() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("a"));
        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        let model = ModelFolder::open(&demo).expect("the demo model is part of the project");
        let source = AdapterSource::Read(Arc::new(Adapter::random(&model.config, 1, 7)));
        let version = engine.load_adapter("a", source).expect("there is a slot").version;
        let (dispatcher, mut work) = dispatching(engine.clone(), 2);
        let mut job = job(0, 0, 0, 2, &[1; 8]);
        Arc::get_mut(&mut job.request).expect("nobody else has it yet").adapter = Some(version);
        let outbox = job.outbox.clone();
        let _open = dispatcher.submit(job).expect("there is room");
        let command = work.commands.recv().expect("it was sent");
        work.execute(command);
        engine.unload_adapter("a").expect("it is loaded");
        work.end_all();
        let taken = outbox.take_now();
        let under = taken.iter().map(|delivery| match delivery {
            Delivery::Finished { finish, .. } => finish.adapters.iter().map(|span| span.version).collect(),
            Delivery::Done(_) => Vec::new(),
            _ => panic!("it is not refused"),
        });
        assert_eq!(under.collect::<Vec<_>>().concat(), [version; 2]);
        // Answered in two turns: the first one has published what is left.
        for _ in 0..2 {
            engine.metrics().expect("it lives");
        }
        assert_eq!(engine.live().expect("it lives").branches, 0);
    }

    /// Keys and values of other weights are not read, so their tokens are not counted as cached.
    #[test]
    fn recent_prompts_are_counted_by_the_weights_that_computed_them() {
        let (mut recent, job) = (RecentPrompts::default(), job(0, 0, 0, 1, &[1]));
        let prompt: Vec<TokenId> = (0..9).map(TokenId).collect();
        let mut add = |version| recent.add(origin(&job, WeightVersion(version)), &prompt, 1000);
        assert_eq!([add(0), add(0), add(1), add(1), add(2)], [0, 9, 0, 9, 0]);
    }

    #[test]
    fn jobs_that_were_not_taken_yet_fill_the_queue() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("a").until_cancelled());
        let most_branches = engine.facts().max_branches;
        let (dispatcher, mut work) = dispatching(engine, 2);
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
