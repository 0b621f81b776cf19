//! `generate` and its `Generator`: the samples that a sampling tree has, in a bounded number at once, heard as the
//! reader wants it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use offshoot_core::Error;
use offshoot_core::ids::TokenId;
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{
    EngineHandle, Event, Finish, FinishReason, First, Hear, Metrics, Priority, SamplingParams, ScriptedReply, Stop,
    UniformKey,
};
use offshoot_launch::{
    AsRequest, Generation, Generator, OutputTokens, PromptOrder, PromptRequest, Release, SampleId, generate,
};

use crate::bench::{Mode, length, pages, params, prompt, roomy};

/// Long enough for whatever a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a test looks for what must not happen. A longer one makes a fault likelier to show; without a fault nothing
/// depends on it.
const MOMENT: Duration = Duration::from_millis(50);

fn request<'a>(tokens: &'a [TokenId], n: usize, params: &'a SamplingParams, stop: &'a Stop) -> PromptRequest<'a> {
    let (uniforms, priority) = (UniformKey::root(1, &text_of(tokens)), Priority::default());
    PromptRequest { tokens, n, prompt_logprobs: None, params, stop, uniforms, priority }
}

fn sample(prompt: usize, sample: usize) -> SampleId {
    SampleId { prompt, sample }
}

fn finished(event: Option<Event<SampleId>>) -> (SampleId, Finish) {
    match event {
        Some(Event::Finished { id, finish }) => (id, finish),
        other => panic!("a sample finishes, not {other:?}"),
    }
}

fn next_of(generation: &mut Generation<impl AsRequest>) -> Option<Event<SampleId>> {
    generation.next().map(|event| event.expect("no prompt is refused"))
}

/// Prompts with a common header, each with its number of samples.
pub fn job() -> Vec<(Vec<TokenId>, usize)> {
    [5, 1, 3].into_iter().zip(0..).map(|(n, own)| ([prompt(1, 30), prompt(10 + own, 9)].concat(), n)).collect()
}

pub fn requests<'a>(
    job: &'a [(Vec<TokenId>, usize)],
    params: &'a SamplingParams,
    stop: &'a Stop,
) -> Vec<PromptRequest<'a>> {
    job.iter().map(|(tokens, n)| request(tokens, *n, params, stop)).collect()
}

fn who_hears_finishes_gets_one_of_each_sample_and_no_token(mode: Mode) {
    let (job, params, stop) = (job(), params(), length(20));
    let engine = mode.engine(roomy());
    let mut generation = generate(&engine, requests(&job, &params, &stop), Hear::Finishes);
    let mut ended = HashSet::new();
    while let Some(event) = next_of(&mut generation) {
        let (sample, finish) = finished(Some(event));
        assert_eq!(finish.tokens.len(), 20);
        assert!(ended.insert(sample), "{sample:?} finished twice");
    }
    let all = job.iter().enumerate().flat_map(|(prompt, (_, n))| (0..*n).map(move |at| sample(prompt, at)));
    assert_eq!(ended, all.collect());
    // An engine computes the header once, and what is each prompt's own.
    let (computed, replicas) = (engine.metrics().unwrap().prompt_tokens_computed, engine.facts().replicas as u64);
    assert!((30 + 27..=30 * replicas + 27).contains(&computed), "{computed} tokens of prompts, {replicas} engines");
}

fn who_hears_tokens_gets_all_of_them_before_the_end(mode: Mode) {
    let (job, params, stop) = (job(), params(), length(20));
    let engine = mode.engine(roomy());
    let mut generation = generate(&engine, requests(&job, &params, &stop), Hear::Tokens);
    let mut heard = HashMap::<SampleId, (Vec<TokenId>, Vec<f32>)>::new();
    while let Some(event) = next_of(&mut generation) {
        match event {
            Event::Tokens { id: sample, tokens, .. } => {
                let (ids, logprobs) = heard.entry(sample).or_default();
                ids.extend(tokens.iter().map(|sampled| sampled.token));
                logprobs.extend(tokens.iter().map(|sampled| sampled.logprob));
            }
            event => {
                let (sample, finish) = finished(Some(event));
                assert_eq!(heard[&sample], (finish.tokens.clone(), finish.logprobs().to_vec()));
            }
        }
    }
    assert_eq!(heard.len(), 9);
}

