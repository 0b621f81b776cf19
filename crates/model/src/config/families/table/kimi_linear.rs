//! Kimi Linear: the delta rule by channel, some layers with latent attention without a rope in its place, and experts.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_LAYERS, shown, whole};
use super::super::super::modules::{ExpertForm, LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::canonical::Canonical;
use super::super::description::{
    Biases, Description, ExpertLayers, ExpertRule, KindRule, LatentRule, PLAIN, RopeRule, Rotated,
};
use super::super::recurrent;

pub const KIMI_LINEAR: Description = Description {
    name: "kimi_linear",
    renamed: &[
        ("model_max_length", "max_position_embeddings"),
        ("num_experts", "n_routed_experts"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_shared_experts", "n_shared_experts"),
        ("num_expert_group", "n_group"),
        ("moe_renormalize", "norm_topk_prob"),
        ("moe_router_activation_func", "scoring_func"),
    ],
    adapt: Some(list_kinds),
    defaults: || {
        json!({
            "vocab_size": 163_840, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
            "num_hidden_layers": 27, "num_attention_heads": 32, "max_position_embeddings": 1_048_576,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": true, "routed_scaling_factor": 2.446, "first_k_dense_replace": 1,
            "bos_token_id": 163_584, "eos_token_id": 163_586,
        })
    },
    fixed: &[("mla_use_nope", "true"), ("use_grouped_topk", "true")],
    eps: ("rms_norm_eps", 1e-5),
    biases: Biases::OF_ATTENTION,
    kinds: KindRule::all(LayerKind::Linear),
    rope: RopeRule { rotated: Rotated::None, ..RopeRule::PLAIN },
    experts: Some(ExpertRule { layers: ExpertLayers::Listed, ..ExpertRule::SIGMOID }),
    latent: Some(LatentRule::DEEPSEEK),
    recurrent: Some(recurrent::channel),
    modules: Modules {
        in_layer: &[
            ("mlp.gate", "block_sparse_moe.gate"),
            ("mlp.experts", "block_sparse_moe.experts"),
            ("mlp.shared_experts", "block_sparse_moe.shared_experts"),
        ],
        experts: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
        ..LLAMA
    },
    ..PLAIN
};

/// `linear_attn_config` lists the layers of both kinds, which it counts from 1. Without `mlp_layer_types`, all layers
/// but the first ones have experts.
fn list_kinds(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const FIRST: &str = "first_k_dense_replace";
    const LISTS: [(&str, LayerKind); 2] = [("full_attn_layers", LayerKind::Full), ("kda_layers", LayerKind::Linear)];
    let layers = written.size("num_hidden_layers", LARGEST_LAYERS)?.unwrap_or(27);
    if written.value("mlp_layer_types").is_none() {
        let first = written.count(FIRST)?.unwrap_or(1);
        let block = |layer: usize| if (layer as u64) < first { "dense" } else { "sparse" };
        canonical.set(FIRST, "mlp_layer_types", (0..layers).map(block).collect::<Vec<_>>());
    }
    let Some(own) = written.object("linear_attn_config")?.filter(|_| written.value("layer_types").is_none()) else {
        return Ok(());
    };
    let mut kinds = vec![None; layers];
    for (name, kind) in LISTS {
        for (ix, number) in own.list(name)?.unwrap_or_default().iter().enumerate() {
            let layer = whole(number).and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
            match layer.and_then(|layer| kinds.get_mut(layer)).filter(|listed| listed.is_none()) {
                Some(listed) => *listed = Some(kind),
                None => {
                    let expected = format!("a layer from 1 to num_hidden_layers ({layers}) that is listed once");
                    return Err(own.error(&format!("{name}[{ix}]"), expected, shown(number)));
                }
            }
        }
    }
    if let Some(layer) = kinds.iter().position(Option::is_none) {
        let expected = format!("each layer, here or among full_attn_layers ({layers} of num_hidden_layers)");
        return Err(own.error("kda_layers", expected, format!("no layer {}", layer + 1)));
    }
    let names: Vec<&str> = kinds.iter().flatten().map(|kind| kind.name()).collect();
    canonical.set("linear_attn_config", "layer_types", Value::from(names));
    Ok(())
}
