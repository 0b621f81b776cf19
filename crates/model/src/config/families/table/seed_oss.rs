//! Seed-OSS: llama with biases of its own.

use serde_json::json;

use super::super::description::{Bias, Biases, Description, PLAIN};

pub const SEED_OSS: Description = Description {
    name: "seed_oss",
    defaults: || {
        json!({
            "vocab_size": 155_136, "hidden_size": 4096, "intermediate_size": 27_648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524_288,
            "attention_bias": true, "bos_token_id": 0, "eos_token_id": 2,
        })
    },
    biases: Biases { out: Bias::Flag("attention_out_bias"), ..Biases::OF_ALL },
    ..PLAIN
};