#[test]
fn prompts_begin_depth_first_over_what_they_share() {
    let prompts = ["bb1", "aa1", "bb2", "aa2", "c"].map(tokens_of);
    let stops = [5, 20, 50, 30, 1].map(length);
    let begun = Arc::new(Mutex::new(Vec::new()));
    let seen = begun.clone();
    let engine = EngineHandle::scripted(move |call| {
        seen.lock().unwrap().push(call.text());
        ScriptedReply::text("x")
    });
    let params = SamplingParams::default();
    let requests = prompts.iter().zip(&stops).map(|(tokens, stop)| request(tokens, 2, &params, stop));
    generate(&engine, requests.collect(), Hear::Finishes).collect_all().unwrap();
    let draws = stops.iter().map(|stop| OutputTokens { most: 2 * stop.max_tokens as u64, is_exact: true });
    let mut order = PromptOrder::new(&prompts, draws.collect());
    let order =
        std::iter::from_fn(|| order.next_prompt()).flat_map(|at| [text_of(&prompts[at]), text_of(&prompts[at])]);
    assert_eq!(*begun.lock().unwrap(), order.collect::<Vec<_>>());
}

/// An engine on which every sample of a prompt that begins with `!` goes on until it is cancelled, and how many were
/// begun.
fn holding() -> (EngineHandle, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let seen = begun.clone();
    let engine = EngineHandle::scripted(move |call| {
        seen.fetch_add(1, Ordering::Relaxed);
        match call.text().starts_with('!') {
            true => ScriptedReply::text("on").until_cancelled(),
            false => ScriptedReply::text("done"),
        }
    });
    (engine, begun)
}

#[test]
fn a_bounded_number_is_in_flight() {
    let (engine, begun) = holding();
    let prompts: Vec<Vec<TokenId>> = (0..6000).map(|at| tokens_of(&format!("!{at}"))).collect();
    let (params, stop) = (SamplingParams::default(), Stop::default());
    let requests = prompts.iter().map(|tokens| request(tokens, 1, &params, &stop));
    let mut generation = generate(&engine, requests.collect(), Hear::Finishes);
    assert!(generation.poll(MOMENT).is_pending());
    engine.metrics().unwrap();
    // As many as grow at once, 4,096 that wait, and the one that made them enough.
    let at_once = engine.facts().max_branches + 4096 + 1;
    assert_eq!(begun.load(Ordering::Relaxed), at_once);
    let in_flight: Vec<usize> = (0..prompts.len()).filter(|&at| generation.is_in_flight(at)).collect();
    assert_eq!(in_flight.len(), at_once);
    in_flight[..10].iter().for_each(|&prompt| generation.cancel_prompt(prompt));
    for _ in 0..10 {
        assert_eq!(finished(next_of(&mut generation)).1.reason, FinishReason::Cancelled);
    }
    assert!(generation.poll(MOMENT).is_pending());
    engine.metrics().unwrap();
    assert_eq!(begun.load(Ordering::Relaxed), at_once + 10, "where some ended, others begin");
}

#[test]
fn one_sample_or_one_prompt_is_cancelled_and_the_others_finish() {
    let (engine, _) = holding();
    let (held, short, params, stop) =
        (tokens_of("!held"), tokens_of("short"), SamplingParams::default(), Stop::default());
    let requests = vec![request(&held, 3, &params, &stop), request(&short, 2, &params, &stop)];
    let mut generation = generate(&engine, requests, Hear::Finishes);
    let mut whole = [finished(next_of(&mut generation)), finished(next_of(&mut generation))].map(|(sample, finish)| {
        assert_eq!(finish.text, "done");
        sample
    });
    whole.sort();
    assert_eq!(whole, [sample(1, 0), sample(1, 1)]);
    generation.cancel(&[sample(0, 1)]);
    let (cancelled, finish) = finished(next_of(&mut generation));
    assert_eq!((cancelled, finish.reason), (sample(0, 1), FinishReason::Cancelled));
    assert!(generation.poll(MOMENT).is_pending(), "the others go on");
    generation.cancel_prompt(0);
    let rest: HashSet<SampleId> = (0..2).map(|_| finished(next_of(&mut generation)).0).collect();
    assert_eq!(rest, HashSet::from([sample(0, 0), sample(0, 2)]));
    assert!(generation.next().is_none());
}

