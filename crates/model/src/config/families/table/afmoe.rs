//! Trinity (`afmoe`): four norms a layer, gates of query heads, ropes in layers with windows alone, and sigmoid
//! routers.

use serde_json::json;

use super::super::super::layer::QueryGate;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::description::{
    Beside, Biases, Description, ExpertRule, Factor, GroupRule, HeadNormRule, KindRule, NormPlaces, Normalise, PLAIN,
    RopeRule, Rotated, ScaleRule, WindowRule,
};

pub const AFMOE: Description = Description {
    name: "afmoe",
    renamed: &[("num_dense_layers", "first_k_dense_replace"), ("route_scale", "routed_scaling_factor")],
    defaults: || {
        json!({
            "vocab_size": 200_192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1408,
            "num_hidden_layers": 32, "first_k_dense_replace": 1, "num_attention_heads": 16, "head_dim": 128,
            "max_position_embeddings": 16_384, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 6,
            "num_shared_experts": 2, "sliding_window": 1024,
        })
    },
    fixed: &[
        ("score_func", "\"sigmoid\""),
        ("route_norm", "true"),
        ("n_group", "1"),
        ("topk_group", "1"),
        ("num_expert_groups", "1"),
        ("num_limited_groups", "1"),
    ],
    places: NormPlaces::Around,
    biases: Biases::OF_ATTENTION,
    kinds: KindRule::every(Some("global_attn_every_n_layers"), 4, LayerKind::Sliding),
    windows: WindowRule::WRITTEN,
    rope: RopeRule { rotated: Rotated::Sliding, ..RopeRule::PLAIN },
    head_norm: Some(HeadNormRule::BY_HEAD),
    gate: Some(QueryGate::Own),
    scales: ScaleRule { embeddings: Factor::RootOfHiddenIf("mup_enabled"), ..ScaleRule::NONE },
    experts: Some(ExpertRule {
        count: &["num_experts"],
        normalise: Normalise::Always,
        groups: GroupRule::None,
        beside: Beside::Shared("num_shared_experts"),
        ..ExpertRule::SIGMOID
    }),
    modules: Modules {
        in_layer: &[
            ("pre_feedforward_layernorm", "pre_mlp_layernorm"),
            ("post_feedforward_layernorm", "post_mlp_layernorm"),
            ("mlp.gate", "mlp.router.gate"),
            ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
        ],
        ..LLAMA
    },
    ..PLAIN
};
