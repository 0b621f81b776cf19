//! Groups that end before all of their samples have: who finishes, what becomes of the others, and that stragglers go
//! on as if nothing had happened.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{
    Engine, EngineHandle, Event, Finish, FinishReason, ForkKind, GroupEnd, Hear, Priority, Records, SamplingParams,
    ScriptedReply, Stop, Stragglers, UniformKey, WeightSpan,
};
use offshoot_launch::{AsRequest, Generation, PromptRequest, SampleId, generate};

use crate::bench::{Mode, Shape, params, prompt, roomy};
use crate::versions::{How, Record};
use crate::world::{Seeds, World};

/// A prompt of many samples whose lengths differ.
struct Group<'a> {
    tokens: &'a [TokenId],
    n: usize,
    params: &'a SamplingParams,
    stop: &'a Stop,
    end: Option<GroupEnd>,
}

impl AsRequest for Group<'_> {
    fn as_request(&self) -> PromptRequest<'_> {
        PromptRequest {
            tokens: self.tokens,
            n: self.n,
            prompt_logprobs: Some(1),
            params: self.params,
            stop: self.stop,
            uniforms: UniformKey::root(1, "group"),
            priority: Priority::default(),
        }
    }

    fn group_end(&self) -> Option<GroupEnd> {
        self.end
    }
}

/// A group whose prompt is not scored.
struct Scoreless<'a>(Group<'a>);

impl AsRequest for Scoreless<'_> {
    fn as_request(&self) -> PromptRequest<'_> {
        PromptRequest { prompt_logprobs: None, ..self.0.as_request() }
    }

    fn group_end(&self) -> Option<GroupEnd> {
        self.0.end
    }
}

fn end(min_finished: usize, stragglers: Stragglers) -> GroupEnd {
    GroupEnd { stragglers, ..GroupEnd::new(min_finished.try_into().expect("at least one")) }
}

fn finishes(generation: &mut Generation<Group<'_>>, n: usize) -> Vec<Option<Finish>> {
    let mut finishes: Vec<Option<Finish>> = vec![None; n + 1];
    while let Some(event) = generation.next() {
        if let Event::Finished { id: SampleId { sample, .. }, finish } = event.expect("no prompt is refused") {
            assert!(finishes[sample].is_none(), "sample {sample} finished twice");
            finishes[sample] = Some(finish);
        }
    }
    finishes
}

/// Samples 1 and 3 wait until they are cancelled, and end when they go on.
#[test]
fn two_of_five_are_stragglers_and_are_resumed_once() {
    let mut begun: HashMap<u64, usize> = HashMap::new();
    let engine = EngineHandle::scripted(move |call| {
        let extends = begun.entry(call.branch.0).or_default();
        *extends += 1;
        // The root is branch 0.
        match (call.branch.0, *extends) {
            (2 | 4, 1) => ScriptedReply::text("sl").until_cancelled(),
            (2 | 4, _) => ScriptedReply::text("ow"),
            _ => ScriptedReply::text("quick"),
        }
    });
    let (tokens, params, stop) = (tokens_of("Q"), SamplingParams::default(), Stop::default());
    let group = Group { tokens: &tokens, n: 5, params: &params, stop: &stop, end: Some(end(3, Stragglers::Keep)) };
    let mut generation = generate(&engine, vec![Scoreless(group)], Hear::Finishes);
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let mut ended = BTreeMap::new();
        while let Some(event) = generation.next() {
            let Ok(Event::Finished { id, finish }) = event else { panic!("{event:?}") };
            ended.insert(id.sample, (finish.reason == FinishReason::Cancelled, finish.text.clone()));
            assert_eq!(text_of(&finish.tokens), finish.text);
            assert_eq!(finish.logprobs().len(), finish.tokens.len());
        }
        rounds.push(ended);
        generation.resume(0).expect("none runs");
    }
    let cancelled: Vec<usize> = (0..5).filter(|sample| rounds[0][sample].0).collect();
    assert_eq!(cancelled, [1, 3]);
    assert_eq!(rounds[1].keys().copied().collect::<Vec<_>>(), [1, 3]);
    for sample in cancelled {
        let (before, (is_cancelled, whole)) = (&rounds[0][&sample].1, &rounds[1][&sample]);
        assert_eq!((whole.as_str(), *is_cancelled), (format!("{before}ow").as_str(), false));
    }
}

/// Every eighth token ends a sample.
fn uneven() -> Stop {
    Stop { tokens: (0..256).step_by(8).map(TokenId).collect(), ignore_eos: true, ..Stop::max_tokens(200) }
}

fn of(finish: &Finish) -> (&[TokenId], Vec<u32>, &FinishReason, &str) {
    let bits = finish.logprobs().iter().map(|logprob| logprob.to_bits()).collect();
    (&finish.tokens, bits, &finish.reason, &finish.text)
}

