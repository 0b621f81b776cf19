//! Engines that sleep, or lack weights: what stands still, what is refused, and what goes on afterwards.

use offshoot_backend::StepBatch;
use offshoot_core::error::{Error, Result};
use offshoot_engine::{EngineHandle, Event, FinishReason, PauseMode};
use offshoot_model::{CheckedUpdate, Sleep, SleepParts, StepRunner, WeightSleep};

use super::bench::{Mode, Shape, draw, finish, key, length, params, prompt, roomy};
use super::pauses::{LONG, check_stands, end, expected, has_ended, running, waiting};
use super::runner::{Watch, Watched};
use super::world::{Seeds, World};

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
        check_stands(&engine);
        assert!(!has_ended(&mut first) && !has_ended(&mut later));
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

fn a_sleeping_engine_makes_no_step_whatever_the_pause(mode: Mode) {
    let engine = World::new(Shape::Full).engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    engine.sleep(Sleep { weights: None, kv: true }, PauseMode::Keep).unwrap();
    let refused = [engine.pause(PauseMode::Wait), engine.sleep(Sleep::LEVEL_2, PauseMode::Wait)];
    for said in refused.map(|refused| refused.unwrap_err().to_string()) {
        assert!(said.contains("stand still") && said.contains("wake it first"), "{said}");
    }
    check_stands(&engine);
    assert!(!has_ended(&mut first));
    assert_eq!(engine.status().asleep, SleepParts { weights: false, kv: true }, "nothing else sleeps");
    // It ends without a step, and then nothing is left to wait for.
    engine.pause(PauseMode::Abort).unwrap();
    assert_eq!(end(&mut first).reason, FinishReason::Aborted);
    engine.pause(PauseMode::Wait).unwrap();
    let mut later = waiting(&engine);
    check_stands(&engine);
    engine.wake(SleepParts::ALL).unwrap();
    assert!(engine.is_paused(), "somebody has paused it since it slept");
    engine.resume().unwrap();
    assert_eq!(end(&mut later).tokens, expected(mode));
}

/// What begins before the sleep goes on to its end, under other weights.
fn an_update_does_not_end_a_sleep_that_has_not_begun(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    std::thread::scope(|scope| {
        let sleep = scope.spawn(|| engine.sleep(Sleep { weights: None, kv: true }, PauseMode::Wait));
        while !engine.is_paused() {
            std::thread::yield_now();
        }
        engine.update_weights(world.whole(Seeds::both(2))).unwrap();
        sleep.join().unwrap().unwrap();
    });
    assert!(engine.is_paused() && engine.status().asleep.kv);
    assert_eq!(end(&mut first).tokens.len(), LONG);
    engine.wake(SleepParts::ALL).unwrap();
    assert!(!engine.is_paused(), "it goes on by itself");
}

/// How a model fails to sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// All of it is awake.
    Whole,
    /// Keys and values sleep, as they cannot be woken again.
    InPart,
}

impl Watch for Fails {
    fn sleep(&mut self, model: &mut dyn StepRunner, sleep: Sleep) -> Result<()> {
        if *self == Fails::InPart {
            model.sleep(Sleep { weights: None, ..sleep })?;
        }
        Err(Error::value("host memory", "enough", "too little"))
    }
}

/// Engines of which the last one fails to sleep.
fn failing(world: &World, mode: Mode, fails: Fails) -> EngineHandle {
    world.engine_of(mode, roomy(), |number, model| match number + 1 == mode.replicas {
        true => Box::new(Watched { model, watch: fails }),
        false => model,
    })
}

fn an_engine_that_fails_to_sleep_goes_on(mode: Mode) {
    let world = World::new(Shape::Full);
    let undisturbed = [1, 2, 3].map(|salt| end(&mut running(&world.engine(mode, roomy()), salt, LONG).0));
    let engine = failing(&world, mode, Fails::Whole);
    let mut all = [1, 2, 3].map(|salt| running(&engine, salt, LONG).0);
    assert!(engine.sleep(Sleep::LEVEL_1, PauseMode::Keep).unwrap_err().to_string().contains("too little"));
    let status = engine.status();
    assert!(!status.is_paused() && status.is_ready(), "{status:?}");
    assert!(all.each_mut().map(end) == undisturbed);
    // One that was paused stays so.
    engine.pause(PauseMode::Keep).unwrap();
    engine.sleep(Sleep::LEVEL_1, PauseMode::Keep).unwrap_err();
    assert!(engine.is_paused() && engine.status().is_ready());
}

