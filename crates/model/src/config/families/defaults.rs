//! What transformers assumes where a config.json is silent. Published configs of Gemma 3 and 4 leave out most of these
//! fields; Llama, Mistral, Qwen and Phi-1 to 2 write all sizes, which stay required. So do all families with latent
//! attention write the widths of its heads.

use serde_json::{Map, Value, json};

use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_LAYERS, OwnNames};
use super::family::{Family, GEMMA4_UNIFIED};

/// Inserts the family's defaults where `object`, which has the fields of `written`, has no such key; a written `null`
/// stays. Returns the names that the file has for fields which are read by other ones.
pub fn lay_under(family: Family, written: &Fields<'_>, object: &mut Map<String, Value>) -> Result<OwnNames> {
    let own = rename(family, written, object)?;
    let Value::Object(defaults) = of(family) else { unreachable!("defaults are objects") };
    // In the older notation gpt-oss writes that nothing is scaled as `null`.
    let is_null = |name: &str| object.get(name).is_some_and(Value::is_null);
    let is_plain = family == Family::GptOss && is_null("rope_scaling") && !object.contains_key("rope_parameters");
    if is_plain {
        object.insert("rope_parameters".to_owned(), json!({"rope_type": "default"}));
    }
    if object.get("model_type").is_some_and(|name| name == GEMMA4_UNIFIED) {
        for (name, value) in
            [("max_position_embeddings", 262_144), ("sliding_window", 1024), ("hidden_size_per_layer_input", 0)]
        {
            object.entry(name).or_insert_with(|| value.into());
        }
    }
    for (name, value) in defaults {
        // A rope that is written as `null` is the family's own.
        if name == "rope_parameters" && object.get(&name).is_some_and(Value::is_null) {
            object.remove(&name);
        }
        object.entry(name).or_insert(value);
    }
    match family {
        Family::Gemma3 | Family::Olmo3 => complete_ropes(object),
        Family::Mistral4 => remove_fraction(object),
        _ => {}
    }
    Ok(own)
}

/// Gives fields of families with names of their own those of DeepSeek-V3, as transformers does. Where both are written,
/// the family's own counts.
fn rename(family: Family, written: &Fields<'_>, object: &mut Map<String, Value>) -> Result<OwnNames> {
    const LAYERS: &str = "num_layers";
    let names: &[(&'static str, &'static str)] = match family {
        Family::DeepseekV2 => &[("num_experts", "n_routed_experts")],
        Family::SarvamMla => &[
            ("num_experts", "n_routed_experts"),
            ("num_shared_experts", "n_shared_experts"),
            ("score_function", "scoring_func"),
            ("num_mtp_layers", "num_nextn_predict_layers"),
        ],
        Family::LongcatFlash => &[
            ("ffn_hidden_size", "intermediate_size"),
            ("expert_ffn_hidden_size", "moe_intermediate_size"),
            ("moe_topk", "num_experts_per_tok"),
        ],
        _ => &[],
    };
    let mut renamed = OwnNames::new();
    // Each of its layers has two attentions, and is read as two layers.
    let layers = if family == Family::LongcatFlash { written.size(LAYERS, LARGEST_LAYERS / 2)? } else { None };
    if let Some(layers) = layers {
        object.remove(LAYERS);
        object.insert("num_hidden_layers".to_owned(), (2 * layers).into());
    }
    for &(own, name) in names {
        if let Some(value) = object.remove(own) {
            object.insert(name.to_owned(), value);
            renamed.insert(name, own);
        }
    }
    Ok(renamed)
}

/// Mistral 4 says by a fraction of its heads once more how many of their elements are rotated, in its rope or beside
/// it.
fn remove_fraction(object: &mut Map<String, Value>) {
    const NAME: &str = "partial_rotary_factor";
    let size = |name: &str| object.get(name).and_then(Value::as_f64);
    let Some((nope, rope)) = size("qk_nope_head_dim").zip(size("qk_rope_head_dim")) else { return };
    let says_so = |value: &Value| value.as_f64().is_some_and(|x| (x - rope / (nope + rope)).abs() < 1e-6);
    object.retain(|name, value| name != NAME || !says_so(value));
    for field in ["rope_parameters", "rope_scaling"] {
        if let Some(Value::Object(rope)) = object.get_mut(field) {
            rope.retain(|name, value| name != NAME || !says_so(value));
        }
    }
}

