//! The router's thread: carries commands to the engines that have their branches, and holds back what can still begin
//! on any of them. `hearing` carries events back, `takeover` chooses what changes its replica, `loss` what happens
//! when an engine ends.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, unbounded};

use crate::path_adapters::PathAdapters;
use crate::status::StatusPlace;
use crate::updates::Draining;
use crate::{
    Command, EngineHandle, Event, EventBatcher, EventSender, Finish, FinishReason, Hear, LiveMetrics, LivePlace,
    QueueKey, ReadyExtend, Said, SampledLengths, TokenPath, busy_branch, unknown_branch,
};
use offshoot_core::error::Error;
use offshoot_core::ids::{AdapterVersion, BranchId};

use super::branch::{BranchRecord, On};
use super::load::{Pace, Work, expected};
use super::loan::Loan;
use super::prefix::Prefix;
use super::queue::{Started, Task};
use super::replica::Replica;
use super::takeover::{Between, Takeover};
use super::together::Note;

/// How long a replica that is short of work waits for prompts of its own before it takes some that others need, too:
/// longer than the time between the first prompts of a job.
const PATIENCE: Duration = Duration::from_millis(10);

/// Tasks that are looked at behind those that wait for a prefix, so that a long queue is not read again at each event.
const MOST_PASSED_OVER: usize = 256;

pub(super) struct Router {
    pub commands: Receiver<Command>,
    /// What was taken up and is about a branch whose cancelled extend has not ended: it comes before all other
    /// commands.
    deferred: Option<Command>,
    pub replicas: Vec<Replica>,
    pub branches: HashMap<BranchId, BranchRecord>,
    /// The replica in whose queue a branch waits, and its place.
    pub waiting: HashMap<BranchId, (usize, QueueKey)>,
    /// Extends that an engine has.
    pub started: HashMap<BranchId, Started>,
    /// Prefixes that are copied.
    pub loans: Vec<Loan>,
    /// Extends that were started during a pause.
    pub held: BTreeMap<QueueKey, (ReadyExtend, EventSender)>,
    pub status: StatusPlace,
    pub draining: Draining,
    /// Pauses and sleeps so far: what an earlier command comes to is not to undo a later one.
    pub pauses: u64,
    /// What is to be done with the answers of all engines, once they are there.
    pub notes: (Sender<Note>, Receiver<Note>),
    pub lengths: SampledLengths,
    pub batcher: EventBatcher,
    pace: Pace,
    live: LivePlace,
    /// Why the last engine ended.
    pub gone: Option<String>,
}

/// Whether the handle's other end lives.
enum Clients {
    Live,
    Gone,
}

impl Router {
    pub fn new(engines: Vec<EngineHandle>, commands: Receiver<Command>, live: LivePlace, status: StatusPlace) -> Self {
        let pace = Pace::of(engines.iter().any(|engine| engine.facts().is_async));
        Router {
            commands,
            deferred: None,
            replicas: engines.into_iter().map(Replica::new).collect(),
            branches: HashMap::new(),
            waiting: HashMap::new(),
            started: HashMap::new(),
            loans: Vec::new(),
            held: BTreeMap::new(),
            status,
            draining: Draining::default(),
            pauses: 0,
            notes: unbounded(),
            lengths: SampledLengths::default(),
            batcher: EventBatcher::default(),
            pace,
            live,
            gone: None,
        }
    }

    /// Works until the last handle is dropped, or no engine is left: then the reason.
    pub fn run(mut self) -> Option<String> {
        let mut wake_at = None;
        loop {
            self.wait(wake_at);
            // Before events are taken: an engine says how extends have ended before it answers.
            let notes: Vec<Note> = self.notes.1.try_iter().collect();
            if matches!(self.take_commands(), Clients::Gone) {
                return None;
            }
            self.take_events();
            self.take_lent();
            notes.into_iter().for_each(|note| note(&mut self));
            self.note_drained();
            wake_at = self.share_out();
            self.batcher.flush();
            self.publish();
            if self.gone.is_some() {
                return self.gone;
            }
        }
    }

