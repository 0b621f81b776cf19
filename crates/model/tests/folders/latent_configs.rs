//! config.json files of families with latent attention: widths, ropes, scales, and what is refused.

use offshoot_backend::{Dtype, LatentHeads, RopePairs, Values};
use offshoot_model::ModelConfig;
use offshoot_model::config::{AttentionSpec, KeySource, LatentSpec};
use serde_json::{Value, json};

use crate::model_configs::read;

/// A small config of `family`: with its defaults, but for these sizes.
fn small(family: &str, changes: Value) -> Value {
    let mut config = json!({
        "model_type": family, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 24,
        "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 1024,
        "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 20,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

pub fn good(family: &str, changes: Value) -> ModelConfig {
    read(&small(family, changes), None).unwrap()
}

#[track_caller]
pub fn bad(family: &str, changes: Value, said: &[&str]) {
    let error = read(&small(family, changes), None).unwrap_err().to_string();
    for said in said {
        assert!(error.contains(said), "`{said}` is not in: {error}");
    }
}

fn attention(config: &ModelConfig) -> &AttentionSpec {
    let mut all = config.attention();
    let first = all.next().unwrap();
    assert!(all.all(|other| other == first));
    first
}

const ALL: [&str; 7] =
    ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "minicpm3", "sarvam_mla", "longcat_flash"];

/// Heads and the rank of queries.
type Known = (&'static str, usize, Option<usize>);

#[test]
fn defaults_are_those_of_transformers() {
    let known: [Known; 7] = [
        ("deepseek_v2", 32, Some(1536)),
        ("deepseek_v3", 128, Some(1536)),
        ("glm4_moe_lite", 20, Some(768)),
        ("mistral4", 32, Some(1024)),
        ("minicpm3", 40, Some(768)),
        ("sarvam_mla", 64, None),
        ("longcat_flash", 64, Some(1536)),
    ];
    for (name, heads, query_rank) in known {
        // Its only fields that are required.
        let config = json!({"model_type": name, "num_experts_per_tok": 6, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 24});
        let config = read(&config, None).unwrap();
        let widths = LatentHeads { heads, rank: 32, nope: 16, rope: 8, value: 24 };
        assert_eq!(config.latents(), Some(widths), "{name}");
        let layer = attention(&config);
        assert_eq!(layer.latent().unwrap().query_rank, query_rank, "{name}");
        assert_eq!(layer.rope.as_ref().unwrap().rotary, 8, "{name}");
    }
}

#[test]
fn layers_store_latents_alone() {
    for name in ALL {
        let config = good(name, json!({"head_dim": 7, "num_key_value_heads": 3, "rms_norm_eps": 1e-3}));
        let heads = LatentHeads { heads: 4, rank: 16, nope: 12, rope: 4, value: 20 };
        let layer = attention(&config);
        assert_eq!((config.family.name(), config.latents()), (name, Some(heads)));
        assert_eq!(layer.heads, heads.absorbed());
        assert_eq!((layer.heads.head_dim, layer.heads.values), (20, Values::InKeys(16)));
        assert_eq!(config.attention_kinds().len(), 1);
        assert_eq!(config.kv_bytes_per_token(|_| 2), config.layers.len() * 20 * 2, "{name}");
        let KeySource::Latent(LatentSpec { eps, query_rank: Some(24), latent_scale, .. }) = layer.keys else {
            panic!("{name}: {:?}", layer.keys)
        };
        let is_longcat = name == "longcat_flash";
        assert_eq!((eps, latent_scale), (1e-6, if is_longcat { 2.0 } else { 1.0 }), "{name}");
        // sqrt(64 / 24) is what LongCat multiplies queries by.
        let factor = if is_longcat { (64f64 / 24.0).sqrt() } else { 1.0 };
        let yarn = if name == "mistral4" { (0.1 * 128f64.ln() + 1.0).powi(2) } else { 1.0 };
        assert_eq!(layer.scale, (0.25 * factor * yarn) as f32, "{name}");
        let pairs = if name == "minicpm3" { RopePairs::Halves } else { RopePairs::Neighbours };
        assert_eq!(layer.rope.as_ref().unwrap().pairs, pairs, "{name}");
    }
}

#[test]
fn kimi_is_deepseek_v3_alone_and_in_its_wrapper() {
    let alone = |tied: bool| good("kimi_k2", json!({"tie_word_embeddings": tied}));
    assert_eq!(alone(false), good("kimi_k2", json!({})));
    // transformers ties the wrapper's output layer unless the wrapper itself says otherwise.
    for (outer, tied) in [(json!(null), true), (json!(true), true), (json!(false), false)] {
        for inner in [json!(null), json!(true), json!(false)] {
            let text = small("kimi_k2", json!({"tie_word_embeddings": inner}));
            let wrapped = json!({"model_type": "kimi_k25", "text_config": text, "tie_word_embeddings": outer});
            let config = read(&wrapped, None).unwrap();
            assert_eq!((config.family.name(), &config), ("deepseek_v3", &alone(tied)), "{outer}, {inner}");
        }
    }
}

#[test]
fn scores_are_multiplied_by_the_square_of_yarns_term() {
    let scale = |rope: Value| attention(&good("deepseek_v3", json!({"rope_scaling": rope}))).scale;
    let yarn = |all_dim: Value| {
        json!({
            "type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "mscale": 0.5,
            "mscale_all_dim": all_dim
        })
    };
    let term = 0.1 * 0.7 * 40f64.ln() + 1.0;
    assert_eq!(scale(yarn(json!(0.7))), (0.25 * term * term) as f32);
    assert_eq!([scale(yarn(json!(0))), scale(Value::Null)], [0.25; 2]);
    // Ministral 3 has the field, too; its attention is not latent.
    let other = json!({"model_type": "ministral3", "rope_scaling": yarn(json!(0.7)), "head_dim": 16});
    assert_eq!(read(&other, None).unwrap().attention().next().unwrap().scale, 0.25);
    let sarvam = json!({"rope_scaling": {"type": "deepseek_yarn", "factor": 40, "mscale_all_dim": 0.7}});
    assert_eq!(attention(&good("sarvam_mla", sarvam)).scale, (0.25 * term * term) as f32);
}

#[test]
fn scores_are_multiplied_where_a_rope_of_any_kind_is_stretched() {
    let scale = |family: &str, rope: Value| attention(&good(family, json!({"rope_scaling": rope}))).scale;
    let by = |factor: f64, all_dim: f64| (0.25 * (0.1 * all_dim * factor.ln() + 1.0).powi(2)) as f32;
    let linear = |all_dim: Value| json!({"type": "linear", "factor": 4, "mscale_all_dim": all_dim});
    for name in ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "minicpm3", "sarvam_mla"] {
        assert_eq!(scale(name, linear(json!(1))), by(4.0, 1.0), "{name}");
        assert_eq!([scale(name, linear(json!(0))), scale(name, linear(Value::Null))], [0.25; 2], "{name}");
    }
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "mscale_all_dim": 0.5
    });
    assert_eq!(scale("deepseek_v3", llama3), by(8.0, 0.5));
    let long = |factor: Value| {
        json!({
            "type": "longrope", "short_factor": [1, 1], "long_factor": [2, 3], "mscale_all_dim": 0.5, "factor": factor,
            "original_max_position_embeddings": 256
        })
    };
    assert_eq!(scale("minicpm3", long(json!(16))), by(16.0, 0.5));
    bad("minicpm3", json!({"rope_scaling": long(Value::Null)}), &["rope_scaling.factor", "mscale_all_dim", "nothing"]);
    // A rope that is not stretched is not.
    assert_eq!(scale("deepseek_v3", json!({"type": "default", "factor": 4, "mscale_all_dim": 1})), 0.25);
    // Attention that is not latent does not multiply.
    let other = json!({"model_type": "ministral3", "rope_scaling": linear(json!(1)), "head_dim": 16});
    assert_eq!(read(&other, None).unwrap().attention().next().unwrap().scale, 0.25);
}

