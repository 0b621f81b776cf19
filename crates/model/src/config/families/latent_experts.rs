//! Reads the mixtures of families with latent attention: which layers have one, and how their routers choose. The
//! fields are those of DeepSeek; `defaults` gives them to families that call them otherwise.

use offshoot_backend::{Gate, GroupMerit, Router, RouterGroups, RouterScores};
use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_EXPERTS, LARGEST_LAYERS, LARGEST_WIDTH, shown};
use super::super::layer::{Activation, ExpertWidthField, ExpertsSpec};
use super::family::Family;

const COUNT: &str = "n_routed_experts";
const CHOSEN: &str = "num_experts_per_tok";
const GROUPS: &str = "n_group";
const CHOSEN_GROUPS: &str = "topk_group";

/// The experts of layer `layer`; `None` if its feed-forward block is dense.
pub fn of_layer(family: Family, fields: &Fields<'_>, layer: usize) -> Result<Option<ExpertsSpec>> {
    if !is_sparse(family, fields, layer)? {
        return Ok(None);
    }
    let (count, chosen) =
        (fields.required_size(COUNT, LARGEST_EXPERTS)?, fields.required_size(CHOSEN, LARGEST_EXPERTS)?);
    let identities = if family == Family::LongcatFlash { identities(fields)? } else { 0 };
    let routed = count + identities;
    let scores = scores(family, fields)?;
    let groups = groups(family, fields, routed)?;
    let among = groups.map_or(routed, |groups| groups.chosen * (routed / groups.count));
    if chosen > among {
        let expected = match groups {
            None if identities == 0 => format!("at most {} ({count})", fields.name(COUNT)),
            None => format!("at most {} ({count}) and zero_expert_num ({identities})", fields.name(COUNT)),
            Some(_) => format!("at most {among}, the experts of {CHOSEN_GROUPS} groups"),
        };
        return Err(fields.error(CHOSEN, expected, chosen.to_string()));
    }
    Ok(Some(ExpertsSpec {
        count,
        width: fields.required_size("moe_intermediate_size", LARGEST_WIDTH)?,
        width_field: ExpertWidthField::MoeIntermediate,
        activation: Activation::Gated(Gate::Silu),
        latent: None,
        bias: false,
        router: Router { chosen, scores, groups, identities },
        choosing_bias: has_choosing_bias(family),
        scale: fields.positive("routed_scaling_factor")?.map_or(1.0, |scale| scale as f32),
        router_norm: None,
    }))
}

/// The intermediate size of the expert that all rows share.
pub fn shared_width(fields: &Fields<'_>) -> Result<Option<usize>> {
    const SHARED: &str = "n_shared_experts";
    let Some(shared) = fields.count(SHARED)?.filter(|&shared| shared > 0) else { return Ok(None) };
    const WIDTH: &str = "moe_intermediate_size";
    let one = fields.required_size(WIDTH, LARGEST_WIDTH)?;
    let width = usize::try_from(shared).ok().and_then(|shared| shared.checked_mul(one));
    match width.filter(|&width| width <= LARGEST_WIDTH) {
        Some(width) => Ok(Some(width)),
        None => {
            let expected = format!("at most {} ({} {one})", LARGEST_WIDTH / one, fields.name(WIDTH));
            Err(fields.error(SHARED, expected, shared.to_string()))
        }
    }
}

/// Whether layer `layer` has experts.
fn is_sparse(family: Family, fields: &Fields<'_>, layer: usize) -> Result<bool> {
    const STEP: &str = "moe_layer_freq";
    match fields.value(STEP) {
        Some(step) if step.as_f64() != Some(1.0) => {
            return Err(fields.error(STEP, "1: all layers behind the first ones have experts", shown(step)));
        }
        _ => {}
    }
    match family {
        Family::MiniCpm3 => Ok(false),
        // The second half of each layer adds what the experts of the first have computed.
        Family::LongcatFlash => {
            let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
            if layers % 2 == 1 {
                let expected = "an even number: twice the number of num_layers";
                return Err(fields.error("num_hidden_layers", expected, layers.to_string()));
            }
            Ok(layer.is_multiple_of(2))
        }
        Family::Glm4MoeLite => is_listed_sparse(fields, layer),
        _ => Ok(fields.count("first_k_dense_replace")?.is_none_or(|dense| layer as u64 >= dense)),
    }
}

