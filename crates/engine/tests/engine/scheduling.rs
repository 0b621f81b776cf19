//! What the scheduler promises, on random jobs in pools down to the smallest that hold one path: every branch ends and
//! draws what it draws in a big pool, all pages come back, no prompt is computed twice, and nobody yields whose length
//! is known.

use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::TokenId;
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, FinishReason, Metrics, Priority, SamplingParams,
    Stop, Turn, UniformKey,
};
use proptest::prelude::*;

use super::any::for_any;
use super::bench::{Mode, Shape, decoder, in_turn, pages};
use super::jobs::{Job, PROMPT_TOKENS, Played, distinct_tokens, longest_path, play};

const PAGE_TOKENS: usize = 16;

fn build(mode: Mode, config: EngineConfig) -> (Engine, EngineHandle) {
    let (backend, decoder) = decoder(Shape::Full);
    let run_ahead = mode.run_ahead;
    Engine::build(decoder.on(backend), None, EngineConfig { check_plans: true, run_ahead, ..config }).unwrap()
}

fn run(mode: Mode, jobs: &[Job], config: EngineConfig) -> Played {
    play(build(mode, config), jobs, |_| {})
}

/// Levels, each a run of tokens that its number tells from its siblings.
fn prompt(path: &[usize]) -> Vec<TokenId> {
    let level = |(depth, &child): (usize, &usize)| {
        let rest = std::iter::repeat_n(PROMPT_TOKENS[0], 8 + 5 * depth);
        std::iter::once(PROMPT_TOKENS[child]).chain(rest)
    };
    path.iter().enumerate().flat_map(level).collect()
}

fn paths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..3usize, 1..5)
}

/// Jobs that are all there at once.
fn at_once() -> impl Strategy<Value = Vec<Job>> {
    let job = (paths(), 1..4usize, 1..40usize, any::<bool>()).prop_map(|(path, samples, draws, is_exact)| Job {
        arrives: 0,
        prompt: prompt(&path),
        samples,
        draws,
        is_exact,
        cancelled: None,
        again: 0,
        priority: Priority::default(),
    });
    prop::collection::vec(job, 1..10)
}

/// Jobs that come over time, are drawn on and cut short.
fn over_time() -> impl Strategy<Value = Vec<Job>> {
    let more = (0..60usize, prop::option::of(0..30usize), 0..3usize);
    let job = move |jobs: Vec<Job>| {
        let jobs = jobs.into_iter().map(|job| {
            more.clone().prop_map(move |(arrives, cancelled, again)| Job { arrives, cancelled, again, ..job.clone() })
        });
        jobs.collect::<Vec<_>>().prop_map(|mut jobs| {
            jobs.sort_by_key(|job| job.arrives);
            jobs
        })
    };
    at_once().prop_flat_map(job)
}

/// Jobs over time, each of one of three priorities.
fn urgent_or_not() -> impl Strategy<Value = Vec<Job>> {
    let job = |job: Job| (-1..2).prop_map(move |priority| Job { priority: Priority(priority), ..job.clone() });
    over_time().prop_flat_map(move |jobs| jobs.into_iter().map(job).collect::<Vec<_>>())
}

/// A corner: step rows, branches, pages beside the longest path, pages in host memory.
fn corner() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (1..70usize, 1..20usize, 0..20usize, prop::sample::select(vec![0, 3, 1000]))
}

fn config(jobs: &[Job], (step_rows, max_branches, beside, swap): (usize, usize, usize, usize)) -> EngineConfig {
    // What is drawn on has its first part's pages too.
    let again = jobs.iter().filter(|job| job.again > 0).map(|job| job.draws.div_ceil(PAGE_TOKENS) + 2).max();
    let roomy = pages(longest_path(jobs, PAGE_TOKENS) + again.unwrap_or(0) + beside);
    let page_bytes = build(in_turn(), pages(1)).1.facts().page_bytes;
    EngineConfig { step_rows, max_branches, swap_bytes: swap * page_bytes, ..roomy }
}

/// Asserts that both played the same samples; of a sample that was cancelled, the beginning.
fn assert_same(jobs: &[Job], drawn: &Played, expected: &Played) {
    for (job, (drawn, expected)) in drawn.finishes.iter().zip(&expected.finishes).enumerate() {
        assert_eq!(drawn.len(), jobs[job].samples + jobs[job].again, "job {job}");
        for (drawn, expected) in drawn.values().zip(expected.values()) {
            if [drawn, expected].iter().all(|finish| finish.reason != FinishReason::Cancelled) {
                assert!(jobs[job].cancelled.is_some() || drawn == expected, "job {job}: {drawn:?}, {expected:?}");
            } else if jobs[job].again == 0 {
                let both = drawn.tokens.len().min(expected.tokens.len());
                assert_eq!(drawn.tokens[..both], expected.tokens[..both], "job {job}");
            }
        }
    }
}

fn exact(jobs: &mut [Job]) {
    jobs.iter_mut().for_each(|job| job.is_exact = true);
}

/// In depth-first order and known from the start, in any pool that holds one path, however long samples turn out to
/// be.
fn no_prompt_is_computed_twice(mode: Mode) {
    for_any((at_once(), corner()), |(mut jobs, corner)| {
        jobs.sort_by(|a, b| a.prompt.cmp(&b.prompt));
        let config = config(&jobs, corner);
        let played = run(mode, &jobs, config.clone());
        prop_assert_eq!(played.metrics.prompt_tokens_computed, distinct_tokens(&jobs), "{:?}", played.metrics);
        assert_same(&jobs, &played, &run(mode, &jobs, EngineConfig { ..pages(2000) }));
        Ok(())
    });
}