#[test]
fn what_is_cancelled_before_it_begins_ends_as_well() {
    let (engine, begun) = holding();
    let (first, second, params, stop) = (tokens_of("!a"), tokens_of("!b"), SamplingParams::default(), Stop::default());
    let requests = vec![request(&first, 2, &params, &stop), request(&second, 3, &params, &stop)];
    let mut generation = generate(&engine, requests, Hear::Finishes);
    generation.cancel_prompt(1);
    generation.cancel(&[sample(0, 1)]);
    let ended: HashSet<SampleId> = (0..4).map(|_| finished(next_of(&mut generation)).0).collect();
    assert_eq!(ended, HashSet::from([sample(0, 1), sample(1, 0), sample(1, 1), sample(1, 2)]));
    assert!(generation.poll(MOMENT).is_pending());
    // Answered after what it was given before.
    engine.metrics().unwrap();
    assert_eq!(begun.load(Ordering::Relaxed), 2, "the engine never had the second prompt");
    generation.prune(0);
    assert!(matches!(generation.poll(PATIENCE), Poll::Ready(None)), "no more is told of what was discarded");
}

#[test]
fn a_reader_that_never_reads_costs_others_nothing_and_loses_nothing() {
    const TOKENS: usize = 20_000;
    let engine = EngineHandle::scripted(|call| match call.text().as_str() {
        "long" => ScriptedReply::text(&"x".repeat(TOKENS)),
        _ => ScriptedReply::text("done"),
    });
    let (params, stop) = (SamplingParams::default(), Stop::default());
    let (long, short) = (tokens_of("long"), tokens_of("short"));
    let mut slow = Generator::new(engine.clone(), Hear::Tokens, Release::EachSample);
    slow.begin(0, &request(&long, 8, &params, &stop)).unwrap();
    slow.start();
    let others = generate(&engine, vec![request(&short, 4, &params, &stop)], Hear::Tokens).collect_all().unwrap();
    assert_eq!(others[0].iter().map(|finish| finish.text.as_str()).collect::<Vec<_>>(), ["done"; 4]);
    while engine.metrics().unwrap().tokens_sampled < 8 * TOKENS as u64 + 16 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = 4096 + 2 * 8;
    assert!(slow.queued() <= most, "{} events wait of {} tokens, at most {most} may", slow.queued(), 8 * TOKENS);
    let (mut tokens, mut ends) = ([0; 8], 0);
    while let Some(event) = slow.next() {
        match event {
            Event::Tokens { id: sample, tokens: run, text, .. } => {
                assert_eq!(text.len(), run.len());
                tokens[sample.sample] += run.len();
            }
            event => {
                let (sample, finish) = finished(Some(event));
                assert_eq!((tokens[sample.sample], finish.tokens.len()), (TOKENS, TOKENS));
                ends += 1;
            }
        }
    }
    assert_eq!(ends, 8);
}

