//! Falcon-H1: attention and Mamba-2 beside each other in all layers, and factors of most of what is computed.

use serde_json::json;

use super::super::super::modules::{Halves, LLAMA, Modules};
use super::super::description::{Biases, Blocks, Description, Factor, PLAIN, ScaleRule};
use super::super::keys::Why;
use super::super::recurrent;

pub const FALCON_H1: Description = Description {
    name: "falcon_h1",
    defaults: || {
        json!({
            "vocab_size": 128_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
            "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_conv": 4, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("mamba_use_mlp", "true"), ("projectors_bias", "false")],
    ignored: &[("mamba_expand", Why::Unread), ("mlp_expansion_factor", Why::Unread), ("time_step_min", Why::Training)],
    eps: ("rms_norm_eps", 1e-5),
    blocks: Blocks::Beside,
    biases: Biases::OF_ALL,
    scales: ScaleRule {
        embeddings: Factor::Field("embedding_multiplier"),
        logits: Factor::Field("lm_head_multiplier"),
        ..ScaleRule::NONE
    },
    recurrent: Some(recurrent::falcon_h1),
    modules: Modules {
        in_layer: &[("mlp", "feed_forward"), ("post_attention_layernorm", "pre_ff_layernorm")],
        outside: &[("model.norm", "model.final_layernorm")],
        halves: Halves::Plain,
        ..LLAMA
    },
    ..PLAIN
};