fn whatever_comes_when_all_branches_end_and_draw_the_same(mode: Mode) {
    for_any((over_time(), corner()), |(jobs, corner)| {
        let config = config(&jobs, corner);
        assert_same(&jobs, &run(mode, &jobs, config), &run(mode, &jobs, pages(2000)));
        Ok(())
    });
}

fn priorities_change_only_when_branches_end(mode: Mode) {
    for_any((urgent_or_not(), corner()), |(jobs, corner)| {
        let config = config(&jobs, corner);
        assert_same(&jobs, &run(mode, &jobs, config), &run(mode, &jobs, pages(2000)));
        Ok(())
    });
}

fn nobody_yields_whose_length_is_known(mode: Mode) {
    for_any((over_time(), corner()), |(mut jobs, corner)| {
        exact(&mut jobs);
        let config = config(&jobs, corner);
        let Metrics { preemptions, .. } = run(mode, &jobs, config).metrics;
        prop_assert_eq!(preemptions, 0);
        Ok(())
    });
}

/// Random cases in which somebody yielded. One that ran was left without pages that a waiting branch kept, which had
/// been passed over as another went on from them; and a second fork of a prompt that ends inside a page was let in one
/// page short.
fn nobody_yielded_in_these(mode: Mode) {
    let job = |arrives, path: &str, samples, draws, again| {
        let tokens = path.bytes().map(|letter| PROMPT_TOKENS[usize::from(letter - b'a')]);
        Job {
            arrives,
            prompt: tokens.collect(),
            samples,
            draws,
            is_exact: true,
            cancelled: None,
            again,
            priority: Priority::default(),
        }
    };
    let asked_twice = "caaaaaaaabaaaaaaaaaaaaa";
    let passed_over = [
        job(2, "caaaaaaaaaaaaaaaaaaaaaa", 3, 32, 1),
        job(15, "aaaaaaaaa", 2, 30, 1),
        job(43, "aaaaaaaaabaaaaaaaaaaaaabaaaaaaaaaaaaaaaaaa", 2, 7, 1),
        job(50, asked_twice, 1, 9, 1),
        job(52, asked_twice, 1, 17, 0),
    ];
    let one_short = [
        job(3, "aaaaaaaaabaaaaaaaaaaaaa", 2, 31, 0),
        job(17, "baaaaaaaaaaaaaaaaaaaaaa", 3, 10, 1),
        job(20, "caaaaaaaa", 2, 6, 2),
        job(20, "aaaaaaaaabaaaaaaaaaaaaabaaaaaaaaaaaaaaaaaabaaaaaaaaaaaaaaaaaaaaaaa", 2, 37, 1),
        job(21, "aaaaaaaaaaaaaaaaaaaaaaa", 3, 39, 0),
        job(27, "caaaaaaaa", 1, 38, 0),
    ];
    for (jobs, corner) in [(&passed_over[..], (15, 7, 8, 3)), (&one_short[..], (18, 16, 4, 0))] {
        assert_eq!(run(mode, jobs, config(jobs, corner)).metrics.preemptions, 0);
    }
}

/// A branch that rests and is asked to go on lays out its own tokens, whatever others have laid out that went on from
/// it meanwhile.
fn a_branch_that_rested_is_let_in_with_all_its_pages(mode: Mode) {
    let p = PAGE_TOKENS;
    let given = |letter: usize, len: usize| vec![PROMPT_TOKENS[letter]; len];
    let drawn = |branch, draws| {
        let params = SamplingParams { top_k: Some(200), ..SamplingParams::default() };
        let stop = Stop { ignore_eos: true, ..Stop::max_tokens(draws) };
        Extend { branch, continuation: Continuation::Sampled { params, stop, uniforms: UniformKey::root(1, "") } }
    };
    // Its own tokens are drawn, or given and not computed; pools from the narrowest on that holds any one path.
    for (is_drawn, pool) in [true, false].into_iter().flat_map(|is_drawn| (6..16).map(move |pool| (is_drawn, pool))) {
        let (mut engine, handle) = build(mode, pages(pool));
        let first = handle.root(given(0, p + 4)).unwrap();
        let own = match is_drawn {
            true => drawn(first, 5),
            false => Extend::given(first, given(1, 30), None),
        };
        let mut extension = handle.start(vec![own]).unwrap();
        let mut tokens = Vec::new();
        while extension.unfinished() > 0 {
            engine.turn().unwrap();
            while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
                if let Event::Finished { finish, .. } = event {
                    tokens = finish.tokens;
                }
            }
        }
        let onwards = handle.root([given(0, p + 4), tokens, given(2, 1)].concat()).unwrap();
        let (onwards, other) = (handle.fork(onwards, 2).unwrap(), handle.root(given(2, p)).unwrap());
        let begun = [drawn(onwards[0], 38), drawn(onwards[1], 20), drawn(other, 56)];
        let _begun = handle.start(begun.to_vec()).unwrap();
        for _ in 0..3 {
            engine.turn().unwrap();
        }
        let _rested = handle.start(vec![drawn(first, 20)]).unwrap();
        while engine.turn().unwrap() == Turn::Stepped {}
        assert_eq!(engine.metrics().preemptions, 0, "own tokens drawn: {is_drawn}, {pool} pages");
    }
}

in_modes! {
    in_turn, run_ahead:
    no_prompt_is_computed_twice,
    whatever_comes_when_all_branches_end_and_draw_the_same,
    priorities_change_only_when_branches_end,
    nobody_yields_whose_length_is_known,
    nobody_yielded_in_these,
    a_branch_that_rested_is_let_in_with_all_its_pages,
}