fn a_sample_that_cannot_go_on_and_a_prompt_that_is_refused_fail_alone(mode: Mode) {
    // 160 tokens of context are ten pages; the engine has six.
    let engine = mode.engine(pages(6));
    let prompts = [prompt(1, 20), prompt(2, 20), prompt(3, 200), prompt(4, 20)];
    let (params, hot, short, long) =
        (params(), SamplingParams { temperature: -1.0, ..SamplingParams::default() }, length(10), length(139));
    let requests = vec![
        request(&prompts[0], 2, &params, &short),
        request(&prompts[1], 2, &params, &long),
        request(&prompts[2], 2, &params, &short),
        request(&prompts[3], 2, &hot, &short),
        request(&prompts[3], 0, &params, &short),
    ];
    let all = generate(&engine, requests, Hear::Finishes).collect();
    let samples = |prompt: usize| all[prompt].as_ref().expect("the engine took it");
    assert!(samples(0).iter().all(|sample| sample.as_ref().is_ok_and(|finish| finish.tokens.len() == 10)));
    assert!(samples(1).iter().all(|sample| matches!(sample, Err(Error::OutOfPages { .. }))));
    assert!(matches!(all[2], Err(Error::ContextTooLong { .. })));
    for (prompt, field) in [(3, "temperature"), (4, "samples")] {
        let error = all[prompt].as_ref().expect_err("it is out of range").to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn an_engine_that_stops_fails_every_sample() {
    let engine = EngineHandle::scripted(|call| match call.text().as_str() {
        "panics" => panic!("no such page"),
        _ => ScriptedReply::text("on").until_cancelled(),
    });
    let (params, stop) = (SamplingParams::default(), Stop::default());
    let prompts = ["goes on", "panics"].map(tokens_of);
    let requests = || prompts.iter().map(|tokens| request(tokens, 2, &params, &stop)).collect();
    let all = generate(&engine, requests(), Hear::Finishes).collect();
    for sample in all.into_iter().flat_map(|samples| samples.expect("it was begun")) {
        let error = sample.expect_err("the engine stopped");
        assert!(error.to_string().contains("no such page"), "{error}");
    }
    let after = generate(&engine, requests(), Hear::Finishes).collect();
    assert!(after.iter().all(|samples| matches!(samples, Err(Error::EngineStopped { .. }))), "{after:?}");
}

#[test]
fn a_generator_takes_prompts_at_any_time_and_is_woken_by_other_messages() {
    let (engine, _) = holding();
    let (params, stop) = (SamplingParams::default(), Stop::default());
    let [first, second] = ["!first", "second"].map(tokens_of);
    let mut generator = Generator::new(engine, Hear::Finishes, Release::EachSample);
    assert!(generator.next().is_none(), "nothing was begun");
    generator.begin(7, &request(&first, 1, &params, &stop)).unwrap();
    let (more, waiting) = crossbeam_channel::unbounded();
    assert!(generator.poll_beside(&waiting, MOMENT).is_pending());
    more.send(9).unwrap();
    let Poll::Ready(First::Message(number)) = generator.poll_beside(&waiting, PATIENCE) else { panic!("a message") };
    generator.begin(number, &request(&second, 2, &params, &stop)).unwrap();
    for _ in 0..2 {
        assert_eq!(finished(generator.next()).0.prompt, 9);
    }
    assert_eq!((generator.samples(), generator.is_in_flight(7), generator.is_in_flight(9)), (1, true, false));
    generator.cancel_prompt(7);
    assert_eq!(finished(generator.next()).0, sample(7, 0));
    assert!(generator.next().is_none());
}

fn what_the_engine_holds_is_given_back(mode: Mode) {
    let (job, params, stop) = (job(), params(), length(20));
    for release in [Release::EachSample, Release::EachPrompt, Release::AtEnd] {
        let engine = mode.engine(roomy());
        let generator = Generator::new(engine.clone(), Hear::Finishes, release);
        let mut generation = Generation::new(requests(&job, &params, &stop), generator);
        assert_eq!(generation.count_tokens().unwrap(), 9 * 20);
        let Metrics { kv_bytes_held, kv_bytes_cached, .. } = engine.metrics().unwrap();
        assert_eq!(kv_bytes_held > 0, release == Release::AtEnd, "{release:?}: {kv_bytes_held} bytes are held");
        assert_eq!(kv_bytes_cached > 0, release != Release::AtEnd, "{release:?}: {kv_bytes_cached} bytes are cached");
        drop(generation);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0, "{release:?}");
    }
    // Also where it is dropped midway.
    let engine = mode.engine(roomy());
    let long = length(100);
    let mut generation = generate(&engine, requests(&job, &params, &long), Hear::Tokens);
    assert!(matches!(generation.next(), Some(Ok(Event::Tokens { .. }))));
    drop(generation);
    assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
}

in_modes! {
    in_turn, replicas:
    who_hears_finishes_gets_one_of_each_sample_and_no_token,
    who_hears_tokens_gets_all_of_them_before_the_end,
    a_sample_that_cannot_go_on_and_a_prompt_that_is_refused_fail_alone,
    what_the_engine_holds_is_given_back,
}
