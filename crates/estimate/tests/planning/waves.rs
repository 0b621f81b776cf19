//! Jobs of real sizes on the modelled device, whose time is counted and not spent: waves, full steps, crowds, memory.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, ForkKind, PoolSize, Priority, SamplingParams,
    Stop, Turn, UniformKey,
};
use offshoot_model::{Decoder, ModelConfig, OutputHead, ValueHead, ValueLayer};
use offshoot_sim::{DeviceProfile, Sim};

use crate::bench::{Shape, model};
use crate::jobs::{Job, PROMPT_TOKENS, distinct_tokens, longest_path, play};

/// Of the H200's profile.
const PAGE_TOKENS: usize = 32;

fn build(pages: usize, config: EngineConfig) -> (Engine, EngineHandle) {
    build_of(model(Shape::Full, 4096), pages, config)
}

fn build_of(model: ModelConfig, pages: usize, config: EngineConfig) -> (Engine, EngineHandle) {
    let mut backend = Sim::new(Arc::new(DeviceProfile::named("h200").unwrap()));
    assert_eq!(backend.page_tokens() as usize, PAGE_TOKENS);
    let decoder = Decoder::random(&mut backend, model, Dtype::Bf16, 1).unwrap();
    let pool = PoolSize::Bytes(pages * backend.page_bytes(&decoder.kv_shape(1)));
    Engine::build(decoder.on(backend), None, EngineConfig { pool, run_ahead: true, check_plans: false, ..config })
        .unwrap()
}

/// A run of `len` tokens that its number tells from others of its place.
fn level(number: usize, len: usize) -> Vec<TokenId> {
    let digit = |place: u32| PROMPT_TOKENS[number / 3usize.pow(place) % 3];
    (0..12).map(digit).chain(std::iter::repeat(PROMPT_TOKENS[0])).take(len).collect()
}

/// Groups of prompts that share `prefix` tokens.
fn groups(groups: usize, sharing: usize, prefix: usize, own: usize, draws: usize, is_exact: bool) -> Vec<Job> {
    let job = |ix: usize| Job {
        arrives: 0,
        prompt: [level(ix / sharing, prefix), level(ix % sharing, own)].concat(),
        samples: 1,
        draws,
        is_exact,
        cancelled: None,
        again: 0,
        priority: Priority::default(),
    };
    let mut jobs: Vec<Job> = (0..groups * sharing).map(job).collect();
    jobs.sort_by(|a, b| a.prompt.cmp(&b.prompt));
    jobs
}

/// Twenty problems of eight samples, of which seven fit.
#[test]
fn what_does_not_fit_runs_in_waves() {
    let mut jobs = groups(20, 1, 1000, 24, 320, true);
    jobs.iter_mut().for_each(|job| job.samples = 8);
    let own = 320usize.div_ceil(PAGE_TOKENS);
    let pages = 7 * (1024usize.div_ceil(PAGE_TOKENS) + 8 * own);
    let (mut most, mut turns) = (0, 0);
    let played = play(build(pages, EngineConfig { step_rows: 2048, ..EngineConfig::default() }), &jobs, |engine| {
        most = most.max(engine.occupancy().running);
        turns += 1;
    });
    assert_eq!(played.metrics.prompt_tokens_computed, distinct_tokens(&jobs));
    assert_eq!(played.metrics.preemptions, 0);
    assert!((7 * 8..8 * 8).contains(&most), "{most} samples at once");
    // Three waves, each as many steps as a sample has tokens and its prompts take.
    assert!(turns < 3 * 320 + 60, "{turns} turns");
}

/// BatchLLM's first industry shape, in small: prompts fill the steps that decodes leave room in, to the last prompt.
#[test]
fn steps_are_full_while_prompts_wait() {
    let jobs = groups(60, 7, 1100, 400, 100, true);
    let (step_rows, roomy) = (2048, 40_000);
    let config = EngineConfig { step_rows, max_branches: 1024, ..EngineConfig::default() };
    let (mut before, mut fills) = (0, Vec::new());
    let played = play(build(roomy, config), &jobs, |engine| {
        let rows = engine.metrics().rows - before;
        before += rows;
        if engine.occupancy().waiting > 0 {
            fills.push(rows as usize);
        }
    });
    assert_eq!(played.metrics.prompt_tokens_computed, distinct_tokens(&jobs));
    assert!(fills.len() > 100, "{} steps while prompts waited", fills.len());
    assert!(fills.iter().all(|&rows| (step_rows * 9 / 10..=step_rows).contains(&rows)), "{fills:?}");
}

