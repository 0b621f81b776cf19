//! Branches that yield: dropped and computed again, or swapped to host memory and back. Neither changes a draw.

use std::num::{NonZeroU16, NonZeroUsize};

use offshoot_core::ids::BranchId;
use offshoot_engine::{ConfidenceStop, EngineConfig, EngineHandle, Finish, FinishReason, Metrics, PoolSize, Records};

use super::bench::{Mode, Shape, draw, finishes, key, length, mislead, pages, params, prompt, roomy, score, unsure};

/// Six samples of 70 tokens of each of two prompts of 40, started at once, then scores of the same length.
fn crowd(engine: &EngineHandle) -> Vec<Finish> {
    mislead(engine);
    let mut extends = Vec::new();
    let mut branches: Vec<BranchId> = Vec::new();
    for (item, salt) in [("a", 1), ("b", 2)] {
        let root = engine.root(prompt(salt, 40)).unwrap();
        let children = engine.fork(root, 8).unwrap();
        extends.extend((0..).zip(&children[..6]).map(|(i, &child)| draw(child, key(item, i), params(), unsure(70))));
        extends.extend((0..).zip(&children[6..]).map(|(i, &child)| score(child, prompt(30 + i, 60))));
        branches.extend(children);
        branches.push(root);
    }
    let told = finishes(engine, extends);
    engine.prune(&branches);
    told
}

fn run(mode: Mode, config: EngineConfig) -> (Vec<Finish>, Metrics) {
    let engine = mode.engine(config);
    (crowd(&engine), engine.metrics().unwrap())
}

fn whoever_yields_draws_the_same(mode: Mode) {
    let page_bytes = mode.engine(pages(1)).facts().page_bytes;
    let (expected, metrics) = run(mode, roomy());
    assert_eq!(metrics.preemptions, 0);
    let (mut swapped, mut recomputed) = (0, 0);
    for capacity in [9, 12, 16, 23, 40] {
        for swap_pages in [0, 3, 1000] {
            let (drawn, metrics) = run(mode, EngineConfig { swap_bytes: swap_pages * page_bytes, ..pages(capacity) });
            assert_eq!(drawn, expected, "{capacity} pages, {swap_pages} in host memory");
            assert!(metrics.swapped_in <= metrics.swapped_out && metrics.swapped_out <= metrics.preemptions);
            assert!(metrics.swapped_in_bytes <= metrics.swapped_out_bytes);
            assert_eq!(metrics.swapped_out_bytes % page_bytes as u64, 0);
            assert_eq!(metrics.kv_bytes_held, 0);
            if swap_pages == 0 {
                assert_eq!(metrics.swapped_out, 0);
                recomputed += metrics.tokens_recomputed;
            }
            swapped += metrics.swapped_in;
        }
    }
    assert!(swapped > 0 && recomputed > 0, "{swapped} came back, {recomputed} tokens were computed again");
}

