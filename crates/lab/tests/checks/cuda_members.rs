//! GPUs that divide the keys and values of a key head by positions: they compute what one GPU does, whatever the heads,
//! windows, sinks and dtypes, and so do branches that go on token by token. So do GPUs that divide the heads of
//! latents. With fewer than two GPUs that write into each other's memory every test says so and passes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use offshoot_backend::ranks::Ranks;
use offshoot_backend::{Backend, Dtype, KvDtype};
use offshoot_core::Error;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cuda::Cuda;
use offshoot_engine::{
    Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, Finish, ForkKind, PoolSize, SamplingParams, Stop,
    UniformKey,
};
use offshoot_model::{Decoder, LoadedRanks, ModelConfig, ModelWeights, Sequence, StepRunner};
use serde_json::{Value, json};

const VOCAB: u32 = 512;
const EOS: TokenId = TokenId(0);

/// A model of few key heads, the dtypes that it is computed in, and what of it is tried.
struct Case {
    others: Value,
    dtype: Dtype,
    kv: KvDtype,
}

impl Case {
    fn config(&self) -> ModelConfig {
        let mut fields = json!({
            "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 1,
            "intermediate_size": 512, "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": false, "eos_token_id": 0
        });
        fields.as_object_mut().unwrap().extend(self.others.as_object().unwrap().clone());
        ModelConfig::from_json(&fields.to_string()).unwrap()
    }

    /// Two layers round activations a dozen times each, to half a unit of their dtype, and partial sums of ranks as
    /// often, up or down: so much of the largest number two results may differ by, twice what a walk of so many steps
    /// goes. f32 is summed in another order.
    fn may_differ(&self) -> f32 {
        match self.dtype {
            Dtype::F32 => 1e-4,
            dtype => 2.0 * 24.0f32.sqrt() * dtype.rounding() as f32,
        }
    }
}

fn cases() -> Vec<Case> {
    let case = |dtype, kv, others| Case { others, dtype, kv };
    let plain = KvDtype::Model;
    let sinks = |kv_heads: usize| {
        let others = json!({ "model_type": "gpt_oss", "head_dim": 64, "num_local_experts": 2,
                             "num_experts_per_tok": 2, "sliding_window": 100, "num_key_value_heads": kv_heads });
        case(Dtype::Bf16, plain, others)
    };
    vec![
        case(Dtype::F32, plain, json!({ "model_type": "llama", "head_dim": 16 })),
        case(Dtype::F16, plain, json!({ "model_type": "llama", "head_dim": 32, "num_key_value_heads": 2 })),
        case(Dtype::F16, plain, json!({ "model_type": "llama", "head_dim": 64 })),
        case(Dtype::Bf16, plain, json!({ "model_type": "qwen3", "head_dim": 128 })),
        case(Dtype::F16, KvDtype::Fp8, json!({ "model_type": "llama", "head_dim": 64 })),
        case(Dtype::Bf16, KvDtype::Fp8, json!({ "model_type": "qwen3", "head_dim": 128 })),
        // Rounded keys and values where no kernel reads fp8.
        case(Dtype::F32, KvDtype::Fp8, json!({ "model_type": "llama", "head_dim": 16 })),
        case(
            Dtype::F16,
            plain,
            json!({ "model_type": "gemma2", "head_dim": 256, "sliding_window": 70, "query_pre_attn_scalar": 256 }),
        ),
        // All experts of a row: which of them are best may depend on a rounding.
        sinks(1),
        sinks(2),
    ]
}

/// Models of one latent a token, which the heads of all GPUs read.
fn latent_cases() -> [Case; 2] {
    let case = |dtype, rank: usize, rope: usize, head: usize| {
        let others = json!({ "model_type": "deepseek_v2", "num_key_value_heads": 16, "kv_lora_rank": rank,
                             "q_lora_rank": null, "qk_rope_head_dim": rope, "qk_nope_head_dim": head,
                             "v_head_dim": head, "first_k_dense_replace": 2, "n_routed_experts": 2,
                             "num_experts_per_tok": 2, "moe_intermediate_size": 64 });
        Case { others, dtype, kv: KvDtype::Model }
    };
    [case(Dtype::F32, 32, 16, 16), case(Dtype::Bf16, 512, 64, 128)]
}

