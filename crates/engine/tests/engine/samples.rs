//! Draws do not depend on what else is in the batch, nor on how the tree is planned, chunked or cut into extends.

use std::num::NonZeroU32;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, Finish, FinishReason, SampledToken,
    SamplingParams, Stop, Turn,
};
use offshoot_kv::plan::Planner;

use super::bench::{
    EOS, Mode, Shape, VOCAB, decoder, draw, finish, finishes, give, key, length, params, prompt, roomy, sample, score,
};

/// Three items with a common header: prompts of 45, 53 and 70 tokens.
fn items() -> Vec<(String, Vec<TokenId>)> {
    let header = prompt(1, 40);
    let item = |(i, len): (u64, usize)| (format!("item-{i}"), [header.clone(), prompt(10 + i, len)].concat());
    [(0, 5), (1, 13), (2, 30)].map(item).to_vec()
}

/// Samples of all items in one batch.
fn run(mode: Mode, shape: Shape, config: EngineConfig, n: u64) -> Vec<Finish> {
    let engine = mode.engine_of(shape, config);
    let mut extends = Vec::new();
    for (item, prompt) in items() {
        let root = engine.root(prompt).unwrap();
        let children = engine.fork(root, n as usize).unwrap();
        extends.extend((0..n).zip(children).map(|(i, child)| draw(child, key(&item, i), params(), length(24))));
    }
    finishes(&engine, extends)
}

fn the_same_draws_whatever_the_rows_chunk_and_planner(mode: Mode) {
    for shape in [Shape::Full, Shape::Windowed, Shape::Hybrid] {
        let expected = run(mode, shape, roomy(), 4);
        assert!(expected.iter().any(|finish| finish.tokens != expected[0].tokens), "samples differ from each other");
        for planner in Planner::ALL {
            assert_eq!(run(mode, shape, EngineConfig { planner, ..roomy() }, 4), expected, "{planner:?}");
        }
        for (max_branches, chunk) in [(1, 1), (1, 64), (3, 7), (5, 256), (256, 1), (256, 19)] {
            let config = EngineConfig { max_branches, step_rows: chunk, ..roomy() };
            assert_eq!(run(mode, shape, config, 4), expected, "{max_branches} branches, chunks of {chunk}");
        }
    }
}

fn the_first_of_many_are_those_of_few(mode: Mode) {
    let engine = mode.engine(roomy());
    let few = sample(&engine, "item", prompt(1, 30), 8, length(16));
    let many = sample(&engine, "item", prompt(1, 30), 32, length(16));
    assert_eq!(few, many[..8]);
}

