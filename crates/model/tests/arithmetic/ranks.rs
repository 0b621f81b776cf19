//! Models on several ranks (`backend::ranks`), CPU backends that exchange sums: they compute what one device computes,
//! and with exact sums the same bits whatever the number of ranks.

use std::path::Path;

use offshoot_backend::ranks::{Rank, Ranked, Ranks};
use offshoot_backend::{Backend, Dtype, KvDtype};
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check;
use offshoot_model::{Decoder, MadeFormat, ModelConfig, ModelFolder, ModelWeights, Sequence, WeightChoice};
use serde_json::{Value, json};

pub fn ranks(isa: Isa, count: usize, exact: bool) -> Ranks<Cpu> {
    Ranks::new((0..count).map(|_| Cpu::with_isa(isa).on_a_share_of_cores(count)).collect(), exact).unwrap()
}

/// As a launch connects them: where several have the same key head, they divide its positions.
fn ranks_of(isa: Isa, count: usize, exact: bool, config: &ModelConfig) -> Ranks<Cpu> {
    let shared = config.shared_keys(count, exact, Cpu::DIVIDES_POSITIONS);
    ranks(isa, count, exact).sharing_positions(shared.members())
}

/// What all ranks find, each by `work` on its own thread: the same.
pub fn same_on<T: Send + PartialEq>(ranks: Ranks<Cpu>, work: impl Fn(&mut Rank<Cpu>) -> T + Sync) -> T {
    let members = ranks.start(Ok).unwrap();
    let mut found = members.try_together(|rank| Ok(work(rank))).unwrap();
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "ranks find the same");
    found.swap_remove(0)
}

/// Compares a golden model with transformers' results; the number of ranks that divided it.
fn hold_golden(golden: &Path) -> Vec<usize> {
    let folder = super::goldens::in_style(golden, "rope_parameters");
    let opened = ModelFolder::open(folder.path()).unwrap();
    let weights = ModelWeights::open(&opened).unwrap();
    let mut counts = Vec::new();
    for (count, exact) in [(1, true), (2, false), (2, true), (4, false)] {
        if opened.config.check_ranks(count, exact).is_err() {
            continue;
        }
        for isa in [Isa::Portable, *Isa::available().last().unwrap()] {
            same_on(ranks_of(isa, count, exact, &opened.config), |rank| {
                let mut model = Decoder::of(rank, &weights).unwrap();
                let report = check::golden(rank, &mut model, &folder.path().join("golden.json")).unwrap();
                assert!(report.passes(), "{} on {count} ranks, exact: {exact}, {isa}\n{report}", golden.display());
            });
        }
        counts.push(count);
    }
    counts
}