/// All GPUs, for one test at a time. Two groups of ranks on the same GPUs can stand still for ever: a kernel of the one
/// waits for its peer, which waits on its GPU behind a kernel of the other.
fn gpus_alone() -> MutexGuard<'static, ()> {
    static GPUS: Mutex<()> = Mutex::new(());
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many GPUs that compute one model; `None`, and a word, where there are none.
fn ranks(count: usize) -> Option<Ranks<Cuda>> {
    match (0..count).map(Cuda::open).collect::<Result<Vec<_>, _>>() {
        Err(error @ Error::NoDevice { .. }) => {
            crate::skip::skipped(format_args!("{error}"));
            None
        }
        gpus => Some(Ranks::new(gpus.unwrap(), false).unwrap()),
    }
}

/// So many GPUs that divide positions of this model; `None`, and a word, where there are none.
fn members(count: usize, config: &ModelConfig) -> Option<Ranks<Cuda>> {
    let ranks = ranks(count)?;
    let shared = config.shared_keys(count, false, ranks.can_share_positions());
    if shared.members() == 1 {
        crate::skip::skipped(format_args!("{count} GPUs: {shared}"));
        return None;
    }
    Some(ranks.sharing_positions(shared.members()))
}

fn tokens(seed: u64, count: usize) -> Vec<TokenId> {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| TokenId(dice.within(1, VOCAB - 1))).collect()
}

/// The logits of all rows of a text: a chunk, one that begins inside of a page, and token by token.
fn logits<B: Backend>(backend: &mut B, case: &Case) -> Vec<f32> {
    backend.set_kv_dtype(case.kv);
    let mut decoder = Decoder::random(backend, case.config(), case.dtype, 3).unwrap();
    let text = tokens(1, 700);
    let mut sequence = Sequence::new(backend, &mut decoder, text.len()).unwrap();
    let mut found = Vec::new();
    let pieces = [300, 333].into_iter().chain(std::iter::repeat_n(1, 67));
    let mut from = 0;
    for piece in pieces {
        found.extend(sequence.extend(&text[from..from + piece], 0..piece as u32).unwrap());
        from += piece;
    }
    assert_eq!(from, text.len());
    found
}

/// Compares the logits of these ranks with those of one GPU, which are computed if they are missing.
fn compare(ranks: Ranks<Cuda>, count: usize, case: &Case, alone: &mut Option<Vec<f32>>) {
    let found = ranks.start(Ok).unwrap().try_together(|rank| Ok(logits(rank, case))).unwrap().swap_remove(0);
    let alone = alone.get_or_insert_with(|| logits(&mut Cuda::open(0).unwrap(), case));
    let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let worst = found.iter().zip(&*alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let what = format!("{} in {}, keys and values {:?}, on {count} GPUs", case.others, case.dtype, case.kv);
    eprintln!("{what}: {worst:.2e} of {largest:.2e}");
    assert!(found.len() == alone.len() && worst <= case.may_differ() * largest, "{what}: {worst} of {largest}");
}

#[test]
fn members_compute_what_one_gpu_computes() {
    let _alone = gpus_alone();
    for case in cases() {
        let config = case.config();
        let mut alone = None;
        for count in [2, 4, 8].into_iter().filter(|&count| count > config.attention().next().unwrap().heads.kv_heads) {
            let Some(ranks) = members(count, &config) else { break };
            compare(ranks, count, &case, &mut alone);
        }
    }
}

#[test]
fn gpus_that_divide_heads_of_latents_compute_what_one_gpu_computes() {
    let _alone = gpus_alone();
    for case in latent_cases() {
        let mut alone = None;
        for count in [2, 4, 8] {
            let Some(ranks) = ranks(count) else { break };
            compare(ranks, count, &case, &mut alone);
        }
    }
}

fn engine(model: Box<dyn StepRunner>, pages: Option<usize>) -> EngineHandle {
    let page_bytes = model.facts().page_bytes;
    let pool = PoolSize::Bytes(pages.unwrap_or(2000) * page_bytes);
    let config = EngineConfig { pool, swap_bytes: 2000 * page_bytes, check_plans: true, ..EngineConfig::default() };
    Engine::start(model, None, config).unwrap()
}

fn outcomes(engine: &EngineHandle, extends: Vec<Extend>) -> Vec<Finish> {
    let branches: Vec<_> = extends.iter().map(|extend| extend.branch).collect();
    let mut found: Vec<Option<Finish>> = vec![None; branches.len()];
    let mut extension = engine.start(extends).unwrap();
    while let Some(event) = extension.next() {
        let ix = branches.iter().position(|&branch| branch == event.id()).unwrap();
        match event {
            Event::Finished { finish, .. } => found[ix] = Some(finish),
            Event::Failed { error, .. } => panic!("{error}"),
            Event::Tokens { .. } => {}
        }
    }
    found.into_iter().map(|finish| finish.expect("every branch ends")).collect()
}

/// Makes the engine expect that extends end early, so that it lets in more branches than fit.
fn mislead(engine: &EngineHandle) {
    let root = engine.root(tokens(9, 5)).unwrap();
    let branches = engine.fork(root, 200).unwrap();
    let at_once = |(ordinal, &branch)| {
        let params = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..SamplingParams::default() };
        let uniforms = UniformKey::root(1, "early").child(ForkKind::Sample, ordinal);
        Extend { branch, continuation: Continuation::Sampled { params, stop: Stop::max_tokens(100), uniforms } }
    };
    outcomes(engine, (0..).zip(&branches).map(at_once).collect());
    engine.prune(&branches);
    engine.prune(&[root]);
}

