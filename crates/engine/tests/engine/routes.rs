//! The experts that an extend's end tells are those of its whole text, computed alone: whoever has computed the prompt,
//! wherever branches fork, also where they were swapped or computed again, and on ranks that divide positions.

use offshoot_backend::Dtype;
use offshoot_backend::ranks::Ranks;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Finish, FinishReason, PoolSize, SamplingParams, Stop, TokenRoutes,
};
use offshoot_model::{Decoder, LoadedRanks, ModelConfig, ModelWeights, Sequence, StepRunner};

use super::bench::{
    EOS, Mode, VOCAB, draw, finish, finishes, in_turn, key, length, mislead, outcomes, params, prompt, tokenizer,
    unsure,
};

/// A dense layer below one with experts, without windows; or experts in all layers, of which one has a window, so that
/// there are two page groups.
#[derive(Clone, Copy, Debug)]
enum Mixture {
    Behind,
    Windowed,
}

const BOTH: [Mixture; 2] = [Mixture::Behind, Mixture::Windowed];

fn model(mixture: Mixture) -> ModelConfig {
    let others = match mixture {
        Mixture::Behind => {
            r#""model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
               "norm_topk_prob": true, "mlp_only_layers": [0],"#
        }
        Mixture::Windowed => {
            r#""model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 21,
               "layer_types": ["sliding_attention", "full_attention"],"#
        }
    };
    let config = format!(
        r#"{{ {others} "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 8, "intermediate_size": 48, "vocab_size": {VOCAB}, "eos_token_id": {EOS},
             "max_position_embeddings": 640, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }}"#
    );
    ModelConfig::from_json(&config).unwrap()
}

fn weights(mixture: Mixture) -> ModelWeights {
    ModelWeights::random(model(mixture), Dtype::F32, 7)
}

fn config() -> EngineConfig {
    EngineConfig { keeps_routes: true, check_plans: true, pool: PoolSize::Bytes(64 << 20), ..EngineConfig::default() }
}

fn start(mode: Mode, model: Box<dyn StepRunner>, config: EngineConfig) -> EngineHandle {
    let config = EngineConfig { run_ahead: mode.run_ahead, ..config };
    Engine::start(model, Some(tokenizer()), config).unwrap()
}

fn engine(mode: Mode, mixture: Mixture, config: EngineConfig) -> EngineHandle {
    let one = || {
        let mut backend = Cpu::open().unwrap();
        let decoder = Decoder::of(&mut backend, &weights(mixture)).unwrap();
        start(mode, decoder.on(backend), config.clone())
    };
    offshoot_engine::replicas::join((0..mode.replicas).map(|_| one()).collect()).unwrap()
}

/// Of four ranks, of which two divide the positions of each key head.
fn four_ranks(mode: Mode, mixture: Mixture, config: EngineConfig) -> EngineHandle {
    let cpus = (0..4).map(|_| Cpu::open().unwrap().on_a_share_of_cores(4)).collect();
    let ranks = Ranks::new(cpus, false).unwrap().sharing_positions(2);
    let weights = weights(mixture);
    let model = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
    start(mode, model, config)
}

/// The experts of a text that is computed alone, in one step.
struct Alone {
    backend: Cpu,
    decoder: Decoder<Cpu>,
}

impl Alone {
    fn new(mixture: Mixture) -> Self {
        let mut backend = Cpu::open().unwrap();
        let mut decoder = Decoder::of(&mut backend, &weights(mixture)).unwrap();
        decoder.keep_routes(true).unwrap();
        Self { backend, decoder }
    }

    /// Compares what an extend told with the experts of `before` and what it sampled, but for the last token.
    fn hold(&mut self, finish: &Finish, before: &[TokenId]) {
        let text = [before, &finish.sampled_ids()].concat();
        let text = &text[..text.len() - 1];
        let mut sequence = Sequence::new(&mut self.backend, &mut self.decoder, text.len()).unwrap();
        sequence.extend(text, 0..1).unwrap();
        let expected = sequence.routes().unwrap();
        let routes = finish.routes.as_ref().expect("they were asked for");
        assert_eq!(routes.len(), text.len());
        assert_eq!(ids(routes), expected);
    }
}

fn ids(routes: &TokenRoutes) -> Vec<u16> {
    let layers = routes.expert_layers();
    (0..routes.len())
        .flat_map(|token| layers.iter().flat_map(move |&layer| routes.experts(token, layer)).copied())
        .collect()
}

fn routed() -> SamplingParams {
    params().routes(true)
}

