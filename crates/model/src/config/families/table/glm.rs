//! GLM-4 of 2025 (`glm4`), GLM-4.5 to 4.7 (`glm4_moe`), GLM-4.7 Flash (`glm4_moe_lite`) and Solar Open, with the text
//! models of their kin that read pictures.

use serde_json::{Value, json};

use offshoot_backend::RopePairs;
use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::canonical::Canonical;
use super::super::description::{
    Bias, Biases, Description, ExpertLayers, ExpertRule, GgufRule, HeadNormRule, NormPlaces, PLAIN, PLAIN_ROPE,
    RopeRule,
};
use super::deepseek::DEEPSEEK_V3;

/// The text model of GLM-4.1V, which is GLM-4 with other defaults.
const GLM4V: &str = "glm4v_text";

const HALF: RopeDefaults = RopeDefaults { fraction: 0.5, partial: true, ..PLAIN_ROPE };
const BIASES: Biases = Biases { qkv: Bias::Flag("attention_bias"), ..Biases::NONE };

pub const GLM4: Description = Description {
    name: "glm4",
    also: &[GLM4V],
    adapt: Some(derive_width),
    defaults: || {
        json!({
            "vocab_size": 151_552, "hidden_size": 4096, "intermediate_size": 13_696, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1.5625e-7, "attention_bias": true, "eos_token_id": [151_329, 151_336, 151_338],
        })
    },
    places: NormPlaces::Around,
    biases: BIASES,
    rope: RopeRule::same(RopeDefaults { pairs: RopePairs::Neighbours, ..HALF }),
    modules: Modules {
        in_layer: &[
            ("post_attention_layernorm", "post_self_attn_layernorm"),
            ("pre_feedforward_layernorm", "post_attention_layernorm"),
            ("post_feedforward_layernorm", "post_mlp_layernorm"),
        ],
        fused_up: true,
        ..LLAMA
    },
    ..PLAIN
};

pub const GLM4_MOE: Description = Description {
    name: "glm4_moe",
    also: &["glm4v_moe_text"],
    defaults: || {
        json!({
            "vocab_size": 151_552, "hidden_size": 4096, "intermediate_size": 10_944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1, "norm_topk_prob": true,
        })
    },
    biases: BIASES,
    rope: RopeRule::same(HALF),
    head_norm: Some(HeadNormRule { switch: Some("use_qk_norm"), ..HeadNormRule::BY_HEAD }),
    experts: Some(ExpertRule::SIGMOID),
    predicts_further: true,
    ..PLAIN
};

pub const SOLAR_OPEN: Description = Description {
    name: "solar_open",
    also: &[],
    defaults: || {
        json!({
            "vocab_size": 196_608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
            "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
            "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        })
    },
    fixed: &[("use_qk_norm", "false"), ("first_k_dense_replace", "0")],
    rope: RopeRule::same(RopeDefaults { theta: 1e6, partial: true, ..PLAIN_ROPE }),
    head_norm: None,
    experts: Some(ExpertRule { layers: ExpertLayers::All, ..ExpertRule::SIGMOID }),
    ..GLM4_MOE
};

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

/// Without `head_dim`, heads of GLM-4.1V are a part of the residual stream.
fn derive_width(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    if written.text("model_type")? == Some(GLM4V) {
        canonical.object.entry("head_dim").or_insert(Value::Null);
    }
    Ok(())
}
