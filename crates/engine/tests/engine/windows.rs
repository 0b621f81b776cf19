//! Models whose every layer has a window, or some: pages that it has passed are freed, and no draw changes by that.

use std::collections::HashSet;

use offshoot_backend::Dtype;
use offshoot_core::dice::Dice;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_cpu::Cpu;
use offshoot_engine::{Engine, EngineConfig, EngineFacts, EngineHandle, Extend, Finish, Metrics, PoolSize};
use offshoot_kv::Reach;
use offshoot_model::{Decoder, ModelConfig};

use super::bench::{
    Mode, Shape, draw, finish, finishes, key, length, mislead, outcomes, pages, params, prompt, roomy, score,
    tokenizer, unsure,
};
use super::plain::forward;
use offshoot_backend::{Filters, Pick};

/// Positions that a row sees, and those of a tile of the CPU's attention.
const WINDOW: usize = 21;
const TILE: usize = 64;
const PAGE: usize = 16;

/// Pages of its own that a branch holds at most: its window, two tiles that are freed at once, and a page where they
/// begin and end.
const OWN_PAGES: usize = (WINDOW + 2 * TILE).div_ceil(PAGE) + 2;

fn a_branch_far_behind_its_window_holds_few_pages_and_draws_the_same(mode: Mode) {
    let given = prompt(3, 30);
    // Less than half of the text.
    let config = EngineConfig { step_rows: 16, ..pages(2 + OWN_PAGES) };
    let engine = mode.engine_of(Shape::LongWindowed, config);
    let page_bytes = engine.facts().page_bytes as u64;
    let root = engine.root(given.clone()).unwrap();
    let child = engine.fork(root, 1).unwrap()[0];
    let drawn = finish(&engine, draw(child, key("long", 0), Default::default(), length(450)));
    let metrics = engine.metrics().unwrap();
    assert!(metrics.kv_bytes_peak <= (2 + OWN_PAGES) as u64 * page_bytes, "{metrics:?}");
    assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0));

    let whole = [given.clone(), drawn.tokens.clone()].concat();
    let pick = |position: usize| {
        let uniform = key("long", 0).uniform(position as u32);
        Pick::Random { filters: Filters::default(), uniform }
    };
    let picks: Vec<Pick> = (given.len()..whole.len()).map(pick).collect();
    let expected = forward(Shape::LongWindowed, &whole[..whole.len() - 1], &picks);
    assert_eq!(drawn.tokens, expected.iter().map(|sampled| sampled.token).collect::<Vec<_>>());
    assert_eq!(drawn.logprobs(), expected.iter().map(|sampled| sampled.logprob).collect::<Vec<_>>());

    // What goes on from its end, and a second sample of the prompt, find what they need.
    let more = finish(&engine, draw(child, key("more", 0), Default::default(), length(40)));
    let fork = engine.fork(child, 1).unwrap()[0];
    let forked = finish(&engine, draw(fork, key("fork", 0), params(), length(40)));
    let roomy = mode.engine_of(Shape::LongWindowed, roomy());
    let root = roomy.root(whole.clone()).unwrap();
    let expected = finish(&roomy, draw(root, key("more", 0), Default::default(), length(40)));
    assert_eq!((&more.tokens, more.logprobs()), (&expected.tokens, expected.logprobs()));
    let root = roomy.root([whole, more.tokens].concat()).unwrap();
    let expected = finish(&roomy, draw(root, key("fork", 0), params(), length(40)));
    assert_eq!((&forked.tokens, forked.logprobs()), (&expected.tokens, expected.logprobs()));
}

/// Four samples of 300 tokens of one prompt, of which nobody knows how long they become.
fn crowd(engine: &EngineHandle) -> Vec<Finish> {
    let root = engine.root(prompt(1, 40)).unwrap();
    let children = engine.fork(root, 4).unwrap();
    let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), unsure(300)));
    let told = finishes(engine, extends.collect());
    engine.prune(&children);
    engine.prune(&[root]);
    told
}

