//! Reads the mixture of experts of a layer, where it has one: which layers do, and how their routers choose.

use offshoot_backend::{Gate, GroupMerit, Router, RouterGroups, RouterScores};
use offshoot_core::error::Result;
use serde_json::Value;

use super::super::fields::{Fields, LARGEST_EXPERTS, LARGEST_LAYERS, LARGEST_WIDTH, shown, whole};
use super::super::layer::{Activation, ExpertsSpec, Norm};
use super::description::{Beside, Description, ExpertLayers, ExpertRule, GroupRule, Normalise, ScoreRule};

const GROUPS: &str = "n_group";
const CHOSEN_GROUPS: &str = "topk_group";

/// The experts of layer `layer`; `None` if its feed-forward block is dense.
pub fn of_layer(
    family: &Description,
    rule: &ExpertRule,
    fields: &Fields<'_>,
    layer: usize,
    activation: Activation,
    norm: Norm,
) -> Result<Option<ExpertsSpec>> {
    if !is_sparse(rule, fields, layer)? {
        return Ok(None);
    }
    if activation == Activation::Gated(Gate::Clamped) {
        refuse_other_limit(fields)?;
    }
    let last = rule.count[rule.count.len() - 1];
    let name = rule.count.iter().copied().find(|name| fields.value(name).is_some()).unwrap_or(last);
    let count = fields.required_size(name, LARGEST_EXPERTS)?;
    let chosen = chosen_of(fields, rule.chosen, layer)?;
    let identities = if matches!(rule.beside, Beside::Opening) { identities(fields)? } else { 0 };
    let routed = count + identities;
    let scores = scores(family, rule, fields)?;
    let groups = groups(family, rule, fields, routed, name)?;
    let among = groups.map_or(routed, |groups| groups.chosen * (routed / groups.count));
    if chosen > among {
        let expected = match groups {
            None if identities == 0 => format!("at most {} ({count})", fields.name(name)),
            None => format!("at most {} ({count}) and zero_expert_num ({identities})", fields.name(name)),
            Some(_) => format!("at most {among}, the experts of {CHOSEN_GROUPS} groups"),
        };
        return Err(fields.error(rule.chosen, expected, chosen.to_string()));
    }
    Ok(Some(ExpertsSpec {
        count,
        width: fields.required_size(rule.width.name(), LARGEST_WIDTH)?,
        width_field: rule.width,
        activation,
        latent: rule.latent.map(|name| fields.size(name, LARGEST_WIDTH)).transpose()?.flatten(),
        bias: rule.bias,
        router: Router { groups, identities, ..Router::new(chosen, scores) },
        choosing_bias: rule.choosing_bias,
        scale: fields.positive("routed_scaling_factor")?.map_or(1.0, |scale| scale as f32),
        router_norm: rule.router_norm.then_some(norm),
    }))
}

/// The intermediate size of the `count` experts that all rows share, which are one. `one`: that of a routed expert.
pub fn shared_width(count: &str, one: usize, fields: &Fields<'_>) -> Result<Option<usize>> {
    let Some(shared) = fields.count(count)?.filter(|&shared| shared > 0) else { return Ok(None) };
    let width = usize::try_from(shared).ok().and_then(|shared| shared.checked_mul(one));
    match width.filter(|&width| width <= LARGEST_WIDTH) {
        Some(width) => Ok(Some(width)),
        None => {
            let expected = format!("at most {} ({} {one})", LARGEST_WIDTH / one, fields.name("moe_intermediate_size"));
            Err(fields.error(count, expected, shared.to_string()))
        }
    }
}

/// How many experts a row chooses in a layer: one number for all layers, or a list by layer.
fn chosen_of(fields: &Fields<'_>, name: &str, layer: usize) -> Result<usize> {
    let Some(Value::Array(by_layer)) = fields.value(name) else { return fields.required_size(name, LARGEST_EXPERTS) };
    let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
    let own = by_layer.get(layer).filter(|_| by_layer.len() == layers).and_then(whole);
    let own = own.and_then(|own| usize::try_from(own).ok()).filter(|own| (1..=LARGEST_EXPERTS).contains(own));
    own.ok_or_else(|| {
        let expected = format!("a whole number from 1 to {LARGEST_EXPERTS} for each of num_hidden_layers ({layers})");
        fields.error(name, expected, shown(&Value::Array(by_layer.clone())))
    })
}

/// Whether layer `layer` has experts.
fn is_sparse(rule: &ExpertRule, fields: &Fields<'_>, layer: usize) -> Result<bool> {
    const STEP: &str = "moe_layer_freq";
    match fields.value(STEP) {
        Some(step) if step.as_f64() != Some(1.0) => {
            return Err(fields.error(STEP, "1: all layers behind the first ones have experts", shown(step)));
        }
        _ => {}
    }
    match rule.layers {
        ExpertLayers::All => Ok(true),
        ExpertLayers::Stepped => is_at_step(rule, fields, layer),
        ExpertLayers::Behind => Ok(fields.count("first_k_dense_replace")?.is_none_or(|dense| layer as u64 >= dense)),
        ExpertLayers::Listed => is_listed_sparse(fields, layer),
        ExpertLayers::If(name) => Ok(fields.flag(name)?.unwrap_or(false)),
        ExpertLayers::AnyCount => {
            Ok(rule.count.iter().map(|name| fields.count(name)).find_map(Result::transpose).transpose()? != Some(0))
        }
        ExpertLayers::Opening => {
            let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
            if layers % 2 == 1 {
                let expected = "an even number: twice the number of num_layers";
                return Err(fields.error("num_hidden_layers", expected, layers.to_string()));
            }
            Ok(layer.is_multiple_of(2))
        }
    }
}