    /// Until there is a command or an event, or this moment.
    fn wait(&self, until: Option<Instant>) {
        let mut select = Select::new();
        match &self.deferred {
            Some(command) if self.needs_an_end(command) => {}
            Some(_) => return,
            None => drop(select.recv(&self.commands)),
        }
        for replica in self.replicas.iter().filter(|replica| replica.lives()) {
            select.recv(replica.events.woken());
        }
        self.loans.iter().for_each(|loan| loan.watch(&mut select));
        select.recv(&self.notes.1);
        match until {
            // A moment that has passed is as good as an event.
            Some(moment) => drop(select.ready_deadline(moment)),
            None => drop(select.ready()),
        }
    }

    fn take_commands(&mut self) -> Clients {
        /// Commands between two looks at the events.
        const AT_ONCE: usize = 4096;
        for _ in 0..AT_ONCE {
            match self.deferred.take().map_or_else(|| self.commands.try_recv(), Ok) {
                Ok(command) if self.needs_an_end(&command) => {
                    self.deferred = Some(command);
                    break;
                }
                Ok(command) => self.execute(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Clients::Gone,
            }
        }
        Clients::Live
    }

    /// Whether a command extends or forks a branch whose extend is cancelled and has not ended. For one engine a branch
    /// rests once it is cancelled; here it does when its engine has said so.
    fn needs_an_end(&self, command: &Command) -> bool {
        let is_ending = |branch: &BranchId| self.started.get(branch).is_some_and(|started| started.task.cut.is_some());
        match command {
            Command::Start { extends, .. } => extends.iter().any(|extend| is_ending(&extend.branch)),
            Command::Fork { at, .. } => is_ending(at),
            Command::SetAdapter { branches, .. } => branches.iter().any(is_ending),
            _ => false,
        }
    }

    pub(super) fn execute(&mut self, command: Command) {
        match command {
            Command::Root { place, path, home } => self.root(place, path, home),
            Command::Fork { at, children } => self.fork(at, children),
            Command::Start { extends, events } => self.start(extends, &events),
            // Only the router itself asks engines for this.
            Command::Continue { extend, events, .. } => {
                let error = Error::Internal("an extend to continue was sent to a router".to_owned());
                self.batcher.send(&events, Event::Failed { id: extend.branch, error });
            }
            Command::Cancel { branches } => self.cancel(&branches),
            Command::Release { branches } => self.release(&branches),
            Command::Prune { branches } => self.prune(&branches),
            Command::Metrics { reply } => self.metrics(reply),
            Command::Pin { branch } => {
                if let Some(branch) = self.branches.get_mut(&branch) {
                    branch.is_pin = true;
                }
            }
            Command::CacheMap { most, reply } => self.cache_map(most, reply),
            Command::Evict { held, reply } => self.evict(held, reply),
            // Only the router itself asks engines for these; what is closed has nothing to lend.
            Command::Lend(_) | Command::KeepAdapters { .. } => {}
            Command::Borrow { reply, .. } => drop(reply.send(false)),
            Command::Pause { pause, reply } => self.pause(pause, reply),
            Command::Resume { reply } => self.resume(move |_, resumed| drop(reply.send(resumed))),
            // The router decides by itself what stands still.
            Command::UpdateWeights { update, stands: _, reply } => self.update_weights(update, reply),
            Command::FailAll { why } => self.fail_all(&why),
            Command::SetLabel { label, reply } => self.set_label(&label, &reply),
            Command::Sleep { sleep, reply } => self.sleep(sleep, reply),
            Command::Wake { parts, reply } => self.wake(parts, reply),
            Command::SetAdapter { branches, adapter } => self.set_adapter(&branches, adapter),
            Command::StageAdapter { new, reply } => self.stage_adapter(new, reply),
            Command::DropAdapter => self.drop_staged_adapter(),
            Command::PutAdapter { reply } => self.put_adapter(reply),
            Command::UnloadAdapter { name, reply } => self.unload_adapter(name, reply),
        }
    }

    fn root(&mut self, place: QueueKey, path: TokenPath, home: Option<usize>) {
        let prefix = Prefix::of(&path, &[]);
        let record = BranchRecord { place, path, prefix, home, on: On::Nowhere, is_pin: false, is_known: true };
        self.branches.insert(place.branch, record);
    }

    fn rests(&self, branch: BranchId) -> bool {
        !self.waiting.contains_key(&branch) && !self.started.contains_key(&branch) && !self.is_held(branch)
    }

    /// Ignores a fork of a branch that is being extended, as an engine does.
    fn fork(&mut self, at: BranchId, children: Vec<BranchId>) {
        if !self.rests(at) {
            return;
        }
        let Some(parent) = self.branches.get_mut(&at) else { return };
        let forks: Vec<BranchRecord> = children.iter().map(|&child| parent.fork(child)).collect();
        let on = parent.on;
        self.branches.extend(forks.into_iter().map(|fork| (fork.place.branch, fork)));
        if let On::Replica(at_replica) = on {
            self.send(at_replica, Command::Fork { at, children });
        }
    }

    /// Ignores branches that are being extended, as an engine does.
    fn set_adapter(&mut self, branches: &[BranchId], adapter: Option<AdapterVersion>) {
        let mut there: Vec<Vec<BranchId>> = self.replicas.iter().map(|_| Vec::new()).collect();
        // The prefix that was changed last, and what became of it: forks have the same.
        let mut last: Option<(Prefix, PathAdapters, Prefix)> = None;
        let resting: Vec<BranchId> = branches.iter().copied().filter(|&id| self.rests(id)).collect();
        for id in resting {
            let Some(record) = self.branches.get_mut(&id).filter(|record| !record.is_pin) else { continue };
            record.path.set_adapter(adapter);
            match record.on {
                On::Replica(at) => there[at].push(id),
                On::Nowhere | On::Everywhere => {
                    let is_known = |(before, adapters, _): &&(Prefix, PathAdapters, Prefix)| {
                        before.is(&record.prefix) && adapters == record.path.adapters()
                    };
                    let prefix = match last.as_ref().filter(is_known) {
                        Some((.., prefix)) => prefix.clone(),
                        None => Prefix::of(&record.path, &[]),
                    };
                    let before = std::mem::replace(&mut record.prefix, prefix.clone());
                    last = Some((before, record.path.adapters().clone(), prefix));
                }
            }
        }
        self.send_each(there, |_, branches| Command::SetAdapter { branches, adapter });
    }

    pub(super) fn start(&mut self, extends: Vec<ReadyExtend>, events: &EventSender) {
        let mut follow: Vec<Vec<ReadyExtend>> = self.replicas.iter().map(|_| Vec::new()).collect();
        let status = self.status.read();
        // The prompt that was placed last, and where: those that begin like it join it.
        let mut last: Option<(Prefix, usize)> = None;
        for extend in extends {
            let id = extend.branch;
            if !self.rests(id) {
                self.batcher.send(events, Event::Failed { id, error: busy_branch(id) });
                continue;
            }
            let Some(record) = self.branches.get(&id) else {
                self.batcher.send(events, Event::Failed { id, error: unknown_branch(id) });
                continue;
            };
            if status.is_paused() {
                self.held.insert(record.place, (extend, events.clone()));
                continue;
            }
            if let Err(error) = status.check_ready("an engine to sample or score with") {
                self.batcher.send(events, Event::Failed { id, error });
                continue;
            }
            let (prefix, length) = (record.prefix.clone(), record.path.len());
            let mut task = self.task(extend, record.place, events, prefix, length);
            match record.on {
                On::Replica(replica) => {
                    follow[replica].push(task.extend.clone());
                    self.begin(replica, task);
                }
                On::Everywhere => self.begin_everywhere(task),
                On::Nowhere if record.is_pin => self.begin_everywhere(task),
                On::Nowhere if !record.is_known => {
                    let expected = "one whose tokens are known";
                    let found = format!("{id}, which had failed on a device that is lost");
                    let error = Error::value("branch", expected, found);
                    self.batcher.send(events, Event::Failed { id, error });
                }
                On::Nowhere => {
                    task.prefix = record.prefix_with(&task.extend.continuation, &task.said);
                    let replica = self.place(record.home, &task.prefix, last.as_ref());
                    last = Some((task.prefix.clone(), replica));
                    self.queue(replica, task);
                }
            }
        }
        self.send_each(follow, |replica, extends| {
            let events = replica.events.sender(events.hear());
            Command::Start { extends, events }
        });
    }

    fn task(&self, extend: ReadyExtend, key: QueueKey, events: &EventSender, prefix: Prefix, length: usize) -> Task {
        let room = self.replicas[0].engine.facts().context.saturating_sub(length);
        let work =
            Work { prompt: extend.tokens_given() as u64, output: expected(self.lengths, &extend.continuation, room) };
        Task { key, extend, events: events.clone(), prefix, work, cut: None, said: Said::default() }
    }

    /// The replica on which a prompt is to begin: that of its part of the job; or that of the prompt before it, if it
    /// begins like it; or where it would end first: the one that has most of it, unless that one has so much more to do
    /// that computing it again is faster.
    pub fn place(&self, home: Option<usize>, prefix: &Prefix, last: Option<&(Prefix, usize)>) -> usize {
        if let Some(home) = home.map(|part| part % self.replicas.len()).filter(|&home| self.replicas[home].lives()) {
            return home;
        }
        let alive = || self.replicas.iter().enumerate().filter(|(_, replica)| replica.lives());
        let known = |replica: &Replica| replica.known.known(prefix) as u64;
        if let Some((before, replica)) = last
            && self.replicas[*replica].lives()
        {
            let shared = before.shared_with(prefix) as u64;
            if shared > 0 && alive().all(|(_, other)| known(other) <= shared) {
                return *replica;
            }
        }
        let end = |replica: &Replica| replica.tokens_ahead() + prefix.tokens() as u64 - known(replica);
        alive().min_by_key(|(_, replica)| end(replica)).map_or(0, |(at, _)| at)
    }

    /// Lets a task wait for a replica.
    pub fn queue(&mut self, at: usize, mut task: Task) {
        let replica = &mut self.replicas[at];
        let known = replica.known.note(&task.prefix);
        task.work.prompt = (task.prefix.tokens() - known) as u64;
        self.waiting.insert(task.branch(), (at, task.key));
        replica.queue.push(task);
    }

    /// Records an extend that a replica is given.
    pub fn begin(&mut self, at: usize, task: Task) {
        self.replicas[at].begin(task.key, task.work);
        self.started.insert(task.branch(), Started::on(at, task));
    }

    /// A pin, which every replica computes and keeps.
    fn begin_everywhere(&mut self, task: Task) {
        let branch = task.branch();
        let replicas: Vec<usize> = (0..self.replicas.len()).filter(|&at| self.replicas[at].lives()).collect();
        let Some(record) = self.branches.get_mut(&branch) else { return };
        let is_new = record.on == On::Nowhere;
        record.on = On::Everywhere;
        let paths: Vec<TokenPath> = replicas.iter().map(|_| record.path.fork()).collect();
        for &at in &replicas {
            self.replicas[at].begin(task.key, task.work);
            self.replicas[at].known.note(&task.prefix);
            self.replicas[at].begun.note(&task.prefix);
        }
        let (key, extend) = (task.key, task.extend.clone());
        self.started.insert(branch, Started { replicas: replicas.clone(), task, end: None });
        for (at, path) in replicas.into_iter().zip(paths) {
            if is_new {
                self.send(at, Command::Root { place: key, path, home: None });
                self.send(at, Command::Pin { branch });
            }
            let events = self.replicas[at].events.sender(Hear::Finishes);
            self.send(at, Command::Start { extends: vec![extend.clone()], events });
        }
    }

    fn cancel(&mut self, branches: &[BranchId]) {
        let there = self.cut(branches, FinishReason::Cancelled);
        self.send_each(there, |_, branches| Command::Cancel { branches });
    }

    /// Ends the extends of these branches that no engine has, and notes how the others will. Returns those that each
    /// replica has.
    pub(super) fn cut(&mut self, branches: &[BranchId], reason: FinishReason) -> Vec<Vec<BranchId>> {
        let mut there: Vec<Vec<BranchId>> = self.replicas.iter().map(|_| Vec::new()).collect();
        for branch in branches {
            if let Some((replica, key)) = self.waiting.remove(branch) {
                if let Some(mut task) = self.replicas[replica].queue.remove(&key) {
                    task.cut = Some(reason.clone());
                    self.finish_cut(&task);
                }
            } else if let Some((_, events)) = self.take_held(*branch) {
                self.batcher.send(&events, Event::Finished { id: *branch, finish: Finish::empty(reason.clone()) });
            } else if let Some(started) = self.started.get_mut(branch) {
                started.task.cut = Some(reason.clone());
                started.replicas.iter().for_each(|&replica| there[replica].push(*branch));
            }
        }
        there
    }

    /// The end of an extend that is cut while no engine has it: what its client has heard of it.
    pub fn finish_cut(&mut self, task: &Task) {
        let finish = task.said.as_finish(task.cut.clone().unwrap_or(FinishReason::Cancelled));
        self.note_finish(task, &finish);
        self.batcher.send(&task.events, Event::Finished { id: task.branch(), finish });
    }

    fn release(&mut self, branches: &[BranchId]) {
        let there = self.forget(branches);
        self.send_each(there, |_, branches| Command::Release { branches });
    }

    fn prune(&mut self, branches: &[BranchId]) {
        let there = self.forget(branches);
        self.send_each(there, |_, branches| Command::Prune { branches });
    }

    /// Cancels branches that wait and forgets all of these. Returns those that each replica has.
    fn forget(&mut self, branches: &[BranchId]) -> Vec<Vec<BranchId>> {
        let waiting: Vec<BranchId> =
            branches.iter().copied().filter(|&id| self.waiting.contains_key(&id) || self.is_held(id)).collect();
        self.cancel(&waiting);
        let mut there: Vec<Vec<BranchId>> = self.replicas.iter().map(|_| Vec::new()).collect();
        for branch in branches {
            if let Some(started) = self.started.get_mut(branch) {
                started.task.cut = Some(FinishReason::Cancelled);
            }
            match self.branches.remove(branch).map(|record| record.on) {
                Some(On::Replica(replica)) => there[replica].push(*branch),
                Some(On::Everywhere) => there.iter_mut().for_each(|of_replica| of_replica.push(*branch)),
                Some(On::Nowhere) | None => {}
            }
        }
        there
    }

    /// Sends each replica a command of what is listed for it, if anything is.
    fn send_each<T>(&mut self, there: Vec<Vec<T>>, command: impl Fn(&mut Replica, Vec<T>) -> Command) {
        for (at, listed) in there.into_iter().enumerate().filter(|(_, listed)| !listed.is_empty()) {
            let command = command(&mut self.replicas[at], listed);
            self.send(at, command);
        }
    }

    /// Sends a command to a replica; if its engine has ended, its branches go to the others.
    pub fn send(&mut self, at: usize, command: Command) {
        if self.replicas[at].lives() && self.replicas[at].engine.send(command).is_err() {
            self.lose(at);
        }
    }

    /// Gives engines what they have room for, and replicas that are short of work what others could not begin soon.
    /// Returns when to look again at the latest.
    pub(super) fn share_out(&mut self) -> Option<Instant> {
        if !self.status.lock().makes_steps() {
            return self.loans.iter().map(|loan| loan.until).min();
        }
        let alive = self.alive();
        let mut held: Vec<Option<QueueKey>> = vec![None; self.replicas.len()];
        let mut wake_at: Option<Instant> = None;
        let takers: Vec<usize> = (0..self.replicas.len()).filter(|&at| self.replicas[at].is_short_of_work()).collect();
        for replica in self.replicas.iter_mut().filter(|replica| !replica.is_short_of_work()) {
            replica.idle_since = None;
        }
        for (before, &taker) in takers.iter().enumerate() {
            let Some((victim, takeover)) = self.takeover(taker, takers.len() - before, &held) else {
                self.replicas[taker].idle_since = None;
                continue;
            };
            let now = Instant::now();
            let until = *self.replicas[taker].idle_since.get_or_insert(now) + PATIENCE;
            if takeover.twice == 0 || until <= now {
                self.take_over(victim, taker, takeover);
            } else {
                held[victim] = Some(held[victim].map_or(takeover.from, |from| from.min(takeover.from)));
                wake_at = Some(wake_at.map_or(until, |wake_at| wake_at.min(until)));
            }
        }
        for (replica, held) in held.into_iter().enumerate() {
            self.give(replica, held);
        }
        if self.alive() < alive {
            return Some(Instant::now()); // What a lost one had may have come to one that was given its part before.
        }
        self.loans.iter().map(|loan| loan.until).chain(wake_at).min()
    }

    fn alive(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.lives()).count()
    }

