//! Pauses of three kinds, and updates that are refused: what goes on, what waits, and what has changed.

use std::sync::Arc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::{EngineHandle, Event, EventReceiver, Finish, FinishReason, PauseMode, WeightSpan, WeightsUpdate};
use offshoot_model::{TensorSource, TensorView, UpdateScope};

use super::bench::{Mode, Shape, draw, finish, key, length, pages, params, prompt, roomy, sample, score};
use super::world::{Seeds, World};

/// So many tokens that nothing which samples them ends before the next command.
pub const LONG: usize = 1400;

/// A branch that samples `most` tokens, of which some are there.
pub fn running(engine: &EngineHandle, salt: u64, most: usize) -> (EventReceiver, usize) {
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
pub fn waiting(engine: &EngineHandle) -> EventReceiver {
    let root = engine.root(prompt(9, 30)).unwrap();
    engine.start(vec![draw(root, key("waiting", 0), params(), length(4))]).unwrap()
}

/// The end of the only extend of a receiver.
pub fn end(receiver: &mut EventReceiver) -> Finish {
    loop {
        match receiver.next().expect("it has not ended") {
            Event::Tokens { .. } => {}
            Event::Finished { finish, .. } => return finish,
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
}

/// Checks that nothing is stepped while commands come and go. Between two commands an engine with work makes a step,
/// unless the second one has come by then: of so many not all have.
pub fn check_stands(engine: &EngineHandle) {
    let steps = engine.metrics().unwrap().steps;
    for _ in 0..64 {
        assert_eq!(engine.metrics().unwrap().steps, steps, "no step is made");
    }
}

/// Takes up what an extend has said; whether it has ended.
pub fn has_ended(receiver: &mut EventReceiver) -> bool {
    loop {
        match receiver.poll(Duration::ZERO) {
            Poll::Ready(Some(Event::Tokens { .. })) => {}
            Poll::Ready(_) => return true,
            Poll::Pending => return false,
        }
    }
}

/// What `waiting` comes to without a pause.
pub fn expected(mode: Mode) -> Vec<TokenId> {
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
    check_stands(&engine);
    assert!(!has_ended(&mut later), "what is started during a pause waits");
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
    check_stands(&engine);
    assert!(!has_ended(&mut later));
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
    let mut later = waiting(&engine);
    check_stands(&engine);
    assert!(!has_ended(&mut first) && !has_ended(&mut later));
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
    check_stands(&engine);
    assert!(!has_ended(&mut later), "it was started during the pause: nobody aborts it");
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
    assert_eq!(engine.set_label("second").unwrap().version, WeightVersion(1));
    assert_eq!(engine.weights().label, "second");
    engine.resume().unwrap();
    let mut versions = vec![];
    let finish = loop {
        match first.next().unwrap() {
            Event::Tokens { tokens, weights, .. } => {
                let label = engine.labels().label(weights);
                assert_eq!(label, if weights == WeightVersion(0) { "0" } else { "second" });
                versions.extend(tokens.iter().map(|_| weights));
            }
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

fn a_pause_is_not_said_to_hold_when_another_one_lets_its_extends_stand_still(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    let pausing = engine.clone();
    std::thread::scope(|scope| {
        let pause = scope.spawn(move || pausing.pause(PauseMode::Wait));
        while !engine.is_paused() {
            std::thread::yield_now();
        }
        engine.pause(PauseMode::Keep).unwrap();
        let said = pause.join().unwrap().unwrap_err().to_string();
        assert!(said.contains("until its extends have ended") && said.contains("stand still"), "{said}");
    });
    engine.resume().unwrap();
    first.cancel_all();
    assert_eq!(end(&mut first).reason, FinishReason::Cancelled);
}

/// Tensors whose source panics when it is read.
struct Broken;

impl TensorSource for Broken {
    fn names(&self) -> Vec<&str> {
        panic!("a source of a test that breaks")
    }

    fn tensor(&self, _: &str) -> Option<TensorView<'_>> {
        None
    }

    fn place(&self, _: Option<&str>) -> &std::path::Path {
        std::path::Path::new("memory")
    }
}

fn an_update_whose_source_panics_is_over(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let broken = engine.clone();
    let update = move || broken.update_weights(WeightsUpdate::new(Arc::new(Broken), UpdateScope::Whole));
    assert!(std::thread::spawn(update).join().is_err(), "it panics");
    engine.update_weights(world.whole(Seeds::both(2))).expect("no other one is under way");
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
    a_pause_is_not_said_to_hold_when_another_one_lets_its_extends_stand_still,
    an_update_whose_source_panics_is_over,
}
