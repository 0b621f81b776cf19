//! Pauses of three kinds, sleep, and updates that are refused: what goes on, what waits, and what has changed.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::{EngineHandle, Event, EventReceiver, Finish, FinishReason, PauseMode, WeightSpan, WeightsUpdate};
use offshoot_model::{Sleep, SleepParts, TensorSource, TensorView, UpdateScope};

use super::bench::{Mode, Shape, draw, finish, key, length, pages, params, prompt, roomy, sample, score};
use super::world::{Seeds, World};

/// So many tokens that nothing which samples them ends before the next command.
const LONG: usize = 1400;

/// A branch that samples `most` tokens, of which some are there.
fn running(engine: &EngineHandle, salt: u64, most: usize) -> (EventReceiver, usize) {
    let root = engine.root(prompt(salt, 20)).unwrap();
    let mut receiver = engine.start(vec![draw(root, key("running", salt), params(), length(most))]).unwrap();
    let mut tokens = 0;
    while tokens < 5 {
        let Some(Event::Tokens { tokens: more, .. }) = receiver.next() else { panic!("it has begun") };
        tokens += more.len();
    }
    (receiver, tokens)
}

/// An extend that is started now, and waits.
fn waiting(engine: &EngineHandle) -> EventReceiver {
    let root = engine.root(prompt(9, 30)).unwrap();
    engine.start(vec![draw(root, key("waiting", 0), params(), length(4))]).unwrap()
}

