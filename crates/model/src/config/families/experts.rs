//! Reads the mixture of experts of a layer, where it has one.

use offshoot_backend::{Gate, Router, RouterScores};
use offshoot_core::error::{Error, Result};

use super::super::fields::{Fields, LARGEST_EXPERTS, LARGEST_WIDTH, shown, whole};
use super::super::layer::{Activation, ExpertWidthField, ExpertsSpec, Norm};
use super::family::Family;
use super::latent_experts;

/// The experts of layer `layer`; `None` if its feed-forward block is dense.
pub fn of_layer(family: Family, fields: &Fields<'_>, layer: usize, norm: Norm) -> Result<Option<ExpertsSpec>> {
    const CHOSEN: &str = "num_experts_per_tok";
    let softmax = |normalise: bool| RouterScores::Softmax { normalise };
    let silu = |width, normalise| read(fields, CHOSEN, width, Gate::Silu, softmax(normalise)).map(Some);
    let normalises = |default: bool| Ok::<_, Error>(fields.flag("norm_topk_prob")?.unwrap_or(default));
    match family {
        Family::Mixtral => silu(ExpertWidthField::Intermediate, true),
        Family::Qwen3Moe if is_sparse(fields, layer)? => silu(ExpertWidthField::MoeIntermediate, normalises(false)?),
        Family::Qwen3Next if is_sparse(fields, layer)? => silu(ExpertWidthField::MoeIntermediate, normalises(true)?),
        Family::Qwen35Moe => silu(ExpertWidthField::MoeIntermediate, true),
        Family::GptOss => {
            refuse_other_limit(fields)?;
            let scores = RouterScores::SoftmaxOfChosen;
            let experts = read(fields, CHOSEN, ExpertWidthField::Intermediate, Gate::Clamped, scores)?;
            Ok(Some(ExpertsSpec { bias: true, ..experts }))
        }
        Family::Gemma4 if fields.flag("enable_moe_block")?.unwrap_or(false) => {
            let width = ExpertWidthField::MoeIntermediate;
            let experts = read(fields, "top_k_experts", width, Gate::Gelu, softmax(true))?;
            Ok(Some(ExpertsSpec { router_norm: Some(norm), ..experts }))
        }
        _ if family.is_latent() => latent_experts::of_layer(family, fields, layer),
        _ => Ok(None),
    }
}

/// The intermediate size of the expert that all rows share, in layers with experts.
pub fn shared_width(family: Family, fields: &Fields<'_>) -> Result<Option<usize>> {
    match family {
        Family::Qwen3Next | Family::Qwen35Moe => {
            fields.required_size("shared_expert_intermediate_size", LARGEST_WIDTH).map(Some)
        }
        _ if family.is_latent() => latent_experts::shared_width(fields),
        _ => Ok(None),
    }
}

fn read(
    fields: &Fields<'_>,
    chosen: &str,
    width_field: ExpertWidthField,
    gate: Gate,
    scores: RouterScores,
) -> Result<ExpertsSpec> {
    // Mixtral's name, which transformers also writes for others, and the one of the other families.
    let names = ["num_local_experts", "num_experts"];
    let name = names.into_iter().find(|name| fields.value(name).is_some()).unwrap_or("num_experts");
    let count = fields.required_size(name, LARGEST_EXPERTS)?;
    let per_row = fields.required_size(chosen, LARGEST_EXPERTS)?;
    if per_row > count {
        return Err(fields.error(chosen, format!("at most {name} ({count})"), per_row.to_string()));
    }
    Ok(ExpertsSpec {
        count,
        width: fields.required_size(width_field.name(), LARGEST_WIDTH)?,
        width_field,
        activation: Activation::Gated(gate),
        latent: None,
        bias: false,
        router: Router::new(per_row, scores),
        choosing_bias: false,
        scale: 1.0,
        router_norm: None,
    })
}

/// Whether a layer of Qwen3-MoE or Qwen3-Next has experts.
fn is_sparse(fields: &Fields<'_>, layer: usize) -> Result<bool> {
    if fields.count("num_experts")? == Some(0) {
        return Ok(false);
    }
    let step = fields.size("decoder_sparse_step", LARGEST_WIDTH)?.unwrap_or(1);
    let mut is_dense = false;
    for (ix, dense) in fields.list("mlp_only_layers")?.unwrap_or_default().iter().enumerate() {
        let dense = whole(dense)
            .ok_or_else(|| fields.error(&format!("mlp_only_layers[{ix}]"), "the number of a layer", shown(dense)))?;
        is_dense |= dense == layer as u64;
    }
    Ok(!is_dense && (layer + 1).is_multiple_of(step))
}

/// The activation of gpt-oss is defined with this limit.
fn refuse_other_limit(fields: &Fields<'_>) -> Result<()> {
    match fields.positive("swiglu_limit")? {
        Some(limit) if limit as f32 != Gate::LIMIT => {
            Err(fields.error("swiglu_limit", Gate::LIMIT.to_string(), limit.to_string()))
        }
        _ => Ok(()),
    }
}