fn branches_behind_their_windows_share_a_pool_and_come_back_from_shortage(mode: Mode) {
    let page_bytes = mode.engine_of(Shape::LongWindowed, pages(1)).facts().page_bytes;
    let run = |config: EngineConfig| -> (Vec<Finish>, Metrics) {
        let engine = mode.engine_of(Shape::LongWindowed, config);
        let told = crowd(&engine);
        (told, engine.metrics().unwrap())
    };
    let (expected, _) = run(roomy());
    // Room for one path of 340 tokens, which it needs when it is computed again.
    for (capacity, swap_pages) in [(24, 0), (24, 1000), (30, 1000), (3 + 4 * OWN_PAGES, 0)] {
        let config = EngineConfig { swap_bytes: swap_pages * page_bytes, ..pages(capacity) };
        let (drawn, metrics) = run(config);
        assert_eq!(drawn, expected, "{capacity} pages, {swap_pages} in host memory");
        assert_eq!(metrics.kv_bytes_held, 0);
        // Four whole paths are 83 pages: all run at once in 51.
        if capacity == 3 + 4 * OWN_PAGES {
            assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0), "{metrics:?}");
            assert!(metrics.steps < 320, "{} steps", metrics.steps);
        }
    }
}

fn swapped_branches_keep_only_what_their_windows_see(mode: Mode) {
    let page_bytes = mode.engine_of(Shape::LongWindowed, pages(1)).facts().page_bytes;
    let engine = mode.engine_of(Shape::LongWindowed, EngineConfig { swap_bytes: 1000 * page_bytes, ..pages(24) });
    mislead(&engine);
    let drawn = crowd(&engine);
    let metrics = engine.metrics().unwrap();
    let alone = mode.engine_of(Shape::LongWindowed, roomy());
    assert_eq!(drawn, crowd(&alone));
    assert!(metrics.swapped_out > 0, "{metrics:?}");
    let each = metrics.swapped_out_bytes / metrics.swapped_out / page_bytes as u64;
    assert!(each <= OWN_PAGES as u64, "{each} pages a branch");
}

/// Steps of 16 rows, and so many pages of the model's.
fn facts_and_config(mode: Mode, shape: Shape, pages: impl Fn(&EngineFacts) -> usize) -> (EngineFacts, EngineConfig) {
    let facts = mode.engine_of(shape, small_steps(roomy())).facts().clone();
    let pool = PoolSize::Bytes(pages(&facts) * facts.page_bytes);
    let config = small_steps(EngineConfig { pool, ..roomy() });
    (facts, config)
}

fn small_steps(config: EngineConfig) -> EngineConfig {
    EngineConfig { step_rows: 16, max_branches: 8, ..config }
}

fn a_long_prompt_needs_few_pages_of_layers_with_a_window(mode: Mode) {
    const GIVEN: usize = 500;
    const DRAWN: usize = 60;
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        let (facts, config) = facts_and_config(mode, shape, |facts| facts.path_pages(GIVEN, DRAWN));
        let all = facts.page_groups.count() * (GIVEN + DRAWN - 1).div_ceil(PAGE);
        assert!(facts.path_pages(GIVEN, DRAWN) < all * 4 / 5, "{} of {all} pages", facts.path_pages(GIVEN, DRAWN));
        let run = |config: EngineConfig| {
            let engine = mode.engine_of(shape, config);
            let root = engine.root(prompt(5, GIVEN)).unwrap();
            let drawn = finish(&engine, draw(root, key("long", 0), params(), length(DRAWN)));
            // Its end, and what comes of it, can go on; only then is it gone.
            let fork = engine.fork(root, 1).unwrap()[0];
            let more = finish(&engine, draw(fork, key("more", 0), params(), length(1)));
            engine.prune(&[root, fork]);
            (drawn, more, engine.metrics().unwrap())
        };
        let (drawn, more, metrics) = run(config);
        let (expected, more_expected, _) = run(small_steps(roomy()));
        assert_eq!((drawn, more), (expected, more_expected), "{shape:?}");
        assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0), "{metrics:?}");
        assert_eq!(metrics.prompt_tokens_computed, GIVEN as u64, "each token of the prompt is computed once");
        assert_eq!(metrics.kv_bytes_held, 0);
    }
}

fn a_prompt_that_fits_by_no_count_is_refused_with_what_it_needs(mode: Mode) {
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        // Nothing is left for the layers without a window, or for a step.
        let (facts, config) = facts_and_config(mode, shape, |facts| facts.page_groups.count() * 5);
        let engine = mode.engine_of(shape, config);
        let root = engine.root(prompt(5, 500)).unwrap();
        let failed = outcomes(&engine, vec![draw(root, key("long", 0), params(), length(2))]).remove(0);
        let text = failed.unwrap_err().to_string();
        assert!(text.contains(&(5 * facts.page_groups.count()).to_string()), "{text}");
    }
}

