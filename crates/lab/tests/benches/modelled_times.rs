//! The simulated device beside the one that it simulates: attention of single steps and whole jobs, as benches/runs
//! recorded them. `cargo test -p offshoot-lab --test benches modelled_times -- --nocapture` prints the tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::ids::TokenId;
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, ForkKind, PoolSize, SamplingParams, Stop, Turn,
    UniformKey,
};
use offshoot_kv::plan::{PlanHints, Planner};
use offshoot_lab::bench::trees::read_trees;
use offshoot_lab::bench::workload_file::{Workload, read_jobs};
use offshoot_model::{Decoder, ModelConfig};
use offshoot_sim::{Clock, DeviceProfile, Sim};
use serde_json::Value;

use crate::shared::shared;

const RUN: &str = "benches/runs/2026-11-21-h200-wgmma";

fn recorded(file: &str) -> Vec<Value> {
    let path = Path::new(offshoot_fixtures::REPOSITORY).join(RUN).join(file);
    let text = std::fs::read_to_string(path).expect("the recorded run is part of the project");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn h200() -> Arc<DeviceProfile> {
    Arc::new(DeviceProfile::named("h200").expect("it is built in"))
}

/// Prints modelled beside measured and returns the geometric mean of their ratios; none may leave `range`.
fn compare(unit: &str, rows: &[(String, f64, f64)], range: std::ops::RangeInclusive<f64>) -> f64 {
    println!("| what | modelled {unit} | measured {unit} | ratio |\n|---|---|---|---|");
    for (name, modelled, measured) in rows {
        println!("| {name} | {modelled:.2} | {measured:.2} | {:.2} |", modelled / measured);
    }
    for (name, modelled, measured) in rows {
        let ratio = modelled / measured;
        assert!(range.contains(&ratio), "{name}: modelled {modelled:.2} {unit}, measured {measured:.2}: {ratio:.2}");
    }
    let logs = rows.iter().map(|(_, modelled, measured)| (modelled / measured).ln());
    (logs.sum::<f64>() / rows.len() as f64).exp()
}

#[test]
fn attention_takes_what_was_measured() {
    let Some(path) = shared("bench/attention_trees.jsonl") else { return };
    let measured: BTreeMap<String, f64> = recorded("trees.jsonl")
        .iter()
        .map(|line| (line["workload"].as_str().expect("a name").to_owned(), line["us"].as_f64().expect("a time")))
        .collect();
    let profile = h200();
    let sim = Sim::new(profile.clone());
    let (page_tokens, tile, cost) = (sim.page_tokens(), sim.tile(), sim.cost_model());
    let mut rows = Vec::new();
    for tree in read_trees(&path).expect("the trees are well formed") {
        let small = |n: usize| u32::try_from(n).expect("heads are few");
        let hints = PlanHints {
            group: offshoot_core::ids::GroupIx(0),
            tile,
            window: None,
            q_heads: small(tree.heads.q_heads),
            kv_heads: small(tree.heads.kv_heads),
            head_dim: small(tree.heads.head_dim),
            kv_element_bytes: small(tree.dtype.bytes()),
            latents: None,
            cost,
        };
        let plan = Planner::Balanced.plan(&tree.lay_out(page_tokens).expect("pages enough").forest, &hints);
        let Some(&measured) = measured.get(&tree.name) else { continue };
        rows.push((tree.name, profile.attention_ns(&plan, tree.heads, tree.dtype.bytes()) / 1e3, measured));
    }
    assert!(rows.len() > 50, "{} trees were measured", rows.len());
    let mean = compare("us", &rows, 0.8..=1.2);
    println!("geometric mean {mean:.3}");
}

/// A job's prompts, of which no two share more than their levels say.
fn prompts(job: &Workload, vocab: usize) -> Vec<Vec<TokenId>> {
    let mut texts = vec![Vec::new()];
    for &(tokens, branching) in &job.levels {
        let longer = texts.iter().flat_map(|text: &Vec<TokenId>| {
            (0..branching).map(|child| {
                let own = (0..tokens).map(|at| TokenId::new((child + at) % vocab));
                text.iter().copied().chain(own).collect()
            })
        });
        texts = longer.collect();
    }
    texts
}

/// Seconds on the device's clock from the first command to the last token.
fn run(engine: &mut Engine, handle: &EngineHandle, clock: &Clock, job: &Workload, generate: usize) -> f64 {
    let begun = clock.now();
    let (mut branches, mut extends) = (Vec::new(), Vec::new());
    for (item, prompt) in prompts(job, handle.facts().vocab).into_iter().enumerate() {
        let root = handle.root(prompt).expect("a prompt");
        let key = UniformKey::root(1, &item.to_string());
        branches.push(root);
        for (ordinal, branch) in (0u64..).zip(handle.fork(root, job.samples).expect("forks")) {
            let continuation = Continuation::Sampled {
                params: SamplingParams::default(),
                stop: Stop { ignore_eos: true, ..Stop::max_tokens(generate) },
                uniforms: key.child(ForkKind::Sample, ordinal),
            };
            branches.push(branch);
            extends.push(Extend { branch, continuation });
        }
    }
    let mut extension = handle.start(extends).expect("the engine lives");
    while engine.turn().expect("no step fails") == Turn::Stepped {}
    let mut drawn = 0;
    while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
        match event {
            Event::Tokens { tokens, .. } => drawn += tokens.len(),
            Event::Finished { .. } => {}
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!(drawn, job.continuations() * generate);
    let seconds = (clock.now() - begun).as_secs_f64();
    handle.prune(&branches);
    assert_eq!(engine.turn().expect("nothing grows"), Turn::Idle);
    seconds
}

#[test]
fn whole_jobs_take_what_was_measured() {
    let mut decode = Vec::new();
    let mut prompts = Vec::new();
    for shape in ["llama3-8b", "codellama-7b"] {
        let (config, jobs) = read_jobs(None, shape, &[]).expect("built in");
        let mut backend = Sim::new(h200());
        let clock = backend.clock();
        let model = Decoder::random(&mut backend, config, Dtype::Bf16, 1).expect("it fits");
        let page = backend.page_tokens() as usize;
        let tokens = jobs.iter().map(|job| job.kv_tokens(page)).max().expect("there are jobs");
        let config = EngineConfig {
            max_branches: jobs.iter().map(Workload::continuations).max().expect("there are jobs"),
            step_rows: 4096,
            pool: PoolSize::Share { of_free: 0.9, at_most: (tokens + 64 * page) * model.kv_bytes_per_token() },
            run_ahead: true,
            check_plans: false,
            ..EngineConfig::default()
        };
        let (mut engine, handle) = Engine::build(model.on(backend), None, config).expect("there is room");
        for line in recorded(&format!("workloads-{shape}.jsonl")) {
            let job = jobs.iter().find(|job| line["workload"] == job.name).expect("it was measured");
            let prefill = run(&mut engine, &handle, &clock, job, 1);
            let whole = run(&mut engine, &handle, &clock, job, job.generate.most());
            let name = format!("{shape} {}", job.name);
            let measured = |field: &str| line[field].as_f64().expect("a number");
            let decoded = measured("seconds") - measured("prefill_s");
            decode.push((name.clone(), whole - prefill, decoded));
            prompts.push((name, prefill, measured("prefill_s")));
        }
    }
    println!("decode: seconds without those of the same job with one token");
    let mean = compare("s", &decode, 0.85..=1.05);
    println!("geometric mean {mean:.3}\nprompts: seconds of the same job with one token");
    // Where many branches begin, the host's time for that is left out: up to half of these jobs.
    let mean = compare("s", &prompts, 0.5..=1.05);
    println!("geometric mean {mean:.3}");
}

#[test]
fn what_would_not_fit_the_device_does_not_fit() {
    let llama_70b = r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192}"#;
    let config = ModelConfig::from_json(llama_70b).expect("a config");
    let mut backend = Sim::new(h200());
    let model = Decoder::random(&mut backend, config.clone(), Dtype::Bf16, 1).expect("141 GB fit");
    assert_eq!(backend.page_bytes(&model.kv_shape(1)), 32 * model.kv_bytes_per_token());
    let free = backend.free_bytes().expect("it is counted");
    assert!(free < 9_000_000_000, "{free} bytes are left");
    let error = Decoder::random(&mut backend, config, Dtype::Bf16, 1).err().expect("not twice");
    assert!(error.to_string().contains("simulated") && error.exit_code() == 2, "{error}");
}

/// The same job with and without the host's time hidden behind the device's.
#[test]
fn steps_that_run_ahead_hide_the_host() {
    let (config, jobs) = read_jobs(None, "llama3-8b", &["best_of_256".to_owned()]).expect("built in");
    let profile = h200();
    let seconds = [false, true].map(|run_ahead| {
        let mut backend = Sim::new(profile.clone());
        let clock = backend.clock();
        let model = Decoder::random(&mut backend, config.clone(), Dtype::Bf16, 1).expect("it fits");
        let config = EngineConfig { max_branches: 256, step_rows: 4096, run_ahead, ..EngineConfig::default() };
        let config = EngineConfig { pool: PoolSize::Bytes(16 << 30), check_plans: false, ..config };
        let (mut engine, handle) = Engine::build(model.on(backend), None, config).expect("there is room");
        let seconds = run(&mut engine, &handle, &clock, &jobs[0], 128);
        assert_eq!(clock.last_step().expect("there were steps").number, engine.metrics().steps);
        drop(engine);
        let why = handle.root(vec![TokenId(1)]).expect_err("nobody works any more").to_string();
        assert!(why.contains("it was dropped"), "{why}");
        seconds
    });
    let host = (128.0 * profile.host_step_ns + 127.0 * 256.0 * profile.host_row_ns) / 1e9;
    let hidden = seconds[0] - seconds[1];
    assert!((0.9 * host..1.2 * host).contains(&hidden), "{hidden} s were hidden of {host}");
}