/// Samples of two prompts with a common beginning, and of forks behind some of them.
fn grow(engine: &EngineHandle, tokens: usize) -> Vec<(Vec<TokenId>, Finish)> {
    let mut grown = Vec::new();
    let header = prompt(1, 37);
    let prompts = [[header.clone(), prompt(2, 12)].concat(), [header, prompt(3, 30)].concat()];
    let roots: Vec<_> = prompts.iter().map(|prompt| engine.root(prompt.clone()).unwrap()).collect();
    let children: Vec<_> = roots.iter().map(|&root| engine.fork(root, 4).unwrap()).collect();
    let extends =
        children.iter().flatten().zip(0..).map(|(&child, i)| draw(child, key("a", i), routed(), unsure(tokens)));
    let told = finishes(engine, extends.collect());
    let texts: Vec<Vec<TokenId>> = prompts.iter().flat_map(|prompt| (0..4).map(move |_| prompt.clone())).collect();
    grown.extend(texts.iter().cloned().zip(told.clone()));
    let forks: Vec<_> = children.iter().map(|of_root| engine.fork(of_root[1], 2).unwrap()).collect();
    let before = |at: usize| [&texts[at][..], &told[at].tokens].concat();
    let extends = forks.iter().flatten().zip(20..).map(|(&child, i)| draw(child, key("b", i), routed(), length(7)));
    let more = finishes(engine, extends.collect());
    grown.extend([1, 1, 5, 5].map(before).into_iter().zip(more));
    for branches in children.iter().chain(&forks) {
        engine.prune(branches);
    }
    engine.prune(&roots);
    grown
}

fn hold_all(mixture: Mixture, grown: &[(Vec<TokenId>, Finish)]) {
    let mut alone = Alone::new(mixture);
    grown.iter().for_each(|(before, finish)| alone.hold(finish, before));
}

fn experts_are_those_of_the_whole_text(mode: Mode) {
    for mixture in BOTH {
        hold_all(mixture, &grow(&engine(mode, mixture, config()), 20));
        let narrow = EngineConfig { step_rows: 7, max_branches: 3, ..config() };
        hold_all(mixture, &grow(&engine(mode, mixture, narrow), 20));
    }
}

fn experts_come_back_with_pages(mode: Mode) {
    let (mut swapped, mut recomputed) = (0, 0);
    for mixture in BOTH {
        let facts = engine(mode, mixture, config()).facts().clone();
        for (pages, swap) in [(24, 1000), (24, 0), (34, 1000)] {
            let few = EngineConfig {
                pool: PoolSize::Bytes(pages * facts.page_bytes),
                swap_bytes: swap * facts.page_bytes,
                swap_at_any_cost: swap > 0,
                ..config()
            };
            let engine = engine(mode, mixture, few);
            mislead(&engine);
            hold_all(mixture, &grow(&engine, 70));
            let metrics = engine.metrics().unwrap();
            swapped += metrics.swapped_in;
            recomputed += metrics.tokens_recomputed;
        }
    }
    assert!(swapped > 0 && recomputed > 0, "{swapped} came back, {recomputed} tokens were computed again");
}

in_modes! {
    in_turn, run_ahead, replicas:
    experts_are_those_of_the_whole_text,
    experts_come_back_with_pages,
}

#[test]
fn ranks_that_divide_positions_tell_the_same_experts() {
    let told = grow(&four_ranks(in_turn(), Mixture::Behind, config()), 20);
    hold_all(Mixture::Behind, &told);
}

#[test]
fn a_token_that_ends_a_text_has_the_experts_before_it() {
    let engine = engine(in_turn(), Mixture::Behind, config());
    let root = engine.root(prompt(4, 20)).unwrap();
    let at_once = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..routed() };
    let told = finish(&engine, draw(root, key("c", 0), at_once, Stop::max_tokens(9)));
    assert_eq!((told.reason.clone(), told.tokens.len()), (FinishReason::EndOfText, 0));
    assert_eq!(told.routes.as_ref().unwrap().shape(), [20, 2, 2]);
    Alone::new(Mixture::Behind).hold(&told, &prompt(4, 20));
}

#[test]
fn nothing_is_told_that_was_not_asked_for() {
    let page_bytes = |config| engine(in_turn(), Mixture::Windowed, config).facts().page_bytes;
    let plain = EngineConfig { keeps_routes: false, ..config() };
    assert!(page_bytes(plain.clone()) < page_bytes(config()), "experts take memory where they are kept alone");
    let unasked = |engine: &EngineHandle| {
        let root = engine.root(prompt(4, 20)).unwrap();
        finish(engine, draw(root, key("c", 0), params(), length(9)))
    };
    let (kept, not) = (engine(in_turn(), Mixture::Windowed, config()), engine(in_turn(), Mixture::Windowed, plain));
    assert_eq!(unasked(&kept), unasked(&not));
    assert_eq!(unasked(&kept).routes, None);
    let root = not.root(prompt(4, 20)).unwrap();
    let asked = outcomes(&not, vec![draw(root, key("c", 0), routed(), length(9))]).remove(0);
    let error = asked.expect_err("none are kept");
    assert!(error.to_string().contains("return_routed_experts"), "{error}");
}

#[test]
fn a_model_without_experts_is_refused() {
    let (backend, decoder) = super::bench::decoder(super::bench::Shape::Full);
    let refused = Engine::start(decoder.on(backend), None, config()).err().expect("it has no experts").to_string();
    assert!(refused.contains("return_routed_experts") && refused.contains("a model without any"), "{refused}");
}
