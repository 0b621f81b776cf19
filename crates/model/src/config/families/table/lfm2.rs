//! LFM2, dense and with experts: gated convolutions, some with attention in their place.

use serde_json::{Value, json};

use offshoot_backend::LeastSum;
use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_WIDTH};
use super::super::super::modules::{ExpertForm, LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Biases, Description, ExpertLayers, ExpertRule, GroupRule, HeadNormRule, KindRule, PLAIN, PLAIN_ROPE,
    RopeRule,
};
use super::super::keys::Why;
use super::super::recurrent;

pub const LFM2: Description = Description {
    name: "lfm2",
    renamed: &[("tie_embedding", "tie_word_embeddings"), ("block_ff_dim", "intermediate_size")],
    adapt: Some(adapt),
    defaults: || {
        json!({
            "vocab_size": 65_536, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 128_000, "tie_word_embeddings": true,
            "conv_L_cache": 3, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("block_use_swiglu", "true"), ("use_pos_enc", "true")],
    ignored: &[
        ("block_dim", Why::Repeats("hidden_size")),
        ("conv_dim", Why::Repeats("hidden_size")),
        ("conv_dim_out", Why::Repeats("hidden_size")),
        ("block_norm_eps", Why::Repeats("norm_eps")),
        ("full_attn_idxs", Why::Unread),
        ("block_multiple_of", Why::Unread),
        ("block_ffn_dim_multiplier", Why::Unread),
    ],
    eps: ("norm_eps", 1e-5),
    biases: Biases::NONE,
    kinds: KindRule { words: &[("conv", LayerKind::Linear)], ..KindRule::all(LayerKind::Full) },
    rope: RopeRule::same(RopeDefaults { theta: 1e6, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule::BY_HEAD),
    recurrent: Some(recurrent::conv),
    modules: Modules {
        in_layer: &[
            ("input_layernorm", "operator_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.o_proj", "self_attn.out_proj"),
            ("self_attn.q_norm", "self_attn.q_layernorm"),
            ("self_attn.k_norm", "self_attn.k_layernorm"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("mlp.gate", "feed_forward.gate"),
            ("mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"),
            ("mlp.experts", "feed_forward.experts"),
        ],
        outside: &[("model.norm", "model.embedding_norm")],
        experts: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
        ..LLAMA
    },
    ..PLAIN
};

pub const LFM2_MOE: Description = Description {
    name: "lfm2_moe",
    renamed: &[("tie_embedding", "tie_word_embeddings"), ("num_dense_layers", "first_k_dense_replace")],
    adapt: None,
    defaults: || {
        json!({
            "vocab_size": 65_536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 128_000, "tie_word_embeddings": true, "conv_L_cache": 3,
            "first_k_dense_replace": 2, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true,
            "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("use_expert_bias", "true")],
    experts: Some(ExpertRule {
        layers: ExpertLayers::Behind,
        count: &["num_experts"],
        groups: GroupRule::None,
        beside: Beside::Nothing,
        least: LeastSum::Millionth,
        ..ExpertRule::SIGMOID
    }),
    ..LFM2
};

/// `full_attn_idxs` lists the layers with attention where `layer_types` does not, and the width of a block is two
/// thirds of what is written, rounded up, if `block_auto_adjust_ff_dim` says so.
fn adapt(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const WIDTH: &str = "block_ff_dim";
    if written.value("layer_types").is_none() && written.value("full_attn_idxs").is_some() {
        canonical.list_attention(written, "full_attn_idxs", 32)?;
    }
    let name = if written.value(WIDTH).is_some() { WIDTH } else { "intermediate_size" };
    let width = written.size(name, LARGEST_WIDTH)?.unwrap_or(12_288);
    let width = match written.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        false => width,
        true => {
            let factor = written.positive("block_ffn_dim_multiplier")?;
            let third = 2 * width / 3;
            let scaled = factor.map_or(third, |factor| (factor * third as f64) as usize);
            let unit = written.size("block_multiple_of", LARGEST_WIDTH)?.unwrap_or(256);
            if factor.is_some() { scaled.next_multiple_of(unit) } else { scaled }
        }
    };
    canonical.set(name, "intermediate_size", Value::from(width));
    Ok(())
}