#[test]
fn mistral4_grows_its_queries_and_names_the_part_that_is_rotated_twice() {
    let rope = |fraction: f64| {
        json!({"rope_parameters": {
            "rope_type": "yarn", "factor": 128.0, "rope_theta": 1e4, "original_max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.1, "partial_rotary_factor": fraction
        }})
    };
    let config = good("mistral4", rope(0.25));
    let layer = attention(&config);
    assert_eq!((layer.rope.as_ref().unwrap().rotary, layer.growth.unwrap().original_context), (4, 64));
    bad("mistral4", rope(0.5), &["rope_parameters.partial_rotary_factor", "qk_rope_head_dim", "0.5"]);
    bad("glm4_moe_lite", json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor", "0.5"]);
    // Beside the rope it says the same.
    assert_eq!(good("mistral4", json!({"partial_rotary_factor": 0.25})), good("mistral4", json!({})));
    bad("mistral4", json!({"partial_rotary_factor": 0.5}), &["`partial_rotary_factor`", "qk_rope_head_dim", "0.5"]);
}

#[test]
fn values_that_cannot_be_are_named() {
    for name in ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] {
        bad("deepseek_v3", json!({name: 0}), &[name, "found 0"]);
        bad("deepseek_v3", json!({name: 5}), &[name, "an even number from 2 to", "found 5"]);
        bad("deepseek_v3", json!({name: 514}), &[name, "an even number from 2 to", "found 514"]);
        for family in ALL.into_iter().filter(|&family| family != "minicpm3" || name != "v_head_dim") {
            bad(family, json!({name: null}), &[name, "an even number from 2 to", "found nothing"]);
            let mut config = small(family, json!({}));
            config.as_object_mut().unwrap().remove(name);
            let error = read(&config, None).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("found nothing"), "{family}: {error}");
        }
    }
    assert_eq!(good("minicpm3", json!({"v_head_dim": null})).latents().unwrap().value, 16);
    bad("deepseek_v3", json!({"q_lora_rank": 0}), &["q_lora_rank", "found 0"]);
    bad("longcat_flash", json!({"q_lora_rank": null}), &["q_lora_rank", "longcat_flash", "found nothing"]);
    bad("deepseek_v3", json!({"rope_interleave": "yes"}), &["rope_interleave", "true or false"]);
    bad("deepseek_v2", json!({"rope_interleave": false}), &["rope_interleave", "true (deepseek_v2)", "false"]);
    bad("minicpm3", json!({"rope_interleave": true}), &["rope_interleave", "false (minicpm3)", "true"]);
    let halves = good("deepseek_v3", json!({"rope_interleave": false}));
    assert_eq!(attention(&halves).rope.as_ref().unwrap().pairs, RopePairs::Halves);
    bad("longcat_flash", json!({"mla_scale_q_lora": false}), &["mla_scale_q_lora", "true (longcat_flash)"]);
    bad("longcat_flash", json!({"attention_method": "MHA"}), &["attention_method", "\"MHA\""]);
    let most = json!({"qk_nope_head_dim": 512});
    bad("deepseek_v3", most, &["qk_nope_head_dim", "at most 510", "rotated", "found 512"]);
    bad("deepseek_v3", json!({"qk_nope_head_dim": 510}), &["qk_rope_head_dim", "from 2 to 2", "found 4"]);
    bad("deepseek_v3", json!({"sliding_window": 64}), &["sliding_window", "found 64"]);
}

