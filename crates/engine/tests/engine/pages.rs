//! Sharing, shortage and giving back: what is computed how often, and that scarce pages change nothing but time.

use offshoot_core::Error;
use offshoot_engine::{Engine, EngineConfig, EngineHandle, Finish, FinishReason};

use super::bench::{
    Mode, Shape, decoder, draw, finish, finishes, give, key, length, mislead, outcomes, pages, params, prompt, roomy,
    sample, score, unsure,
};

fn a_prompt_is_computed_once_and_its_last_row_serves_all_forks(mode: Mode) {
    let engine = mode.engine(roomy());
    sample(&engine, "item", prompt(1, 50), 8, length(10));
    let metrics = engine.metrics().unwrap();
    assert_eq!(metrics.prompt_tokens_computed, 50);
    assert_eq!(metrics.prompt_tokens_logical, 8 * 50);
    assert_eq!(metrics.tokens_sampled, 80);
    // The first draw comes from the prompt's last row, the last token drawn is not computed.
    assert_eq!((metrics.rows, metrics.steps), (50 + 8 * 9, 10));
    assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0));
    assert!(metrics.kv_bytes_peak < metrics.kv_bytes_peak_unshared);
    assert_eq!((metrics.kv_bytes_held, metrics.kv_bytes_cached), (0, 0), "all was discarded");
}

fn what_was_drawn_is_no_prompt_and_what_never_ran_saves_nothing(mode: Mode) {
    let engine = mode.engine(EngineConfig { max_branches: 1, ..roomy() });
    let root = engine.root(prompt(1, 50)).unwrap();
    let logical = || engine.metrics().unwrap().prompt_tokens_logical;
    finish(&engine, draw(root, key("item", 0), params(), length(10)));
    finish(&engine, draw(root, key("item", 0), params(), length(10)));
    assert_eq!(logical(), 50);
    // A second level: 20 drawn tokens between the prompt and the forks, which are given three more.
    let children = engine.fork(root, 4).unwrap();
    finishes(&engine, children.iter().map(|&child| give(child, prompt(2, 3))).collect());
    finishes(
        &engine,
        (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(5))).collect(),
    );
    assert_eq!(logical(), 50 + 4 * 53);
    assert_eq!(engine.metrics().unwrap().prompt_tokens_computed, 53);
    // Of a score, the last token is not computed.
    finish(&engine, score(children[0], prompt(3, 7)));
    assert_eq!(logical(), 50 + 4 * 53 + 6);
    // The second of two waits for the first, and is cancelled before it runs.
    let pair = engine.fork(root, 2).unwrap();
    let extends = (0..).zip(&pair).map(|(i, &child)| draw(child, key("pair", i), params(), length(80)));
    let mut extension = engine.start(extends.collect()).unwrap();
    extension.cancel(&pair[1..]);
    while extension.next().is_some() {}
    assert_eq!(logical(), 50 + 4 * 53 + 6 + 50);
}

fn later_forks_ask_for_the_last_row_once_more(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 50)).unwrap();
    let sample = |n: usize| {
        let children = engine.fork(root, n).unwrap();
        finishes(
            &engine,
            (0..).zip(children).map(|(i, child)| draw(child, key("item", i), params(), length(1))).collect(),
        )
    };
    let first = sample(4);
    let rows = engine.metrics().unwrap().rows;
    assert_eq!(sample(4), first);
    let metrics = engine.metrics().unwrap();
    assert_eq!((metrics.rows - rows, metrics.prompt_tokens_computed), (1, 50));
}

fn simultaneous_twins_and_continuations_share_what_is_being_computed(mode: Mode) {
    let engine = mode.engine(EngineConfig { step_rows: 16, ..roomy() });
    let lengths = [50, 50, 30, 60];
    let roots = lengths.map(|len| engine.root(prompt(1, 60)[..len].to_vec()).unwrap());
    let extends = (0..).zip(roots).map(|(i, root)| draw(root, key("item", i), params(), length(4)));
    let together = finishes(&engine, extends.collect());
    assert_eq!(engine.metrics().unwrap().prompt_tokens_computed, 60);
    for ((i, len), together) in (0..).zip(lengths).zip(together) {
        let alone = mode.engine(roomy());
        let root = alone.root(prompt(1, 60)[..len].to_vec()).unwrap();
        assert_eq!(finish(&alone, draw(root, key("item", i), params(), length(4))), together);
    }
}

fn prompts_that_go_on_from_each_other_are_computed_once(mode: Mode) {
    // Each is the beginning of the next; steps take the rows of some, and of some only a part.
    let engine = mode.engine(EngineConfig { step_rows: 24, max_branches: 64, ..roomy() });
    let roots: Vec<_> = (1..=60).map(|len| engine.root(prompt(1, 60)[..len].to_vec()).unwrap()).collect();
    let extends = (0..).zip(roots).map(|(i, root)| draw(root, key("item", i), params(), length(2)));
    assert_eq!(finishes(&engine, extends.collect()).len(), 60);
    let metrics = engine.metrics().unwrap();
    assert_eq!((metrics.prompt_tokens_computed, metrics.tokens_recomputed), (60, 0));
    assert_eq!(metrics.prompt_tokens_logical, (1..=60).sum::<u64>());
}

fn scores_of_siblings_share_their_parents_last_row(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 50)).unwrap();
    let children = engine.fork(root, 5).unwrap();
    finishes(&engine, (0..).zip(children).map(|(i, child)| score(child, prompt(100 + i, 7))).collect());
    // The last given token of each is not computed: nothing was asked of it.
    assert_eq!(engine.metrics().unwrap().rows, 50 + 5 * 6);
}

