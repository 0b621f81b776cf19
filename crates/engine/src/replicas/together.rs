//! What all engines do together: pauses, updates of the weights, sleep. New weights were checked before they come here,
//! so that no engine refuses what another one takes. An engine that fails to take them nevertheless, while another one
//! has taken them or still has the old ones, is asked for nothing any more, and what it had goes on on the others,
//! behind what clients have heard of it; so engines behind one handle differ in their weights no longer than one of
//! them takes to change, and each token is recorded with those it was sampled under. If none has weights any more, what
//! is in progress fails.
//!
//! The router does not wait: a thread collects the engines' answers, and the router goes on when they are there. What
//! sleeps, and whether weights are missing, it reads from the engines themselves. During a pause it holds what is
//! started, as a single engine does.

use std::collections::BTreeSet;

use crossbeam_channel::Sender;

use crate::status::{Pause, PauseMode};
use crate::updates::{cannot_wait, not_paused, weights_lost};
use crate::weights::CheckedWeights;
use crate::{Command, Event, EventSender, FinishReason, LoadedAdapter, NewAdapter, ReadyExtend, Weights};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId};
use offshoot_model::{Sleep, SleepParts};

use super::branch::On;
use super::prefix::KnownPrefixes;
use super::questions::answer;
use super::router::Router;

/// What is to be done once all engines have answered.
pub(super) type Note = Box<dyn FnOnce(&mut Router) + Send>;

/// The answer of each engine; `None` of one that has ended.
type Answers<T> = Vec<Option<T>>;

