//! Reads latent attention: its widths, which elements its rope turns together, and what scores are multiplied by.
//! `head_dim`, `num_key_value_heads` and the like say nothing about it: published configs have various numbers there.

use offshoot_backend::{LatentHeads, MOST_HEAD_DIM, RopePairs};
use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_CONTEXT, LARGEST_WIDTH, shown};
use super::super::layer::LatentSpec;
use super::super::rope::RopeConfig;
use super::description::{Description, LatentRule};

/// Epsilon of the norms of latents and of what queries are projected from, whatever `rms_norm_eps` says.
const EPS: f32 = 1e-6;

/// Fields of indexers, which choose the keys that a row reads.
const INDEXER: [&str; 4] = ["index_topk", "index_n_heads", "index_head_dim", "indexer_types"];

/// The latent attention of all layers; `hidden`: the width of the residual stream.
pub fn read(family: &Description, rule: LatentRule, fields: &Fields<'_>, hidden: usize) -> Result<LatentSpec> {
    refuse_others(family, fields)?;
    let heads = heads(rule, fields, hidden)?;
    let query_rank = fields.size("q_lora_rank", LARGEST_WIDTH)?;
    if rule.scaled_by_ranks && query_rank.is_none() {
        let expected = format!("a whole number from 1 to {LARGEST_WIDTH} ({family})");
        return Err(fields.error("q_lora_rank", expected, "nothing"));
    }
    let latent_scale = if rule.scaled_by_ranks { (hidden as f32 / heads.rank as f32).sqrt() } else { 1.0 };
    Ok(LatentSpec { heads, query_rank, eps: EPS, latent_scale })
}

/// Which elements are turned together.
pub fn rope_pairs(family: &Description, rule: LatentRule, fields: &Fields<'_>) -> Result<RopePairs> {
    const NAME: &str = "rope_interleave";
    let given = fields.flag(NAME)?.map(|pairs| if pairs { RopePairs::Neighbours } else { RopePairs::Halves });
    match (given, rule.pairs) {
        (Some(given), Some(fixed)) if given != fixed => {
            let is_neighbours = fixed == RopePairs::Neighbours;
            Err(fields.error(NAME, format!("{is_neighbours} ({family})"), (!is_neighbours).to_string()))
        }
        _ => Ok(given.or(rule.pairs).unwrap_or(RopePairs::Neighbours)),
    }
}

/// The factor of products of queries and keys. LongCat multiplies all of a query by `sqrt(hidden / q_lora_rank)`, which
/// is a factor of its scores.
pub fn scale(rule: LatentRule, latent: &LatentSpec, hidden: usize, rope: Option<&RopeConfig>) -> f32 {
    let LatentHeads { nope, rope: turned, .. } = latent.heads;
    let by_width = ((nope + turned) as f64).sqrt().recip();
    let by_rope = rope.map_or(1.0, |rope| rope.score_factor);
    let by_rank = match latent.query_rank {
        Some(rank) if rule.scaled_by_ranks => (hidden as f64 / rank as f64).sqrt(),
        _ => 1.0,
    };
    (by_width * by_rope * by_rank) as f32
}

fn heads(rule: LatentRule, fields: &Fields<'_>, hidden: usize) -> Result<LatentHeads> {
    let heads = fields.required_size("num_attention_heads", LARGEST_WIDTH)?;
    // All rows are at most twice as wide as one of these parts.
    let most = MOST_HEAD_DIM.min(LARGEST_WIDTH / heads);
    let part = |name: &str, most: usize, given: Option<usize>| {
        let expected = format!("an even number from 2 to {most}");
        match given {
            Some(size) if size.is_multiple_of(2) && size <= most => Ok(size),
            Some(size) => Err(fields.error(name, expected, size.to_string())),
            None => Err(fields.error(name, expected, "nothing")),
        }
    };
    let size = |name: &str| fields.size(name, LARGEST_WIDTH);
    let value = match size("v_head_dim")? {
        None if rule.derives_values => Some(hidden / heads).filter(|_| hidden.is_multiple_of(heads)),
        value => value,
    };
    let nope = part("qk_nope_head_dim", most, size("qk_nope_head_dim")?)?;
    if nope + 2 > most {
        let expected = format!("at most {}: a head has {most} elements at most, some of them rotated", most - 2);
        return Err(fields.error("qk_nope_head_dim", expected, nope.to_string()));
    }
    Ok(LatentHeads {
        heads,
        rank: part("kv_lora_rank", most, size("kv_lora_rank")?)?,
        nope,
        rope: part("qk_rope_head_dim", most - nope, size("qk_rope_head_dim")?)?,
        value: part("v_head_dim", most, value)?,
    })
}

/// Refuses what the families' models do not do, or what is not computed here.
fn refuse_others(family: &Description, fields: &Fields<'_>) -> Result<()> {
    if let Some((name, value)) = INDEXER.into_iter().find_map(|name| Some((name, fields.value(name)?))) {
        let expected = "nothing (models whose attention reads the keys that an indexer chooses are not supported)";
        return Err(fields.error(name, expected, shown(value)));
    }
    if let Some(window) = fields.size("sliding_window", LARGEST_CONTEXT)? {
        let expected = format!("nothing: layers of {family} read all positions");
        return Err(fields.error("sliding_window", expected, window.to_string()));
    }
    refuse_partial(fields)?;
    for rope in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = fields.object(rope)? {
            refuse_partial(&rope)?;
        }
    }
    Ok(())
}

fn refuse_partial(fields: &Fields<'_>) -> Result<()> {
    const NAME: &str = "partial_rotary_factor";
    match fields.positive(NAME)? {
        Some(fraction) if fraction != 1.0 => {
            let expected = "1, or nothing: qk_rope_head_dim says how many elements of a head are rotated";
            Err(fields.error(NAME, expected, fraction.to_string()))
        }
        _ => Ok(()),
    }
}