    /// What `taker` should take over, and from whom: of those for which something waits, the one with the most to do.
    /// `takers`: how many are still short of work, with it; `held`: what waits for others of them.
    fn takeover(&self, taker: usize, takers: usize, held: &[Option<QueueKey>]) -> Option<(usize, Takeover)> {
        let waiting = (0..self.replicas.len()).filter(|&at| !self.replicas[at].queue.is_empty());
        let victim = waiting.max_by_key(|&at| self.replicas[at].tokens_ahead())?;
        let (from, to) = (&self.replicas[victim], &self.replicas[taker]);
        let between = Between {
            queue: &from.queue,
            upto: held[victim],
            running: from.running(),
            sharers: takers as u64,
            taker_running: to.running(),
            taker_knows: &to.known,
            pace: self.pace,
            costs: to.engine.facts().prefix_costs,
        };
        between.best().map(|takeover| (victim, takeover))
    }

    fn take_over(&mut self, victim: usize, taker: usize, takeover: Takeover) {
        let tasks = self.replicas[victim].queue.take_from(&takeover.from);
        log::debug!("replica {taker} takes over {} of replica {victim}'s, {takeover:?}", tasks.len());
        for task in tasks {
            self.queue(taker, task);
        }
        self.replicas[taker].idle_since = None;
    }

