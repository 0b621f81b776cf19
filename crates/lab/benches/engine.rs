//! `cargo bench -p offshoot-lab --bench engine`: what a decode step costs the host: 256 and 2,560 branches under a
//! header and 32 prompts, of equal lengths (all turn their pages at once) and of ragged ones. On a simulated device,
//! which computes nothing, so that the host has its caches to itself as beside a GPU; and on the CPU, by a model so
//! small that its work counts for little (`-- simulated` and `-- cpu` measure one). Milliseconds a step. `-- forks`:
//! microseconds of a fork of a model with delta-rule layers; no step follows, so no child has tokens of its own.

use std::sync::Arc;
use std::time::Instant;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, ForkKind, PoolSize, SamplingParams, Stop,
    UniformKey,
};
use offshoot_model::{Decoder, ModelConfig};
use offshoot_sim::{DeviceProfile, Sim};

const TOKENS: usize = 192;

fn main() {
    println!(
        "{:>8} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "device", "branches", "prompts", "ahead", "replanned", "schedule", "plan", "forward", "commit", "all"
    );
    let dense = r#"{ "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 256, "eos_token_id": 0,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true }"#;
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let is_wanted = |device: &str| named.is_empty() || named.iter().any(|name| name == device);
    let profile = Arc::new(DeviceProfile::named("h200").expect("it is built in"));
    for branches in [256, 2560] {
        for ragged in [false, true] {
            for run_ahead in [false, true] {
                if is_wanted("simulated") {
                    let engine = engine(Sim::new(profile.clone()), dense, branches, run_ahead);
                    measure("simulated", &engine, branches, ragged, run_ahead);
                }
                if is_wanted("cpu") {
                    let engine = engine(Cpu::open().unwrap(), dense, branches, run_ahead);
                    measure("cpu", &engine, branches, ragged, run_ahead);
                }
            }
        }
    }
    if is_wanted("forks") {
        measure_forks();
    }
}

/// Forks a computed prompt, whose state the engine keeps, 1,024 times: some children at a time.
fn measure_forks() {
    let hybrid = r#"{ "model_type": "qwen3_5_text", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "intermediate_size": 32, "vocab_size": 256, "eos_token_id": 0, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true }"#;
    let engine = engine(Cpu::open().unwrap(), hybrid, 256, false);
    for children in [1, 16, 256, 1024] {
        let root = engine.root((0..300).map(|i| TokenId(i % 251)).collect()).expect("it fits");
        let mut extension = engine.start(vec![Extend::given(root, vec![TokenId(1)], Some(0))]).expect("it fits");
        while extension.next().is_some() {}
        let begun = Instant::now();
        let repeats = 1024 / children;
        for _ in 0..repeats {
            let forks = engine.fork(root, children).expect("the root rests");
            assert_eq!(forks.len(), children);
        }
        let us = begun.elapsed().as_secs_f64() * 1e6 / (repeats * children) as f64;
        println!("   forks: {children} at a time: {us:.2} us a fork");
    }
}

fn measure(device: &str, engine: &EngineHandle, branches: usize, ragged: bool, run_ahead: bool) {
    let header: Vec<TokenId> = (0..256).map(|i| TokenId(i % 251)).collect();
    let prompts = (0..32).map(|item| {
        let tail = if ragged { 16 + item as u32 } else { 32 };
        [header.clone(), vec![TokenId(item as u32)], (1..tail).map(TokenId).collect()].concat()
    });
    let mut extends = Vec::new();
    for (item, prompt) in (0u64..).zip(prompts) {
        let root = engine.root(prompt).expect("it fits");
        for (ordinal, branch) in (0u64..).zip(engine.fork(root, branches / 32).expect("the root rests")) {
            let uniforms = UniformKey::root(item, "bench").child(ForkKind::Sample, ordinal);
            let stop = Stop { ignore_eos: true, ..Stop::max_tokens(TOKENS) };
            let continuation = Continuation::Sampled { params: SamplingParams::default(), stop, uniforms };
            extends.push(Extend { branch, continuation });
        }
    }
    let mut extension = engine.start(extends).expect("the parameters are in range");
    let mut first = None;
    while let Some(event) = extension.next() {
        if first.is_none() && matches!(event, Event::Tokens { .. }) {
            first = Some((Instant::now(), engine.metrics().expect("it lives")));
        }
    }
    let (began, before) = first.expect("tokens came");
    let (wall, after) = (began.elapsed(), engine.metrics().expect("it lives"));
    let steps = (after.steps - before.steps) as f64;
    let ms = |after: f64, before: f64| 1e3 * (after - before) / steps;
    println!(
        "{device:>8} {branches:>8} {:>7} {run_ahead:>6} {:>9} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
        if ragged { "ragged" } else { "equal" },
        format!("{}/{steps}", after.steps_replanned - before.steps_replanned),
        ms(after.seconds_scheduling, before.seconds_scheduling),
        ms(after.seconds_planning, before.seconds_planning),
        ms(after.seconds_forward, before.seconds_forward),
        ms(after.seconds_committing, before.seconds_committing),
        ms(wall.as_secs_f64(), 0.0),
    );
}

fn engine<B: Backend>(mut backend: B, config: &str, max_branches: usize, run_ahead: bool) -> EngineHandle {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, config).expect("it can be written");
    let config = ModelConfig::from_file(&path).expect("it is a model");
    let model = Decoder::random(&mut backend, config, Dtype::F32, 7).expect("it is small");
    let pool = PoolSize::Share { of_free: 0.5, at_most: 256 << 20 };
    let config =
        EngineConfig { max_branches, step_rows: 1024, pool, run_ahead, check_plans: false, ..EngineConfig::default() };
    Engine::start(model.on(backend), None, config).expect("it fits")
}
