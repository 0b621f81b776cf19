//! Hunyuan V1, dense and with experts: norms of queries and keys behind a rope whose base is stretched.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, shown, whole};
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{LLAMA, Modules};
use super::super::canonical::Canonical;
use super::super::description::{Beside, Description, ExpertRule, HeadNormRule, PLAIN};
use super::super::keys::Why;

/// Of pictures, and of heads that classify.
const BESIDE_TEXTS: &[(&str, Why)] = &[
    ("cla_share_factor", Why::Unread),
    ("anyres_*", Why::Pictures),
    ("class_num", Why::Unread),
    ("dense_list", Why::Unread),
    ("im_*_id", Why::Generation),
    ("mask_init_id", Why::Generation),
    ("moe_random_routing_dropped_token", Why::Training),
    ("num_media_embeds", Why::Pictures),
    ("pool_type", Why::Unread),
    ("skip_cls_token", Why::Pictures),
    ("text_*_id", Why::Generation),
    ("vit_*", Why::Pictures),
];

pub const HUNYUAN_V1_DENSE: Description = Description {
    name: "hunyuan_v1_dense",
    adapt: Some(stretch_base),
    defaults: || {
        json!({
            "vocab_size": 290_943, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "bos_token_id": 1,
            "eos_token_id": 2,
        })
    },
    fixed: &[
        ("use_qk_norm", "true"),
        ("use_cla", "false"),
        ("norm_type", r#""rms""#),
        ("use_rotary_pos_emb", "true"),
        ("mlp_bias", "false"),
    ],
    ignored: BESIDE_TEXTS,
    head_norm: Some(HeadNormRule { after_rope: true, ..HeadNormRule::BY_HEAD }),
    modules: Modules {
        in_layer: &[("self_attn.q_norm", "self_attn.query_layernorm"), ("self_attn.k_norm", "self_attn.key_layernorm")],
        ..LLAMA
    },
    ..PLAIN
};

pub const HUNYUAN_V1_MOE: Description = Description {
    name: "hunyuan_v1_moe",
    ignored: BESIDE_TEXTS,
    renamed: &[("moe_topk", "num_experts_per_tok")],
    adapt: Some(share_one),
    fixed: &[
        ("use_qk_norm", "true"),
        ("use_cla", "false"),
        ("norm_type", r#""rms""#),
        ("use_rotary_pos_emb", "true"),
        ("mlp_bias", "false"),
        ("use_mixed_mlp_moe", "true"),
        ("moe_layer_num_skipped", "0"),
        ("norm_topk_prob", "true"),
        ("group_limited_greedy", "false"),
        ("routed_scaling_factor", "1.0"),
    ],
    experts: Some(ExpertRule {
        width: ExpertWidthField::Intermediate,
        beside: Beside::Shared("n_shared_experts"),
        ..ExpertRule::SOFTMAX
    }),
    modules: Modules {
        in_layer: &[
            ("self_attn.q_norm", "self_attn.query_layernorm"),
            ("self_attn.k_norm", "self_attn.key_layernorm"),
            ("mlp.gate", "mlp.gate.wg"),
            ("mlp.shared_experts", "mlp.shared_mlp"),
        ],
        ..LLAMA
    },
    ..HUNYUAN_V1_DENSE
};

/// A "dynamic" rope with `alpha` is a plain one, with the base times `alpha^(d / (d - 2))` for heads of width `d`.
fn stretch_base(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = written.object(name)? else { continue };
        let Some(alpha) = rope.positive("alpha")? else { continue };
        let kind = rope.text("rope_type")?.or(rope.text("type")?);
        if kind != Some("dynamic") {
            let expected = "\"dynamic\", as there is an alpha";
            return Err(rope.error("type", expected, kind.map_or("nothing".to_owned(), |kind| format!("\"{kind}\""))));
        }
        let number = |name: &str| written.positive(name);
        let width = match number("head_dim")?.or(number("attention_head_dim")?) {
            Some(width) => width,
            None => number("hidden_size")?.unwrap_or(4096.0) / number("num_attention_heads")?.unwrap_or(32.0),
        };
        let theta = rope.positive("rope_theta")?.or(number("rope_theta")?).unwrap_or(10_000.0);
        canonical.object.insert("rope_theta".to_owned(), json!(theta * alpha.powf(width / (width - 2.0))));
        canonical.object.remove(name);
    }
    Ok(())
}

/// Experts, of which one is for all rows, have the width of `intermediate_size`, whatever else is said by layer.
fn share_one(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    stretch_base(written, canonical)?;
    let width = written.value("intermediate_size").and_then(whole).unwrap_or(11_008);
    for (name, only) in [("moe_intermediate_size", width), ("num_shared_expert", 1)] {
        let Some(said) = written.value(name) else { continue };
        let each = said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice);
        if each.iter().any(|said| whole(said) != Some(only)) {
            return Err(written.error(name, format!("{only}, or as often as there are layers"), shown(said)));
        }
    }
    canonical.object.insert("n_shared_experts".to_owned(), Value::from(1));
    Ok(())
}