/// Samples of many lengths, known or not: what the short ones give back serves the long ones, so that memory is full
/// while prompts wait, and nobody has to yield.
#[test]
fn memory_is_full_while_prompts_wait() {
    for is_exact in [true, false] {
        let mut jobs = groups(600, 1, 256, 0, 0, is_exact);
        (0..).zip(&mut jobs).for_each(|(ix, job)| job.draws = 32 + 32 * (ix * 7 % 20));
        let (pages, config) = (1500, EngineConfig { step_rows: 2048, max_branches: 1024, ..EngineConfig::default() });
        let mut held = Vec::new();
        let played = play(build(pages, config), &jobs, |engine| {
            let now = engine.occupancy();
            if now.waiting > 0 {
                held.push(now.pages);
            }
        });
        let mean = |held: &[usize]| held.iter().sum::<usize>() as f64 / held.len() as f64 / pages as f64;
        // The first prompts take some turns to come in.
        let (middle, full) = (mean(&held[held.len() / 4..held.len() * 3 / 4]), mean(&held[held.len() / 4..]));
        println!("lengths known: {is_exact}; {} turns, {:.1} % of memory held", held.len(), 100.0 * full);
        assert!(middle > 0.93 && full > 0.93, "{middle} of memory is held in the middle, {full} from there on");
        assert_eq!((played.metrics.preemptions, played.metrics.prompt_tokens_computed), (0, distinct_tokens(&jobs)));
    }
}

/// A memory of a few long answers: whoever is let in is reckoned with as it grows, not with its last page from the
/// start.
#[test]
fn few_long_answers_fill_a_small_memory() {
    let mut jobs = groups(80, 1, 64, 0, 0, true);
    (0..).zip(&mut jobs).for_each(|(ix, job)| job.draws = 32 + 64 * (ix * 7 % 20));
    let pages = 3 * longest_path(&jobs, PAGE_TOKENS);
    let mut held = Vec::new();
    let played = play(build(pages, EngineConfig { step_rows: 2048, ..EngineConfig::default() }), &jobs, |engine| {
        let now = engine.occupancy();
        if now.waiting > 0 {
            held.push(now.pages);
        }
    });
    let mean = held.iter().sum::<usize>() as f64 / held.len() as f64 / pages as f64;
    println!("{} turns, {:.1} % of memory held", held.len(), 100.0 * mean);
    assert!(mean > 0.8, "{mean} of memory is held");
    assert_eq!(played.metrics.preemptions, 0);
    assert_eq!(played.metrics.prompt_tokens_computed, distinct_tokens(&jobs));
}

/// Samples that somebody cancels before they have drawn do not make the others look short.
#[test]
fn what_is_cancelled_says_nothing_of_lengths() {
    const DRAWS: usize = 16 * PAGE_TOKENS;
    let prompt = level(0, PAGE_TOKENS);
    let (pages, config) = (40 * 17, EngineConfig { max_branches: 256, ..EngineConfig::default() });
    let (mut engine, handle) = build(pages, config);
    let root = handle.root(prompt).unwrap();
    let branches = handle.fork(root, 200).unwrap();
    let extend = |(&branch, ordinal): (&BranchId, u64)| {
        // It could end any time, for all that the engine knows.
        let stop = Stop { tokens: vec![PROMPT_TOKENS[0]], ignore_eos: true, ..Stop::max_tokens(DRAWS) };
        let params = SamplingParams { top_k: Some(200), ..SamplingParams::default() };
        let uniforms = UniformKey::root(1, "cancelled").child(ForkKind::Sample, ordinal);
        Extend { branch, continuation: Continuation::Sampled { params, stop, uniforms } }
    };
    let mut extension = handle.start(branches.iter().zip(0..).map(extend).collect()).unwrap();
    extension.cancel(&branches[..100]);
    while engine.turn().unwrap() == Turn::Stepped {}
    let mut drawn = Vec::new();
    while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
        if let Event::Finished { finish, .. } = event {
            drawn.push(finish.tokens.len());
        }
    }
    drawn.sort_unstable();
    assert_eq!(drawn, [[0; 100], [DRAWS; 100]].concat());
    assert_eq!(engine.metrics().preemptions, 0);
}

/// What one branch gives back is not reckoned with twice: not where a prompt that waits, or one that is let in, goes on
/// from it.
#[test]
fn what_is_shared_is_not_given_back() {
    const P: usize = PAGE_TOKENS;
    let job = |prompt: Vec<TokenId>, draws: usize| Job { prompt, draws, ..groups(1, 1, 0, 0, 0, true).remove(0) };
    let (document, question) = (level(0, 14 * P), level(1, P));
    let asked = || job([document.clone(), level(0, P)].concat(), 12 * P);
    let (first, short) = (job(document.clone(), 2 * P), job(question.clone(), 13 * P));
    let other = job(level(2, P), 9 * P);
    for jobs in [
        vec![first.clone(), short.clone(), other.clone(), asked()],
        vec![first.clone(), short.clone(), asked(), other.clone()],
        vec![first, asked(), short, other],
    ] {
        let played = play(build(30, EngineConfig { step_rows: 2048, ..EngineConfig::default() }), &jobs, |_| {});
        assert_eq!(played.metrics.preemptions, 0);
    }
}

/// Short prompts by the thousand, all different but for their first token, in a pool that holds a few of them.
#[test]
fn crowds_of_short_prompts_end() {
    let mut jobs = groups(3, 2000, 1, 10, 3, false);
    (0..).zip(&mut jobs).for_each(|(ix, job)| job.arrives = ix / 200);
    let pages = longest_path(&jobs, PAGE_TOKENS) + 40;
    let played = play(build(pages, EngineConfig { step_rows: 512, ..EngineConfig::default() }), &jobs, |_| {});
    assert_eq!(played.metrics.prompt_tokens_computed, distinct_tokens(&jobs));
    assert_eq!(played.metrics.preemptions, 0);
}

