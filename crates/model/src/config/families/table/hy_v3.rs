//! Hunyuan 3 (`hy_v3`): DeepSeek-V3's router with other names, beside plain attention.

use serde_json::json;

use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::description::{
    Beside, Biases, Description, ExpertLayers, ExpertRule, GroupRule, HeadNormRule, Normalise, PLAIN, PLAIN_ROPE,
    RopeRule,
};

pub const HY_V3: Description = Description {
    name: "hy_v3",
    renamed: &[("router_scaling_factor", "routed_scaling_factor")],
    defaults: || {
        json!({
            "vocab_size": 120_832, "hidden_size": 4096, "intermediate_size": 13_312, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1,
            "moe_intermediate_size": 1536, "routed_scaling_factor": 2.826,
        })
    },
    fixed: &[
        ("moe_router_use_sigmoid", "true"),
        ("moe_router_enable_expert_bias", "true"),
        ("qk_norm", "true"),
        ("route_norm", "true"),
    ],
    biases: Biases::OF_ALL,
    rope: RopeRule::same(RopeDefaults { theta: 11_158_840.0, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule::BY_HEAD),
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        count: &["num_experts", "num_local_experts"],
        normalise: Normalise::Always,
        groups: GroupRule::None,
        beside: Beside::Shared("num_shared_experts"),
        ..ExpertRule::SIGMOID
    }),
    predicts_further: true,
    modules: Modules {
        in_layer: &[
            ("mlp.gate", "mlp.router.gate"),
            ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
            ("mlp.shared_experts", "mlp.shared_mlp"),
        ],
        ..LLAMA
    },
    ..PLAIN
};