/// What `mlp_layer_types` says of a layer; without it the first one is dense.
fn is_listed_sparse(fields: &Fields<'_>, layer: usize) -> Result<bool> {
    const NAME: &str = "mlp_layer_types";
    let Some(types) = fields.list(NAME)? else { return Ok(layer > 0) };
    let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
    if types.len() != layers {
        let expected = format!("one for each of num_hidden_layers ({layers})");
        return Err(fields.error(NAME, expected, types.len().to_string()));
    }
    match types[layer].as_str() {
        Some("dense") => Ok(false),
        Some("sparse") => Ok(true),
        _ => Err(fields.error(&format!("{NAME}[{layer}]"), "dense or sparse", shown(&types[layer]))),
    }
}

/// Experts of LongCat that give their input.
fn identities(fields: &Fields<'_>) -> Result<usize> {
    const KIND: &str = "zero_expert_type";
    const NUMBER: &str = "zero_expert_num";
    if let Some(kind) = fields.text(KIND)?.filter(|kind| *kind != "identity") {
        return Err(fields.error(KIND, "\"identity\"", format!("\"{kind}\"")));
    }
    let number = fields.count(NUMBER)?.unwrap_or(0);
    match usize::try_from(number).ok().filter(|&number| number <= LARGEST_EXPERTS) {
        Some(number) => Ok(number),
        None => Err(fields.error(NUMBER, format!("at most {LARGEST_EXPERTS}"), number.to_string())),
    }
}

fn has_choosing_bias(family: Family) -> bool {
    matches!(family, Family::DeepseekV3 | Family::Glm4MoeLite | Family::SarvamMla | Family::LongcatFlash)
}

/// How the family weighs experts. What a config says of it otherwise is refused.
fn scores(family: Family, fields: &Fields<'_>) -> Result<RouterScores> {
    const NORMALISE: &str = "norm_topk_prob";
    let is_sigmoid = has_choosing_bias(family) && family != Family::LongcatFlash;
    let name = if is_sigmoid { "sigmoid" } else { "softmax" };
    if let Some(given) = fields.text("scoring_func")?.filter(|given| *given != name) {
        return Err(fields.error("scoring_func", format!("\"{name}\" ({family})"), format!("\"{given}\"")));
    }
    if is_sigmoid && let Some(method) = fields.text("topk_method")?.filter(|method| *method != "noaux_tc") {
        return Err(fields.error("topk_method", format!("\"noaux_tc\" ({family})"), format!("\"{method}\"")));
    }
    let normalise = fields.flag(NORMALISE)?.unwrap_or(false);
    match family {
        // What it would mean differs: transformers ignores it, the published code normalises and does not scale.
        Family::DeepseekV2 | Family::LongcatFlash if normalise => {
            Err(fields.error(NORMALISE, format!("false ({family})"), "true"))
        }
        _ if is_sigmoid => Ok(RouterScores::Sigmoid { normalise }),
        _ => Ok(RouterScores::Softmax { normalise }),
    }
}

/// The groups among which the experts of a row are chosen; `None` if all of them may be.
fn groups(family: Family, fields: &Fields<'_>, routed: usize) -> Result<Option<RouterGroups>> {
    const METHOD: &str = "topk_method";
    let merit = match family {
        Family::LongcatFlash => return Ok(None),
        Family::DeepseekV2 => match fields.text(METHOD)? {
            None | Some("greedy") => return Ok(None),
            Some("group_limited_greedy") => GroupMerit::Best,
            Some(other) => {
                let expected = "\"greedy\" or \"group_limited_greedy\" (deepseek_v2)";
                return Err(fields.error(METHOD, expected, format!("\"{other}\"")));
            }
        },
        _ => GroupMerit::SumOfTwo,
    };
    let count = fields.required_size(GROUPS, LARGEST_EXPERTS)?;
    let chosen = fields.required_size(CHOSEN_GROUPS, LARGEST_EXPERTS)?;
    if !routed.is_multiple_of(count) {
        return Err(fields.error(GROUPS, format!("a divisor of {} ({routed})", fields.name(COUNT)), count.to_string()));
    }
    if chosen > count {
        return Err(fields.error(CHOSEN_GROUPS, format!("at most {GROUPS} ({count})"), chosen.to_string()));
    }
    // All groups are kept.
    if chosen == count {
        return Ok(None);
    }
    if routed / count < merit.experts() {
        let expected =
            format!("at most {}: a group is judged by {} experts", routed / merit.experts(), merit.experts());
        return Err(fields.error(GROUPS, expected, count.to_string()));
    }
    Ok(Some(RouterGroups { count, chosen, merit }))
}
