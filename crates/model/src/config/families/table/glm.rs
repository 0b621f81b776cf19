//! GLM-4.7 Flash (`glm4_moe_lite`).

use serde_json::json;

use super::super::description::{Description, ExpertLayers, ExpertRule, GgufRule};
use super::deepseek::DEEPSEEK_V3;

pub const GLM4_MOE_LITE: Description = Description {
    name: "glm4_moe_lite",
    also: &[],
    defaults: || {
        json!({
            "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240, "num_hidden_layers": 47,
            "num_attention_heads": 20, "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5, "q_lora_rank": 768,
            "n_routed_experts": 64, "n_shared_experts": 1, "moe_intermediate_size": 1536, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 4, "norm_topk_prob": true, "routed_scaling_factor": 1.8, "bos_token_id": 0,
            "eos_token_id": 1,
        })
    },
    experts: Some(ExpertRule { layers: ExpertLayers::Listed, ..ExpertRule::SIGMOID }),
    gguf: GgufRule::NONE,
    ..DEEPSEEK_V3
};
