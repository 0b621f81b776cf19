//! Helium: llama whose rope turns neighbours.

use serde_json::json;

use offshoot_backend::RopePairs;

use super::super::super::rope::RopeDefaults;
use super::super::description::{Bias, Biases, Description, PLAIN, PLAIN_ROPE, RopeRule};

pub const HELIUM: Description = Description {
    name: "helium",
    defaults: || {
        json!({
            "vocab_size": 48_000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
            "num_attention_heads": 20, "num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-8, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    biases: Biases { out: Bias::Never, ..Biases::OF_ALL },
    rope: RopeRule::same(RopeDefaults { theta: 100_000.0, pairs: RopePairs::Neighbours, ..PLAIN_ROPE }),
    ..PLAIN
};