fn an_engine_of_which_a_part_sleeps_against_its_will_says_so_and_wakes(mode: Mode) {
    let world = World::new(Shape::Full);
    let undisturbed = end(&mut running(&world.engine(mode, roomy()), 1, LONG).0);
    let (wakes_by_itself, engine) = (mode.replicas > 1, failing(&world, mode, Fails::InPart));
    let (mut first, _) = running(&engine, 1, LONG);
    engine.sleep(Sleep::LEVEL_1, PauseMode::Keep).unwrap_err();
    // Of several, all are woken again that sleep.
    assert_eq!(engine.status().asleep, SleepParts { weights: false, kv: !wakes_by_itself });
    if !wakes_by_itself {
        assert!(engine.resume().unwrap_err().to_string().contains("wake it first"));
        check_stands(&engine);
        engine.wake(SleepParts::ALL).unwrap();
    }
    assert!(!engine.is_paused() && engine.status().is_ready());
    assert!(end(&mut first) == undisturbed);
}

/// A model whose first update fails midway, and which sees no step without weights.
struct Loses {
    is_first: bool,
    has_weights: bool,
}

impl Watch for Loses {
    fn see(&mut self, _: &StepBatch) {
        assert!(self.has_weights);
    }

    fn apply_update(&mut self, model: &mut dyn StepRunner, update: &CheckedUpdate<'_>) -> Result<()> {
        if std::mem::take(&mut self.is_first) {
            self.has_weights = false;
            model.sleep(Sleep { weights: Some(WeightSleep::Dropped), kv: false })?;
            model.wake(SleepParts { weights: true, kv: false })?;
            return Err(Error::value("the device", "one that answers", "one that does not"));
        }
        model.apply_update(update)?;
        self.has_weights = true;
        Ok(())
    }
}

fn losing(world: &World, mode: Mode) -> EngineHandle {
    let loses = |_, model| -> Box<dyn StepRunner> {
        Box::new(Watched { model, watch: Loses { is_first: true, has_weights: true } })
    };
    world.engine_of(mode, roomy(), loses)
}

fn what_is_in_progress_fails_with_an_update_that_leaves_no_weights(mode: Mode) {
    for pause in [None, Some(PauseMode::Keep)] {
        let world = World::new(Shape::Full);
        let engine = losing(&world, mode);
        let mut all = [1, 2, 3, 4].map(|salt| running(&engine, salt, LONG).0);
        pause.into_iter().for_each(|pause| engine.pause(pause).unwrap());
        engine.update_weights(world.whole(Seeds::both(2))).unwrap_err();
        for receiver in &mut all {
            let failed = std::iter::from_fn(|| receiver.next()).find(|event| !matches!(event, Event::Tokens { .. }));
            let Some(Event::Failed { error, .. }) = failed else { panic!("it fails, {pause:?}") };
            let said = error.to_string();
            assert!(said.contains("failed midway") && said.contains("one that does not"), "{said}");
        }
        assert!(engine.status().lacks_weights);
        // Without a pause nothing waits for weights that nobody may bring.
        if pause.is_none() {
            let Some(Event::Failed { error, .. }) = waiting(&engine).next() else { panic!("it is refused") };
            assert!(error.to_string().contains("update them first"), "{error}");
        } else {
            assert!(engine.resume().unwrap_err().to_string().contains("update them first"));
        }
        engine.update_weights(world.whole(Seeds::both(3))).unwrap();
        assert!(engine.status().is_ready() && engine.is_paused() == pause.is_some());
        engine.resume().unwrap();
        let [own, fresh] = [&engine, &world.fresh(Seeds::both(3))].map(|engine| {
            let root = engine.root(prompt(1, 20)).unwrap();
            finish(engine, draw(root, key("after", 0), params(), length(20)))
        });
        assert_eq!((own.tokens, own.records), (fresh.tokens, fresh.records));
    }
}

fn extends_that_wait_for_dropped_weights_outlast_an_update_that_is_refused(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let (mut first, _) = running(&engine, 1, LONG);
    engine.sleep(Sleep::LEVEL_2, PauseMode::Keep).unwrap();
    engine.wake(SleepParts::ALL).unwrap();
    assert!(engine.is_paused() && engine.status().lacks_weights);
    engine.update_weights(world.lacking()).unwrap_err();
    check_stands(&engine);
    assert!(!has_ended(&mut first));
    engine.update_weights(world.whole(Seeds::both(2))).unwrap();
    assert!(!engine.is_paused(), "it goes on by itself");
    assert_eq!(end(&mut first).tokens.len(), LONG);
}

in_modes! {
    in_turn, run_ahead, replicas:
    a_sleeping_engine_gives_nothing_and_wakes_as_it_was,
    weights_that_were_dropped_are_updated_before_the_engine_is_resumed,
    a_sleeping_engine_makes_no_step_whatever_the_pause,
    an_update_does_not_end_a_sleep_that_has_not_begun,
    an_engine_that_fails_to_sleep_goes_on,
    an_engine_of_which_a_part_sleeps_against_its_will_says_so_and_wakes,
    what_is_in_progress_fails_with_an_update_that_leaves_no_weights,
    extends_that_wait_for_dropped_weights_outlast_an_update_that_is_refused,
}
