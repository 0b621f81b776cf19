//! A generator and a second model on one GPU, each on a stream of its own: both compute what each computes alone, and
//! neither waits for the other for ever. Without a GPU the tests say so and pass.

use offshoot_backend::Dtype;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cuda::Cuda;
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, Extend, Finish, ForkKind, PoolSize, SamplingParams, Stop, UniformKey,
};
use offshoot_model::{Decoder, ModelConfig, OutputHead, ValueHead, ValueLayer};
use serde_json::json;

const VOCAB: u32 = 4096;
const BRANCHES: usize = 64;
const STEPS: usize = 40;

fn config(layers: usize, output: OutputHead) -> ModelConfig {
    let fields = json!({
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2048, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "eos_token_id": 0
    });
    ModelConfig { output, ..ModelConfig::from_json(&fields.to_string()).unwrap() }
}

fn engine(mut gpu: Cuda, config: ModelConfig) -> EngineHandle {
    let model = Decoder::random(&mut gpu, config, Dtype::Bf16, 7).unwrap().on(gpu);
    let pool = PoolSize::Share { of_free: 0.5, at_most: 1 << 30 };
    let config =
        EngineConfig { pool, deterministic: true, run_ahead: true, step_rows: 1024, ..EngineConfig::default() };
    Engine::start(model, None, config).unwrap()
}

fn generator(gpu: Cuda) -> EngineHandle {
    engine(gpu, config(12, OutputHead::Tokens))
}

fn scorer(gpu: Cuda) -> EngineHandle {
    let last = ValueLayer { module: "score".to_owned(), outputs: 1, bias: false };
    engine(gpu, config(4, OutputHead::Values(ValueHead { inner: Vec::new(), last })))
}

fn tokens(salt: u64, len: usize) -> Vec<TokenId> {
    let mut dice = Dice::new(salt);
    (0..len).map(|_| TokenId(dice.within(1, VOCAB - 1))).collect()
}

fn ends(engine: &EngineHandle, extends: Vec<Extend>) -> Vec<Finish> {
    let branches: Vec<_> = extends.iter().map(|extend| extend.branch).collect();
    let mut found: Vec<Option<Finish>> = vec![None; branches.len()];
    let mut events = engine.start(extends).unwrap();
    while let Some(event) = events.next() {
        let ix = branches.iter().position(|&branch| branch == event.id()).unwrap();
        match event {
            Event::Tokens { .. } => {}
            Event::Finished { finish, .. } => found[ix] = Some(finish),
            other => panic!("{other:?}"),
        }
    }
    found.into_iter().map(|finish| finish.expect("every branch ends")).collect()
}

/// Samples of a long prompt.
fn sampled(engine: &EngineHandle) -> Vec<Vec<TokenId>> {
    let root = engine.root(tokens(1, 700)).unwrap();
    let params = SamplingParams { top_k: Some(50), ..SamplingParams::default() };
    let stop = Stop::max_tokens(400).ignoring_eos();
    let extends = (0..).zip(engine.fork(root, BRANCHES).unwrap()).map(|(ordinal, branch)| {
        Extend::sampled(branch, &params, &stop, UniformKey::root(1, "item").child(ForkKind::Sample, ordinal))
    });
    ends(engine, extends.collect()).into_iter().map(|finish| finish.tokens).collect()
}

fn judge(gpu: Cuda) -> EngineHandle {
    engine(gpu, config(4, OutputHead::Tokens))
}

/// What a judge does with many questions below one beginning: the bits of the sums of two continuations'
/// log-probabilities, and the tokens of a greedy answer.
fn judged(engine: &EngineHandle) -> Vec<(u64, Vec<TokenId>)> {
    let root = engine.root(tokens(3, 300)).unwrap();
    let questions = engine.fork(root, BRANCHES).unwrap();
    let asked = (0..).zip(&questions).map(|(ix, &branch)| Extend::given(branch, tokens(500 + ix, 60), None));
    ends(engine, asked.collect());
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let stop = Stop::max_tokens(60).ignoring_eos();
    let uniforms = UniformKey::root(1, "judge");
    let (mut words, mut answers) = (Vec::new(), Vec::new());
    for &question in &questions {
        let forks = engine.fork(question, 3).unwrap();
        words.extend(forks[..2].iter().zip(2..).map(|(&fork, word)| Extend::given(fork, tokens(word, 2), Some(0))));
        answers.push(Extend::sampled(forks[2], &greedy, &stop, uniforms));
    }
    let (words, answers) = (ends(engine, words), ends(engine, answers));
    let sums = words.chunks(2).map(|two| (two[0].logprob - two[1].logprob).to_bits());
    sums.zip(answers).map(|(sum, answer)| (sum, answer.tokens)).collect()
}

#[test]
fn a_generator_and_a_judge_compute_side_by_side_what_each_computes_alone() {
    let first = match Cuda::open(0) {
        Ok(first) => first,
        Err(error) => return crate::skip::skipped(format_args!("{error}")),
    };
    let alone = sampled(&generator(Cuda::open(0).unwrap()));
    let judged_alone = judged(&judge(Cuda::open(0).unwrap()));
    let second = first.beside().unwrap();
    let (generator, judge) = (generator(first), judge(second));
    for round in 0..3 {
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            let samples = scope.spawn(|| sampled(&generator));
            assert!(judged(&judge) == judged_alone, "round {round}: other verdicts beside a generator");
            assert!(samples.join().unwrap() == alone, "round {round}: other samples beside a judge");
        });
        eprintln!("round {round}: {:.2} s", began.elapsed().as_secs_f64());
        judge.evict_held().unwrap();
    }
}

/// Values of paths that grow step by step.
fn values(engine: &EngineHandle) -> Vec<u32> {
    let root = engine.root(tokens(2, 300)).unwrap();
    let branches = engine.fork(root, BRANCHES).unwrap();
    let mut found = Vec::new();
    for step in 0..STEPS {
        let end = u32::try_from(300 + 16 * (step + 1)).unwrap();
        let extends = (0..)
            .zip(&branches)
            .map(|(ix, &branch)| Extend::given_with_values(branch, tokens(1000 * step as u64 + ix, 16), [end - 1]));
        let ended = ends(engine, extends.collect());
        found.extend(ended.iter().flat_map(|finish| finish.values[0].values.iter().map(|value| value.to_bits())));
    }
    found
}

#[test]
fn a_generator_and_a_scorer_compute_side_by_side_what_each_computes_alone() {
    let first = match Cuda::open(0) {
        Ok(first) => first,
        Err(error) => return crate::skip::skipped(format_args!("{error}")),
    };
    let alone = sampled(&generator(Cuda::open(0).unwrap()));
    let values_alone = values(&scorer(Cuda::open(0).unwrap()));
    let second = first.beside().unwrap();
    let (generator, scorer) = (generator(first), scorer(second));
    for round in 0..3 {
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            let samples = scope.spawn(|| sampled(&generator));
            assert!(values(&scorer) == values_alone, "round {round}: other values beside a generator");
            assert!(samples.join().unwrap() == alone, "round {round}: other samples beside a scorer");
        });
        eprintln!("round {round}: {:.2} s", began.elapsed().as_secs_f64());
        scorer.evict_held().unwrap();
    }
}
