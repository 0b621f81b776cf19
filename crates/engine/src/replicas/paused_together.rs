//! Tests of what the router makes of engines that do not agree on a pause, a sleep or an update. The engines are played
//! by the tests.

use crossbeam_channel::{Receiver, bounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_model::{Sleep, SleepParts, TensorsInMemory, UpdateScope};
use std::sync::Arc;

use super::by_hand::{self, client, engine_by_hand, root, sampled};
use super::router::Router;
use crate::weights::CheckedWeights;
use crate::{Command, EngineHandle, EventReader, PauseMode, Weights, WeightsUpdate};

/// A router before two engines, and the second one has begun a branch.
struct Two {
    router: Router,
    engines: [Receiver<Command>; 2],
    handles: [EngineHandle; 2],
    client: EventReader,
}

const BRANCH: BranchId = BranchId(1);

fn two() -> Two {
    let ((first, of_first, _), (second, of_second, _)) = (engine_by_hand(), engine_by_hand());
    let handles = [first.clone(), second.clone()];
    let mut router = by_hand::router(vec![first, second], crossbeam_channel::unbounded().1);
    let (client, events) = client();
    router.execute(root(BRANCH, 1));
    router.execute(Command::Start { extends: vec![sampled(BRANCH)], events });
    router.give(1, None);
    of_second.try_iter().for_each(drop);
    Two { router, engines: [of_first, of_second], handles, client }
}

impl Two {
    /// Does what is to be done with the engines' next answers.
    fn note(&mut self) {
        let note = self.router.notes.1.recv().expect("the router has the other end");
        note(&mut self.router);
    }

    /// Answers what each engine was asked last; what all were sent since they were looked at.
    fn answer(&mut self, answers: [fn() -> Result<()>; 2]) -> [Vec<&'static str>; 2] {
        let mut number = 0;
        self.engines.each_ref().map(|engine| {
            let answer = answers[number];
            number += 1;
            let sent: Vec<Command> = engine.try_iter().collect();
            sent.into_iter().map(|command| done(command, answer)).collect()
        })
    }

    fn pause(&mut self, mode: PauseMode) {
        let (reply, paused) = bounded(1);
        self.router.execute(Command::Pause { pause: mode.into(), reply });
        self.answer([ok, ok]);
        self.note();
        paused.try_recv().expect("it was answered").expect("all have paused");
    }
}

/// Answers a command; its name.
fn done(command: Command, answer: fn() -> Result<()>) -> &'static str {
    let (name, reply) = match command {
        Command::Pause { reply, .. } => ("pause", reply),
        Command::Resume { reply } => ("resume", reply),
        Command::Sleep { reply, .. } => ("sleep", reply),
        Command::Wake { reply, .. } => ("wake", reply),
        Command::UpdateWeights { reply, .. } => {
            let weights = || Weights::first(None);
            drop(reply.send(answer().map(|()| weights())));
            return "update";
        }
        Command::FailAll { .. } => return "fail all",
        _ => return "other",
    };
    drop(reply.send(answer())); // The router may not wait for it.
    name
}

fn ok() -> Result<()> {
    Ok(())
}

fn refused() -> Result<()> {
    Err(Error::value("an engine", "one that does as it is told", "another one"))
}

#[test]
fn a_resume_that_an_engine_refuses_is_refused_and_all_stay_paused() {
    let mut two = two();
    two.pause(PauseMode::Keep);
    let (reply, resumed) = bounded(1);
    two.router.execute(Command::Resume { reply });
    assert!(resumed.try_recv().is_err(), "the engines have not answered");
    two.answer([ok, refused]);
    two.note();
    assert!(resumed.try_recv().expect("it was answered").unwrap_err().to_string().contains("as it is told"));
    assert!(two.router.status.read().is_paused());
    assert_eq!(two.answer([ok, ok]), [["pause"], ["pause"]]);
}

#[test]
fn a_pause_behind_a_resume_outlasts_it() {
    let mut two = two();
    two.pause(PauseMode::Keep);
    let (reply, resumed) = bounded(1);
    two.router.execute(Command::Resume { reply });
    let (reply, paused) = bounded(1);
    two.router.execute(Command::Pause { pause: PauseMode::Keep.into(), reply });
    assert_eq!(two.answer([ok, ok]), [["resume", "pause"], ["resume", "pause"]]);
    two.note();
    two.note();
    assert!(resumed.try_recv().is_ok() && paused.try_recv().is_ok());
    assert!(two.router.status.read().is_paused());
}

#[test]
fn engines_that_slept_are_woken_when_another_cannot_sleep() {
    let mut two = two();
    two.pause(PauseMode::Keep);
    two.handles[0].status_place().lock().asleep = SleepParts::ALL;
    let (reply, slept) = bounded(1);
    two.router.execute(Command::Sleep { sleep: Sleep::LEVEL_1, reply });
    assert_eq!(two.answer([ok, refused]), [["pause", "sleep"], ["pause", "sleep"]]);
    two.note();
    assert!(slept.try_recv().is_err(), "not before they are awake");
    assert_eq!(two.answer([ok, ok]), [["wake"], ["wake"]]);
    two.handles[0].status_place().lock().asleep = SleepParts::NONE;
    two.note();
    assert!(slept.try_recv().expect("it was answered").unwrap_err().to_string().contains("as it is told"));
    let status = two.router.status.read();
    assert!(status.is_ready() && status.is_paused());
}

/// What becomes of an update that both engines fail, of which these have no weights left: what each is sent then,
/// whether it lives, and whether the router says that weights are missing.
fn failed_update(lacking: [bool; 2]) -> ([Vec<&'static str>; 2], [bool; 2], bool) {
    let mut two = two();
    let update = WeightsUpdate::new(Arc::new(TensorsInMemory::default()), UpdateScope::Whole);
    let update = CheckedWeights::of(update, None).expect("nothing is checked for engines without a model");
    let (reply, updated) = bounded(1);
    two.router.execute(Command::UpdateWeights { update, stands: false, reply });
    for (handle, lacks_weights) in two.handles.iter().zip(lacking) {
        handle.status_place().lock().lacks_weights = lacks_weights;
    }
    assert_eq!(two.answer([refused, refused]), [["update"], ["update"]]);
    two.note();
    assert!(updated.try_recv().expect("it was answered").is_err());
    assert!(two.client.next().is_none(), "its engine says how it fails, or it begins again");
    let lives = [0, 1].map(|at| two.router.replicas[at].lives());
    (two.answer([ok, ok]), lives, two.router.status.read().lacks_weights)
}

#[test]
fn what_is_in_progress_fails_only_if_no_engine_has_weights() {
    let nothing = [Vec::new(), Vec::new()];
    assert_eq!(failed_update([false, false]), (nothing, [true, true], false));
    assert_eq!(failed_update([true, true]), ([vec!["fail all"], vec!["fail all"]], [true, true], true));
    // The first one goes on with the old weights: the second one, which has none, gives back what it has.
    assert_eq!(failed_update([false, true]), ([vec![], vec!["other"]], [true, false], false));
}
