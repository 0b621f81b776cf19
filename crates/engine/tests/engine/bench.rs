//! What the suites stand on: the tiny model, its tokenizer, and short ways to run branches to their end.

use std::sync::{Arc, OnceLock};

use offshoot_backend::{Backend, Dtype};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_cpu::Cpu;
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineFacts, EngineHandle, Event, Extend, Finish, ForkKind, PoolSize,
    SamplingParams, Stop, UniformKey,
};
use offshoot_model::{Decoder, ModelConfig};
use offshoot_text::Tokenizer;

pub const VOCAB: u32 = 256;
pub const CONTEXT: usize = 160;
pub const EOS: TokenId = TokenId(0);

/// Two layers: full attention, or with a window in every layer, also for texts many times as long as that; or with a
/// window in the first layer only, as long; or experts in the second layer, as long. Or three: attention between two
/// delta-rule layers, as long. Or latent attention, as long.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Full,
    Windowed,
    LongWindowed,
    LongMixed,
    Mixture,
    Hybrid,
    Latent,
}

pub fn decoder(shape: Shape) -> (Cpu, Decoder<Cpu>) {
    let mut backend = Cpu::open().unwrap();
    let context = match shape {
        Shape::Full | Shape::Windowed => CONTEXT,
        Shape::LongWindowed | Shape::LongMixed | Shape::Mixture | Shape::Hybrid | Shape::Latent => 4 * CONTEXT,
    };
    let decoder = Decoder::random(&mut backend, model(shape, context), Dtype::F32, 7).unwrap();
    (backend, decoder)
}

pub fn model(shape: Shape, context: usize) -> ModelConfig {
    ModelConfig::from_json(&config_json(shape, context)).unwrap()
}

/// The `config.json` of a model of this shape.
pub fn config_json(shape: Shape, context: usize) -> String {
    let (family, others) = match shape {
        Shape::Full => ("llama", ""),
        Shape::Windowed | Shape::LongWindowed => ("mistral", "\"sliding_window\": 21,"),
        Shape::LongMixed => (
            "qwen3",
            r#""use_sliding_window": true, "sliding_window": 21, "head_dim": 8,
               "layer_types": ["sliding_attention", "full_attention"],"#,
        ),
        Shape::Mixture => (
            "qwen3_moe",
            r#""head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
               "norm_topk_prob": true, "mlp_only_layers": [0],"#,
        ),
        Shape::Latent => (
            "minicpm3",
            r#""kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 20,
               "scale_emb": 1, "dim_model_base": 32, "scale_depth": 1.4,"#,
        ),
        Shape::Hybrid => (
            "qwen3_5_text",
            r#""head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
               "linear_value_head_dim": 12,
               "layer_types": ["linear_attention", "full_attention", "linear_attention"],"#,
        ),
    };
    let layers = if matches!(shape, Shape::Hybrid) { 3 } else { 2 };
    format!(
        r#"{{ "model_type": "{family}", {others} "hidden_size": 32, "num_hidden_layers": {layers},
             "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": {VOCAB}, "eos_token_id": {EOS},
             "max_position_embeddings": {context}, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }}"#
    )
}

/// Every byte is a token; tokens 128 and up are parts of characters.
pub fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(new_tokenizer).clone()
}

/// A tokenizer of single bytes that no other test shares.
pub fn new_tokenizer() -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0u8..=255).map(|byte| (spelling(byte).to_string(), byte.into())).collect();
    let byte_level = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false });
    let file = serde_json::json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] } });
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    Arc::new(Tokenizer::load(folder.path()).unwrap())
}

/// The character by which byte-level vocabularies spell a byte (GPT-2's table).
fn spelling(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
            char::from_u32(256 + before).unwrap()
        }
    }
}

/// `in_modes! { in_turn, run_ahead: one_test, another }`: tests of these functions of a `Mode`, in a module of each
/// mode's name.
macro_rules! in_modes {
    ($($mode:ident),+: $($tests:ident),+ $(,)?) => { in_modes! { @each [$($mode)+] [$($tests)+] } };
    (@each [$($mode:ident)+] $tests:tt) => { $(in_modes! { @one $mode $tests })+ };
    (@one $mode:ident [$($test:ident)+]) => {
        mod $mode {
            $(
                #[test]
                fn $test() {
                    super::$test(crate::bench::$mode());
                }
            )+
        }
    };
}

/// How the engines of a test run.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// Whether every engine submits a step before the one before is collected.
    pub run_ahead: bool,
    /// Engines behind one handle.
    pub replicas: usize,
}

/// Each step is collected before the next one is submitted.
pub const fn in_turn() -> Mode {
    Mode { run_ahead: false, replicas: 1 }
}

/// Each step is submitted before the one before is collected.
pub const fn run_ahead() -> Mode {
    Mode { run_ahead: true, replicas: 1 }
}

/// Three engines behind one handle, which run ahead.
pub const fn replicas() -> Mode {
    Mode { run_ahead: true, replicas: 3 }
}

impl Mode {
    pub fn engine(self, config: EngineConfig) -> EngineHandle {
        self.engine_of(Shape::Full, config)
    }

    /// Plans are proved, and steps run ahead where the mode or `config` says so; as many engines as the mode says.
    pub fn engine_of(self, shape: Shape, config: EngineConfig) -> EngineHandle {
        let engines = (0..self.replicas).map(|_| self.one_engine_of(shape, config.clone())).collect();
        offshoot_engine::replicas::join(engines).unwrap()
    }