fn is_at_step(rule: &ExpertRule, fields: &Fields<'_>, layer: usize) -> Result<bool> {
    for name in rule.count {
        if fields.count(name)? == Some(0) {
            return Ok(false);
        }
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

/// Experts that give their input.
fn identities(fields: &Fields<'_>) -> Result<usize> {
    const NUMBER: &str = "zero_expert_num";
    let number = fields.count(NUMBER)?.unwrap_or(0);
    match usize::try_from(number).ok().filter(|&number| number <= LARGEST_EXPERTS) {
        Some(number) => Ok(number),
        None => Err(fields.error(NUMBER, format!("at most {LARGEST_EXPERTS}"), number.to_string())),
    }
}

/// How the family weighs experts. What a config says of it otherwise is refused.
fn scores(family: &Description, rule: &ExpertRule, fields: &Fields<'_>) -> Result<RouterScores> {
    const NORMALISE: &str = "norm_topk_prob";
    let scores = match rule.scores {
        ScoreRule::OfChosen(name) => match fields.text(name)? {
            None | Some("softmax") => ScoreRule::SoftmaxOfChosen,
            Some("sigmoid") => ScoreRule::Sigmoid,
            Some(other) => return Err(fields.error(name, "softmax or sigmoid", format!("\"{other}\""))),
        },
        scores => scores,
    };
    let is_sigmoid = scores == ScoreRule::Sigmoid;
    let name = if is_sigmoid { "sigmoid" } else { "softmax" };
    if let Some(given) = fields.text("scoring_func")?.filter(|given| *given != name) {
        return Err(fields.error("scoring_func", format!("\"{name}\" ({family})"), format!("\"{given}\"")));
    }
    if is_sigmoid && let Some(method) = fields.text("topk_method")?.filter(|method| *method != "noaux_tc") {
        return Err(fields.error("topk_method", format!("\"noaux_tc\" ({family})"), format!("\"{method}\"")));
    }
    let written = || Ok(fields.flag(NORMALISE)?.unwrap_or(false));
    let normalise = match rule.normalise {
        Normalise::Always => true,
        Normalise::Written => written()?,
        Normalise::Never if written()? => {
            return Err(fields.error(NORMALISE, format!("false ({family})"), "true"));
        }
        Normalise::Never => false,
    };
    Ok(match scores {
        ScoreRule::Softmax => RouterScores::Softmax { normalise },
        ScoreRule::SoftmaxOfChosen | ScoreRule::OfChosen(_) => RouterScores::SoftmaxOfChosen,
        ScoreRule::SparseMixer => {
            const JITTER: &str = "router_jitter_noise";
            let jitter = fields.positive(JITTER)?.ok_or_else(|| fields.error(JITTER, "a number", "nothing"))?;
            RouterScores::SparseMixer { spread: (2.0 * jitter) as f32 }
        }
        ScoreRule::Sigmoid => RouterScores::Sigmoid { sum: normalise.then_some(rule.least) },
    })
}

/// The groups among which the experts of a row are chosen; `None` if all of them may be. `experts`: the field of the
/// number of experts.
fn groups(
    family: &Description,
    rule: &ExpertRule,
    fields: &Fields<'_>,
    routed: usize,
    experts: &str,
) -> Result<Option<RouterGroups>> {
    const METHOD: &str = "topk_method";
    let merit = match rule.groups {
        GroupRule::None => return Ok(None),
        GroupRule::ByMethod => match fields.text(METHOD)? {
            None | Some("greedy") => return Ok(None),
            Some("group_limited_greedy") => GroupMerit::Best,
            Some(other) => {
                let expected = format!("\"greedy\" or \"group_limited_greedy\" ({family})");
                return Err(fields.error(METHOD, expected, format!("\"{other}\"")));
            }
        },
        GroupRule::SumOfTwo => GroupMerit::SumOfTwo,
    };
    let count = fields.required_size(GROUPS, LARGEST_EXPERTS)?;
    let chosen = fields.required_size(CHOSEN_GROUPS, LARGEST_EXPERTS)?;
    if !routed.is_multiple_of(count) {
        return Err(fields.error(
            GROUPS,
            format!("a divisor of {} ({routed})", fields.name(experts)),
            count.to_string(),
        ));
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

/// The activation of gpt-oss is defined with this limit.
fn refuse_other_limit(fields: &Fields<'_>) -> Result<()> {
    match fields.positive("swiglu_limit")? {
        Some(limit) if limit as f32 != Gate::LIMIT => {
            Err(fields.error("swiglu_limit", Gate::LIMIT.to_string(), limit.to_string()))
        }
        _ => Ok(()),
    }
}