    /// Gives a replica's engine what waits for it, as far as it has room, up to the place `held`. What waits for a
    /// prefix that is copied is passed over.
    pub(super) fn give(&mut self, at: usize, held: Option<QueueKey>) {
        let mut starts: [(Hear, Vec<ReadyExtend>); 2] = [(Hear::Finishes, Vec::new()), (Hear::Tokens, Vec::new())];
        let mut go_on: Vec<(Hear, ReadyExtend, Said)> = Vec::new();
        let (mut passed, mut passed_over): (Option<QueueKey>, usize) = (None, 0);
        let mut given: Option<Prefix> = None;
        while let Some(key) = self.replicas[at].queue.next(passed) {
            let is_held = held.is_some_and(|held| key >= held);
            if is_held || passed_over > MOST_PASSED_OVER || !self.replicas[at].has_room(key.priority) {
                break;
            }
            let is_given = |task: &Task| given.as_ref().is_some_and(|given| given.is(&task.prefix));
            let is_like_last = self.replicas[at].queue.get(&key).is_some_and(is_given);
            if !is_like_last && self.waits_for_loan(at, &key) {
                (passed, passed_over) = (Some(key), passed_over + 1);
                continue;
            }
            let Some(task) = self.replicas[at].queue.remove(&key) else { break };
            self.waiting.remove(&task.branch());
            let Some(record) = self.branches.get_mut(&task.branch()) else {
                self.finish_cut(&task);
                continue;
            };
            record.on = On::Replica(at);
            if !is_like_last {
                self.replicas[at].begun.note(&task.prefix);
                given = Some(task.prefix.clone());
            }
            let root = Command::Root { place: record.place, path: record.path.fork(), home: None };
            match task.said.tokens.is_empty() {
                true => starts[usize::from(task.events.hears_tokens())].1.push(task.extend.clone()),
                false => go_on.push((task.events.hear(), task.extend.clone(), task.said.clone())),
            }
            self.begin(at, task);
            self.send(at, root);
            if !self.replicas[at].lives() {
                return;
            }
        }
        for (hear, extends) in starts {
            if !extends.is_empty() {
                let events = self.replicas[at].events.sender(hear);
                self.send(at, Command::Start { extends, events });
            }
        }
        for (hear, extend, said) in go_on {
            let events = self.replicas[at].events.sender(hear);
            self.send(at, Command::Continue { extend, said, events });
        }
    }