/// Where only one kind of layers has a rope, the other one has a plain rope.
fn complete_ropes(object: &mut Map<String, Value>) {
    const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
    let Some(Value::Object(ropes)) = object.get_mut("rope_parameters") else { return };
    if KINDS.iter().any(|kind| ropes.contains_key(*kind)) {
        for kind in KINDS {
            ropes.entry(kind).or_insert_with(|| json!({"rope_type": "default"}));
        }
    }
}

fn of(family: Family) -> Value {
    match family {
        Family::Llama | Family::Mistral | Family::Ministral | Family::Phi => {
            json!({"bos_token_id": 1, "eos_token_id": 2})
        }
        Family::Qwen2 | Family::Qwen3 => json!({}),
        Family::Ministral3 => json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 34,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
            },
        }),
        Family::Mixtral => json!({
            "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_experts": 8, "bos_token_id": 1,
            "eos_token_id": 2,
        }),
        Family::Qwen3Moe => json!({
            "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
            "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
        }),
        Family::Qwen3Next => json!({
            "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
            "norm_topk_prob": true,
        }),
        Family::Qwen35 => json!({
            "vocab_size": 248_320, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        }),
        Family::Qwen35Moe => json!({
            "vocab_size": 248_320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
        }),
        Family::Phi3 => json!({
            "vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 32_000,
        }),
        Family::SmolLm3 => json!({
            "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
            "tie_word_embeddings": true, "bos_token_id": 128_000, "eos_token_id": 128_001,
        }),
        Family::Olmo2 | Family::Olmo3 => json!({
            "vocab_size": 50_304, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "eos_token_id": 50_279,
        }),
        Family::GptOss => json!({
            "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "attention_bias": true, "sliding_window": 128, "num_experts_per_tok": 4,
            "num_experts": 128, "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            },
        }),
        Family::Gemma2 => json!({
            "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
            "query_pre_attn_scalar": 256, "tie_word_embeddings": true, "sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1,
        }),
        Family::Gemma3 => json!({
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
            "query_pre_attn_scalar": 256, "tie_word_embeddings": true, "sliding_window": 4096,
            "bos_token_id": 2, "eos_token_id": 1,
        }),
        Family::Gemma4 => json!({
            "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
            "tie_word_embeddings": true, "sliding_window": 512, "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262_144, "bos_token_id": 2, "eos_token_id": 1, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        }),
        Family::DeepseekV2 => json!({
            "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "q_lora_rank": 1536, "n_routed_experts": 64,
            "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": false, "bos_token_id": 1,
            "eos_token_id": 2,
        }),
        Family::DeepseekV3 => json!({
            "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "max_position_embeddings": 4096, "q_lora_rank": 1536, "n_routed_experts": 256,
            "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8,
            "topk_group": 4, "num_experts_per_tok": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "bos_token_id": 0, "eos_token_id": 1,
        }),
        Family::Glm4MoeLite => json!({
            "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240, "num_hidden_layers": 47,
            "num_attention_heads": 20, "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5, "q_lora_rank": 768,
            "n_routed_experts": 64, "n_shared_experts": 1, "moe_intermediate_size": 1536, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 4, "norm_topk_prob": true, "routed_scaling_factor": 1.8, "bos_token_id": 0,
            "eos_token_id": 1,
        }),
        Family::Mistral4 => json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "max_position_embeddings": 1_048_576, "q_lora_rank": 1024,
            "n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 0,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
            "routed_scaling_factor": 1.0, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
            },
        }),
        Family::MiniCpm3 => json!({
            "vocab_size": 73_448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
            "num_attention_heads": 40, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "q_lora_rank": 768,
            "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": true, "bos_token_id": 1,
            "eos_token_id": 2,
        }),
        Family::SarvamMla => json!({
            "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
            "num_attention_heads": 64, "max_position_embeddings": 4096, "q_lora_rank": null, "n_routed_experts": 128,
            "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 1, "n_group": 1,
            "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "bos_token_id": 0, "eos_token_id": 1,
        }),
        Family::LongcatFlash => json!({
            "vocab_size": 131_072, "hidden_size": 6144, "intermediate_size": 12_288, "num_hidden_layers": 56,
            "num_attention_heads": 64, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "q_lora_rank": 1536,
            "n_routed_experts": 512, "zero_expert_num": 256, "moe_intermediate_size": 2048, "num_experts_per_tok": 12,
            "routed_scaling_factor": 6.0, "bos_token_id": 1, "eos_token_id": 2,
        }),
    }
}
