//! The definition: each token from a fresh forward over the whole sequence, without engine, prefix tree or cache.

use offshoot_backend::{Backend, Filters, Pick, RowToken, SampleRequest, SampledToken, StepBatch};
use offshoot_core::ids::{GroupIx, PageId, SegmentId, StateId, TokenId};
use offshoot_cpu::{Cpu, KvStore};
use offshoot_kv::plan::{CopyRoom, FormPlans, LatentFormChoice, Planner};
use offshoot_kv::{Forest, ForestSegment, KvSlot, StateRun};
use offshoot_model::Decoder;

use super::bench::{Mode, Shape, decoder, draw, finish, key, length, prompt, roomy};
use offshoot_engine::{EngineConfig, SamplingParams};

/// `picks[i]` draws a token after the first `tokens.len() - picks.len() + 1 + i` tokens.
pub fn forward(shape: Shape, tokens: &[TokenId], picks: &[Pick]) -> Vec<SampledToken> {
    let requests = picks.iter().map(|&pick| SampleRequest::of(pick)).collect();
    let sampled = forward_with(shape, tokens, requests);
    sampled.into_iter().map(|sampled| sampled.expect("a token is left")).collect()
}

/// As `forward`, of whole requests; `None` where no token may be sampled.
pub fn forward_with(shape: Shape, tokens: &[TokenId], requests: Vec<SampleRequest>) -> Vec<Option<SampledToken>> {
    let (mut backend, mut decoder) = decoder(shape);
    let (mut kv, batch) = whole(&mut backend, &decoder, tokens, Planner::Flat);
    let n = u32::try_from(tokens.len()).unwrap();
    let batch = StepBatch {
        logit_rows: (n - u32::try_from(requests.len()).unwrap()..n).collect(),
        requests: requests.into(),
        ..batch
    };
    let mut step = decoder.step(&mut backend).unwrap();
    decoder.forward(&mut backend, &mut kv, &mut step, batch).unwrap();
    backend.collect(&mut step).unwrap()
}

/// All of `tokens` as the rows of one step, and room for them.
pub fn whole(backend: &mut Cpu, decoder: &Decoder<Cpu>, tokens: &[TokenId], planner: Planner) -> (KvStore, StepBatch) {
    let page_tokens = offshoot_cpu::kv::PAGE_TOKENS;
    let n = u32::try_from(tokens.len()).unwrap();
    let (pages, groups) = (n.div_ceil(page_tokens), decoder.config().page_groups(backend));
    let kv = backend.kv(&decoder.kv_shape(groups.count() * pages as usize).with_states(1)).unwrap();
    let page = |group: GroupIx, number: u32| PageId(group.0 * pages + number);
    let segment = ForestSegment {
        id: SegmentId(0),
        parent: None,
        first_position: 0,
        tokens: n,
        pages: 0..pages,
        held_from: 0,
        rows: 0..n,
    };
    let forest = |group| Forest {
        page_tokens,
        segments: vec![segment.clone()],
        pages: (0..pages).map(|number| page(group, number)).collect(),
        row_positions: (0..n).collect(),
        row_segments: vec![0; tokens.len()],
    };
    let slot = |group, p: u32| KvSlot { page: page(group, p / page_tokens), slot: p % page_tokens };
    // Latents are read absorbed.
    let (mut plans, mut of_copies) = (Vec::new(), Vec::new());
    for hints in decoder.plan_hints() {
        let FormPlans { absorbed, copied } =
            planner.plan_forms(&forest(hints.group), hints, LatentFormChoice::Cheapest, &CopyRoom::NONE);
        plans.push(absorbed);
        of_copies.extend(hints.latents.map(|_| copied).into_iter().flatten());
    }
    let expansions = (!of_copies.is_empty()).then(Default::default);
    plans.extend(of_copies);
    let batch = StepBatch {
        tokens: tokens.iter().copied().map(RowToken::Known).collect(),
        positions: (0..n).collect(),
        slots: groups.iter().map(|group| (0..n).map(|p| slot(group, p)).collect()).collect(),
        plans,
        expansions,
        state_runs: vec![StateRun { rows: 0..n, from: None, is_in: false, to: Some(StateId(0)) }],
        ..StepBatch::default()
    };
    (kv, batch)
}

fn greedy_equals_a_plain_loop(mode: Mode) {
    let cases = [
        (Shape::Full, 1),
        (Shape::Full, 16),
        (Shape::Full, 75),
        (Shape::Windowed, 50),
        (Shape::Hybrid, 1),
        (Shape::Hybrid, 75),
        (Shape::Latent, 75),
    ];
    for (shape, len) in cases {
        let mut tokens = prompt(3, len);
        let mut logprobs = Vec::new();
        for _ in 0..20 {
            let drawn = forward(shape, &tokens, &[Pick::Greedy]).remove(0);
            tokens.push(drawn.token);
            logprobs.push(drawn.logprob);
        }
        for chunk in [1, 13, 256] {
            let engine = mode.engine_of(shape, EngineConfig { step_rows: chunk, ..roomy() });
            let root = engine.root(prompt(3, len)).unwrap();
            let drawn = finish(&engine, draw(root, key("greedy", 0), SamplingParams::greedy(), length(20)));
            assert_eq!(drawn.tokens, tokens[len..], "{shape:?}, a prompt of {len} in chunks of {chunk}");
            assert_eq!(drawn.logprobs(), logprobs);
        }
    }
}

fn coins_are_those_of_the_tokens_own_position(mode: Mode) {
    let engine = mode.engine_of(Shape::Full, roomy());
    let mut tokens = prompt(4, 30);
    let root = engine.root(tokens.clone()).unwrap();
    let sampling = SamplingParams::default();
    let drawn = finish(&engine, draw(root, key("plain", 5), sampling, length(12)));
    for (&token, &logprob) in drawn.tokens.iter().zip(drawn.logprobs()) {
        let uniform = key("plain", 5).uniform(u32::try_from(tokens.len()).unwrap());
        let pick = Pick::Random { filters: Filters::default(), uniform };
        let expected = forward(Shape::Full, &tokens, &[pick]).remove(0);
        assert_eq!((token, logprob), (expected.token, expected.logprob));
        tokens.push(token);
    }
}

fn scores_equal_a_plain_forward(mode: Mode) {
    [Shape::Full, Shape::Hybrid, Shape::Latent].into_iter().for_each(|shape| scores_equal_those_of(mode, shape));
}

fn scores_equal_those_of(mode: Mode, shape: Shape) {
    let engine = mode.engine_of(shape, roomy());
    let root = engine.root(prompt(5, 40)).unwrap();
    let given = prompt(6, 30);
    let scored = finish(&engine, super::bench::score(root, given.clone()));
    let whole = [prompt(5, 40), given.clone()].concat();
    let picks: Vec<Pick> = given.iter().map(|&token| Pick::given(token)).collect();
    let expected: Vec<f32> = forward(shape, &whole[..whole.len() - 1], &picks).iter().map(|s| s.logprob).collect();
    assert_eq!(scored.logprobs(), expected);
    assert_eq!(scored.tokens, given);
    let sum: f64 = expected.iter().copied().map(f64::from).sum();
    assert_eq!(scored.logprob, sum);
}

in_modes! {
    in_turn, run_ahead, replicas:
    greedy_equals_a_plain_loop,
    coins_are_those_of_the_tokens_own_position,
    scores_equal_a_plain_forward,
}
