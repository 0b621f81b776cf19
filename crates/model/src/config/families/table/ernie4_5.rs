//! ERNIE 4.5, dense and with experts.

use serde_json::{Value, json};

use offshoot_backend::RopePairs;
use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_LAYERS};
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Bias, Biases, Description, ExpertLayers, ExpertRule, PLAIN, PLAIN_ROPE, RopeRule,
};

pub const ERNIE4_5: Description = Description {
    name: "ernie4_5",
    defaults: || {
        json!({
            "vocab_size": 103_424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    biases: Biases {
        qkv: Bias::Flag("use_bias"),
        out: Bias::Flag("use_bias"),
        mlp: Bias::Flag("use_bias"),
        head: Bias::Never,
    },
    rope: RopeRule::same(RopeDefaults { theta: 500_000.0, pairs: RopePairs::Neighbours, ..PLAIN_ROPE }),
    ..PLAIN
};

pub const ERNIE4_5_MOE: Description = Description {
    name: "ernie4_5_moe",
    renamed: &[("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")],
    adapt: Some(list_sparse),
    defaults: || {
        json!({
            "vocab_size": 103_424, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 28,
            "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
            "moe_intermediate_size": 1536, "num_experts_per_tok": 6, "num_experts": 64, "moe_num_shared_experts": 2,
        })
    },
    fixed: &[("moe_gate", "\"topk\""), ("moe_use_aux_free", "true")],
    biases: Biases { head: Bias::Flag("use_bias"), ..ERNIE4_5.biases },
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        choosing_bias: true,
        beside: Beside::Shared("moe_num_shared_experts"),
        ..ExpertRule::SOFTMAX
    }),
    predicts_further: true,
    modules: Modules {
        in_layer: &[("mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias")],
        ..LLAMA
    },
    ..ERNIE4_5
};

/// Each `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index` has experts.
fn list_sparse(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const END: &str = "moe_layer_end_index";
    const LEAST: &str = "moe_norm_min";
    if let Some(least) = written.positive(LEAST)?.filter(|&least| least > 1e-6) {
        return Err(written.error(LEAST, "at most 1e-6: no sum of weights is smaller", least.to_string()));
    }
    let layers = written.size("num_hidden_layers", LARGEST_LAYERS)?.unwrap_or(28);
    let start = written.count("moe_layer_start_index")?.unwrap_or(1);
    let interval = written.size("moe_layer_interval", LARGEST_LAYERS)?.unwrap_or(1);
    let end = match written.value(END).and_then(Value::as_i64) {
        Some(-1) => layers as u64 - 1,
        _ => written.count(END)?.unwrap_or(layers as u64 - 1),
    };
    let is_sparse = |layer: usize| (layer + 1).is_multiple_of(interval) && (start..=end).contains(&(layer as u64));
    let kinds = (0..layers).map(|layer| if is_sparse(layer) { "sparse" } else { "dense" });
    canonical.object.insert("mlp_layer_types".to_owned(), kinds.collect());
    Ok(())
}
