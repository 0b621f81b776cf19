//! Configs of models with gated delta-rule layers: Qwen3-Next and Qwen3.5 to 3.8, alone and in their wrappers.

use offshoot_backend::{DeltaHeads, HeadLayout, RouterScores, StateDtype};
use offshoot_model::ModelConfig;
use offshoot_model::config::{DeltaRuleModules, FeedForward, Norm, QueryGate, RecurrentSpec};
use serde_json::{Value, json};

use super::model_configs::{bad, read, with};

const FAMILIES: [&str; 3] = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"];

/// Four layers of a small model.
fn changes(family: &str) -> Value {
    json!({
        "model_type": family, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40
    })
}

fn changed(family: &str, more: Value) -> Value {
    let mut all = changes(family);
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn good(family: &str, more: Value) -> ModelConfig {
    read(&with(changed(family, more)), None).unwrap()
}

/// Which layers have attention.
fn attend(config: &ModelConfig) -> Vec<bool> {
    config.layers.iter().map(|layer| layer.attention().is_some()).collect()
}

#[test]
fn every_fourth_layer_attends_unless_something_else_is_said() {
    for family in FAMILIES {
        let config = good(family, json!({}));
        assert_eq!(attend(&config), [false, false, false, true], "{family}");
        let Some(RecurrentSpec::Delta(delta_rule)) = config.layers[0].recurrent() else { panic!("{family}") };
        assert_eq!(delta_rule.heads, DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 8 });
        let attention = config.layers[3].attention().unwrap();
        assert_eq!(attention.heads, HeadLayout::new(4, 2, 32));
        assert!(attention.gate == Some(QueryGate::InQueries) && !attention.qkv_bias && attention.window.is_none());
        assert_eq!(attention.rope.as_ref().unwrap().rotary, 8, "a quarter of a head");
        let norm = Norm::RmsPlusOne { eps: 1e-5 };
        assert_eq!((config.final_norm, attention.head_norm.unwrap().norm, delta_rule.eps), (norm, norm, 1e-5));
        assert_eq!(attend(&good(family, json!({"full_attention_interval": 2}))), [false, true, false, true]);
        let types = json!(["full_attention", "linear_attention", "linear_attention", "linear_attention"]);
        let listed = good(family, json!({"layer_types": types, "partial_rotary_factor": 0.5}));
        assert_eq!(attend(&listed), [true, false, false, false]);
        assert_eq!(listed.attention().next().unwrap().rope.as_ref().unwrap().rotary, 16);
        // A state: four matrices of 16 x 8, and four inputs of 96 channels; in three layers, f32.
        assert_eq!(config.state_bytes(StateDtype::F32), 3 * (4 * 16 * 8 + 4 * 96) * 4);
        assert_eq!(config.stored_heads().count(), 1, "only attention has keys");
    }
}

#[test]
fn experts_share_one_where_there_are_experts() {
    for family in ["qwen3_next", "qwen3_5_moe_text"] {
        let config = good(family, json!({}));
        let FeedForward::SharedExpert { shared, experts, gated: true } = config.layers[0].feed_forward else {
            panic!("{family}")
        };
        assert_eq!((shared.width, experts.count, experts.width, experts.router.chosen), (40, 8, 24, 2));
        assert_eq!(experts.router.scores, RouterScores::Softmax { normalise: true });
    }
    assert!(matches!(good("qwen3_5_text", json!({})).layers[0].feed_forward, FeedForward::Dense(_)));
    let mixed = good("qwen3_next", json!({"mlp_only_layers": [1], "norm_topk_prob": false}));
    assert!(matches!(mixed.layers[1].feed_forward, FeedForward::Dense(dense) if dense.width == 96));
    let scores = mixed.layers[0].feed_forward.experts().unwrap().router.scores;
    assert_eq!(scores, RouterScores::Softmax { normalise: false });
    let modules = FAMILIES.map(|family| good(family, json!({})).modules.delta_rule);
    assert_eq!(modules, [DeltaRuleModules::ByKeyHead, DeltaRuleModules::Separate, DeltaRuleModules::Separate]);
}

