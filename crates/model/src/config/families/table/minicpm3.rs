//! MiniCPM3: latent attention without experts, and factors of embeddings, blocks and logits.

use serde_json::json;

use offshoot_backend::RopePairs;

use super::super::description::{Biases, Description, Factor, GgufRule, LatentRule, PLAIN, ScaleRule};

pub const MINICPM3: Description = Description {
    name: "minicpm3",
    defaults: || {
        json!({
            "vocab_size": 73_448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
            "num_attention_heads": 40, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "q_lora_rank": 768,
            "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": true, "bos_token_id": 1,
            "eos_token_id": 2,
        })
    },
    biases: Biases::OF_ALL,
    scales: ScaleRule {
        embeddings: Factor::Field("scale_emb"),
        rounds_embeddings: true,
        branches: Factor::OverRootOfLayers("scale_depth"),
        // Its output layer reads rows divided by the hidden size in units of a small model's.
        logits: Factor::OverHidden("dim_model_base"),
        ..ScaleRule::NONE
    },
    latent: Some(LatentRule { pairs: Some(RopePairs::Halves), derives_values: true, ..LatentRule::DEEPSEEK }),
    gguf: GgufRule { trained_on_context: true, ..GgufRule::named("minicpm3") },
    ..PLAIN
};