/// A sample that loses confidence ends at the same token, though its window was there before its branch yielded.
fn windows_of_confidences_outlast_what_yields(mode: Mode) {
    let records = Records { confidence: NonZeroU16::new(5), ..Records::default() };
    let params = params().records(records);
    let samples = |config: EngineConfig, below: f64| {
        let engine = mode.engine(config);
        mislead(&engine);
        let root = engine.root(prompt(1, 40)).unwrap();
        let stop = unsure(90).at_confidence(ConfidenceStop { window: NonZeroUsize::MIN.saturating_add(19), below });
        let children = engine.fork(root, 8).unwrap();
        let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params.clone(), stop.clone()));
        (finishes(&engine, extends.collect()), engine.metrics().unwrap())
    };
    // The lowest mean of a window of each sample: a threshold between two of them ends half of the samples.
    let (whole, _) = samples(roomy(), 0.0);
    let lowest = |finish: &Finish| {
        let confidences: Vec<f64> = finish.records.confidences().iter().map(|c| f64::from(c.unwrap())).collect();
        confidences.windows(20).map(|all| all.iter().sum::<f64>() / 20.0).fold(f64::INFINITY, f64::min)
    };
    let mut lows: Vec<f64> = whole.iter().map(lowest).collect();
    lows.sort_by(f64::total_cmp);
    let below = (lows[3] + lows[4]) / 2.0;
    let (expected, metrics) = samples(roomy(), below);
    let ended = |all: &[Finish]| all.iter().filter(|end| end.reason == FinishReason::LowConfidence).count();
    assert_eq!((ended(&expected), metrics.preemptions), (4, 0));
    let (mut preempted, mut swapped) = (0, 0);
    for capacity in [11, 14, 18, 24] {
        for swap_bytes in [0, 1 << 20] {
            let config = EngineConfig { swap_bytes, swap_at_any_cost: swap_bytes > 0, ..pages(capacity) };
            let (found, metrics) = samples(config, below);
            assert_eq!(found, expected, "{capacity} pages, {swap_bytes} bytes in host memory");
            (preempted, swapped) = (preempted + metrics.preemptions, swapped + metrics.swapped_in);
        }
    }
    assert!(preempted > swapped && swapped > 0, "{preempted} yielded, {swapped} of them were copied");
}

/// Pages, and states with them.
fn what_is_swapped_is_not_computed_again(mode: Mode) {
    [Shape::Full, Shape::Hybrid].into_iter().for_each(|shape| swapped_is_not_computed_again(mode, shape));
}

fn swapped_is_not_computed_again(mode: Mode, shape: Shape) {
    let facts = mode.engine_of(shape, roomy()).facts().clone();
    let run = |swap_pages: usize| {
        let swap_bytes = swap_pages * (facts.page_bytes + facts.state_bytes);
        // Pages are short, states are not.
        let pool = PoolSize::Share { of_free: 0.5, at_most: 20 * facts.page_bytes };
        let engine = mode.engine_of(shape, EngineConfig { swap_bytes, pool, swap_at_any_cost: true, ..roomy() });
        mislead(&engine);
        let root = engine.root(prompt(1, 40)).unwrap();
        let children = engine.fork(root, 5).unwrap();
        let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), unsure(90)));
        (finishes(&engine, extends.collect()), engine.metrics().unwrap())
    };
    let ((dropped, without), (swapped, with)) = (run(0), run(1000));
    assert_eq!(dropped, swapped, "{shape:?}");
    let states = with.swapped_out * facts.state_bytes as u64;
    assert_eq!((with.swapped_out_bytes - states) % facts.page_bytes as u64, 0, "{with:?}");
    assert_eq!(with.swapped_in_bytes, with.swapped_out_bytes, "{with:?}");
    assert!(without.preemptions > 0 && without.tokens_recomputed > 0, "{without:?}");
    assert!(with.preemptions > 0 && with.swapped_in == with.preemptions, "{with:?}");
    assert_eq!(with.tokens_recomputed, 0, "{with:?}");
}

fn branches_that_take_all_they_may_are_not_let_in_to_be_dropped(mode: Mode) {
    // Each takes 5 pages beside the 3 of its prompt: three fit at once.
    let engine = mode.engine(pages(18));
    let root = engine.root(prompt(1, 40)).unwrap();
    let children = engine.fork(root, 12).unwrap();
    let extends = (0..).zip(children).map(|(i, child)| draw(child, key("item", i), params(), length(70)));
    finishes(&engine, extends.collect());
    let metrics = engine.metrics().unwrap();
    assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0));
    assert!(metrics.steps < 12 / 2 * 70, "more than two ran at once: {} steps", metrics.steps);
}

in_modes! {
    in_turn, run_ahead:
    whoever_yields_draws_the_same,
    windows_of_confidences_outlast_what_yields,
    what_is_swapped_is_not_computed_again,
    branches_that_take_all_they_may_are_not_let_in_to_be_dropped,
}
