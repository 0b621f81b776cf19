//! StableLM 2 and 3B: layer norms, and in the larger models both blocks side by side, with a norm for each head.

use serde_json::json;

use offshoot_backend::HeadNormSpan;

use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::description::{
    Bias, Biases, Description, HeadNormRule, NormKind, NormPlaces, PLAIN, PLAIN_ROPE, RopeRule,
};

pub const STABLELM: Description = Description {
    name: "stablelm",
    defaults: || {
        json!({
            "vocab_size": 50_304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0,
        })
    },
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    places: NormPlaces::If("use_parallel_residual", &NormPlaces::Parallel, &NormPlaces::Before),
    biases: Biases { qkv: Bias::Flag("use_qkv_bias"), ..Biases::NONE },
    rope: RopeRule::same(RopeDefaults { fraction: 0.25, partial: true, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule {
        span: HeadNormSpan::EachHead,
        switch: Some("qk_layernorm"),
        ..HeadNormRule::BY_HEAD
    }),
    modules: Modules {
        in_layer: &[("self_attn.q_norm", "self_attn.q_layernorm"), ("self_attn.k_norm", "self_attn.k_layernorm")],
        ..LLAMA
    },
    ..PLAIN
};
