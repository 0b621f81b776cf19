//! Granite 4: layers of Mamba-2, some with attention in its place, and a block that all rows share, alone or beside
//! experts. Factors as in Granite 3.

use serde_json::json;

use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::Modules;
use super::super::super::rope::LayerKind;
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Biases, Description, ExpertLayers, ExpertRule, KindRule, PLAIN, RopeRule, Rotated,
};
use super::super::recurrent;
use super::granite::{EXPERTS, NAMES, SCALES};

pub const GRANITEMOEHYBRID: Description = Description {
    name: "granitemoehybrid",
    renamed: &[("layers_block_type", "layer_types")],
    adapt: Some(name_widths),
    defaults: || {
        json!({
            "vocab_size": 32_000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
            "intermediate_size": 1024, "attention_multiplier": 1.0, "mamba_n_heads": 128, "mamba_d_head": "auto",
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
            "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("normalization_function", "\"rmsnorm\"")],
    biases: Biases::OF_ATTENTION,
    kinds: KindRule {
        words: &[("attention", LayerKind::Full), ("mamba", LayerKind::Linear)],
        ..KindRule::all(LayerKind::Linear)
    },
    rope: RopeRule { rotated: Rotated::If("position_embedding_type", "rope"), ..RopeRule::PLAIN },
    scales: SCALES,
    experts: Some(ExpertRule {
        layers: ExpertLayers::AnyCount,
        width: ExpertWidthField::MoeIntermediate,
        beside: Beside::Ungated("intermediate_size"),
        ..EXPERTS
    }),
    recurrent: Some(recurrent::mamba2),
    modules: Modules {
        in_layer: &[
            ("mlp.gate_up_proj", "shared_mlp.input_linear"),
            ("mlp.down_proj", "shared_mlp.output_linear"),
            ("mlp.gate", "block_sparse_moe.router.layer"),
            ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
            ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
            ("mlp.shared_experts.gate_up_proj", "shared_mlp.input_linear"),
            ("mlp.shared_experts.down_proj", "shared_mlp.output_linear"),
        ],
        ..NAMES
    },
    ..PLAIN
};

/// `intermediate_size` is the width of an expert, and the block that all rows share has a field of its own.
fn name_widths(_: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    if let Some(width) = canonical.object.remove("intermediate_size") {
        canonical.set("intermediate_size", "moe_intermediate_size", width);
    }
    if let Some(width) = canonical.object.remove("shared_intermediate_size") {
        canonical.set("shared_intermediate_size", "intermediate_size", width);
    }
    Ok(())
}