/// Twelve branches of two prompts that begin alike, of so many tokens that most begin pages of their own.
fn drawn(engine: &EngineHandle) -> Vec<(Vec<TokenId>, Finish)> {
    let mut texts = Vec::new();
    let mut extends = Vec::new();
    for item in [11, 12] {
        let text = [tokens(1, 140), tokens(item, 45)].concat();
        let root = engine.root(text.clone()).unwrap();
        for (ordinal, branch) in (0..).zip(engine.fork(root, 6).unwrap()) {
            let uniforms = UniformKey::root(1, &item.to_string()).child(ForkKind::Sample, ordinal);
            let stop = Stop::max_tokens(300);
            let params = SamplingParams::default();
            extends.push(Extend { branch, continuation: Continuation::Sampled { params, stop, uniforms } });
            texts.push(text.clone());
        }
    }
    texts.into_iter().zip(outcomes(engine, extends)).collect()
}

/// What one GPU says of the tokens that members have drawn, which it computes in chunks.
#[test]
fn branches_of_members_go_on_as_on_one_gpu() {
    let _alone = gpus_alone();
    let (mut preemptions, mut is_tried) = (0, false);
    for case in cases().into_iter().filter(|case| case.kv == KvDtype::Model) {
        let config = case.config();
        let kv_heads = config.attention().next().unwrap().heads.kv_heads;
        for count in [2, 4].into_iter().filter(|&count| count > kv_heads) {
            // Room for all, and so little that branches are swapped.
            for pages in [None, Some(16)] {
                let Some(ranks) = members(count, &config) else { break };
                let weights = ModelWeights::random(case.config(), case.dtype, 3);
                let ranks = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
                let engine_of_members = engine(ranks, pages);
                mislead(&engine_of_members);
                let drawn = drawn(&engine_of_members);
                let metrics = engine_of_members.metrics().unwrap();
                drop(engine_of_members);
                let mut alone = Cuda::open(0).unwrap();
                let judge = engine(Decoder::of(&mut alone, &weights).unwrap().on(alone), None);
                let mut worst = 0.0f32;
                for (text, finish) in &drawn {
                    let branch = judge.root(text.clone()).unwrap();
                    let judged =
                        outcomes(&judge, vec![Extend::given(branch, finish.tokens.clone(), Some(0))]).remove(0);
                    judge.prune(&[branch]);
                    assert_eq!(judged.logprobs().len(), finish.tokens.len());
                    let differ = finish.logprobs().iter().zip(judged.logprobs()).map(|(a, b)| (a - b).abs());
                    worst = differ.fold(worst, f32::max);
                }
                let largest = drawn.iter().flat_map(|(_, finish)| finish.logprobs()).fold(0.0, |a: f32, x| a.max(-x));
                let what = format!("{} in {}, {count} GPUs, {pages:?} pages", case.others, case.dtype);
                eprintln!("{what}: {worst:.2e} of {largest:.2e}, {} preemptions", metrics.preemptions);
                assert!(worst <= case.may_differ() * largest, "{what}: {worst} of {largest}");
                (preemptions, is_tried) = (preemptions + metrics.preemptions, true);
            }
        }
    }
    assert!(preemptions > 0 || !is_tried, "branches find too much room");
}
