//! Arcee's foundation models: a feed-forward block without a gate, whose activation is a squared relu.

use serde_json::json;

use super::super::description::{ActivationRule, Biases, Description, GgufRule, PLAIN};

pub const ARCEE: Description = Description {
    name: "arcee",
    defaults: || {
        json!({
            "vocab_size": 32_000, "hidden_size": 2560, "intermediate_size": 18_432, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": 128_000,
            "eos_token_id": 128_001,
        })
    },
    biases: Biases::OF_ALL,
    activation: ActivationRule::RELU_SQUARED,
    gguf: GgufRule::NONE,
    ..PLAIN
};
