//! Mistral, Ministral, the text model of Ministral 3 and of Mistral's models since then, and Mixtral.

use serde_json::json;

use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{ExpertForm, LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::description::{
    Biases, Description, ExpertRule, KindRule, PLAIN, PLAIN_ROPE, RopeRule, WindowRule, WindowUse,
};

pub const MISTRAL: Description = Description {
    name: "mistral",
    defaults: || json!({"bos_token_id": 1, "eos_token_id": 2}),
    biases: Biases::NONE,
    kinds: KindRule::all(LayerKind::Sliding),
    windows: WindowRule { used: WindowUse::Always, default: WindowRule::DEFAULT },
    ..PLAIN
};

pub const MINISTRAL: Description = Description { name: "ministral", ..MISTRAL };

pub const MINISTRAL3: Description = Description {
    name: "ministral3",
    defaults: || {
        json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 34,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
            },
        })
    },
    biases: Biases::NONE,
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: WindowRule::WRITTEN,
    grows: true,
    ..PLAIN
};

pub const MIXTRAL: Description = Description {
    name: "mixtral",
    defaults: || {
        json!({
            "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_experts": 8, "bos_token_id": 1,
            "eos_token_id": 2,
        })
    },
    biases: Biases::NONE,
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: WindowRule::WRITTEN,
    rope: RopeRule::same(RopeDefaults { theta: 1e6, ..PLAIN_ROPE }),
    experts: Some(ExpertRule { width: ExpertWidthField::Intermediate, ..ExpertRule::SOFTMAX }),
    modules: Modules {
        in_layer: &[("mlp.gate", "block_sparse_moe.gate"), ("mlp.experts", "block_sparse_moe.experts")],
        experts: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
        ..LLAMA
    },
    ..PLAIN
};
