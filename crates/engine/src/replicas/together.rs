//! What all engines do together: pauses, updates of the weights, sleep. New weights were checked before they come here,
//! so that no engine refuses what another one takes. An engine that fails to take them nevertheless, while another one
//! has, is asked for nothing any more, and what it had goes on on the others, behind what clients have heard of it; so
//! engines behind one handle differ in their weights no longer than one of them takes to change, and each token is
//! recorded with those it was sampled under. The router does not wait: a thread collects the engines' answers, and the
//! router goes on when they are there.
//!
//! During a pause the router holds what is started, as a single engine does.

use std::collections::BTreeSet;

use crossbeam_channel::Sender;

use crate::status::PauseMode;
use crate::weights::CheckedWeights;
use crate::{Command, EventSender, Extend, FinishReason, LoadedAdapter, NewAdapter, Weights};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId};
use offshoot_model::{Sleep, SleepParts};

use super::branch::On;
use super::prefix::KnownPrefixes;
use super::questions::answer;
use super::router::Router;
use crate::updates::Progress;

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
    pub(super) fn take_held(&mut self, branch: BranchId) -> Option<(Extend, EventSender)> {
        let place = self.branches.get(&branch)?.place;
        self.held.remove(&place)
    }

    pub(super) fn pause(&mut self, mode: PauseMode, reply: Sender<Result<()>>) {
        self.status.lock().is_paused = true;
        let (mut waiting, stood) = match std::mem::replace(&mut self.progress, Progress::Stands) {
            Progress::Drains(waiting) => (waiting, false),
            Progress::Goes => (Vec::new(), false),
            Progress::Stands => (Vec::new(), true),
        };
        waiting.push(reply);
        if mode == PauseMode::Keep {
            let then = move |_: &mut Router, _: Answers<Result<()>>| {
                waiting.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
            };
            return self.ask_together(|reply| Command::Pause { mode, reply }, then);
        }
        self.progress = Progress::Drains(waiting);
        if stood {
            // They go on to their ends; what the engines may begin is held here.
            self.resume_engines();
        }
        if mode == PauseMode::Abort {
            let is_pin = |id: &BranchId| self.branches.get(id).is_some_and(|record| record.is_pin);
            let begun = self.waiting.keys().chain(self.started.keys()).copied();
            let ids: Vec<BranchId> = begun.filter(|id| !is_pin(id)).collect();
            self.cut(&ids, FinishReason::Aborted);
            self.ask_each(|reply| Command::Pause { mode, reply });
        }
    }

    /// Answers those who wait for the extends in progress to end, if all have.
    pub(super) fn note_drained(&mut self) {
        if self.waiting.is_empty()
            && self.started.is_empty()
            && let Progress::Drains(waiting) = &mut self.progress
        {
            std::mem::take(waiting).into_iter().for_each(|reply| drop(reply.send(Ok(()))));
        }
    }

    fn resume_engines(&mut self) {
        self.ask_each(|reply| Command::Resume { reply });
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        self.sleeping.check_awake(&self.status)?;
        if self.progress.end(&self.status) {
            self.resume_engines();
        }
        self.sleeping.resumes = false;
        for (_, (extend, events)) in std::mem::take(&mut self.held) {
            self.start(vec![extend], &events);
        }
        Ok(())
    }

    pub(super) fn update_weights(&mut self, update: CheckedWeights, reply: Sender<Result<Weights>>) {
        if let Err(error) = self.sleeping.check_updatable(&self.status) {
            drop(reply.send(Err(error)));
            return;
        }
        // What they are given from now on they compute with the new weights.
        self.forget_known();
        self.ask_together(
            |reply| Command::UpdateWeights { update: update.clone(), reply },
            move |router, answers| drop(reply.send(router.note_weights(answers))),
        );
    }

    fn forget_known(&mut self) {
        self.loans.clear();
        for replica in &mut self.replicas {
            (replica.known, replica.begun) = (KnownPrefixes::default(), KnownPrefixes::default());
        }
    }

    /// Notes the weights that engines have taken, and loses those that have failed to.
    fn note_weights(&mut self, answers: Answers<Result<Weights>>) -> Result<Weights> {
        let taken = answers.iter().flatten().find_map(|answer| answer.as_ref().ok()).cloned();
        let mut failed = answers.into_iter().enumerate().filter_map(|(at, answer)| Some((at, answer?.err()?)));
        let Some(weights) = taken else {
            return Err(failed.next().map_or_else(no_device, |(_, error)| error));
        };
        for (at, error) in failed {
            self.give_up(at, &error);
        }
        self.status.lock().weights = weights.clone();
        self.sleeping.lacks_weights = false;
        self.wake_up_whole();
        Ok(weights)
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

    /// Has all engines keep the adapters of branches that none of them has yet.
    fn keep_adapters(&mut self) {
        let waiting = self.branches.values().filter(|record| record.on == On::Nowhere);
        let versions: BTreeSet<AdapterVersion> = waiting.flat_map(|record| record.path.adapters().versions()).collect();
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

    pub(super) fn set_label(&mut self, label: &str, reply: &Sender<()>) {
        self.status.lock().weights.label = label.to_owned();
        self.ask_each(|reply| Command::SetLabel { label: label.to_owned(), reply });
        let _ = reply.send(()); // Who asked may be gone.
    }

    pub(super) fn sleep(&mut self, sleep: Sleep, resumes: bool, reply: Sender<Result<()>>) {
        let is_still = (self.waiting.is_empty() && self.started.is_empty()) || !self.progress.makes_steps();
        if !(self.progress.is_paused() && is_still) {
            drop(reply.send(Err(crate::updates::not_paused())));
            return;
        }
        self.forget_known();
        // Nothing runs on them; what stands still on them goes on standing.
        self.ask_each(|reply| Command::Pause { mode: PauseMode::Keep, reply });
        self.progress.stand();
        self.ask_together(
            |reply| Command::Sleep { sleep, resumes: false, reply },
            move |router, answers| {
                let slept = all_did(answers);
                if slept.is_ok() {
                    router.sleeping.note_asleep(&router.status, sleep, resumes);
                }
                drop(reply.send(slept));
            },
        );
    }

    pub(super) fn wake(&mut self, parts: SleepParts, reply: Sender<Result<()>>) {
        self.ask_together(
            |reply| Command::Wake { parts, reply },
            move |router, answers| {
                let woken = all_did(answers);
                if woken.is_ok() {
                    router.sleeping.note_awake(&router.status, parts);
                    router.wake_up_whole();
                }
                drop(reply.send(woken));
            },
        );
    }

    fn wake_up_whole(&mut self) {
        if self.sleeping.is_to_resume(&self.status) {
            self.resume().expect("it is awake and has weights");
        }
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
    use offshoot_core::ids::WeightVersion;
    use offshoot_model::{TensorsInMemory, UpdateScope};

    use super::super::by_hand::{self, engine_by_hand, listener, root, sampled, say, tokens};
    use super::*;
    use crate::{Event, EventReader, WeightSpan, WeightsUpdate};

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
        router.execute(Command::UpdateWeights { update: CheckedWeights::of(update, None).unwrap(), reply });
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
    fn weights_that_no_engine_takes_change_nothing() {
        for (answers, is_taken) in [([&failed as &dyn Fn() -> _, &failed], false), ([&taken, &taken], true)] {
            let Updated { answer, router, of_first, mut client, .. } = updated(answers);
            assert_eq!(answer.is_ok(), is_taken);
            assert!(answer.err().is_none_or(|error| error.to_string().contains("free memory")));
            assert!(router.replicas[1].lives() && of_first.is_empty() && client.next().is_none());
        }
    }
}