fn neither_order_nor_cancelled_siblings_matter(mode: Mode) {
    let expected = sample(&mode.engine(roomy()), "item", prompt(1, 30), 6, length(120));
    let engine = mode.engine(roomy());
    let (mut extension, children) = six_in_another_order(&engine);
    let go = [children[1], children[2], children[5]];
    let (mut told, mut finishes) = (false, Vec::new());
    while let Some(event) = extension.next() {
        match event {
            Event::Tokens { .. } if told => {}
            Event::Tokens { .. } => {
                extension.cancel(&go);
                told = true;
            }
            Event::Finished { id: branch, finish } => finishes.push((branch, finish)),
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!(finishes.len(), 6);
    // A cancel may come when all is done.
    for (branch, finish) in finishes {
        let i = children.iter().position(|&child| child == branch).unwrap();
        if finish.reason == FinishReason::Cancelled {
            assert!(go.contains(&branch), "sample {i} was not to be cancelled");
            assert_eq!(finish.tokens, expected[i].tokens[..finish.tokens.len()]);
        } else {
            assert_eq!(finish, expected[i]);
        }
    }
}

/// Six samples of 120 tokens.
fn six_in_another_order(engine: &EngineHandle) -> (EventReceiver, Vec<BranchId>) {
    let root = engine.root(prompt(1, 30)).unwrap();
    let children = engine.fork(root, 6).unwrap();
    let order = [3u64, 0, 5, 1, 4, 2];
    let extends = order.map(|i| draw(children[i as usize], key("item", i), params(), length(120)));
    (engine.start(extends.to_vec()).unwrap(), children)
}

/// Driven by hand: on a thread of its own the engine may be done before this thread cancels.
fn a_cancel_stops_those_it_names(mode: Mode) {
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { run_ahead: mode.run_ahead, ..roomy() };
    let (mut engine, handle) = Engine::build(decoder.on(backend), None, config).unwrap();
    let (mut extension, children) = six_in_another_order(&handle);
    while engine.metrics().tokens_sampled < 30 {
        assert_eq!(engine.turn().unwrap(), Turn::Stepped);
    }
    let go = [children[1], children[2], children[5]];
    extension.cancel(&go);
    while engine.turn().unwrap() == Turn::Stepped {}
    while let Some(event) = extension.next() {
        if let Event::Finished { id: branch, finish } = event {
            assert_eq!(finish.reason == FinishReason::Cancelled, go.contains(&branch), "{finish:?}");
            assert_eq!(finish.tokens.len() < 120, go.contains(&branch), "{finish:?}");
        }
    }
}

fn thoughts_joined_are_one_sample(mode: Mode) {
    let engine = mode.engine(roomy());
    let whole = &sample(&engine, "item", prompt(2, 21), 1, length(24))[0];
    let root = engine.root(prompt(2, 21)).unwrap();
    let mut tokens = Vec::new();
    for length_of_thought in [1, 7, 15, 1] {
        tokens.extend(finish(&engine, draw(root, key("item", 0), params(), length(length_of_thought))).tokens);
    }
    assert_eq!(tokens, whole.tokens);
}

fn a_fork_goes_on_as_its_tokens_would(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(2, 21)).unwrap();
    let thought = finish(&engine, draw(root, key("item", 0), params(), length(9)));
    let children = engine.fork(root, 3).unwrap();
    let go_on = |branch, i| draw(branch, key("child", i), params(), length(9));
    let forked = finishes(&engine, (0..).zip(&children).map(|(i, &child)| go_on(child, i)).collect());
    // The parent itself may go on beside its children.
    let parent = finish(&engine, go_on(root, 1));
    let same = engine.root([prompt(2, 21), thought.tokens].concat()).unwrap();
    let twins = engine.fork(same, 3).unwrap();
    let from_tokens = finishes(&engine, (0..).zip(&twins).map(|(i, &twin)| go_on(twin, i)).collect());
    assert_eq!(forked, from_tokens);
    assert_eq!(parent, forked[1]);
}

fn scores_equal_the_log_probabilities_of_the_draw(mode: Mode) {
    let engine = mode.engine(EngineConfig { step_rows: 5, ..roomy() });
    let root = engine.root(prompt(3, 33)).unwrap();
    let children = engine.fork(root, 4).unwrap();
    let extends =
        (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(1 + 6 * i as usize)));
    let drawn = finishes(&engine, extends.collect());
    let judges = engine.fork(root, 4).unwrap();
    let extends = judges.iter().zip(&drawn).map(|(&judge, drawn)| score(judge, drawn.tokens.clone()));
    for (drawn, scored) in drawn.iter().zip(finishes(&engine, extends.collect())) {
        assert_eq!(scored.reason, FinishReason::Given);
        assert_eq!(
            (&scored.tokens, scored.logprobs(), scored.logprob),
            (&drawn.tokens, drawn.logprobs(), drawn.logprob)
        );
    }
    // A scored branch goes on like the one that was drawn.
    let on = |branch| draw(branch, key("on", 0), params(), length(5));
    assert_eq!(finish(&engine, on(judges[2])), finish(&engine, on(children[2])));
}

fn given_tokens_are_part_of_the_branch(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let children = engine.fork(root, 3).unwrap();
    let given = finishes(&engine, children.iter().map(|&child| give(child, prompt(4, 25))).collect());
    assert!(given.iter().all(|finish| finish.reason == FinishReason::Given && finish.logprobs().is_empty()));
    let on = |(i, &child)| draw(child, key("item", i), params(), length(8));
    let drawn = finishes(&engine, (0..).zip(&children).map(on).collect());
    assert_eq!(drawn, sample(&engine, "item", [prompt(3, 18), prompt(4, 25)].concat(), 3, length(8)));
}