#[test]
fn wrappers_are_read_as_published() {
    let ropes = json!({"mrope_interleaved": true, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25,
        "rope_theta": 1e7, "rope_type": "default"});
    for (wrapper, text) in [("qwen3_5", "qwen3_5_text"), ("qwen3_5_moe", "qwen3_5_moe_text")] {
        let inner = with(changed(text, json!({"rope_parameters": ropes, "tie_word_embeddings": true})));
        let wrapped = |tied: Value| {
            json!({"model_type": wrapper, "text_config": inner, "vision_config": {},
            "tie_word_embeddings": tied})
        };
        let config = read(&wrapped(true.into()), None).unwrap();
        assert_eq!((config.family.to_string(), config.tied_embeddings), (wrapper.to_owned(), true));
        assert_eq!(config.attention().next().unwrap().rope.as_ref().unwrap().theta, 1e7);
        assert!(!read(&wrapped(Value::Null), None).unwrap().tied_embeddings, "the wrapper decides");
    }
}

#[test]
fn what_is_computed_otherwise_is_refused_in_one_sentence() {
    let bad = |family: &str, more: Value, said: &[&str]| bad(changed(family, more), said);
    for family in FAMILIES {
        let types = |kind: &str| json!({"layer_types": ["linear_attention", kind, "full_attention", "full_attention"]});
        bad(family, types("mamba"), &["`layer_types[1]`", "full_attention or linear_attention", "\"mamba\""]);
        bad(family, types("sliding_attention"), &["`layer_types[1]`", "linear_attention", "\"sliding_attention\""]);
        bad(family, json!({"layer_types": ["full_attention"]}), &["`layer_types`", "num_hidden_layers (4)", "found 1"]);
        bad(family, json!({"linear_conv_kernel_dim": 9}), &["`linear_conv_kernel_dim`", "from 2 to 8", "found 9"]);
        bad(
            family,
            json!({"linear_num_value_heads": 5}),
            &["`linear_num_value_heads`", "a multiple of linear_num_key_heads (2)", "found 5"],
        );
        bad(family, json!({"linear_key_head_dim": 4096}), &["`linear_key_head_dim`", "up to 1024", "found 4096"]);
        bad(family, json!({"linear_value_head_dim": 0}), &["`linear_value_head_dim`", "from 1", "found 0"]);
        bad(family, json!({"attn_output_gate": false}), &["`attn_output_gate`", "true", "found false"]);
        bad(family, json!({"hidden_act": "gelu"}), &["`hidden_act`", "silu", "gelu"]);
    }
}

/// Shapes as published; parameters by the tensors that a checkpoint has, without those that predict further tokens.
#[test]
fn published_shapes_have_the_parameters_they_are_named_for() {
    let known = [
        (json!({"model_type": "qwen3_next"}), NEXT),
        (json!({"model_type": "qwen3_5_text"}), DENSE),
        (json!({"model_type": "qwen3_5_moe_text"}), MIXTURE),
    ];
    for (config, (parameters, active)) in known {
        let config = read(&config, None).unwrap();
        assert_eq!((config.parameters(), config.active_parameters()), (parameters, active), "{}", config.family);
    }
}

/// Qwen3.8-27B declares itself as Qwen3.5 does.
#[test]
fn qwen3_8_is_read_as_what_it_declares() {
    let text = json!({"model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "vocab_size": 248_320, "full_attention_interval": 4,
        "attn_output_gate": true, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
        "max_position_embeddings": 262_144, "rope_parameters": {"mrope_interleaved": true,
            "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_type": "default"}});
    let whole = json!({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": text, "vision_config": {"model_type": "qwen3_5"}, "tie_word_embeddings": false});
    let config = read(&whole, None).unwrap();
    assert_eq!(config.family.to_string(), "qwen3_5");
    assert_eq!(attend(&config).iter().filter(|attends| **attends).count(), 16);
    let rotary = config.attention().map(|attention| attention.rope.as_ref().unwrap().rotary);
    assert!(rotary.eq([64; 16]));
    let billions = config.parameters() as f64 / 1e9;
    assert!((26.5..27.5).contains(&billions), "{billions}");
}

/// Qwen3-Next-80B-A3B, Qwen3.5-9B and Qwen3.5-35B-A3B: all parameters, and those that a token uses.
const NEXT: (usize, usize) = (79_674_391_296, 3_874_929_408);
const DENSE: (usize, usize) = (8_953_803_264, 8_953_803_264);
const MIXTURE: (usize, usize) = (34_660_610_688, 3_454_988_928);