/// The end of the only extend of a receiver.
fn end(receiver: &mut EventReceiver) -> Finish {
    loop {
        match receiver.next().expect("it has not ended") {
            Event::Tokens { .. } => {}
            Event::Finished { finish, .. } => return finish,
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
}

fn is_silent(receiver: &mut EventReceiver) -> bool {
    receiver.poll(Duration::from_millis(20)).is_pending()
}

/// What `waiting` comes to without a pause.
fn expected(mode: Mode) -> Vec<TokenId> {
    end(&mut waiting(&World::new(Shape::Full).engine(mode, roomy()))).tokens
}

fn what_runs_ends_with_what_it_has_when_a_pause_aborts_it(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, heard) = running(&engine, 1, LONG);
    engine.pause(PauseMode::Abort).unwrap();
    assert!(engine.is_paused());
    let mut later = waiting(&engine);
    let aborted = end(&mut first);
    assert_eq!(aborted.reason, FinishReason::Aborted);
    assert!(aborted.tokens.len() >= heard && aborted.tokens.len() < LONG);
    assert_eq!(aborted.tokens.len(), aborted.logprobs().len());
    assert!(is_silent(&mut later), "what is started during a pause waits");
    assert_eq!(engine.live().unwrap().running, 0);
    engine.resume().unwrap();
    assert_eq!(end(&mut later).tokens, expected(mode));
    assert!(!engine.is_paused());
    engine.resume().expect("it is not paused");
}

fn what_runs_goes_on_to_its_end_when_a_pause_waits(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    let pausing = engine.clone();
    let mut later = std::thread::scope(|scope| {
        let pause = scope.spawn(move || pausing.pause(PauseMode::Wait));
        while !engine.is_paused() {
            std::thread::yield_now();
        }
        let later = waiting(&engine);
        pause.join().unwrap().unwrap();
        later
    });
    assert_eq!(end(&mut first).tokens.len(), LONG);
    assert!(is_silent(&mut later));
    engine.resume().unwrap();
    assert_eq!(end(&mut later).tokens, expected(mode));
}

fn a_pause_that_is_ended_before_it_holds_says_so(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    let pausing = engine.clone();
    std::thread::scope(|scope| {
        let pause = scope.spawn(move || pausing.pause(PauseMode::Wait));
        while !engine.is_paused() {
            std::thread::yield_now();
        }
        engine.resume().unwrap();
        assert!(pause.join().unwrap().unwrap_err().to_string().contains("ended before"));
    });
    first.cancel_all();
    assert_eq!(end(&mut first).reason, FinishReason::Cancelled);
}

fn what_runs_stands_still_and_goes_on_after_a_pause_that_keeps_it(mode: Mode) {
    let world = World::new(Shape::Full);
    let undisturbed = end(&mut running(&world.engine(mode, roomy()), 1, LONG).0);
    let engine = world.engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    engine.pause(PauseMode::Keep).unwrap();
    let steps = engine.metrics().unwrap().steps;
    let mut later = waiting(&engine);
    while !is_silent(&mut first) {}
    assert!(is_silent(&mut later));
    assert_eq!(engine.metrics().unwrap().steps, steps, "no step is made");
    engine.resume().unwrap();
    assert!(end(&mut first) == undisturbed);
    assert_eq!(end(&mut later).tokens, expected(mode));
}

fn what_waits_for_the_end_of_a_pause_can_be_cancelled_and_released(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    engine.pause(PauseMode::Abort).unwrap();
    let mut cancelled = waiting(&engine);
    cancelled.cancel_all();
    let finish = end(&mut cancelled);
    assert_eq!((finish.reason, finish.tokens.len()), (FinishReason::Cancelled, 0));
    let root = engine.root(prompt(1, 10)).unwrap();
    let mut released = engine.start(vec![score(root, prompt(2, 5))]).unwrap();
    engine.release(&[root]);
    assert_eq!(end(&mut released).reason, FinishReason::Cancelled);
    engine.resume().unwrap();
    assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
}

fn pauses_follow_each_other(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    let (mut second, _) = running(&engine, 2, LONG);
    engine.pause(PauseMode::Keep).unwrap();
    let mut later = waiting(&engine);
    second.cancel_all();
    engine.pause(PauseMode::Wait).unwrap();
    assert_eq!(end(&mut first).tokens.len(), LONG, "what stood still goes on to its end");
    assert_eq!(end(&mut second).reason, FinishReason::Cancelled);
    engine.pause(PauseMode::Abort).unwrap();
    engine.pause(PauseMode::Keep).unwrap();
    assert!(is_silent(&mut later), "it was started during the pause: nobody aborts it");
    engine.resume().unwrap();
    assert_eq!(end(&mut later).tokens, expected(mode));
}

fn a_kept_sample_says_from_which_token_on_it_is_of_other_weights(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    engine.pause(PauseMode::Keep).unwrap();
    let weights = engine.update_weights(WeightsUpdate { label: Some("two".into()), ..world.whole(Seeds::both(2)) });
    assert_eq!(weights.unwrap().label, "two");
    engine.set_label("second").unwrap();
    assert_eq!(engine.weights().label, "second");
    engine.resume().unwrap();
    let mut versions = vec![];
    let finish = loop {
        match first.next().unwrap() {
            Event::Tokens { tokens, weights, .. } => versions.extend(tokens.iter().map(|_| weights)),
            Event::Finished { finish, .. } => break finish,
            Event::Failed { error, .. } => panic!("{error}"),
        }
    };
    let [old, new] = finish.weights[..] else { panic!("{:?}", finish.weights) };
    assert_eq!((old.version, old.from, new.version), (WeightVersion(0), 0, WeightVersion(1)));
    assert!((5..LONG).contains(&new.from));
    assert_eq!(versions.iter().filter(|version| **version == WeightVersion(1)).count(), LONG - new.from);
    // Its scores under the new weights are those of the new weights alone.
    let root = engine.root(prompt(1, 20)).unwrap();
    let scored = self::finish(&engine, score(root, finish.tokens.clone()));
    assert_eq!(scored.weights, [WeightSpan { version: WeightVersion(1), from: 0 }]);
    let fresh = world.fresh(Seeds::both(2));
    let root = fresh.root(prompt(1, 20)).unwrap();
    assert!(scored.logprobs() == self::finish(&fresh, score(root, finish.tokens)).logprobs());
}

fn pins_are_computed_again_and_do_not_grow(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, pages(60));
    let pin = engine.pin(prompt(1, 50)).unwrap();
    let pinned = engine.live().unwrap().pages.pinned;
    for seed in [2, 3, 1, 2] {
        engine.update_weights(world.whole(Seeds::both(seed))).unwrap();
        // Something that comes after it finds it computed.
        let root = engine.root([prompt(1, 50), prompt(2, 7)].concat()).unwrap();
        finish(&engine, draw(root, key("item", 0), params(), length(3)));
        engine.prune(&[root]);
        engine.metrics().unwrap();
        assert_eq!(engine.live().unwrap().pages.pinned, pinned);
    }
    (50..60).for_each(|salt| drop(sample(&engine, "churn", prompt(salt, 60), 4, length(40))));
    let before = engine.metrics().unwrap().prompt_tokens_computed;
    let root = engine.root([prompt(1, 50), prompt(3, 7)].concat()).unwrap();
    finish(&engine, draw(root, key("item", 0), params(), length(3)));
    engine.prune(&[root]);
    assert_eq!(engine.metrics().unwrap().prompt_tokens_computed - before, 7);
    drop(pin);
    assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
}

