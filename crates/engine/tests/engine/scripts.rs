//! Random searches: roots, forks, draws, given tokens, scores and releases in rounds, run once with room for everything
//! and once in a corner. The same searches must tell the same story.

use offshoot_core::ids::BranchId;
use offshoot_engine::{EngineConfig, EngineHandle, Extend, Finish, FinishReason, Priority, RootOptions, SampledToken};
use offshoot_kv::plan::Planner;

use super::bench::{
    Mode, Shape, draw, finishes, give, key, mislead, pages, params, prompt, room_for, roomy, score, unsure,
};
use super::forms::forms;
use crate::full::some_or_full;
use offshoot_core::dice::Dice;

/// How long the texts of a story become.
#[derive(Clone, Copy)]
struct Lengths {
    /// Most tokens of a prompt, of what a branch is given or samples at once, and of a whole branch.
    prompt: u32,
    more: u32,
    branch: u32,
}

const SHORT: Lengths = Lengths { prompt: 50, more: 30, branch: 150 };

/// Many times a window and what is freed at once.
const LONG: Lengths = Lengths { prompt: 300, more: 150, branch: 600 };

/// Ten rounds on at most 16 branches. Some are cancelled; the story leaves them out.
fn story(engine: &EngineHandle, seed: u64, lengths: Lengths) -> Vec<Finish> {
    let mut dice = Dice::new(seed);
    let mut branches: Vec<(BranchId, usize)> = Vec::new();
    let mut story = Vec::new();
    for round in 0..10 {
        for _ in 0..dice.within(0, 2) {
            let len = dice.within(1, lengths.prompt) as usize;
            // Few salts, so that prompts begin alike.
            let tokens = prompt(u64::from(dice.within(1, 2)), lengths.prompt as usize)[..len].to_vec();
            let priority = Priority(dice.within(0, 2) as i32);
            let place = RootOptions { priority, ..RootOptions::default() };
            branches.push((engine.root_with(tokens, place).unwrap(), len));
        }
        if branches.is_empty() {
            continue;
        }
        let (parent, len) = dice.pick(&branches);
        let children = engine.fork(parent, dice.within(1, 4) as usize).unwrap();
        branches.extend(children.into_iter().map(|child| (child, len)));
        let mut extends: Vec<Extend> = Vec::new();
        for (ordinal, (branch, len)) in (0u64..).zip(&mut branches) {
            let more = dice.within(1, lengths.more).min(lengths.branch - *len as u32) as usize;
            if more == 0 || dice.one_in(3) {
                continue;
            }
            let salt = u64::from(dice.within(3, 4));
            extends.push(match dice.within(1, 4) {
                1 => give(*branch, prompt(salt, more)),
                2 => score(*branch, prompt(salt, more)),
                3 => {
                    let params = params().form(forms().swap_remove(dice.within(0, 4) as usize));
                    draw(*branch, key(&format!("{round}"), ordinal), params, unsure(more))
                }
                _ => draw(*branch, key(&format!("{round}"), ordinal), params(), unsure(more)),
            });
            *len += more;
        }
        let cut = extends.split_off(extends.len() - dice.within(0, extends.len().min(2) as u32) as usize);
        let gone: Vec<BranchId> = cut.iter().map(|extend| extend.branch).collect();
        let mut cancelled = engine.start(cut).unwrap();
        story.extend(finishes(engine, extends).into_iter().map(without_ranks_of_scores));
        cancelled.cancel_all();
        while cancelled.next().is_some() {}
        engine.release(&gone);
        branches.retain(|(branch, _)| !gone.contains(branch));
        while branches.len() > 16 || (!branches.is_empty() && dice.one_in(3)) {
            let (gone, _) = branches.swap_remove(dice.within(1, branches.len() as u32) as usize - 1);
            if dice.one_in(2) { engine.release(&[gone]) } else { engine.prune(&[gone]) }
        }
    }
    let all: Vec<BranchId> = branches.iter().map(|(branch, _)| *branch).collect();
    engine.prune(&all);
    story
}

