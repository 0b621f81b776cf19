//! DeepSeek-V2, and DeepSeek-V3 with Kimi K2 and Moonlight.

use serde_json::json;

use offshoot_backend::RopePairs;

use super::super::description::{
    Biases, Description, ExpertRule, GgufRule, GroupRule, LatentRule, Normalise, PLAIN, ScoreRule,
};

/// The `model_type` of Kimi K2, which is DeepSeek-V3 by another name.
pub const KIMI_K2: &str = "kimi_k2";

pub const DEEPSEEK_V2: Description = Description {
    name: "deepseek_v2",
    renamed: &[("num_experts", "n_routed_experts")],
    defaults: || {
        json!({
            "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "q_lora_rank": 1536, "n_routed_experts": 64,
            "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": false, "bos_token_id": 1,
            "eos_token_id": 2,
        })
    },
    biases: Biases::OF_ALL,
    experts: Some(ExpertRule {
        scores: ScoreRule::Softmax,
        // transformers ignores it, the published code normalises and does not scale.
        normalise: Normalise::Never,
        groups: GroupRule::ByMethod,
        choosing_bias: false,
        ..ExpertRule::SIGMOID
    }),
    latent: Some(LatentRule { pairs: Some(RopePairs::Neighbours), ..LatentRule::DEEPSEEK }),
    ..PLAIN
};

pub const DEEPSEEK_V3: Description = Description {
    name: "deepseek_v3",
    also: &[KIMI_K2],
    defaults: || {
        json!({
            "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "max_position_embeddings": 4096, "q_lora_rank": 1536, "n_routed_experts": 256,
            "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8,
            "topk_group": 4, "num_experts_per_tok": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "bos_token_id": 0, "eos_token_id": 1,
        })
    },
    experts: Some(ExpertRule::SIGMOID),
    latent: Some(LatentRule::DEEPSEEK),
    predicts_further: true,
    gguf: GgufRule::named("deepseek2"),
    ..PLAIN
};