/// Tensors that are read when somebody lets them.
struct Gated {
    tensors: Arc<dyn TensorSource>,
    is_read: mpsc::SyncSender<()>,
    gate: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl TensorSource for Gated {
    fn names(&self) -> Vec<&str> {
        let _ = self.is_read.try_send(());
        let _ = self.gate.lock().unwrap().recv();
        self.tensors.names()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors.tensor(name)
    }

    fn place(&self, name: Option<&str>) -> &std::path::Path {
        self.tensors.place(name)
    }
}

fn an_update_during_an_update_is_refused(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let ((is_read, reads), (opens, gate)) = (mpsc::sync_channel(1), mpsc::channel());
    let gated = Gated { tensors: world.whole(Seeds::both(2)).source, is_read, gate: std::sync::Mutex::new(gate) };
    let updating = engine.clone();
    std::thread::scope(|scope| {
        let update =
            scope.spawn(move || updating.update_weights(WeightsUpdate::new(Arc::new(gated), UpdateScope::Whole)));
        reads.recv().unwrap();
        let error = engine.update_weights(world.whole(Seeds::both(3))).unwrap_err().to_string();
        assert!(error.contains("one at a time"), "{error}");
        // Samples go on meanwhile.
        let finish = sample(&engine, "meanwhile", prompt(1, 10), 2, length(5)).remove(0);
        assert_eq!(finish.weights, [WeightSpan { version: WeightVersion(0), from: 0 }]);
        drop(opens);
        assert_eq!(update.join().unwrap().unwrap().version, WeightVersion(1));
    });
    engine.update_weights(world.whole(Seeds::both(3))).expect("the first one has ended");
}

fn a_refused_update_leaves_everything_as_it_was(mode: Mode) {
    let world = World::new(Shape::Full);
    let undisturbed = end(&mut running(&world.engine(mode, roomy()), 1, LONG).0);
    let engine = world.engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    for _ in 0..5 {
        engine.update_weights(world.lacking()).unwrap_err();
    }
    assert!(end(&mut first) == undisturbed);
    assert_eq!(engine.weights().version, WeightVersion(0));
}

fn a_sleeping_engine_gives_nothing_and_wakes_as_it_was(mode: Mode) {
    let world = World::new(Shape::Full);
    let undisturbed = end(&mut running(&world.engine(mode, roomy()), 1, LONG).0);
    for sleep in [Sleep::LEVEL_1, Sleep { weights: None, kv: true }] {
        let engine = world.engine(mode, roomy());
        let (mut first, _) = running(&engine, 1, LONG);
        engine.sleep(sleep, PauseMode::Keep).unwrap();
        assert_eq!(engine.status().asleep, sleep.parts());
        let mut later = waiting(&engine);
        assert!(engine.resume().unwrap_err().to_string().contains("wake it first"));
        while !is_silent(&mut first) {}
        assert!(is_silent(&mut later));
        engine.wake(SleepParts { weights: true, kv: false }).unwrap();
        engine.wake(SleepParts::ALL).unwrap();
        assert!(!engine.is_paused(), "it is resumed with what it had");
        assert!(end(&mut first) == undisturbed);
        assert_eq!(end(&mut later).tokens, expected(mode));
    }
}

fn weights_that_were_dropped_are_updated_before_the_engine_is_resumed(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    engine.sleep(Sleep::LEVEL_2, PauseMode::Abort).unwrap();
    let error = engine.update_weights(world.whole(Seeds::both(2))).unwrap_err().to_string();
    assert!(error.contains("wake them first"), "{error}");
    engine.wake(SleepParts { weights: true, kv: false }).unwrap();
    engine.update_weights(world.whole(Seeds::both(2))).unwrap();
    assert!(engine.is_paused(), "there is no memory for keys and values");
    engine.wake(SleepParts { weights: false, kv: true }).unwrap();
    assert!(!engine.is_paused());
    let [own, fresh] = [&engine, &world.fresh(Seeds::both(2))].map(|engine| {
        let root = engine.root(prompt(1, 20)).unwrap();
        finish(engine, draw(root, key("after", 0), params(), length(20)))
    });
    assert_eq!((own.tokens, own.records), (fresh.tokens, fresh.records));
    // Woken whole without an update, it says what it lacks.
    engine.sleep(Sleep::LEVEL_2, PauseMode::Abort).unwrap();
    engine.wake(SleepParts::ALL).unwrap();
    assert!(engine.resume().unwrap_err().to_string().contains("update them first"));
    engine.update_weights(world.whole(Seeds::both(3))).unwrap();
    assert!(!engine.is_paused());
    // An engine that was paused before it slept stays so.
    engine.pause(PauseMode::Abort).unwrap();
    engine.sleep(Sleep::LEVEL_1, PauseMode::Abort).unwrap();
    engine.wake(SleepParts::ALL).unwrap();
    assert!(engine.is_paused());
}

in_modes! {
    in_turn, run_ahead, replicas:
    what_runs_ends_with_what_it_has_when_a_pause_aborts_it,
    what_runs_goes_on_to_its_end_when_a_pause_waits,
    a_pause_that_is_ended_before_it_holds_says_so,
    what_runs_stands_still_and_goes_on_after_a_pause_that_keeps_it,
    what_waits_for_the_end_of_a_pause_can_be_cancelled_and_released,
    pauses_follow_each_other,
    a_kept_sample_says_from_which_token_on_it_is_of_other_weights,
    pins_are_computed_again_and_do_not_grow,
    an_update_during_an_update_is_refused,
    a_refused_update_leaves_everything_as_it_was,
    a_sleeping_engine_gives_nothing_and_wakes_as_it_was,
    weights_that_were_dropped_are_updated_before_the_engine_is_resumed,
}
