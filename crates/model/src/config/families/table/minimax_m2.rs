//! MiniMax-M2: norms of all queries and keys, and experts in each layer.

use serde_json::json;

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_WIDTH, shown};
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{ExpertForm, LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Biases, Description, ExpertLayers, ExpertRule, GroupRule, HeadNormRule, Normalise, PLAIN, PLAIN_ROPE,
    RopeRule,
};
use super::super::keys::Why;

pub const MINIMAX_M2: Description = Description {
    name: "minimax_m2",
    adapt: Some(rotated_fraction),
    defaults: || {
        json!({
            "vocab_size": 200_064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
            "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196_608,
            "num_experts_per_tok": 8, "num_local_experts": 256, "bos_token_id": 200_034, "eos_token_id": 200_020,
        })
    },
    fixed: &[
        ("attention_bias", "false"),
        ("use_qk_norm", "true"),
        ("qk_norm_type", "\"per_layer\""),
        ("use_routing_bias", "true"),
        ("shared_intermediate_size", "0"),
        ("layernorm_full_attention_beta", "1.0"),
        ("layernorm_mlp_beta", "1.0"),
        ("shared_moe_mode", "\"sigmoid\""),
    ],
    // The second: of layers with linear attention, which MiniMax-M2 has not.
    ignored: &[("mlp_intermediate_size", Why::Unread), ("layernorm_linear_attention_beta", Why::Unread)],
    biases: Biases::NONE,
    rope: RopeRule::same(RopeDefaults { theta: 5e6, partial: true, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule::OF_ALL_HEADS),
    experts: Some(ExpertRule {
        layers: ExpertLayers::All,
        count: &["num_local_experts", "num_experts"],
        width: ExpertWidthField::Intermediate,
        normalise: Normalise::Always,
        groups: GroupRule::None,
        beside: Beside::Nothing,
        ..ExpertRule::SIGMOID
    }),
    predicts_further: true,
    modules: Modules {
        in_layer: &[
            ("mlp.gate", "block_sparse_moe.gate"),
            ("mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"),
            ("mlp.experts", "block_sparse_moe.experts"),
        ],
        experts: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
        ..LLAMA
    },
    ..PLAIN
};

/// `rotary_dim` says how many elements of a head are rotated; all layers have softmax attention, 1 in `attn_type_list`.
fn rotated_fraction(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const ROTARY: &str = "rotary_dim";
    const KINDS: &str = "attn_type_list";
    if let Some(rotary) = written.size(ROTARY, LARGEST_WIDTH)? {
        let head = written.size("head_dim", LARGEST_WIDTH)?.unwrap_or(128);
        canonical.set(ROTARY, "partial_rotary_factor", (rotary as f64 + 0.25) / head as f64);
    }
    let kinds = written.list(KINDS)?.unwrap_or_default();
    match kinds.iter().position(|kind| kind.as_u64() != Some(1)) {
        Some(layer) => {
            let name = format!("{KINDS}[{layer}]");
            Err(written.error(&name, "1 (layers with softmax attention)", shown(&kinds[layer])))
        }
        None => Ok(()),
    }
}