fn penalties_count_every_token_of_the_path(mode: Mode) {
    let engine = mode.engine(roomy());
    let penalised = SamplingParams { presence_penalty: 2.0, frequency_penalty: 2.0, ..SamplingParams::greedy() };
    let drawn = |params: &SamplingParams, lengths: &[usize]| {
        let mut at = engine.root(prompt(3, 18)).unwrap();
        let mut tokens = Vec::new();
        for &of_one in lengths {
            tokens.extend(finish(&engine, draw(at, key("item", 0), params.clone(), length(of_one))).tokens);
            at = engine.fork(at, 1).unwrap()[0];
        }
        tokens
    };
    let whole = drawn(&penalised, &[60]);
    assert_eq!(drawn(&penalised, &[30, 30]), whole, "a branch's tokens count on its forks");
    assert_ne!(drawn(&SamplingParams::greedy(), &[60]), whole);
    let not_of_the_prompt = SamplingParams { repetition_penalty: 1e6, ..SamplingParams::greedy() };
    let root = engine.root(prompt(3, 18)).unwrap();
    let drawn = finish(&engine, draw(root, key("item", 0), not_of_the_prompt, length(30))).tokens;
    assert!(drawn.iter().all(|token| !prompt(3, 18).contains(token)), "a repetition penalty counts the prompt");
}

fn what_is_counted_on_the_way_is_what_a_new_request_would_say(mode: Mode) {
    // Every token begun by itself has its request made from all tokens before it.
    let strong =
        |params: SamplingParams| SamplingParams { logit_bias: vec![(TokenId(7), 2.0), (TokenId(9), -1.0)], ..params };
    let all = [
        SamplingParams { repetition_penalty: 1.4, ..params() },
        SamplingParams { frequency_penalty: 0.3, presence_penalty: -0.2, ..params() },
        strong(SamplingParams { repetition_penalty: 0.8, presence_penalty: 0.7, ..params() }),
        strong(SamplingParams { frequency_penalty: 0.9, ..SamplingParams::greedy() }),
    ];
    for (number, params) in (0u64..).zip(&all) {
        let engine = mode.engine(roomy());
        let root = engine.root(prompt(3, 18)).unwrap();
        let (steady, apart) = (engine.fork(root, 4).unwrap(), engine.fork(root, 4).unwrap());
        let of = |i: u64, child, stop| draw(child, key("item", 10 * number + i), params.clone(), stop);
        let bans = |tokens, min_tokens| Stop { min_tokens, ..length(tokens) };
        let extends = (0..).zip(&steady).map(|(i, &child)| of(i, child, bans(60, 20)));
        let steady = finishes(&engine, extends.collect());
        let mut tokens = vec![Vec::new(); apart.len()];
        for at in 0..60 {
            let extends = (0..).zip(&apart).map(|(i, &child)| of(i, child, bans(1, usize::from(at < 20))));
            let finishes = finishes(&engine, extends.collect());
            tokens.iter_mut().zip(finishes).for_each(|(tokens, finish)| tokens.extend(finish.tokens));
        }
        let steady: Vec<_> = steady.into_iter().map(|finish| finish.tokens).collect();
        assert_eq!(steady, tokens, "{params:?}");
    }
}

fn ranks_are_places_among_the_likeliest(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let all = VOCAB as usize;
    let hot = |top| SamplingParams { temperature: 3.0, top_logprobs: top, ..SamplingParams::default() };
    let whole = finish(&engine, draw(root, key("item", 0), hot(Some(all)), length(30)));
    assert_eq!(whole.records.ranks().len(), 30);
    for record in whole.sampled_records() {
        let place = record.top.iter().position(|&(token, _)| token == record.token).map(|place| place as u32 + 1);
        assert_eq!(record.rank.map(NonZeroU32::get), place);
    }
    assert!(whole.records.ranks().iter().any(|rank| rank.is_some_and(|rank| rank.get() > 20)), "far from greedy");
    let again = engine.root(prompt(3, 18)).unwrap();
    let alone = finish(&engine, draw(again, key("item", 0), hot(Some(0)), length(30)));
    assert_eq!((&alone.tokens, alone.records.ranks()), (&whole.tokens, whole.records.ranks()), "no list is needed");
    let again = engine.root(prompt(3, 18)).unwrap();
    let given = finish(&engine, Extend::given(again, whole.tokens.clone(), Some(1)));
    assert_eq!(given.records.ranks(), whole.records.ranks());
    let unasked = finish(&engine, draw(root, key("item", 0), hot(None), length(3)));
    assert!(unasked.records.ranks().is_empty());
    let ending = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..hot(Some(all)) };
    let ended = finish(&engine, draw(again, key("item", 1), ending, Stop::max_tokens(9)));
    let stop = ended.stop_token.as_ref().expect("the end of text");
    let place = stop.top.iter().position(|&(token, _)| token == EOS).map(|place| place as u32 + 1);
    assert_eq!(stop.rank.map(NonZeroU32::get), place, "by the model's own logits");
    assert_eq!((ended.sampled(), ended.sampled_records().count(), ended.sampled_ids().as_ref()), (1, 1, &[EOS][..]));
}