/// Texts of three levels, depth-first: one beginning, three middles, three ends of each.
fn levels() -> Vec<Vec<TokenId>> {
    let ends = (0..9).map(|end| {
        let parts = [prompt(1, 110), prompt(2 + end / 3, 110), prompt(10 + end, 40)];
        parts.concat()
    });
    ends.collect()
}

fn what_later_prompts_share_is_kept_where_pages_are_short(mode: Mode) {
    let texts = levels();
    let beginnings = texts.iter().flat_map(|text| (1..=text.len()).map(|end| &text[..end]));
    let distinct = beginnings.collect::<HashSet<_>>().len();
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        let run = |config: EngineConfig| {
            let engine = mode.engine_of(shape, config);
            let roots: Vec<_> = texts.iter().map(|text| engine.root(text.clone()).unwrap()).collect();
            let extend = |(i, &root): (u64, &BranchId)| draw(root, key("level", i), params(), length(20));
            let drawn = finishes(&engine, (0..).zip(&roots).map(extend).collect::<Vec<Extend>>());
            engine.prune(&roots);
            (drawn, engine.metrics().unwrap())
        };
        // About two paths, of nine that share much.
        let (facts, config) = facts_and_config(mode, shape, |facts| 2 * facts.path_pages(260, 20));
        let (drawn, metrics) = run(config);
        let (expected, roomy) = run(small_steps(roomy()));
        assert_eq!(drawn, expected, "{shape:?}");
        assert_eq!(roomy.prompt_tokens_computed, distinct as u64);
        assert_eq!(metrics.prompt_tokens_computed, distinct as u64, "{shape:?}, {metrics:?}");
        let whole = facts.page_groups.count() * (distinct + 9 * 20).div_ceil(PAGE) * facts.page_bytes;
        assert!(metrics.kv_bytes_peak < whole as u64, "{shape:?}, {metrics:?}");
        assert_eq!(metrics.kv_bytes_held, 0);
    }
}

/// An engine of layers some of which have a window.
fn engine_of_layers(mode: Mode, layers: &[&str], window: u32, config: EngineConfig) -> EngineHandle {
    let json = serde_json::json!({ "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": layers.len(),
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 256,
        "eos_token_id": 0, "max_position_embeddings": 640, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "use_sliding_window": true, "sliding_window": window, "layer_types": layers });
    let mut cpu = Cpu::open().unwrap();
    let model = ModelConfig::from_json(&json.to_string()).unwrap();
    let decoder = Decoder::random(&mut cpu, model, Dtype::F32, 7).unwrap();
    let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, ..config };
    Engine::start(decoder.on(cpu), Some(tokenizer()), config).unwrap()
}

/// Texts that begin alike, each sampled twice, and scored behind its end; then all of it is gone.
fn samples_and_scores(engine: &EngineHandle) -> Vec<Finish> {
    let texts = (0..3).map(|end| [prompt(1, 150), prompt(2 + end, 150)].concat());
    let roots: Vec<BranchId> = texts.map(|text| engine.root(text).unwrap()).collect();
    let forks: Vec<BranchId> = roots.iter().flat_map(|&root| engine.fork(root, 3).unwrap()).collect();
    let extend = |(i, &fork): (u64, &BranchId)| match i % 3 {
        0 => score(fork, prompt(20 + i, 30)),
        _ => draw(fork, key("layers", i), params(), unsure(60)),
    };
    let mut told = finishes(engine, (0..).zip(&forks).map(extend).collect());
    let again = forks.iter().map(|&fork| draw(fork, key("again", 0), params(), length(3))).collect();
    told.extend(finishes(engine, again));
    engine.prune(&forks);
    engine.prune(&roots);
    told
}