fn a_group_ends_and_its_stragglers_go_on_as_if_nothing_had_happened(mode: Mode) {
    const N: usize = 16;
    let (tokens, params, stop) = (prompt(3, 40), params(), uneven());
    let group = |end| Group { tokens: &tokens, n: N, params: &params, stop: &stop, end };
    let begin = |engine: &EngineHandle, end| generate(engine, vec![group(end)], Hear::Finishes);
    let whole = finishes(&mut begin(&mode.engine(roomy()), None), N);

    let engine = mode.engine(roomy());
    let mut generation = begin(&engine, Some(end(6, Stragglers::Keep)));
    let first = finishes(&mut generation, N);
    assert_eq!(first[N].as_ref().map(of), whole[N].as_ref().map(of), "the prompt is scored whatever ends");
    let is_straggler = |finish: &Option<Finish>| finish.as_ref().unwrap().reason == FinishReason::Cancelled;
    let stragglers: Vec<usize> = (0..N).filter(|&sample| is_straggler(&first[sample])).collect();
    assert!(stragglers.len() <= N - 6, "{} of {N} go on", stragglers.len());
    for sample in 0..N {
        let (found, expected) = (first[sample].as_ref().unwrap(), whole[sample].as_ref().unwrap());
        match stragglers.contains(&sample) {
            true => assert!(expected.tokens.starts_with(&found.tokens) && found.tokens.len() <= expected.tokens.len()),
            false => assert_eq!(of(found), of(expected)),
        }
    }

    assert_eq!(generation.resume(0).unwrap(), stragglers, "these go on, and no other sample");
    assert_eq!(generation.resume(0).is_err(), !stragglers.is_empty(), "those that run are not resumed");
    let late = finishes(&mut generation, N);
    for sample in 0..N {
        match stragglers.contains(&sample) {
            true => assert_eq!(late[sample].as_ref().map(of), whole[sample].as_ref().map(of)),
            false => assert!(late[sample].is_none(), "it had ended"),
        }
    }
    assert!(generation.resume(0).unwrap().is_empty(), "nothing is left");
    drop(generation);
    assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0, "every branch is given back");
}

fn cancelled_and_released_stragglers_hold_nothing(mode: Mode) {
    let (tokens, params, stop) = (prompt(3, 40), params(), uneven());
    for stragglers in [Stragglers::Cancel, Stragglers::Keep] {
        let engine = mode.engine(roomy());
        let group = Group { tokens: &tokens, n: 16, params: &params, stop: &stop, end: Some(end(2, stragglers)) };
        let mut generation = generate(&engine, vec![group], Hear::Finishes);
        let ended = finishes(&mut generation, 16);
        // A sample that was cancelled before its prompt was computed holds nothing either.
        let has_begun = |finish: &Finish| finish.reason == FinishReason::Cancelled && !finish.tokens.is_empty();
        let begun = ended.iter().flatten().filter(|finish| has_begun(finish)).count();
        let held = engine.metrics().unwrap().kv_bytes_held;
        match stragglers {
            Stragglers::Keep => assert!(held > 0 || begun == 0, "{begun} stragglers are kept"),
            Stragglers::Cancel => assert_eq!(held, 0),
        }
        generation.release_kept(0);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
        assert!(generation.resume(0).unwrap().is_empty());
    }
}

/// The samples that end while this engine makes its turns by hand, until none is left.
fn finishes_by_hand(generation: &mut Generation<Scoreless<'_>>, engine: &mut Engine) -> BTreeMap<usize, Finish> {
    let mut finishes = BTreeMap::new();
    loop {
        match generation.poll(Duration::ZERO) {
            Poll::Ready(None) => return finishes,
            Poll::Ready(Some(Ok(Event::Finished { id, finish }))) => drop(finishes.insert(id.sample, finish)),
            Poll::Ready(Some(event)) => panic!("{event:?}"),
            Poll::Pending => drop(engine.turn().expect("nothing is wrong with it")),
        }
    }
}

#[test]
fn stragglers_that_are_finished_after_an_update_say_which_weights_sampled_what() {
    const N: usize = 16;
    let world = World::new(Shape::Full);
    let (mut turned, engine) = world.by_hand(roomy());
    let records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
    let params = SamplingParams { frequency_penalty: 0.7, records, ..params() };
    let (tokens, stop) = (prompt(3, 40), uneven());
    let group = Group { tokens: &tokens, n: N, params: &params, stop: &stop, end: Some(end(6, Stragglers::Keep)) };
    let mut generation = generate(&engine, vec![Scoreless(group)], Hear::Finishes);
    let first = finishes_by_hand(&mut generation, &mut turned);
    let had = |sample: usize| first[&sample].reason.is_cut().then(|| first[&sample].tokens.len());
    let stragglers: Vec<usize> = (0..N).filter(|&sample| had(sample).is_some()).collect();
    assert!((1..=N - 6).contains(&stragglers.len()), "{stragglers:?}");
    std::thread::scope(|scope| {
        let weights = world.whole(Seeds::both(2));
        let update = scope.spawn(|| engine.update_weights(weights));
        while !update.is_finished() {
            turned.turn().expect("nothing is wrong with it");
        }
        update.join().expect("nothing panics").expect("it fits");
    });
    assert_eq!(generation.resume(0).expect("none runs"), stragglers);
    let late = finishes_by_hand(&mut generation, &mut turned);
    assert!(late.keys().copied().eq(stragglers.iter().copied()));
    for (sample, finish) in late {
        let span = |version, from| WeightSpan { version: WeightVersion(version), from };
        let from = had(sample).expect("it is a straggler");
        assert!(from > 0 && finish.weights == [span(0, 0), span(1, from)], "{from}: {:?}", finish.weights);
        assert!(!finish.reason.is_cut() && finish.tokens.starts_with(&first[&sample].tokens));
        let uniforms = UniformKey::root(1, "group").child(ForkKind::Sample, sample as u64);
        let how = How::Drawn(uniforms, params.clone(), stop.clone());
        Record { before: tokens.clone(), how, finish }.hold(&world, &[Seeds::FIRST, Seeds::both(2)]);
    }
}

in_modes! {
    in_turn, run_ahead, replicas:
    a_group_ends_and_its_stragglers_go_on_as_if_nothing_had_happened,
    cancelled_and_released_stragglers_hold_nothing,
}