fn only_allowed_tokens_are_sampled(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let letters: Vec<TokenId> = (97..123).map(TokenId).collect();
    let only = SamplingParams { temperature: 2.0, ..SamplingParams::default() }.allowed(letters.clone());
    let sampled = finish(&engine, draw(root, key("item", 0), only, Stop::max_tokens(60)));
    assert_eq!((sampled.reason, sampled.tokens.len()), (FinishReason::Length, 60), "no end of text is allowed");
    assert!(sampled.tokens.iter().all(|token| letters.contains(token)), "{:?}", sampled.text);
    let one = SamplingParams::greedy().allowed([TokenId(7)]);
    let sampled = finish(&engine, draw(root, key("item", 0), one, length(3)));
    assert_eq!(sampled.tokens, [TokenId(7); 3]);
}

fn bad_words_are_never_sampled_and_change_nothing_before_they_begin(mode: Mode) {
    let engine = mode.engine(roomy());
    let sampled = |params: SamplingParams| {
        let root = engine.root(prompt(3, 18)).unwrap();
        finish(&engine, draw(root, key("item", 0), params, length(80))).tokens
    };
    let few = |ids: std::ops::Range<u32>| SamplingParams::default().allowed(ids.map(TokenId));
    // With four allowed tokens, every pair of them is sampled soon.
    let whole = sampled(few(97..101));
    for len in 1..4 {
        let word = whole[20..20 + len].to_vec();
        let without = sampled(few(97..101).bad_word(word.clone()));
        assert!(without.windows(len).all(|run| run != word), "{word:?} in {without:?}");
        let (_, before) = word.split_last().expect("it has a token");
        let begun = (0..).find(|&at| whole[at..].starts_with(before)).expect("it is one of them") + before.len();
        assert_eq!(without[..begun], whole[..begun], "what comes before is the same");
        assert_ne!(without, whole);
    }
    // What the prompt holds begins no word.
    let root = engine.root(vec![TokenId(97); 9]).unwrap();
    let behind = few(97..98).bad_word([TokenId(97), TokenId(97)]);
    assert_eq!(finish(&engine, draw(root, key("item", 0), behind, length(1))).tokens, [TokenId(97)]);
}

/// Where bad words leave no token, the extend fails and says so; what it had sampled is kept, and others go on.
fn a_text_that_no_token_may_continue_fails_and_names_what_bans_all(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let [one, other] = [engine.fork(root, 1).unwrap()[0], engine.fork(root, 1).unwrap()[0]];
    let dead = params().allowed([97, 98].map(TokenId)).bad_word([97, 98].map(TokenId)).bad_word([97, 97].map(TokenId));
    let dead = SamplingParams { logit_bias: vec![(TokenId(97), 90.0)], ..dead };
    let free = params().allowed([97, 98].map(TokenId));
    let extends = vec![draw(one, key("item", 0), dead, length(20)), draw(other, key("item", 1), free, length(20))];
    let mut extension = engine.start(extends).unwrap();
    let (mut sampled, mut why, mut finished) = (Vec::new(), None, None);
    while let Some(event) = extension.next() {
        match event {
            Event::Tokens { id, tokens, .. } if id == one => sampled.extend(tokens.into_iter().map(|each| each.token)),
            Event::Tokens { .. } => {}
            Event::Finished { id, finish: ended } => finished = Some((id, ended)),
            Event::Failed { id, error } => why = Some((id, error.to_string())),
        }
    }
    assert_eq!(sampled, [TokenId(97)], "likely enough to be the first");
    let message = "allowed_token_ids: expected a token that may be sampled as number 2, found 2 allowed, of which \
                   bad_words bans 2";
    assert_eq!(why, Some((one, message.to_owned())));
    let (id, ended) = finished.expect("the other one goes on");
    assert_eq!((id, ended.tokens.len()), (other, 20));
    // What is left of the failed one goes on where more is allowed.
    let on = finish(&engine, draw(one, key("item", 2), SamplingParams::greedy(), length(2)));
    assert_eq!(on.tokens.len(), 2);
}

