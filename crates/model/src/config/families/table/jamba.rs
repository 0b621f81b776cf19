//! Jamba: layers of Mamba-1, some with attention in its place, without a rope; experts in some.

use serde_json::json;

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_EXPERTS, LARGEST_LAYERS};
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::canonical::Canonical;
use super::super::description::{
    Biases, Description, ExpertLayers, ExpertRule, KindRule, Normalise, PLAIN, RopeRule, Rotated,
};
use super::super::keys::Why;
use super::super::recurrent;

pub const JAMBA: Description = Description {
    name: "jamba",
    adapt: Some(list_layers),
    defaults: || {
        json!({
            "vocab_size": 65_536, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262_144,
            "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
            "mamba_dt_rank": "auto", "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("mamba_inner_layernorms", "true")],
    ignored: &[("calc_logits_for_entire_prompt", Why::Generation)],
    biases: Biases::NONE,
    kinds: KindRule::all(LayerKind::Linear),
    rope: RopeRule { rotated: Rotated::None, ..RopeRule::PLAIN },
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        width: ExpertWidthField::Intermediate,
        normalise: Normalise::Never,
        ..ExpertRule::SOFTMAX
    }),
    recurrent: Some(recurrent::scan),
    modules: Modules {
        in_layer: &[
            ("mlp", "feed_forward"),
            ("mlp.gate", "feed_forward.router"),
            ("post_attention_layernorm", "pre_ff_layernorm"),
        ],
        outside: &[("model.norm", "model.final_layernorm")],
        ..LLAMA
    },
    ..PLAIN
};

/// A period and an offset say which layers have attention, and two others which have experts; one expert is none.
fn list_layers(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    let size = |name: &str, usual: usize| Ok(written.size(name, LARGEST_LAYERS)?.unwrap_or(usual));
    let layers = size("num_hidden_layers", 32)?;
    let chosen = |period: &str, usual: usize, offset: &str, first: u64| -> Result<Vec<bool>> {
        let (period, offset) = (size(period, usual)?, written.count(offset)?.unwrap_or(first));
        Ok((0..layers).map(|layer| (layer % period) as u64 == offset).collect())
    };
    let attends = chosen("attn_layer_period", 8, "attn_layer_offset", 4)?;
    let kind = |&attends: &bool| if attends { LayerKind::Full.name() } else { LayerKind::Linear.name() };
    let kinds: Vec<&str> = attends.iter().map(kind).collect();
    let has_experts = written.size("num_experts", LARGEST_EXPERTS)?.unwrap_or(16) > 1;
    let sparse = chosen("expert_layer_period", 2, "expert_layer_offset", 1)?;
    let block = |&is_sparse: &bool| if is_sparse && has_experts { "sparse" } else { "dense" };
    let blocks: Vec<&str> = sparse.iter().map(block).collect();
    canonical.set("attn_layer_period", "layer_types", kinds);
    canonical.set("expert_layer_period", "mlp_layer_types", blocks);
    Ok(())
}
