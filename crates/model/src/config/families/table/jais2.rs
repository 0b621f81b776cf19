//! Jais 2: layer norms, and a squared relu without a gate.

use serde_json::json;

use super::super::description::{ActivationRule, Biases, Description, NormKind, PLAIN};

pub const JAIS2: Description = Description {
    name: "jais2",
    defaults: || {
        json!({
            "vocab_size": 150_272, "hidden_size": 3328, "intermediate_size": 26_624, "num_hidden_layers": 32,
            "num_attention_heads": 26, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "bos_token_id": 0,
            "eos_token_id": 150_024, "attention_bias": true, "mlp_bias": true,
        })
    },
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    biases: Biases::OF_ALL,
    activation: ActivationRule::RELU_SQUARED,
    ..PLAIN
};
