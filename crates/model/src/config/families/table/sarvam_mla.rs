//! Sarvam: DeepSeek-V3 with other names of fields.

use serde_json::json;

use super::super::description::{Description, GgufRule};
use super::deepseek::DEEPSEEK_V3;

pub const SARVAM_MLA: Description = Description {
    name: "sarvam_mla",
    also: &[],
    renamed: &[
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
        ("score_function", "scoring_func"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    fixed: &[("moe_router_enable_expert_bias", "true")],
    defaults: || {
        json!({
            "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
            "num_attention_heads": 64, "max_position_embeddings": 4096, "q_lora_rank": null, "n_routed_experts": 128,
            "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 1, "n_group": 1,
            "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "bos_token_id": 0, "eos_token_id": 1,
        })
    },
    gguf: GgufRule::NONE,
    ..DEEPSEEK_V3
};
