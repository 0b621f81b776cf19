//! Apertus: xIELU without a gate, whose numbers each layer has, and norms of queries and keys.

use serde_json::json;

use super::super::super::layer::Activation;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::description::{ActivationRule, Biases, Description, HeadNormRule, PLAIN, PLAIN_ROPE, RopeRule};

pub const APERTUS: Description = Description {
    name: "apertus",
    defaults: || {
        json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 65_536, "rms_norm_eps": 1e-5, "bos_token_id": 1,
            "eos_token_id": 2, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 1.2e7, "factor": 8.0, "original_max_position_embeddings": 8192,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            },
        })
    },
    fixed: &[("post_norm", "false"), ("qk_norm", "true"), ("mlp_bias", "false")],
    biases: Biases::OF_ATTENTION,
    activation: ActivationRule { field: "hidden_act", known: &[("xielu", Activation::Xielu)] },
    rope: RopeRule::same(RopeDefaults { theta: 1.2e7, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule::BY_HEAD),
    modules: Modules {
        in_layer: &[("input_layernorm", "attention_layernorm"), ("post_attention_layernorm", "feedforward_layernorm")],
        ..LLAMA
    },
    ..PLAIN
};