/// Six samples of 60 tokens of each of two prompts, all started at once.
fn crowd(engine: &EngineHandle) -> Vec<Finish> {
    let mut extends = Vec::new();
    for (item, salt) in [("a", 1), ("b", 2)] {
        let root = engine.root(prompt(salt, 40)).unwrap();
        let children = engine.fork(root, 6).unwrap();
        extends.extend((0..).zip(children).map(|(i, child)| draw(child, key(item, i), params(), unsure(60))));
    }
    finishes(engine, extends)
}

fn scarce_pages_change_no_draw(mode: Mode) {
    let expected = crowd(&mode.engine(roomy()));
    let mut preemptions = 0;
    // One branch takes 8: 3 for its prompt, whose last one it cannot write, and 5 for its own 60 tokens.
    for capacity in [8, 9, 11, 16, 23, 40] {
        let engine = mode.engine(pages(capacity));
        mislead(&engine);
        assert_eq!(crowd(&engine), expected, "{capacity} pages");
        preemptions += engine.metrics().unwrap().preemptions;
    }
    assert!(preemptions > 0, "some branch was dropped");
}

fn scarce_pages_change_no_score(mode: Mode) {
    let run = |capacity: usize| {
        let engine = mode.engine(EngineConfig { step_rows: 8, ..pages(capacity) });
        mislead(&engine);
        let root = engine.root(prompt(1, 20)).unwrap();
        let children = engine.fork(root, 6).unwrap();
        let extends = (0..).zip(children).map(|(i, child)| match i % 2 {
            0 => score(child, prompt(50 + i, 70)),
            _ => draw(child, key("item", i), params(), unsure(70)),
        });
        finishes(&engine, extends.collect())
    };
    let expected = run(2000);
    for capacity in [7, 10, 15] {
        assert_eq!(run(capacity), expected, "{capacity} pages");
    }
}

fn what_rests_gives_its_pages_to_what_grows(mode: Mode) {
    let engine = mode.engine(pages(12));
    let expected = mode.engine(roomy());
    let roots: Vec<_> = (0..6).map(|i| engine.root(prompt(i, 70)).unwrap()).collect();
    for round in 0..2 {
        for (i, &root) in (0..).zip(&roots) {
            let drawn = finish(&engine, draw(root, key("item", i), params(), length(5)));
            let alone = expected.root(prompt(i, 70)).unwrap();
            let alone = finish(&expected, draw(alone, key("item", i), params(), length(5 * (round + 1))));
            assert_eq!(drawn.tokens, alone.tokens[5 * round..]);
        }
    }
}

fn released_branches_are_cached_and_found_again(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 50)).unwrap();
    let drawn = finish(&engine, draw(root, key("item", 0), params(), length(10)));
    engine.release(&[root]);
    let metrics = engine.metrics().unwrap();
    assert_eq!(metrics.kv_bytes_held, 0);
    assert!(metrics.kv_bytes_cached > 0);
    let again = engine.root([prompt(1, 50), drawn.tokens].concat()).unwrap();
    finish(&engine, draw(again, key("item", 0), params(), length(1)));
    // The one token that had not been computed.
    assert_eq!(engine.metrics().unwrap().rows - metrics.rows, 1);
}

fn a_branch_that_cannot_fit_alone_says_what_it_needs(mode: Mode) {
    let engine = mode.engine(pages(3));
    let root = engine.root(prompt(1, 60)).unwrap();
    let outcome = outcomes(&engine, vec![draw(root, key("item", 0), params(), length(5))]).remove(0);
    assert!(matches!(outcome, Err(Error::OutOfPages { needed: 4, capacity: 3, .. })), "{outcome:?}");
    // One that fits at first and grows out of the pool, while another waits its turn.
    let roots = [engine.root(prompt(2, 20)).unwrap(), engine.root(prompt(3, 20)).unwrap()];
    let extends = roots.map(|root| draw(root, key("item", 0), params(), length(60)));
    for outcome in outcomes(&engine, extends.to_vec()) {
        assert!(matches!(outcome, Err(Error::OutOfPages { needed: 4, capacity: 3, .. })), "{outcome:?}");
    }
    engine.prune(&roots);
    let small = engine.root(prompt(4, 20)).unwrap();
    let drawn = finish(&engine, draw(small, key("item", 0), params(), length(5)));
    assert_eq!(drawn.reason, FinishReason::Length);
}

#[test]
fn room_for_the_largest_step_is_asked_for_at_the_start() {
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { max_branches: 1 << 40, ..roomy() };
    let Err(error) = Engine::build(decoder.on(backend), None, config) else { panic!("no machine has so much memory") };
    // 32 sums of a row and 256 logits; 4 bytes each.
    assert!(error.to_string().contains("at least 1152 TiB for a step"), "{error}");
}

in_modes! {
    in_turn, run_ahead:
    a_prompt_is_computed_once_and_its_last_row_serves_all_forks,
    what_was_drawn_is_no_prompt_and_what_never_ran_saves_nothing,
    later_forks_ask_for_the_last_row_once_more,
    simultaneous_twins_and_continuations_share_what_is_being_computed,
    prompts_that_go_on_from_each_other_are_computed_once,
    scores_of_siblings_share_their_parents_last_row,
    scarce_pages_change_no_draw,
    scarce_pages_change_no_score,
    what_rests_gives_its_pages_to_what_grows,
    released_branches_are_cached_and_found_again,
    a_branch_that_cannot_fit_alone_says_what_it_needs,
}