#[test]
fn goldens_hold_on_ranks() {
    let goldens =
        super::goldens::folders(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens"));
    let mut on_two = Vec::new();
    for golden in goldens.iter().filter(|golden| golden.join("config.rope_parameters.json").exists()) {
        if hold_golden(golden).contains(&2) {
            on_two.push(golden.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    // They have norms over all heads.
    let refused: Vec<String> = goldens
        .iter()
        .map(|golden| golden.file_name().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !on_two.contains(name))
        .collect();
    assert_eq!(refused, ["olmo2", "olmo3-yarn"]);
}

/// A model that eight ranks divide: `others` on top of the fields that all share.
fn config(others: &Value) -> ModelConfig {
    let mut fields = json!({
        "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8,
        "intermediate_size": 48, "vocab_size": 104, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false
    });
    let all = fields.as_object_mut().unwrap();
    all.extend(others.as_object().unwrap().clone());
    ModelConfig::from_json(&fields.to_string()).unwrap()
}

pub fn models() -> Vec<ModelConfig> {
    let experts = json!({ "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24 });
    let mut mixture = json!({ "model_type": "qwen3_moe", "norm_topk_prob": true });
    mixture.as_object_mut().unwrap().extend(experts.as_object().unwrap().clone());
    [
        json!({ "model_type": "llama", "vocab_size": 103 }),
        // Key heads that several ranks have.
        json!({ "model_type": "qwen2", "num_key_value_heads": 2 }),
        json!({ "model_type": "gemma2", "num_key_value_heads": 1, "sliding_window": 19, "query_pre_attn_scalar": 8 }),
        json!({ "model_type": "qwen2", "tie_word_embeddings": true }),
        json!({ "model_type": "qwen3", "use_sliding_window": true, "sliding_window": 21,
                "layer_types": ["sliding_attention", "full_attention"] }),
        json!({ "model_type": "gemma2", "sliding_window": 19, "query_pre_attn_scalar": 8 }),
        json!({ "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16 }),
        // Sinks and windows of key heads that several ranks have.
        json!({ "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
                "num_key_value_heads": 2 }),
        json!({ "model_type": "qwen3_5_text", "linear_num_key_heads": 8, "linear_num_value_heads": 16,
                "linear_key_head_dim": 8, "linear_value_head_dim": 4,
                "layer_types": ["linear_attention", "full_attention"] }),
        json!({ "model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12,
                "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "n_routed_experts": 8,
                "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24 }),
        // One product gives queries, which ranks divide, and latents, which all have.
        json!({ "model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": null, "qk_nope_head_dim": 12,
                "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 2, "n_routed_experts": 8 }),
        mixture,
    ]
    .iter()
    .map(config)
    .collect()
}

/// The logits of all rows of a text, computed in two steps.
fn logits(count: usize, exact: bool, config: &ModelConfig, dtype: Dtype) -> Vec<f32> {
    logits_of(ranks_of(*Isa::available().last().unwrap(), count, exact, config), config, dtype)
}

fn logits_of(ranks: Ranks<Cpu>, config: &ModelConfig, dtype: Dtype) -> Vec<f32> {
    let weights = ModelWeights::random(config.clone(), dtype, 3);
    same_on(ranks, |rank| logits_on(rank, &weights).into_iter().map(f32::to_bits).collect::<Vec<_>>())
        .into_iter()
        .map(f32::from_bits)
        .collect()
}

fn logits_on<B: Backend>(backend: &mut B, weights: &ModelWeights) -> Vec<f32> {
    let mut decoder = Decoder::of(backend, weights).unwrap();
    let tokens: Vec<TokenId> = (0..70u32).map(|i| TokenId((i * i + 31 * i) % 97)).collect();
    let mut sequence = Sequence::new(backend, &mut decoder, tokens.len()).unwrap();
    let (first, second) = tokens.split_at(45);
    let mut found = sequence.extend(first, 0..first.len() as u32).unwrap();
    found.extend(sequence.extend(second, 0..second.len() as u32).unwrap());
    found
}

#[test]
fn exact_sums_have_the_same_bits_on_every_number_of_ranks() {
    for config in models() {
        config.check_ranks(8, true).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let bits = |count| logits(count, true, &config, dtype).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let expected = bits(1);
            assert!(expected.iter().any(|&bits| bits != expected[0]));
            for count in [2, 4, 8] {
                assert!(bits(count) == expected, "{} in {dtype}: {count} ranks", config.family);
            }
        }
    }
}

/// Eight parts are added in another order than one sum of as many products: a few roundings of f32 a layer.
#[test]
fn ranks_compute_what_one_device_computes() {
    for config in models() {
        let mut cpu = Cpu::open().unwrap();
        let mut decoder = Decoder::random(&mut cpu, config.clone(), Dtype::F32, 3).unwrap();
        let tokens: Vec<TokenId> = (0..70u32).map(|i| TokenId((i * i + 31 * i) % 97)).collect();
        let alone = Sequence::new(&mut cpu, &mut decoder, 70).unwrap().extend(&tokens, 0..70).unwrap();
        let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (count, exact) in [(1, true), (2, false), (4, true), (4, false), (8, false)] {
            let found = logits(count, exact, &config, Dtype::F32);
            let worst = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(found.len() == alone.len() && worst <= 1e-4 * largest, "{}, {count}: {worst}", config.family);
        }
    }
}

/// A model of codes in groups of 32 inputs, which eight parts do not cut.
fn quantised(format: MadeFormat, intermediate: usize) -> ModelConfig {
    let fields = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 16, "intermediate_size": intermediate, "vocab_size": 104,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": false
    });
    let choice = WeightChoice { weights: Some(format), ..WeightChoice::default() };
    ModelConfig::from_json(&fields.to_string()).unwrap().with(choice, Path::new("a test")).unwrap()
}

#[test]
fn quantised_layers_are_divided_by_whole_groups() {
    for format in [MadeFormat::Int4, MadeFormat::Int8, MadeFormat::Fp8] {
        let config = quantised(format, 512);
        let bits = |count| logits(count, true, &config, Dtype::F32).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = bits(1);
        for count in [2, 4, 8] {
            assert!(bits(count) == expected, "{format:?} on {count} ranks");
        }
    }
    // Activations are not rounded with int4: only the order of sums differs.
    let config = quantised(MadeFormat::Int4, 512);
    let mut cpu = Cpu::open().unwrap();
    let mut decoder = Decoder::random(&mut cpu, config.clone(), Dtype::F32, 3).unwrap();
    let tokens: Vec<TokenId> = (0..70u32).map(|i| TokenId((i * i + 31 * i) % 97)).collect();
    let alone = Sequence::new(&mut cpu, &mut decoder, 70).unwrap().extend(&tokens, 0..70).unwrap();
    let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    for (count, exact) in [(2, false), (4, true)] {
        let found = logits(count, exact, &config, Dtype::F32);
        let worst = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-4 * largest, "{count}: {worst}");
    }
    let weights = ModelWeights::random(quantised(MadeFormat::Int4, 272), Dtype::F32, 3);
    let cut = ranks(Isa::Portable, 2, false).start(|mut rank| Decoder::of(&mut rank, &weights).map(drop));
    let cut = cut.err().unwrap().to_string();
    assert!(cut.contains("whole groups of 32 inputs") && cut.contains("136 of 272"), "{cut}");
}

/// A mixture whose experts are made of codes, `width` wide.
fn quantised_mixture(format: MadeFormat, width: usize) -> ModelConfig {
    let fields = json!({
        "model_type": "qwen3_moe", "norm_topk_prob": true, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": width, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 16, "intermediate_size": 256, "vocab_size": 104,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": false
    });
    let choice = WeightChoice { weights: Some(format), ..WeightChoice::default() };
    ModelConfig::from_json(&fields.to_string()).unwrap().with(choice, Path::new("a test")).unwrap()
}

/// OpenAI's experts, codes in groups of 32 inputs as they publish them.
fn mxfp4_mixture(width: usize) -> ModelConfig {
    config(&json!({
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
        "hidden_size": 64, "intermediate_size": width, "quantization_config": { "quant_method": "mxfp4" }
    }))
}

/// Experts whose codes are NVFP4, as ModelOpt makes them.
fn nvfp4_mixture(width: usize) -> ModelConfig {
    config(&json!({
        "model_type": "qwen3_moe", "norm_topk_prob": true, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": width, "hidden_size": 64, "num_attention_heads": 16, "head_dim": 16,
        "quantization_config": { "quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"] }
    }))
}

/// Experts whose codes are fp8 with scales of blocks.
fn fp8_block_mixture(width: usize) -> ModelConfig {
    config(&json!({
        "model_type": "qwen3_moe", "norm_topk_prob": true, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": width, "hidden_size": 128, "num_attention_heads": 16, "head_dim": 64,
        "quantization_config": {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]
        }
    }))
}

#[test]
fn quantised_experts_are_divided_as_dense_ones_are() {
    let mixtures = [
        quantised_mixture(MadeFormat::Int4, 256),
        quantised_mixture(MadeFormat::Fp8, 256),
        mxfp4_mixture(256),
        nvfp4_mixture(128),
        fp8_block_mixture(1024),
    ];
    for config in mixtures {
        config.check_ranks(8, true).unwrap();
        let (one, eight) = (ranks(Isa::Portable, 1, true), ranks(Isa::Portable, 8, true));
        let held = |ranks: &Ranks<Cpu>| config.held_where(|format| config.is_multiplied(ranks.first(), format));
        assert_eq!(held(&one).weight_bytes(Dtype::F32), config.weight_bytes(Dtype::F32), "{} stays so", config.family);
        assert_eq!(
            held(&eight).weight_bytes(Dtype::F32),
            config.weight_bytes(Dtype::F32),
            "{} stays so",
            config.family
        );
        let bits = |count| logits(count, true, &config, Dtype::F32).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = bits(1);
        for count in [2, 4, 8] {
            assert!(bits(count) == expected, "{} on {count} ranks", config.family);
        }
    }
    // Without rounded activations only the order of sums differs from one device's.
    for config in [quantised_mixture(MadeFormat::Int4, 256), mxfp4_mixture(256), nvfp4_mixture(128)] {
        let mut cpu = Cpu::open().unwrap();
        let mut decoder = Decoder::random(&mut cpu, config.clone(), Dtype::F32, 3).unwrap();
        let tokens: Vec<TokenId> = (0..70u32).map(|i| TokenId((i * i + 31 * i) % 97)).collect();
        let alone = Sequence::new(&mut cpu, &mut decoder, 70).unwrap().extend(&tokens, 0..70).unwrap();
        let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (count, exact) in [(2, false), (4, true), (8, false)] {
            let found = logits(count, exact, &config, Dtype::F32);
            let worst = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 1e-4 * largest, "{}, {count}: {worst}", config.family);
        }
    }
}

#[test]
fn experts_that_would_be_cut_within_groups_become_dense() {
    for config in [mxfp4_mixture(96), nvfp4_mixture(48)] {
        let held = |count, exact| {
            let backend = ranks(Isa::Portable, count, exact);
            config.held_where(|format| config.is_multiplied(backend.first(), format)).quantisation.is_some()
        };
        assert!(held(1, false) && !held(2, false) && !held(1, true), "{}", config.family);
        let bits = |count| logits(count, true, &config, Dtype::F32).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(2) == bits(1), "{}", config.family);
    }
}

#[test]
fn a_model_that_ranks_do_not_divide_is_refused_by_name() {
    let refused = |config: &ModelConfig, count, exact| config.check_ranks(count, exact).unwrap_err().to_string();
    let narrow = config(&json!({ "model_type": "llama", "num_attention_heads": 24, "num_key_value_heads": 6 }));
    let said = refused(&narrow, 4, false);
    for part in ["num_key_value_heads of layer 0", "`tensor_parallel` 4", "or a divisor", "1, 2 devices do", "6"] {
        assert!(said.contains(part), "{said}");
    }
    let odd = config(&json!({ "model_type": "llama", "intermediate_size": 44 }));
    assert!(odd.check_ranks(4, false).is_ok());
    assert!(refused(&odd, 4, true).contains("intermediate_size of layer 0"), "{}", refused(&odd, 4, true));
    let olmo = config(&json!({ "model_type": "olmo2" }));
    assert!(refused(&olmo, 2, false).contains("a norm over all heads"), "{}", refused(&olmo, 2, false));
    let three = Ranks::new((0..3).map(|_| Cpu::open().unwrap()).collect(), false).err().unwrap().to_string();
    assert!(three.contains("`tensor_parallel`") && three.contains('3'), "{three}");
}

/// Partial results of eight members are one sum more a row and head.
#[test]
fn positions_that_ranks_divide_give_what_one_device_gives() {
    let few_keys: Vec<ModelConfig> = models()
        .into_iter()
        .filter(|model| model.shared_keys(8, false, true).members() > 1)
        .chain([config(
            &json!({ "model_type": "qwen3_5_text", "linear_num_key_heads": 8, "linear_num_value_heads": 16,
            "linear_key_head_dim": 8, "linear_value_head_dim": 4, "num_key_value_heads": 1,
            "layer_types": ["linear_attention", "full_attention"] }),
        )])
        .collect();
    assert_eq!(few_keys.len(), 4);
    for config in few_keys {
        for isa in Isa::available() {
            let alone = logits_on(&mut Cpu::with_isa(isa), &ModelWeights::random(config.clone(), Dtype::F32, 3));
            let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            for count in [2, 4, 8] {
                let found = logits_of(ranks_of(isa, count, false, &config), &config, Dtype::F32);
                let worst = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst <= 1e-4 * largest, "{} on {count} ranks, {isa}: {worst} of {largest}", config.family);
            }
        }
    }
}

/// Of one layer, keys and values do not depend on how attention is summed, so all are rounded to the same e4m3.
#[test]
fn fp8_keys_that_ranks_divide_are_those_of_one_device() {
    let config = config(&json!({ "model_type": "qwen2", "num_key_value_heads": 1, "num_hidden_layers": 1 }));
    let weights = ModelWeights::random(config.clone(), Dtype::F32, 3);
    let mut cpu = Cpu::open().unwrap();
    cpu.set_kv_dtype(KvDtype::Fp8);
    let alone = logits_on(&mut cpu, &weights);
    let unrounded = logits_on(&mut Cpu::open().unwrap(), &weights);
    let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let worst = |found: &[f32]| found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    for count in [2, 4, 8] {
        let found = same_on(ranks_of(Isa::Portable, count, false, &config), |rank| {
            rank.set_kv_dtype(KvDtype::Fp8);
            worst(&logits_on(rank, &weights))
        });
        assert!(found <= 1e-4 * largest && worst(&unrounded) > 1e-4 * largest, "{count} ranks: {found} of {largest}");
    }
}

/// Of the same bytes, members hold as many positions as ranks that have each key head once.
#[test]
fn positions_that_ranks_divide_take_memory_once() {
    for kv_heads in [1, 2] {
        let config = config(&json!({ "model_type": "llama", "num_key_value_heads": kv_heads }));
        let heads = config.attention().next().unwrap().heads;
        let token = |ranks: &Ranks<Cpu>| {
            let backend = ranks.first();
            let page = backend.page_bytes(&config.kv_shape(Dtype::F32, 1));
            (page.is_multiple_of(backend.page_tokens() as usize)).then_some(page / backend.page_tokens() as usize)
        };
        let one = token(&ranks(Isa::Portable, 1, false)).unwrap();
        for count in [1, 2, 4, 8] {
            let ranks_of_model = ranks_of(Isa::Portable, count, false, &config);
            let backend = ranks_of_model.first();
            let members = count.div_ceil(kv_heads);
            assert_eq!(backend.sharing(), members);
            assert_eq!(token(&ranks_of_model), Some(one), "{kv_heads} key heads on {count} ranks");
            assert_eq!(backend.page_tokens() as usize, 16 * members);
            // Attention sums over whole tiles of each member.
            assert_eq!(backend.tile() as usize, 64 * members);
            assert_eq!(backend.kv_copies(heads), 1);
            assert_eq!(
                config.kv_bytes_per_token_on(backend, Dtype::F32),
                config.kv_bytes_per_token_on(ranks(Isa::Portable, 1, false).first(), Dtype::F32)
            );
        }
    }
}

/// Where there are fewer key heads than ranks, and each has all positions, pages and figures count every copy.
#[test]
fn key_heads_that_several_ranks_have_take_memory_on_each() {
    let config = config(&json!({ "model_type": "llama", "num_key_value_heads": 2 }));
    let heads = config.attention().next().unwrap().heads;
    let page = |count: usize| ranks(Isa::Portable, count, false).first().page_bytes(&config.kv_shape(Dtype::F32, 1));
    assert_eq!([page(2), page(4), page(8)], [page(1), 2 * page(1), 4 * page(1)]);
    for (count, copies) in [(1, 1), (2, 1), (4, 2), (8, 4)] {
        let ranks = ranks(Isa::Portable, count, false);
        let backend = ranks.first();
        assert_eq!(backend.kv_copies(heads), copies);
        // Keys and values of two heads of 8, in two layers.
        assert_eq!(config.kv_bytes_per_token_on(backend, Dtype::F32), copies * 2 * (2 * 2 * 8) * 4);
    }
}