fn any_layers_may_have_a_window(mode: Mode) {
    let (mut preempted, mut freed) = (0, 0);
    for seed in 0..6 {
        let mut dice = Dice::new(seed);
        let some = |dice: &mut Dice| dice.pick(&["sliding_attention", "full_attention"]);
        let mut layers: Vec<&str> = (0..dice.within(2, 6)).map(|_| some(&mut dice)).collect();
        layers.push("sliding_attention");
        let (window, rows) = (dice.within(1, 90), dice.within(5, 70) as usize);
        let of = |config| engine_of_layers(mode, &layers, window, small_steps(config));
        let roomy_engine = of(roomy());
        let expected = samples_and_scores(&roomy_engine);
        let (facts, peak) = (roomy_engine.facts(), roomy_engine.metrics().unwrap().kv_bytes_peak);
        let groups = facts.page_groups;
        assert_eq!(groups.with(Reach::All) > 0, layers.contains(&"full_attention"));
        // The longest path, and then room for some more.
        for more in [0, 20, 60] {
            let pages = facts.path_pages(365, 0) + more * groups.count();
            let pool = PoolSize::Bytes(pages * facts.page_bytes);
            let engine = engine_of_layers(
                mode,
                &layers,
                window,
                EngineConfig { pool, step_rows: rows, max_branches: 8, ..roomy() },
            );
            mislead(&engine);
            let told = samples_and_scores(&engine);
            assert_eq!(told, expected, "{layers:?}, a window of {window}, steps of {rows} rows, {pages} pages");
            let metrics = engine.metrics().unwrap();
            assert_eq!(metrics.kv_bytes_held, 0, "pages are lost");
            preempted += metrics.preemptions;
            freed += peak.saturating_sub(metrics.kv_bytes_peak);
        }
    }
    assert!(preempted > 0 && freed > 0, "pages were short");
}

fn facts_tell_the_bytes_of_a_token_in_all_its_pages(mode: Mode) {
    for shape in [Shape::Full, Shape::LongMixed] {
        let facts = mode.engine_of(shape, roomy()).facts().clone();
        let told = facts.kv_bytes_per_token;
        // Pages are padded, by less than what they hold.
        let pages = facts.page_groups.count() * facts.page_bytes;
        let held = told * facts.page_tokens;
        assert!(held <= pages && pages < 2 * held, "{shape:?}: {held} of {pages} bytes");
    }
}

/// Others have computed most of what a scored branch begins with. Pages become short while the branch gets its own:
/// those that its first rows read must stay.
fn a_scored_branch_keeps_what_its_first_rows_read(mode: Mode) {
    let (computed, beside, new) = (prompt(1, 300), prompt(2, 60), prompt(3, 200));
    let text = [computed.clone(), new].concat();
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        let run = |config: EngineConfig| {
            let engine = mode.engine_of(shape, config);
            let [cached, resting] = [computed.clone(), beside.clone()].map(|text| engine.root(text).unwrap());
            for root in [cached, resting] {
                finish(&engine, draw(root, key("before", 0), params(), length(1)));
            }
            engine.release(&[cached]);
            let scored = engine.root(text[..40].to_vec()).unwrap();
            let told = finish(&engine, score(scored, text[40..].to_vec()));
            engine.prune(&[resting, scored]);
            told
        };
        // Enough to let it in, beside the one that rests; too few when it comes to its own.
        let pages = |facts: &EngineFacts| facts.path_pages(text.len() - 1, 0) + 2 * facts.page_groups.count() + 1;
        let (_, config) = facts_and_config(mode, shape, pages);
        assert_eq!(run(config), run(small_steps(roomy())), "{shape:?}");
    }
}

/// The root that comes after many samples of another one still finds what they share.
fn what_a_later_root_shares_is_kept_behind_many_samples_of_an_earlier_one(mode: Mode) {
    let beginning = prompt(1, 220);
    let texts: Vec<Vec<TokenId>> = (0..3).map(|end| [beginning.clone(), prompt(2 + end, 150)].concat()).collect();
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        let (_, config) =
            facts_and_config(mode, shape, |facts| facts.path_pages(370, 20) + 8 * facts.page_groups.count());
        let engine = mode.engine_of(shape, config);
        let roots: Vec<_> = texts.iter().map(|text| engine.root(text.clone()).unwrap()).collect();
        let samples: Vec<_> = roots.iter().flat_map(|&root| engine.fork(root, 100).unwrap()).collect();
        let extend = |(i, &sample): (u64, &BranchId)| draw(sample, key("sample", i), params(), length(20));
        finishes(&engine, (0..).zip(&samples).map(extend).collect::<Vec<Extend>>());
        let metrics = engine.metrics().unwrap();
        assert_eq!(metrics.prompt_tokens_computed, 220 + 3 * 150, "{shape:?}, {metrics:?}");
    }
}