    /// What waits here, beside what the engines publish.
    fn publish(&self) {
        let waiting = self.waiting.len() + self.held.len();
        self.live.publish(LiveMetrics { waiting, branches: waiting, ..LiveMetrics::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::by_hand;
    use super::super::by_hand::{client, engine_by_hand, finish, root, sampled};
    use super::*;

    const BRANCH: BranchId = BranchId(1);
    const CHILD: BranchId = BranchId(2);

    /// What an engine was sent since it was looked at last.
    fn sent(engine: &Receiver<Command>) -> Vec<Command> {
        engine.try_iter().collect()
    }

    /// One turn of the router, which begins within a minute.
    fn turn(router: &mut Router) {
        router.wait(Some(Instant::now() + Duration::from_secs(60)));
        router.take_commands();
        router.take_events();
        router.share_out();
        router.batcher.flush();
    }

    /// How a branch comes to rest.
    enum End {
        /// Its engine says that it is cancelled.
        Cancelled,
        /// Its engine ends.
        Lost,
    }

    /// A branch of the first of two engines is cancelled, and at once forked and extended. What each engine is sent
    /// once the branch rests.
    fn restarted(end: End) -> [Vec<Command>; 2] {
        let ((first, mut of_first, exit_reason), (second, of_second, _lives)) = (engine_by_hand(), engine_by_hand());
        let (commands, of_router) = crossbeam_channel::unbounded();
        let mut router = by_hand::router(vec![first, second], of_router);
        let ((mut before, events_before), (mut after, events_after)) = (client(), client());
        let send = |command| commands.send(command).expect("the router lives");
        send(root(BRANCH, 0));
        send(Command::Start { extends: vec![sampled(BRANCH)], events: events_before });
        router.take_commands();
        router.give(0, None);
        let given = sent(&of_first);

        send(Command::Cancel { branches: vec![BRANCH] });
        send(Command::Fork { at: BRANCH, children: vec![CHILD] });
        send(Command::Start { extends: vec![sampled(BRANCH), sampled(CHILD)], events: events_after });
        turn(&mut router);
        assert!(matches!(&sent(&of_first)[..], [Command::Cancel { .. }]), "it has not said that the branch rests");
        match end {
            End::Cancelled => finish(given.last(), BRANCH, FinishReason::Cancelled),
            End::Lost => {
                exit_reason.set("pulled out".to_owned()).expect("nobody else says why");
                drop((given, std::mem::replace(&mut of_first, crossbeam_channel::never())));
            }
        }
        turn(&mut router);
        turn(&mut router);
        assert!(matches!(before.next(), Some(Event::Finished { .. })), "the first client has heard the end");
        assert!(after.next().is_none(), "nothing failed");
        [sent(&of_first), sent(&of_second)]
    }

    #[test]
    fn a_branch_rests_for_the_command_after_its_cancel() {
        let [of_first, _] = restarted(End::Cancelled);
        let [Command::Fork { .. }, Command::Start { extends, .. }] = &of_first[..] else { panic!("it goes on there") };
        assert_eq!(extends.len(), 2, "the branch and its fork");
    }

    #[test]
    fn a_branch_whose_engine_is_lost_rests_too() {
        let [_, of_second] = restarted(End::Lost);
        let begun = |command: &Command| match command {
            Command::Start { extends, .. } => extends.len(),
            _ => 0,
        };
        assert_eq!(of_second.iter().map(begun).sum::<usize>(), 2, "the branch and its fork begin on the other engine");
    }
}
