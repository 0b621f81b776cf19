//! Mistral 4: latent attention, and queries that grow.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::canonical::Canonical;
use super::super::description::{Description, ExpertRule, GgufRule, LatentRule, PLAIN, ScoreRule};

pub const MISTRAL4: Description = Description {
    name: "mistral4",
    adapt: Some(remove_fraction),
    defaults: || {
        json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "max_position_embeddings": 1_048_576, "q_lora_rank": 1024,
            "n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 0,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
            "routed_scaling_factor": 1.0, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
            },
        })
    },
    grows: true,
    experts: Some(ExpertRule { scores: ScoreRule::Softmax, choosing_bias: false, ..ExpertRule::SIGMOID }),
    latent: Some(LatentRule::DEEPSEEK),
    gguf: GgufRule::named("mistral4"),
    ..PLAIN
};

/// It says by a fraction of its heads once more how many of their elements are rotated, in its rope or beside it.
fn remove_fraction(_: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const NAME: &str = "partial_rotary_factor";
    let object = &mut canonical.object;
    let size = |name: &str| object.get(name).and_then(Value::as_f64);
    let Some((nope, rope)) = size("qk_nope_head_dim").zip(size("qk_rope_head_dim")) else { return Ok(()) };
    let says_so = |value: &Value| value.as_f64().is_some_and(|x| (x - rope / (nope + rope)).abs() < 1e-6);
    object.retain(|name, value| name != NAME || !says_so(value));
    for field in ["rope_parameters", "rope_scaling"] {
        if let Some(Value::Object(rope)) = object.get_mut(field) {
            rope.retain(|name, value| name != NAME || !says_so(value));
        }
    }
    Ok(())
}