/// A text that is scored holds no more pages than a prompt of its length, and none of its tokens is computed twice.
fn a_long_scored_text_needs_few_pages_of_layers_with_a_window(mode: Mode) {
    const GIVEN: usize = 40;
    const SCORED: usize = 500;
    let text = prompt(5, GIVEN + SCORED);
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        for tops in [0, 3] {
            let (facts, config) = facts_and_config(mode, shape, |facts| facts.path_pages(GIVEN, SCORED));
            let all = facts.page_groups.count() * (GIVEN + SCORED - 1).div_ceil(PAGE);
            assert!(facts.path_pages(GIVEN, SCORED) < all * 4 / 5, "{} of {all}", facts.path_pages(GIVEN, SCORED));
            let run = |config: EngineConfig| {
                let engine = mode.engine_of(shape, config);
                let root = engine.root(text[..GIVEN].to_vec()).unwrap();
                let scored = finish(&engine, Extend::given(root, text[GIVEN..].to_vec(), Some(tops)));
                // What goes on from its end finds the window before it.
                let fork = engine.fork(root, 1).unwrap()[0];
                let more = finish(&engine, draw(fork, key("more", 0), params(), length(2)));
                engine.prune(&[root, fork]);
                (scored, more, engine.metrics().unwrap())
            };
            let (scored, more, metrics) = run(config);
            let (expected, more_expected, _) = run(small_steps(roomy()));
            assert_eq!((scored, more), (expected, more_expected), "{shape:?}");
            assert_eq!((metrics.preemptions, metrics.tokens_recomputed), (0, 0), "{metrics:?}");
            assert_eq!(metrics.kv_bytes_held, 0);
        }
    }
}

/// Branches that are scored from many positions of the same texts, beside some that sample from them: whoever computes
/// a row, and however few pages there are, the scores are the same.
fn scores_are_the_same_however_few_pages_there_are(mode: Mode) {
    for seed in 0..6 {
        let mut dice = Dice::new(seed);
        let texts: Vec<Vec<TokenId>> = (0..2).map(|end| [prompt(1, 200), prompt(2 + end, 200)].concat()).collect();
        let mut begin = || (dice.within(0, 1) as usize, dice.within(10, 380) as usize, dice.within(0, 2));
        let branches: Vec<(usize, usize, u32)> = (0..7).map(|_| begin()).collect();
        let shape = if seed % 2 == 0 { Shape::LongWindowed } else { Shape::LongMixed };
        let run = |config: EngineConfig| {
            let engine = mode.engine_of(shape, config);
            mislead(&engine);
            let root = |&(text, begin, _): &(usize, usize, u32)| engine.root(texts[text][..begin].to_vec()).unwrap();
            let roots: Vec<BranchId> = branches.iter().map(root).collect();
            let extend = |(&root, &(text, begin, kind)): (&BranchId, &(usize, usize, u32))| match kind {
                0 => draw(root, key("beside", begin as u64), params(), unsure(60)),
                _ => score(root, texts[text][begin..].to_vec()),
            };
            let told = finishes(&engine, roots.iter().zip(&branches).map(extend).collect());
            engine.prune(&roots);
            (told, engine.metrics().unwrap())
        };
        let (expected, _) = run(small_steps(roomy()));
        for more in [0, 4, 20] {
            let pages = |facts: &EngineFacts| facts.path_pages(440, 0) + more * facts.page_groups.count();
            let (_, config) = facts_and_config(mode, shape, pages);
            let (told, metrics) = run(config);
            assert_eq!(told, expected, "{shape:?}, seed {seed}, {more} pages more");
            assert_eq!(metrics.kv_bytes_held, 0, "pages are lost");
        }
    }
}

in_modes! {
    in_turn, run_ahead:
    a_branch_far_behind_its_window_holds_few_pages_and_draws_the_same,
    branches_behind_their_windows_share_a_pool_and_come_back_from_shortage,
    swapped_branches_keep_only_what_their_windows_see,
    a_long_prompt_needs_few_pages_of_layers_with_a_window,
    a_prompt_that_fits_by_no_count_is_refused_with_what_it_needs,
    what_later_prompts_share_is_kept_where_pages_are_short,
    any_layers_may_have_a_window,
    facts_tell_the_bytes_of_a_token_in_all_its_pages,
    a_scored_branch_keeps_what_its_first_rows_read,
    what_a_later_root_shares_is_kept_behind_many_samples_of_an_earlier_one,
    a_long_scored_text_needs_few_pages_of_layers_with_a_window,
    scores_are_the_same_however_few_pages_there_are,
}