/// A given token whose score was known before, of a sample that asked for no ranks, has none.
fn without_ranks_of_scores(finish: Finish) -> Finish {
    if finish.reason != FinishReason::Given {
        return finish;
    }
    let records = finish.sampled_records().map(|record| SampledToken { rank: None, ..record.into() }).collect();
    Finish { records, ..finish }
}

/// Asked when all stories are told: the engine lives, so integrity held whenever it rested.
fn assert_nothing_is_held(engine: &EngineHandle) {
    assert_eq!(engine.metrics().expect("the engine lives").kv_bytes_held, 0);
}

fn a_search_tells_the_same_story_in_a_corner(mode: Mode) {
    stories_in_corners(mode, Shape::Full, SHORT, some_or_full(6, 12));
}

/// Pages behind windows are freed when they are short: the roomy engine frees those of branches only.
fn a_search_with_windows_tells_the_same_story_in_a_corner(mode: Mode) {
    stories_in_corners(mode, Shape::Windowed, SHORT, some_or_full(2, 4));
    stories_in_corners(mode, Shape::LongWindowed, LONG, some_or_full(2, 8));
    stories_in_corners(mode, Shape::LongMixed, LONG, some_or_full(2, 8));
}

/// States are evicted and computed again.
fn a_search_with_states_tells_the_same_story_in_a_corner(mode: Mode) {
    stories_in_corners(mode, Shape::Hybrid, SHORT, some_or_full(4, 8));
}

fn stories_in_corners(mode: Mode, shape: Shape, lengths: Lengths, seeds: u64) {
    // The longest branch alone.
    let facts = mode.engine_of(shape, roomy()).facts().clone();
    let least = facts.path_pages(lengths.branch as usize, 0);
    for seed in 0..seeds {
        let roomy = EngineConfig { planner: Planner::Flat, ..roomy() };
        let expected = story(&mode.engine_of(shape, roomy.clone()), seed, lengths);
        let with = |more: usize| room_for(&facts, least + more * least / 10);
        let corners = [
            EngineConfig { step_rows: 5, max_branches: 3, pool: with(4), ..roomy.clone() },
            EngineConfig { step_rows: 64, max_branches: 9, planner: Planner::Tree, pool: with(20), ..roomy.clone() },
            EngineConfig { swap_bytes: 1 << 17, pool: with(10), ..roomy.clone() },
            EngineConfig { step_rows: 32, swap_bytes: 1 << 24, pool: with(4), ..roomy.clone() },
            EngineConfig { planner: Planner::SingleLevel, pool: with(50), ..roomy },
        ];
        for corner in corners {
            let engine = mode.engine_of(shape, corner.clone());
            mislead(&engine);
            assert_eq!(story(&engine, seed, lengths), expected, "{shape:?}, seed {seed}, {corner:?}");
            assert_nothing_is_held(&engine);
        }
    }
}

fn searches_on_many_threads_do_not_see_each_other(mode: Mode) {
    let expected: Vec<_> = (20..26).map(|seed| story(&mode.engine(roomy()), seed, SHORT)).collect();
    let shared = mode.engine(EngineConfig { step_rows: 16, max_branches: 12, swap_bytes: 1 << 17, ..pages(40) });
    mislead(&shared);
    let told: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (20..26)
            .map(|seed| {
                scope.spawn({
                    let shared = shared.clone();
                    move || story(&shared, seed, SHORT)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a story does not panic")).collect()
    });
    assert_eq!(told, expected);
    assert_nothing_is_held(&shared);
}

in_modes! {
    in_turn, run_ahead, replicas:
    a_search_tells_the_same_story_in_a_corner,
    a_search_with_windows_tells_the_same_story_in_a_corner,
    a_search_with_states_tells_the_same_story_in_a_corner,
    searches_on_many_threads_do_not_see_each_other,
}