    fn one_engine_of(self, shape: Shape, config: EngineConfig) -> EngineHandle {
        let (backend, decoder) = decoder(shape);
        let config = EngineConfig { check_plans: true, run_ahead: config.run_ahead || self.run_ahead, ..config };
        Engine::start(decoder.on(backend), Some(tokenizer()), config).unwrap()
    }
}

/// Room for everything.
pub fn roomy() -> EngineConfig {
    pages(2000)
}

/// Room for so many pages of 16 tokens.
pub fn pages(pages: usize) -> EngineConfig {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    let page_bytes = PAGE_BYTES.get_or_init(|| {
        let (cpu, decoder) = decoder(Shape::Full);
        cpu.page_bytes(&decoder.kv_shape(1))
    });
    EngineConfig { pool: PoolSize::Bytes(pages * page_bytes), ..EngineConfig::default() }
}

/// Memory for so many pages of this engine, and for the states of a few branches beside them if it has any.
pub fn room_for(facts: &EngineFacts, pages: usize) -> PoolSize {
    let bytes = pages * facts.page_bytes;
    // Pages have half of it at least; a branch has two states.
    PoolSize::Bytes(if facts.state_bytes > 0 { bytes + bytes.max(2 * facts.state_bytes) } else { bytes })
}

/// `len` letters that differ with `salt`.
pub fn prompt(salt: u64, len: usize) -> Vec<TokenId> {
    let mut dice = offshoot_core::dice::Dice::new(salt);
    (0..len).map(|_| TokenId(dice.within(32, 126))).collect()
}

/// Sampling that uses every filter, over readable tokens mostly.
pub fn params() -> SamplingParams {
    SamplingParams { temperature: 0.9, top_k: Some(200), top_p: 0.98, min_p: 0.001, ..SamplingParams::default() }
}

pub fn key(item: &str, ordinal: u64) -> UniformKey {
    UniformKey::root(1, item).child(ForkKind::Sample, ordinal)
}

pub fn draw(branch: BranchId, uniforms: UniformKey, params: SamplingParams, stop: Stop) -> Extend {
    Extend { branch, continuation: Continuation::Sampled { params, stop, uniforms } }
}

pub fn length(max_tokens: usize) -> Stop {
    Stop { max_tokens, ignore_eos: true, ..Stop::default() }
}

/// A stop after `max_tokens` tokens that the engine cannot predict: a text that is never sampled might end it sooner.
pub fn unsure(max_tokens: usize) -> Stop {
    Stop { strings: vec!["a text that nobody draws".to_owned()], ..length(max_tokens) }
}

pub fn score(branch: BranchId, tokens: Vec<TokenId>) -> Extend {
    Extend::given(branch, tokens, Some(0))
}

pub fn give(branch: BranchId, tokens: Vec<TokenId>) -> Extend {
    Extend::given(branch, tokens, None)
}

/// Runs `extends` to their end: each one's finish or error, in their order. Checks that the events tell the same story.
pub fn outcomes(engine: &EngineHandle, extends: Vec<Extend>) -> Vec<Result<Finish, offshoot_core::Error>> {
    let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
    let mut extension = engine.start(extends).unwrap();
    let mut told: Vec<(Vec<TokenId>, String)> = vec![Default::default(); branches.len()];
    let mut outcomes: Vec<Option<Result<Finish, offshoot_core::Error>>> = branches.iter().map(|_| None).collect();
    while let Some(event) = extension.next() {
        let ix = branches.iter().position(|&branch| branch == event.id()).unwrap();
        match event {
            Event::Tokens { tokens, text, .. } => {
                told[ix].0.extend(tokens.iter().map(|sampled| sampled.token));
                told[ix].1.push_str(&text);
            }
            Event::Finished { finish, .. } => outcomes[ix] = Some(Ok(finish)),
            Event::Failed { error, .. } => outcomes[ix] = Some(Err(error)),
        }
    }
    for (outcome, (tokens, text)) in outcomes.iter().zip(told) {
        if let Some(Ok(finish)) = outcome
            && !tokens.is_empty()
        {
            assert_eq!(finish.tokens, tokens, "one event for each token");
            assert!(finish.text.starts_with(&text), "{:?} was shown of {:?}", text, finish.text);
        }
    }
    outcomes.into_iter().map(|outcome| outcome.expect("every branch ends")).collect()
}

pub fn finishes(engine: &EngineHandle, extends: Vec<Extend>) -> Vec<Finish> {
    outcomes(engine, extends).into_iter().map(|outcome| outcome.expect("no branch fails")).collect()
}

pub fn finish(engine: &EngineHandle, extend: Extend) -> Finish {
    finishes(engine, vec![extend]).remove(0)
}

/// `n` samples of one prompt.
pub fn sample(engine: &EngineHandle, item: &str, prompt: Vec<TokenId>, n: usize, stop: Stop) -> Vec<Finish> {
    let root = engine.root(prompt).unwrap();
    let children = engine.fork(root, n).unwrap();
    let extends = (0u64..).zip(&children).map(|(i, &child)| draw(child, key(item, i), params(), stop.clone()));
    let finishes = finishes(engine, extends.collect());
    engine.prune(&children);
    engine.prune(&[root]);
    finishes
}

/// Makes the engine expect that extends end early, so that it lets in more branches than fit.
pub fn mislead(engine: &EngineHandle) {
    let at_once = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..SamplingParams::default() };
    let root = engine.root(prompt(9, 5)).unwrap();
    for round in 0..10 {
        let children = engine.fork(root, 20).unwrap();
        let extends =
            children.iter().map(|&child| draw(child, key("early", round), at_once.clone(), Stop::max_tokens(100)));
        finishes(engine, extends.collect());
        engine.prune(&children);
    }
    engine.prune(&[root]);
}
