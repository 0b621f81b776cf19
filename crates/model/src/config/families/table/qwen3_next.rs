//! Qwen3-Next, and the text models of Qwen3.5 and 3.6, dense and with experts: layers of the delta rule beside gated
//! attention.

use serde_json::json;

use super::super::super::layer::QueryGate;
use super::super::super::modules::{DeltaRuleModules, LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::description::{
    Beside, Description, ExpertLayers, ExpertRule, HeadNormRule, KindRule, NormKind, Normalise, PLAIN, PLAIN_ROPE,
    RopeRule,
};
use super::super::recurrent;

/// What all of them have.
const HYBRID: Description = Description {
    fixed: &[("output_gate_type", "\"swish\"")],
    norm: NormKind::RmsPlusOne,
    kinds: KindRule::every(Some("full_attention_interval"), 4, LayerKind::Linear),
    rope: RopeRule::same(RopeDefaults { fraction: 0.25, partial: true, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule::BY_HEAD),
    gate: Some(QueryGate::InQueries),
    recurrent: Some(recurrent::delta),
    ..PLAIN
};

const EXPERTS: ExpertRule =
    ExpertRule { beside: Beside::Gated("shared_expert_intermediate_size"), ..ExpertRule::SOFTMAX };

pub const QWEN3_NEXT: Description = Description {
    name: "qwen3_next",
    defaults: || {
        json!({
            "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
            "norm_topk_prob": true,
        })
    },
    experts: Some(ExpertRule { layers: ExpertLayers::Stepped, normalise: Normalise::Written, ..EXPERTS }),
    modules: Modules { delta_rule: DeltaRuleModules::ByKeyHead, ..LLAMA },
    ..HYBRID
};

pub const QWEN3_5: Description = Description {
    name: "qwen3_5_text",
    defaults: || {
        json!({
            "vocab_size": 248_320, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        })
    },
    ..HYBRID
};

pub const QWEN3_5_MOE: Description = Description {
    name: "qwen3_5_moe_text",
    defaults: || {
        json!({
            "vocab_size": 248_320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
        })
    },
    experts: Some(EXPERTS),
    ..HYBRID
};