fn parameters_that_leave_no_token_are_refused(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let refused = |params: SamplingParams, stop: Stop| {
        engine.start(vec![draw(root, key("item", 0), params, stop)]).err().map(|error| error.to_string())
    };
    let only = |ids: &[u32]| params().allowed(ids.iter().copied().map(TokenId));
    let allowed = "allowed_token_ids: expected a token that may be sampled, found ";
    let words = only(&[97, 98]).bad_word([TokenId(97)]).bad_word([TokenId(98)]).bad_word([TokenId(99)]);
    assert_eq!(refused(words, length(2)), Some(format!("{allowed}2 allowed, of which bad_words bans 2")));
    let biased = SamplingParams { logit_bias: vec![(TokenId(98), f32::NEG_INFINITY)], ..only(&[97, 98]) };
    let both = refused(biased.clone().bad_word([TokenId(97)]), length(2));
    assert_eq!(both, Some(format!("{allowed}2 allowed, of which bad_words bans 1, logit_bias bans 1")));
    assert_eq!(refused(biased, length(2)), None);
    let end = |min_tokens| Stop { min_tokens, ..Stop::max_tokens(4) };
    let needed = refused(only(&[EOS.0]), end(1));
    assert_eq!(needed, Some(format!("{allowed}1 allowed, of which min_tokens bans 1")));
    assert_eq!(
        refused(only(&[EOS.0]), Stop { ignore_eos: true, ..end(1) }),
        None,
        "the end of text is one like others"
    );
    assert_eq!(refused(only(&[EOS.0]), end(0)), None);
    let longer = only(&[97]).bad_word([97, 97].map(TokenId));
    assert_eq!(refused(longer, length(1)), None, "it begins with an allowed token");
    // Their length times that of the bans is more than can be compared.
    let (often, banned) = (std::iter::repeat_n(5, 1_000_000), (6..90).cycle().take(1023).chain([5]).map(TokenId));
    let mut many = params().allowed(often.clone().map(TokenId));
    many.bad_words = banned.clone().map(|token| vec![token]).collect();
    many.logit_bias = banned.map(|token| (token, f32::NEG_INFINITY)).collect();
    let and_another = SamplingParams { allowed: Some(often.chain([97]).map(TokenId).collect()), ..many.clone() };
    let all = format!("{allowed}1 allowed, of which bad_words bans 1, logit_bias bans 1");
    assert_eq!(refused(many, length(2)), Some(all));
    assert_eq!(refused(and_another, length(2)), None);
}

fn the_likeliest_are_reported(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let greedy = SamplingParams { top_logprobs: Some(4), ..SamplingParams::greedy() };
    let mut extension = engine.start(vec![draw(root, key("item", 0), greedy, length(5))]).unwrap();
    let mut seen = Vec::new();
    while let Some(event) = extension.next() {
        match event {
            Event::Tokens { tokens, .. } => {
                for SampledToken { token, logprob, rank, top, .. } in tokens {
                    assert_eq!((top.len(), top[0], rank), (4, (token, logprob), NonZeroU32::new(1)));
                    assert!(top.is_sorted_by(|a, b| a.1 >= b.1));
                    seen.push(top);
                }
            }
            Event::Finished { finish, .. } => assert_eq!(finish.records.tops(), seen),
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(finish(&engine, draw(root, key("item", 0), params(), length(5))).records.tops().is_empty(), "nobody asked");
}

in_modes! {
    in_turn, run_ahead, replicas:
    the_same_draws_whatever_the_rows_chunk_and_planner,
    the_first_of_many_are_those_of_few,
    neither_order_nor_cancelled_siblings_matter,
    a_cancel_stops_those_it_names,
    thoughts_joined_are_one_sample,
    a_fork_goes_on_as_its_tokens_would,
    scores_equal_the_log_probabilities_of_the_draw,
    given_tokens_are_part_of_the_branch,
    penalties_count_every_token_of_the_path,
    what_is_counted_on_the_way_is_what_a_new_request_would_say,
    ranks_are_places_among_the_likeliest,
    only_allowed_tokens_are_sampled,
    bad_words_are_never_sampled_and_change_nothing_before_they_begin,
    a_text_that_no_token_may_continue_fails_and_names_what_bans_all,
    parameters_that_leave_no_token_are_refused,
    the_likeliest_are_reported,
}
