//! Engines that end in the middle of their work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use offshoot_core::Error;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::replicas;
use offshoot_engine::{EngineFacts, EngineHandle, Event, FinishReason, Hear, ScriptedCall, ScriptedReply};

use crate::patience::within_a_minute;
use crate::script::{Engines, sampled};

fn prompt(letter: u8) -> Vec<TokenId> {
    vec![TokenId(u32::from(letter)); 40]
}

#[test]
fn if_no_engine_is_left_the_error_names_each_and_what_was_finished_stays() {
    within_a_minute(|| {
        let engines = Engines { max_branches: vec![2, 2], ends: vec![Some(5), Some(9)], ..Engines::default() };
        let (engine, _) = engines.start();
        let root = engine.root(prompt(b'a')).expect("a prompt");
        let branches = engine.fork(root, 40).expect("it rests");
        let mut receiver = engine.receiver(Hear::Finishes);
        receiver.start(branches.iter().map(|&branch| sampled(branch, branch.0)).collect()).expect("it runs");
        let (mut finished, mut failed) = (0, Vec::new());
        while let Some(event) = receiver.next() {
            match event {
                Event::Finished { .. } => finished += 1,
                Event::Failed { error, .. } => failed.push(error),
                Event::Tokens { .. } => panic!("only ends are heard"),
            }
        }
        assert_eq!(finished + failed.len(), 40);
        assert!((1..=14).contains(&finished), "{finished} of at most 14 answers");
        for error in failed {
            let Error::EngineStopped { .. } = error else { panic!("{error}") };
            let said = error.to_string();
            let words = ["no device is left", "scripted:0: replica 0 is pulled out", "scripted:1: replica 1 is"];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        assert!(engine.root(prompt(b'b')).is_err() && engine.metrics().is_err() && engine.live().is_err());
    });
}

/// A prompt of `a`: says `abc` and waits. Others: say that they are there. Ends the engine if `ends` says so.
fn waiting(call: &ScriptedCall<'_>, ends: &AtomicBool) -> ScriptedReply {
    assert!(!ends.load(Ordering::SeqCst), "pulled out");
    match call.text().starts_with('a') {
        true => ScriptedReply::text("abc").until_cancelled(),
        false => ScriptedReply::text("here"),
    }
}

/// A branch that the first engine has: it is the first of equals.
fn branch_of_the_first(engine: &EngineHandle) -> BranchId {
    let branch = engine.root(prompt(b'b')).expect("a prompt");
    assert_eq!(engine.finish(vec![sampled(branch, 0)]).expect("the first has it")[0].text, "here");
    branch
}

#[test]
fn a_stream_goes_on_where_it_was() {
    within_a_minute(|| {
        let (begun, has_begun) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let facts = |name: &'static str, max_branches: usize| {
            move |facts| EngineFacts { device: name.to_owned(), max_branches, ..facts }
        };
        let first = EngineHandle::scripted_with(facts("first", 8), move |call| {
            begun.send(call.branch).expect("the test listens");
            waiting(call, &ends)
        });
        let second = EngineHandle::scripted_with(facts("second", 8), |_| ScriptedReply::text("abcdef"));
        let engine = replicas::join(vec![first, second]).expect("alike");
        let other = branch_of_the_first(&engine);
        let root = engine.root(prompt(b'a')).expect("a prompt");
        let mut stream = engine.receiver(Hear::Tokens);
        stream.start(vec![sampled(root, 1)]).expect("it runs");
        for branch in [other, root] {
            assert_eq!(has_begun.recv_timeout(Duration::from_secs(30)).expect("the first begins it"), branch);
        }
        let mut text = String::new();
        while text.len() < 3 {
            let Some(Event::Tokens { text: more, .. }) = stream.next() else { panic!("tokens") };
            text += &more;
        }
        is_over.store(true, Ordering::SeqCst);
        let finish = engine.finish(vec![sampled(other, 2)]).expect("the second one has it");
        assert_eq!(finish[0].text, "abcdef");
        while let Some(event) = stream.next() {
            match event {
                Event::Tokens { text: more, .. } => text += &more,
                Event::Finished { finish, .. } => assert_eq!(finish.text, "abcdef"),
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        assert_eq!(text, "abcdef", "each letter once");
    });
}

#[test]
fn what_was_heard_stays_where_the_other_engine_would_have_said_something_else() {
    within_a_minute(|| {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let first = EngineHandle::scripted(move |call| waiting(call, &ends));
        let second = EngineHandle::scripted(|_| ScriptedReply::text("abXde"));
        let engine = replicas::join(vec![first, second]).expect("alike");
        let other = branch_of_the_first(&engine);
        let root = engine.root(prompt(b'a')).expect("a prompt");
        let mut stream = engine.receiver(Hear::Tokens);
        stream.start(vec![sampled(root, 1)]).expect("it runs");
        let mut heard = 0;
        while heard < 3 {
            let Some(Event::Tokens { tokens, .. }) = stream.next() else { panic!("tokens") };
            heard += tokens.len();
        }
        is_over.store(true, Ordering::SeqCst);
        engine.finish(vec![sampled(other, 2)]).expect("the second one has it");
        let mut rest = String::new();
        let finish = loop {
            match stream.next().expect("it ends") {
                Event::Tokens { text, .. } => rest += &text,
                Event::Finished { finish, .. } => break finish,
                Event::Failed { error, .. } => panic!("{error}"),
            }
        };
        assert_eq!((rest.as_str(), finish.text.as_str()), ("de", "abcde"));
        assert_eq!(finish.tokens.len(), finish.logprobs().len());
        engine.finish(vec![sampled(root, 3)]).expect("its tokens are known");
    });
}

#[test]
fn what_is_cancelled_ends_wherever_it_waits() {
    within_a_minute(|| {
        let waiting = || {
            EngineHandle::scripted_with(
                |facts| EngineFacts { max_branches: 2, ..facts },
                |_| ScriptedReply::text("ab").until_cancelled(),
            )
        };
        let engine = replicas::join(vec![waiting(), waiting()]).expect("alike");
        let root = engine.root(prompt(b'a')).expect("a prompt");
        let branches: Vec<BranchId> = engine.fork(root, 20).expect("it rests");
        let mut receiver = engine.receiver(Hear::Finishes);
        receiver.start(branches.iter().map(|&branch| sampled(branch, branch.0)).collect()).expect("it runs");
        receiver.cancel(&branches[..7]);
        engine.release(&branches[7..9]);
        receiver.cancel_all();
        let mut ended = Vec::new();
        while let Some(event) = receiver.next() {
            let Event::Finished { id: branch, finish } = event else { panic!("{event:?}") };
            assert_eq!(finish.reason, FinishReason::Cancelled);
            ended.push(branch);
        }
        ended.sort();
        assert_eq!(ended, branches, "each once");
        let live = || engine.live().expect("it runs");
        while live().waiting + live().running > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut again = engine.receiver(Hear::Finishes);
        again.start(vec![sampled(branches[0], 1)]).expect("it runs");
        again.cancel_all();
        assert!(matches!(again.next(), Some(Event::Finished { .. })), "a cancelled branch can go on");
    });
}

#[test]
fn engines_end_with_their_handle() {
    within_a_minute(|| {
        let (alive, ended) = mpsc::channel::<()>();
        let engine = |alive: mpsc::Sender<()>| {
            EngineHandle::scripted(move |_| {
                let _ = &alive;
                ScriptedReply::text("ab").until_cancelled()
            })
        };
        let joined = replicas::join(vec![engine(alive.clone()), engine(alive)]).expect("alike");
        let roots = [b'a', b'b', b'c'].map(|letter| joined.root(prompt(letter)).expect("a prompt"));
        let mut receiver = joined.receiver(Hear::Finishes);
        receiver.start(roots.iter().map(|&root| sampled(root, root.0)).collect()).expect("it runs");
        drop((receiver, joined));
        let gone = ended.recv_timeout(Duration::from_secs(30));
        assert_eq!(gone, Err(mpsc::RecvTimeoutError::Disconnected), "both scripts are dropped with their engines");
    });
}

#[test]
fn errors_of_branches_are_those_of_one_engine() {
    within_a_minute(|| {
        let (engine, _) = Engines::equal(2, 8).start();
        let root = engine.root(prompt(b'a')).expect("a prompt");
        engine.release(&[root]);
        let error = engine.finish(vec![sampled(root, 1)]).expect_err("it was released").to_string();
        assert!(error.contains("made by root"), "{error}");
        let hold = EngineHandle::scripted(|_| ScriptedReply::text("ab").until_cancelled());
        let other = EngineHandle::scripted(|_| ScriptedReply::text("ab").until_cancelled());
        let engine = replicas::join(vec![hold, other]).expect("alike");
        let root = engine.root(prompt(b'a')).expect("a prompt");
        let held = engine.start(vec![sampled(root, 1)]).expect("it runs");
        let error = engine.finish(vec![sampled(root, 2)]).expect_err("it is busy").to_string();
        assert!(error.contains("being extended"), "{error}");
        drop(held);
    });
}