impl Router {
    /// Asks all engines, and does `then` with their answers once they are there.
    fn ask_together<T: Send + 'static>(
        &mut self,
        question: impl Fn(Sender<T>) -> Command,
        then: impl FnOnce(&mut Router, Answers<T>) + Send + 'static,
    ) {
        let asked = self.ask_each(question);
        let notes = self.notes.0.clone();
        answer(move || {
            let answers: Answers<T> = asked.into_iter().map(|receiver| receiver.recv().ok()).collect();
            // A router that has ended has no clients.
            drop(notes.send(Box::new(move |router| then(router, answers))));
        });
    }

    pub(super) fn is_held(&self, branch: BranchId) -> bool {
        self.branches.get(&branch).is_some_and(|record| self.held.contains_key(&record.place))
    }

    /// The extend of a branch that is held, which begins no more.
    pub(super) fn take_held(&mut self, branch: BranchId) -> Option<(ReadyExtend, EventSender)> {
        let place = self.branches.get(&branch)?.place;
        self.held.remove(&place)
    }

    /// Begins a pause; it is answered once it holds.
    pub(super) fn pause(&mut self, pause: Pause, reply: Sender<Result<()>>) {
        let status = self.status.read();
        let is_idle = self.waiting.is_empty() && self.started.is_empty();
        if pause.mode() == PauseMode::Wait && !status.is_ready() && !is_idle {
            drop(reply.send(Err(cannot_wait()))); // Who asked may be gone.
            return;
        }
        self.status.lock().begin_pause(pause);
        self.pauses += 1;
        match pause.mode() {
            PauseMode::Keep | PauseMode::Abort => {
                if pause.mode() == PauseMode::Keep {
                    self.draining.stand();
                } else {
                    let is_pin = |id: &BranchId| self.branches.get(id).is_some_and(|record| record.is_pin);
                    let begun = self.waiting.keys().chain(self.started.keys()).copied();
                    let ids: Vec<BranchId> = begun.filter(|id| !is_pin(id)).collect();
                    self.cut(&ids, FinishReason::Aborted);
                }
                self.ask_together(
                    move |reply| Command::Pause { pause: pause.mode().into(), reply },
                    move |_, answers| drop(reply.send(all_did(answers))),
                );
            }
            PauseMode::Wait => {
                self.draining.add(reply);
                // What stands still goes on to its end; what the engines may begin is held here.
                if status.is_paused() && status.is_ready() {
                    let asked = self.pauses;
                    let then = move |router: &mut Router, answers| {
                        if let (Err(error), true) = (all_did(answers), router.pauses == asked) {
                            router.draining.fail(&error);
                        }
                    };
                    self.ask_together(|reply| Command::Resume { reply }, then);
                }
            }
        }
    }

    /// Answers those who wait for the extends in progress to end, if all have.
    pub(super) fn note_drained(&mut self) {
        if self.waiting.is_empty() && self.started.is_empty() {
            self.draining.end();
        }
    }

    /// Ends a pause, unless memory or weights are missing, and then does `then`.
    pub(super) fn resume(&mut self, then: impl FnOnce(&mut Router, Result<()>) + Send + 'static) {
        let status = self.status.read();
        if let Err(error) = status.check_ready("an engine to resume") {
            return then(self, Err(error));
        }
        if !status.is_paused() {
            return then(self, Ok(()));
        }
        let asked = self.pauses;
        self.ask_together(
            |reply| Command::Resume { reply },
            move |router, answers| {
                let resumed = all_did(answers);
                match &resumed {
                    // Paused again meanwhile: it was ended before.
                    _ if router.pauses != asked => {}
                    Ok(()) => router.end_pause(),
                    Err(_) => drop(router.ask_each(|reply| Command::Pause { pause: PauseMode::Keep.into(), reply })),
                }
                then(router, resumed);
            },
        );
    }

    fn end_pause(&mut self) {
        self.status.lock().pause = None;
        self.draining.end_early();
        for (_, (extend, events)) in std::mem::take(&mut self.held) {
            self.start(vec![extend], &events);
        }
    }

    pub(super) fn update_weights(&mut self, update: CheckedWeights, reply: Sender<Result<Weights>>) {
        let status = self.status.read();
        if let Err(error) = status.check_updatable() {
            drop(reply.send(Err(error))); // Who asked may be gone.
            return;
        }
        // What they are given from now on they compute with the new weights.
        self.forget_known();
        let weights = self.status.weights_after(&update);
        self.ask_together(
            |reply| Command::UpdateWeights { update: update.clone(), stands: true, reply },
            move |router, answers| match router.note_weights(answers, weights, status.lacks_weights) {
                Ok(weights) => router.wake_up_whole(move |_| drop(reply.send(Ok(weights)))),
                Err(error) => drop(reply.send(Err(error))),
            },
        );
    }

    fn forget_known(&mut self) {
        self.loans.clear();
        for replica in &mut self.replicas {
            (replica.known, replica.begun) = (KnownPrefixes::default(), KnownPrefixes::default());
        }
    }

    /// Notes the weights that engines have taken, and loses those that have failed to. `lacked`: none had any before.
    fn note_weights(&mut self, answers: Answers<Result<Weights>>, weights: Weights, lacked: bool) -> Result<Weights> {
        let is_taken = answers.iter().flatten().any(Result::is_ok);
        let failed: Vec<(usize, Error)> =
            answers.into_iter().enumerate().filter_map(|(at, answer)| Some((at, answer?.err()?))).collect();
        if is_taken {
            failed.iter().for_each(|(at, error)| self.give_up(*at, error));
            self.status.lock().weights = weights.clone();
            self.note_engines();
            return Ok(weights);
        }
        let has_lost = |&&(at, _): &&(usize, Error)| self.replicas[at].engine.status().lacks_weights;
        let lost: Vec<&(usize, Error)> = failed.iter().filter(has_lost).collect();
        match lost.first() {
            Some((_, error)) if !lacked && lost.len() == failed.len() => self.fail_all(&error.to_string()),
            // Those that have the old weights go on with them.
            Some(_) if !lacked => lost.into_iter().for_each(|(at, error)| self.give_up(*at, error)),
            _ => {}
        }
        self.note_engines();
        let none = || Error::EngineStopped { why: "no device is left".to_owned() };
        Err(failed.into_iter().next().map_or_else(none, |(_, error)| error))
    }

    /// Notes what of the engines sleeps, and whether they have weights: they are used together.
    fn note_engines(&mut self) {
        let all = self.replicas.iter().filter(|replica| replica.lives()).map(|replica| replica.engine.status());
        let (mut asleep, mut lacks_weights) = (SleepParts::NONE, false);
        for status in all {
            (asleep, lacks_weights) = (asleep.and(status.asleep), lacks_weights || status.lacks_weights);
        }
        let mut status = self.status.lock();
        (status.asleep, status.lacks_weights) = (asleep, lacks_weights);
    }

    /// Fails what is in progress after an update that has left no engine its weights.
    pub(super) fn fail_all(&mut self, why: &str) {
        let replicas = 0..self.replicas.len();
        replicas.for_each(|at| self.send(at, Command::FailAll { why: why.to_owned() }));
        for replica in &mut self.replicas {
            for task in replica.queue.take_all() {
                self.waiting.remove(&task.branch());
                let failed = Event::Failed { id: task.branch(), error: weights_lost(why) };
                self.batcher.send(&task.events, failed);
            }
        }
    }

    /// Loses an engine that lives, but could not do what the others have done.
    fn give_up(&mut self, at: usize, error: &Error) {
        let had = self.branches.iter().filter(|(_, record)| matches!(record.on, On::Replica(on) if on == at));
        let branches: Vec<BranchId> = had.map(|(&id, _)| id).collect();
        self.send(at, Command::Prune { branches });
        if self.replicas[at].lives() {
            self.lose_for(at, &error.to_string());
        }
    }

    /// Has all engines keep the adapters of branches that none of them has yet, or only one: what is lost with that one
    /// goes on on the others.
    fn keep_adapters(&mut self) {
        let records = self.branches.values().filter(|record| record.on != On::Everywhere);
        let versions: BTreeSet<AdapterVersion> = records.flat_map(|record| record.path.adapters().versions()).collect();
        for at in 0..self.replicas.len() {
            self.send(at, Command::KeepAdapters { versions: versions.clone() });
        }
    }

    pub(super) fn stage_adapter(&mut self, new: NewAdapter, reply: Sender<Result<()>>) {
        self.keep_adapters();
        self.ask_together(
            |reply| Command::StageAdapter { new: new.clone(), reply },
            move |router, answers| {
                let staged = all_did(answers);
                if staged.is_err() {
                    router.drop_staged_adapter();
                }
                drop(reply.send(staged));
            },
        );
    }

    pub(super) fn drop_staged_adapter(&mut self) {
        for at in 0..self.replicas.len() {
            self.send(at, Command::DropAdapter);
        }
    }

    pub(super) fn put_adapter(&mut self, reply: Sender<Result<LoadedAdapter>>) {
        self.keep_adapters();
        self.ask_together(
            |reply| Command::PutAdapter { reply },
            move |router, answers| {
                let put: Result<Vec<LoadedAdapter>> = answers.into_iter().flatten().collect();
                router.note_adapters();
                let first = put.and_then(|put| put.into_iter().next().ok_or_else(no_device));
                drop(reply.send(first));
            },
        );
    }

    pub(super) fn unload_adapter(&mut self, name: String, reply: Sender<Result<()>>) {
        self.keep_adapters();
        self.ask_together(
            |reply| Command::UnloadAdapter { name: name.clone(), reply },
            move |router, answers| {
                router.note_adapters();
                drop(reply.send(all_did(answers)));
            },
        );
    }

    /// Notes the adapters of the first engine that lives; all have the same.
    fn note_adapters(&mut self) {
        if let Some(replica) = self.replicas.iter().find(|replica| replica.lives()) {
            self.status.lock().adapters = replica.engine.adapters();
        }
    }

    pub(super) fn set_label(&mut self, label: &str, reply: &Sender<Weights>) {
        self.ask_each(|reply| Command::SetLabel { label: label.to_owned(), reply });
        let _ = reply.send(self.status.set_label(label.to_owned())); // Who asked may be gone.
    }

    /// Gives back memory of all engines, which are paused. After an error those that ran before run again.
    pub(super) fn sleep(&mut self, sleep: Sleep, reply: Sender<Result<()>>) {
        let (status, is_idle) = (self.status.read(), self.waiting.is_empty() && self.started.is_empty());
        if !status.is_paused() || (status.makes_steps() && !is_idle) {
            self.status.lock().note_sleep();
            drop(reply.send(Err(not_paused()))); // Who asked may be gone.
            return;
        }
        self.pauses += 1;
        let asked = self.pauses;
        self.forget_known();
        // Nothing runs on them; what stands still on them goes on standing.
        self.ask_each(|reply| Command::Pause { pause: PauseMode::Keep.into(), reply });
        let wakes = sleep.parts().without(status.asleep);
        self.ask_together(
            |reply| Command::Sleep { sleep, reply },
            move |router, answers| {
                // A later pause is for another sleep.
                if router.pauses == asked {
                    router.status.lock().note_sleep();
                }
                match all_did(answers) {
                    Ok(()) => {
                        router.note_engines();
                        let _ = reply.send(Ok(())); // Who asked may be gone.
                    }
                    Err(error) => router.wake_again(wakes, error, reply),
                }
            },
        );
    }

    /// Wakes those engines that slept, as others could not.
    fn wake_again(&mut self, parts: SleepParts, error: Error, reply: Sender<Result<()>>) {
        self.ask_together(
            move |reply| Command::Wake { parts, reply },
            move |router, answers| {
                let error = match all_did(answers) {
                    Ok(()) => error,
                    Err(still) => {
                        let found = format!("one that failed ({error}) and cannot be undone ({still}): wake it again");
                        Error::value("memory to give back", "a sleep of all engines", found)
                    }
                };
                router.note_engines();
                router.wake_up_whole(move |_| drop(reply.send(Err(error))));
            },
        );
    }

    pub(super) fn wake(&mut self, parts: SleepParts, reply: Sender<Result<()>>) {
        self.ask_together(
            move |reply| Command::Wake { parts, reply },
            move |router, answers| {
                let woken = all_did(answers);
                router.note_engines();
                router.wake_up_whole(move |_| drop(reply.send(woken)));
            },
        );
    }

    /// Resumes engines that were put to sleep while they ran, once all is there, and then does `then`.
    fn wake_up_whole(&mut self, then: impl FnOnce(&mut Router) + Send + 'static) {
        let is_to_resume = self.status.lock().is_to_resume();
        if !is_to_resume {
            return then(self);
        }
        self.resume(move |router, resumed| {
            if let Err(error) = resumed {
                log::warn!("engines that are awake stay paused: {error}");
            }
            then(router);
        });
    }
}

