//! Mamba-2 alone, without attention and feed-forward blocks.

use serde_json::json;

use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::description::{Blocks, Description, KindRule, PLAIN};
use super::super::keys::Why;
use super::super::recurrent;

pub const MAMBA2: Description = Description {
    name: "mamba2",
    renamed: &[
        ("num_heads", "mamba_n_heads"),
        ("head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("expand", "mamba_expand"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("use_bias", "mamba_proj_bias"),
    ],
    defaults: || {
        json!({
            "vocab_size": 32_768, "hidden_size": 4096, "num_hidden_layers": 64, "mamba_n_heads": 128,
            "mamba_d_head": 64, "mamba_n_groups": 8, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
            // A state holds any number of tokens: the config names none.
            "max_position_embeddings": 1_048_576, "bos_token_id": 0, "eos_token_id": 2,
        })
    },
    fixed: &[("rms_norm", "true")],
    ignored: &[("norm_before_gate", Why::Unread), ("time_step_min", Why::Training)],
    eps: ("layer_norm_epsilon", 1e-5),
    blocks: Blocks::One,
    kinds: KindRule::all(LayerKind::Linear).unlisted(),
    recurrent: Some(recurrent::mamba2),
    modules: Modules {
        in_layer: &[("mamba", "mixer"), ("input_layernorm", "norm")],
        outside: &[
            ("model.embed_tokens", "backbone.embeddings"),
            ("model.layers", "backbone.layers"),
            ("model.norm", "backbone.norm_f"),
        ],
        ..LLAMA
    },
    ..PLAIN
};