/// What is held is what distinct tokens need, but for pages that are not full: each level and each sample has two of
/// those.
#[test]
fn the_peak_is_what_distinct_tokens_need() {
    for (is_exact, pages) in [(true, 40_000), (true, 900), (false, 900)] {
        let jobs = groups(30, 4, 1008, 400, 320, is_exact);
        let (engine, handle) = build(pages, EngineConfig { step_rows: 2048, ..EngineConfig::default() });
        let page_bytes = handle.facts().page_bytes as u64;
        let mut running = 0;
        let played = play((engine, handle), &jobs, |engine| running = running.max(engine.occupancy().running));
        let (held, tokens) = (played.metrics.kv_bytes_peak / page_bytes, played.metrics.kv_tokens_peak);
        let full = tokens.div_ceil(PAGE_TOKENS as u64);
        println!("{pages} pages: {held} held at the peak, {full} needed, {running} branches");
        assert!(held <= full + 4 * running as u64, "{held} pages are held of {full}, {running} branches");
    }
}

/// A search by 32 steps of 256 solutions below one prompt, each step of which keeps a quarter, through a scorer:
/// each token is a row once, in full steps, and each value is computed once, also for a client that asks for the whole
/// texts at the end.
#[test]
fn a_scorer_computes_the_steps_of_a_search_once() {
    const SOLUTIONS: usize = 256;
    const STEP: usize = 16;
    let last = ValueLayer { module: "score".to_owned(), outputs: 1, bias: false };
    let output = OutputHead::Values(ValueHead { inner: Vec::new(), last });
    let config = EngineConfig { max_branches: SOLUTIONS, step_rows: 2048, ..EngineConfig::default() };
    let (mut engine, handle) = build_of(ModelConfig { output, ..model(Shape::Full, 4096) }, 40_000, config);
    let token = |number: usize| TokenId::new(1 + number % 200);
    let prompt: Vec<TokenId> = (0..500).map(token).collect();
    let mut live = vec![(handle.root(prompt.clone()).unwrap(), prompt)];
    let mut ends: Vec<Vec<u32>> = vec![Vec::new()];
    let mut distinct = 500;
    let finish = |engine: &mut Engine, extends: Vec<Extend>| {
        let (count, mut events, mut found) = (extends.len(), handle.start(extends).unwrap(), 0);
        while engine.turn().unwrap() == Turn::Stepped {}
        while let Poll::Ready(Some(event)) = events.poll(Duration::ZERO) {
            let Event::Finished { finish, .. } = event else { panic!("{event:?}") };
            found += finish.values.len();
        }
        (count, found)
    };
    for step in 0..32 {
        let kept = live.len().min(SOLUTIONS / 4);
        let mut next = Vec::with_capacity(SOLUTIONS);
        for (branch, tokens) in &live[..kept] {
            for branch in handle.fork(*branch, SOLUTIONS / kept).unwrap() {
                let own = next.len();
                let digits = (0..4).map(|place| token(own / 4usize.pow(place) % 4));
                let given = digits.chain((0..STEP - 4).map(|at| token(step + at)));
                next.push((branch, tokens.iter().copied().chain(given).collect::<Vec<TokenId>>()));
            }
        }
        handle.prune(&live.iter().map(|(branch, _)| *branch).collect::<Vec<_>>());
        ends = (0..SOLUTIONS)
            .map(|own| [&ends[own / (SOLUTIONS / kept)][..], &[500 + (STEP * (step + 1)) as u32 - 1]].concat())
            .collect();
        live = next;
        distinct += SOLUTIONS * STEP;
        let extends = live.iter().zip(&ends).map(|((branch, tokens), ends)| {
            Extend::given_with_values(*branch, tokens[tokens.len() - STEP..].to_vec(), &ends[step..])
        });
        assert_eq!(finish(&mut engine, extends.collect()), (SOLUTIONS, SOLUTIONS));
    }
    let before = engine.metrics().clone();
    assert!(before.rows as f64 <= 1.02 * distinct as f64, "{} rows of {distinct} tokens", before.rows);
    let whole = live.iter().zip(&ends).map(|((_, tokens), ends)| {
        Extend::given_with_values(handle.root(tokens.clone()).unwrap(), Vec::new(), &ends[..])
    });
    assert_eq!(finish(&mut engine, whole.collect()), (SOLUTIONS, 32 * SOLUTIONS));
    let metrics = engine.metrics();
    assert_eq!((metrics.rows, metrics.values_read), (before.rows, 32 * SOLUTIONS as u64));
    assert_eq!(metrics.values_reused, 32 * SOLUTIONS as u64);
    let full = before.rows / 2048 + 2 * 32;
    assert!(before.steps <= full, "{} steps for {} rows", before.steps, before.rows);
}
