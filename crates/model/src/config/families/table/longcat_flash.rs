//! LongCat-Flash: each of its layers has two attentions and two dense blocks, and is read as two layers.

use serde_json::json;

use offshoot_backend::RopePairs;
use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_LAYERS};
use super::super::super::modules::{Halves, LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Description, ExpertLayers, ExpertRule, GroupRule, LatentRule, Normalise, PLAIN, PLAIN_ROPE, RopeRule,
    ScoreRule,
};
use super::super::keys::Why;

pub const LONGCAT_FLASH: Description = Description {
    name: "longcat_flash",
    renamed: &[
        ("ffn_hidden_size", "intermediate_size"),
        ("expert_ffn_hidden_size", "moe_intermediate_size"),
        ("moe_topk", "num_experts_per_tok"),
    ],
    adapt: Some(count_halves),
    defaults: || {
        json!({
            "vocab_size": 131_072, "hidden_size": 6144, "intermediate_size": 12_288, "num_hidden_layers": 56,
            "num_attention_heads": 64, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "q_lora_rank": 1536,
            "n_routed_experts": 512, "zero_expert_num": 256, "moe_intermediate_size": 2048, "num_experts_per_tok": 12,
            "routed_scaling_factor": 6.0, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[
        ("mla_scale_q_lora", "true"),
        ("mla_scale_kv_lora", "true"),
        ("attention_method", "\"MLA\""),
        ("zero_expert_type", "\"identity\""),
    ],
    // Biases of its routers are left out, as in transformers.
    ignored: &[("router_bias", Why::Unread)],
    rope: RopeRule::same(RopeDefaults { theta: 1e7, ..PLAIN_ROPE }),
    experts: Some(ExpertRule {
        layers: ExpertLayers::Opening,
        scores: ScoreRule::Softmax,
        normalise: Normalise::Never,
        groups: GroupRule::None,
        beside: Beside::Opening,
        ..ExpertRule::SIGMOID
    }),
    latent: Some(LatentRule { pairs: Some(RopePairs::Neighbours), scaled_by_ranks: true, ..LatentRule::DEEPSEEK }),
    modules: Modules {
        in_layer: &[
            ("mlp.gate_proj", "mlps.gate_proj"),
            ("mlp.up_proj", "mlps.up_proj"),
            ("mlp.down_proj", "mlps.down_proj"),
            ("mlp.gate", "mlp.router.classifier"),
            ("mlp.gate.e_score_correction_bias", "mlp.router.e_score_correction_bias"),
        ],
        halves: Halves::Numbered,
        ..LLAMA
    },
    ..PLAIN
};

fn count_halves(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const LAYERS: &str = "num_layers";
    if let Some(layers) = written.size(LAYERS, LARGEST_LAYERS / 2)? {
        canonical.object.remove(LAYERS);
        canonical.object.insert("num_hidden_layers".to_owned(), (2 * layers).into());
    }
    Ok(())
}