/// The error of what no engine has done.
fn no_device() -> Error {
    Error::EngineStopped { why: "no device is left".to_owned() }
}

/// The first error of engines that live, if there is one.
fn all_did(answers: Answers<Result<()>>) -> Result<()> {
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::{Receiver, bounded};
    use offshoot_core::ids::{TokenId, WeightVersion};
    use offshoot_model::{TensorsInMemory, UpdateScope};

    use super::super::by_hand::{self, engine_by_hand, listener, place, root, sampled, say, tokens};
    use super::*;
    use crate::{Event, EventReader, TokenPath, WeightSpan, WeightsUpdate};

    /// Answers the engine's order to change its weights.
    fn answer_update(engine: &Receiver<Command>, answer: impl Fn() -> Result<Weights>) {
        let replies = engine.try_iter().filter_map(|command| match command {
            Command::UpdateWeights { reply, .. } => Some(reply),
            _ => None,
        });
        replies.for_each(|reply| reply.send(answer()).expect("somebody waits for it"));
    }

    const BRANCH: BranchId = BranchId(1);

    /// An update that two engines answer, of which the second one samples a branch and has said two tokens of it.
    struct Updated {
        answer: Result<Weights>,
        router: Router,
        /// What the second engine was given: it lives while these are there.
        _given: Vec<Command>,
        /// What the first engine is sent after the update.
        of_first: Vec<Command>,
        client: EventReader,
    }

    /// Whether the next thing that a client hears is these tokens, sampled under `version`.
    fn hears(client: &mut EventReader, expected: &[u32], version: WeightVersion) -> bool {
        let Some(Event::Tokens { tokens, weights, .. }) = client.next() else { return false };
        weights == version && tokens.iter().map(|sampled| sampled.token.0).eq(expected.iter().copied())
    }

    fn updated(answers: [&dyn Fn() -> Result<Weights>; 2]) -> Updated {
        let ((first, of_first, _first), (second, of_second, _second)) = (engine_by_hand(), engine_by_hand());
        let mut router = by_hand::router(vec![first, second], crossbeam_channel::unbounded().1);
        let (mut client, events) = listener();
        router.execute(root(BRANCH, 1));
        router.execute(Command::Start { extends: vec![sampled(BRANCH)], events });
        router.give(1, None);
        let given: Vec<Command> = of_second.try_iter().collect();
        say(given.last(), tokens(BRANCH, &[5, 6], WeightVersion::FIRST));
        router.take_events();
        router.batcher.flush();
        assert!(hears(&mut client, &[5, 6], WeightVersion::FIRST));
        let update = WeightsUpdate::new(Arc::new(TensorsInMemory::default()), UpdateScope::Whole);
        let (reply, updated) = bounded(1);
        let update = CheckedWeights::of(update, None).unwrap();
        router.execute(Command::UpdateWeights { update, stands: false, reply });
        answer_update(&of_first, answers[0]);
        answer_update(&of_second, answers[1]);
        let note = router.notes.1.recv().expect("the router has the other end");
        note(&mut router);
        router.share_out();
        let answer = updated.try_recv().expect("it was answered");
        Updated { answer, router, _given: given, of_first: of_first.try_iter().collect(), client }
    }

    fn taken() -> Result<Weights> {
        Ok(Weights { version: WeightVersion::FIRST.next(), label: "1".to_owned(), identity: None })
    }

    fn failed() -> Result<Weights> {
        Err(Error::value("free memory", "some", "none"))
    }

    #[test]
    fn an_engine_that_fails_to_take_weights_which_another_has_taken_is_lost() {
        let Updated { answer, mut router, of_first, mut client, .. } = updated([&taken, &failed]);
        let second = WeightVersion::FIRST.next();
        assert_eq!(answer.unwrap().version, second);
        assert!(!router.replicas[1].lives());
        let [Command::Root { path, .. }, start] = &of_first[..] else { panic!("its branch goes on on the first one") };
        assert_eq!(path.len(), 40);
        let Command::Continue { extend, said, .. } = start else { panic!("behind what its client has heard") };
        let old = WeightSpan { version: WeightVersion::FIRST, from: 0 };
        let ids: Vec<u32> = said.tokens.iter().map(|sampled| sampled.token.0).collect();
        assert_eq!((extend.branch, ids, &said.text[..], &said.weights[..]), (BRANCH, vec![5, 6], "5;6;", &[old][..]));
        say(Some(start), tokens(BRANCH, &[9], second));
        router.take_events();
        router.batcher.flush();
        assert!(hears(&mut client, &[9], second));
        assert_eq!(router.started[&BRANCH].task.said.weights, [old, WeightSpan { version: second, from: 2 }]);
    }

    #[test]
    fn all_engines_keep_the_adapter_of_a_branch_that_one_of_them_has() {
        let ((first, of_first, _first), (second, of_second, _second)) = (engine_by_hand(), engine_by_hand());
        let mut router = by_hand::router(vec![first, second], crossbeam_channel::unbounded().1);
        let (_client, events) = listener();
        let path = TokenPath::of(None, Some(AdapterVersion(3)), vec![TokenId(7); 40]);
        router.execute(Command::Root { place: place(BRANCH), path, home: Some(1) });
        router.execute(Command::Start { extends: vec![sampled(BRANCH)], events });
        router.give(1, None);
        let given: Vec<Command> = of_second.try_iter().collect();
        assert!(matches!(given.last(), Some(Command::Start { .. })));
        router.execute(Command::UnloadAdapter { name: "a".to_owned(), reply: bounded(1).0 });
        let kept = |command: Command| match command {
            Command::KeepAdapters { versions } => versions.into_iter().collect(),
            _ => Vec::new(),
        };
        let kept: Vec<AdapterVersion> = of_first.try_iter().flat_map(kept).collect();
        assert_eq!(kept, [AdapterVersion(3)]);
    }

    #[test]
    fn weights_that_no_engine_takes_change_nothing() {
        for (answers, is_taken) in [([&failed as &dyn Fn() -> _, &failed], false), ([&taken, &taken], true)] {
            let Updated { answer, router, of_first, mut client, .. } = updated(answers);
            assert_eq!(answer.is_ok(), is_taken);
            assert!(answer.err().is_none_or(|error| error.to_string().contains("free memory")));
            assert!(router.replicas[1].lives() && of_first.is_empty() && client.next().is_none());
        }
    }
}