#[test]
fn devices_may_hold_maps_twice() {
    for changes in [json!({}), json!({"quantization_config": {"quant_method": "fp8"}})] {
        let config = good("deepseek_v3", changes);
        let counted = config.weight_bytes(Dtype::Bf16);
        assert_eq!(config.held_bytes(Dtype::Bf16, 1), counted);
        // Of each of four layers: 4 heads of 12 + 20 rows of 16, never as codes.
        assert_eq!(config.held_bytes(Dtype::Bf16, 2), counted + 4 * 4 * (12 + 20) * 16 * 2);
    }
}

#[test]
fn sparse_attention_is_refused_by_name() {
    for name in ["deepseek_v32", "glm_moe_dsa", "mistral_large4"] {
        bad(name, json!({}), &["model_type", name, "indexer"]);
        let wrapped = json!({"model_type": "kimi_k25", "text_config": small(name, json!({}))});
        let error = read(&wrapped, None).unwrap_err().to_string();
        assert!(error.contains("text_config.model_type") && error.contains("indexer"), "{error}");
    }
    for (name, value) in [("index_topk", json!(48)), ("index_n_heads", json!(4)), ("indexer_types", json!(["full"]))] {
        bad("deepseek_v3", json!({name: value}), &[name, "indexer"]);
        good("deepseek_v3", json!({name: null}));
    }
}
