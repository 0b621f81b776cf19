//! Nemotron 3 and 4, and Minitron of these: layer norms by one plus the weights, and a squared relu without a gate.

use serde_json::json;

use super::super::super::rope::RopeDefaults;
use super::super::description::{ActivationRule, Biases, Description, NormKind, PLAIN, PLAIN_ROPE, RopeRule};
use super::super::keys::Why;

pub const NEMOTRON: Description = Description {
    name: "nemotron",
    defaults: || {
        json!({
            "vocab_size": 256_000, "hidden_size": 6144, "intermediate_size": 24_576, "num_hidden_layers": 32,
            "num_attention_heads": 48, "max_position_embeddings": 4096, "norm_eps": 1e-5, "bos_token_id": 2,
            "eos_token_id": 3,
        })
    },
    ignored: &[("rope_percent", Why::Repeats("partial_rotary_factor"))],
    norm: NormKind::LayerPlusOne,
    eps: ("norm_eps", 1e-5),
    biases: Biases::OF_ALL,
    activation: ActivationRule::RELU_SQUARED,
    rope: RopeRule::same(RopeDefaults { fraction: 0.5, partial: true, ..PLAIN_ROPE }),
    ..PLAIN
};
