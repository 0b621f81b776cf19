//! What transformers assumes where a config.json is silent. Published configs of Gemma 3 and 4 leave out most of these
//! fields; other families write all sizes, which stay required.

use serde_json::{Map, Value, json};

use super::Family;

/// Inserts the family's defaults where `object` has no such key; a written `null` stays.
pub fn lay_under(family: Family, object: &mut Map<String, Value>) {
    let Value::Object(defaults) = of(family) else { unreachable!("defaults are objects") };
    for (name, value) in defaults {
        object.entry(name).or_insert(value);
    }
}

fn of(family: Family) -> Value {
    match family {
        Family::Mixtral | Family::Phi3 | Family::Olmo2 | Family::Olmo3 => {
            json!({"rms_norm_eps": 1e-5})
        }
        Family::GptOss => json!({"rms_norm_eps": 1e-5, "attention_bias": true}),
        Family::SmolLm3 => json!({"tie_word_embeddings": true}),
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
            "vocab_size_per_layer_input": 262_144, "bos_token_id": 2, "eos_token_id": 1,
        }),
        _ => json!({}),
    }
}
