//! Reads recurrent layers, one function for each kind, and refuses what is computed otherwise. The fields are those of
//! Qwen3.5, of Bamba for Mamba-2, of Jamba for Mamba-1, of LFM2 and of Kimi Linear; families with other names or words
//! have theirs rewritten to these.

use offshoot_backend::{DeltaHeads, GateFunction, GatedNorm, MOST_CONV_TOKENS, NormOrder};
use offshoot_core::error::Result;
use serde_json::Value;

use super::super::fields::{Fields, LARGEST_WIDTH, shown};
use super::super::recurrent::{ChannelSpec, ConvSpec, DeltaSpec, RecurrentSpec, ScanSpec, SumFactors, SumSpec};

/// The largest width of a head or of a state: published ones have up to 256. It bounds a layer's state, which grows
/// with their product.
const MOST_HEAD_WIDTH: usize = 1024;

/// The gated delta rule of Qwen3-Next, Qwen3.5 and Qwen3.6. `eps`: of the model's norms, here and below.
pub fn delta(fields: &Fields<'_>, eps: f32) -> Result<RecurrentSpec> {
    if fields.flag("attn_output_gate")? == Some(false) {
        return Err(fields.error("attn_output_gate", "true (attention of these models has a gate)", "false"));
    }
    let size = |name: &str| fields.required_size(name, LARGEST_WIDTH);
    let heads = DeltaHeads {
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: head_width(fields, "linear_key_head_dim", size("linear_num_key_heads")?)?,
        value_dim: head_width(fields, "linear_value_head_dim", size("linear_num_value_heads")?)?,
    };
    if !heads.value_heads.is_multiple_of(heads.key_heads) {
        let expected = format!("a multiple of linear_num_key_heads ({})", heads.key_heads);
        return Err(fields.error("linear_num_value_heads", expected, heads.value_heads.to_string()));
    }
    Ok(RecurrentSpec::Delta(DeltaSpec { heads, conv_tokens: conv_tokens(fields, "linear_conv_kernel_dim")?, eps }))
}

/// Kimi Linear's delta rule, in whose fields heads have one width for keys and values.
pub fn channel(fields: &Fields<'_>, eps: f32) -> Result<RecurrentSpec> {
    let own = fields.required_object("linear_attn_config", "the heads of layers with a state")?;
    let count = own.required_size("num_heads", LARGEST_WIDTH)?;
    let width = head_width(&own, "head_dim", count)?;
    let heads = DeltaHeads { key_heads: count, value_heads: count, key_dim: width, value_dim: width };
    let conv_tokens = conv_tokens(&own, "short_conv_kernel_size")?;
    Ok(RecurrentSpec::Channel(ChannelSpec { heads, conv_tokens, rank: width, eps }))
}

/// Mamba-2, whose output is multiplied by the gate's silu and normalised then, group by group.
pub fn mamba2(fields: &Fields<'_>, eps: f32) -> Result<RecurrentSpec> {
    let sum = sum(fields)?;
    let norm = GatedNorm {
        width: sum.heads.value_width() / sum.heads.key_heads,
        eps,
        gate: GateFunction::Silu,
        order: NormOrder::GateFirst,
    };
    Ok(RecurrentSpec::Sum(SumSpec { norm: Some(norm), ..sum }))
}

/// Falcon-H1's Mamba-2, which may have no norm, or one before the gate, and multiplies the parts of its input.
pub fn falcon_h1(fields: &Fields<'_>, eps: f32) -> Result<RecurrentSpec> {
    let sum = sum(fields)?;
    let order = match fields.flag("mamba_norm_before_gate")?.unwrap_or(true) {
        true => NormOrder::NormFirst,
        false => NormOrder::GateFirst,
    };
    let width = sum.heads.value_width() / sum.heads.key_heads;
    let has_norm = fields.flag("mamba_rms_norm")?.unwrap_or(false);
    let norm = has_norm.then_some(GatedNorm { width, eps, gate: GateFunction::Silu, order });
    let of_input = factor(fields, "ssm_in_multiplier")?;
    if of_input != 1.0 && sum.proj_bias {
        let expected = "1, as the bias of the projection is not multiplied by it (mamba_proj_bias)";
        return Err(fields.error("ssm_in_multiplier", expected, of_input.to_string()));
    }
    let [gate, values, keys, queries, steps] = factors(fields, "ssm_multipliers")?.map(|factor| of_input * factor);
    let factors = Some(SumFactors { gate, values, keys, queries, steps });
    Ok(RecurrentSpec::Sum(SumSpec { norm, factors, ..sum }))
}

/// Jamba's Mamba-1, with norms of what steps are made of, of inputs and of outputs.
pub fn scan(fields: &Fields<'_>, eps: f32) -> Result<RecurrentSpec> {
    let hidden = fields.required_size("hidden_size", LARGEST_WIDTH)?;
    let expand = fields.required_size("mamba_expand", LARGEST_WIDTH / hidden)?;
    let rank = match is_auto(fields, "mamba_dt_rank") {
        true => hidden.div_ceil(16),
        false => fields.required_size("mamba_dt_rank", LARGEST_WIDTH)?,
    };
    Ok(RecurrentSpec::Scan(ScanSpec {
        channels: expand * hidden,
        state: fields.required_size("mamba_d_state", MOST_HEAD_WIDTH)?,
        rank,
        conv_tokens: conv_tokens(fields, "mamba_d_conv")?,
        conv_bias: fields.flag("mamba_conv_bias")?.unwrap_or(true),
        proj_bias: fields.flag("mamba_proj_bias")?.unwrap_or(false),
        eps,
    }))
}

/// LFM2's gated convolution, as wide as the residual stream.
pub fn conv(fields: &Fields<'_>, _: f32) -> Result<RecurrentSpec> {
    Ok(RecurrentSpec::Conv(ConvSpec {
        width: fields.required_size("hidden_size", LARGEST_WIDTH)?,
        tokens: conv_tokens(fields, "conv_L_cache")?,
        bias: fields.flag("conv_bias")?.unwrap_or(false),
    }))
}

/// What all forms of Mamba-2 have.
fn sum(fields: &Fields<'_>) -> Result<SumSpec> {
    const HEADS: &str = "mamba_n_heads";
    const WIDTH: &str = "mamba_d_head";
    const GROUPS: &str = "mamba_n_groups";
    let (value_heads, key_heads) =
        (fields.required_size(HEADS, LARGEST_WIDTH)?, fields.required_size(GROUPS, LARGEST_WIDTH)?);
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a divisor of {} ({value_heads})", fields.name(HEADS));
        return Err(fields.error(GROUPS, expected, key_heads.to_string()));
    }
    let all = width(fields)?;
    let value_dim = match (is_auto(fields, WIDTH), all) {
        (true, Some((width, what))) if !width.is_multiple_of(value_heads) => {
            return Err(fields.error(HEADS, format!("a divisor of {what} ({width})"), value_heads.to_string()));
        }
        (true, Some((width, _))) => width / value_heads,
        (true, None) | (false, _) => head_width(fields, WIDTH, value_heads)?,
    };
    if let Some((width, what)) = all.filter(|(width, _)| *width != value_heads * value_dim) {
        let expected = format!("{what} ({width}) over {} ({value_heads})", fields.name(HEADS));
        return Err(fields.error(WIDTH, expected, value_dim.to_string()));
    }
    Ok(SumSpec {
        heads: DeltaHeads {
            key_heads,
            value_heads,
            key_dim: head_width(fields, "mamba_d_state", key_heads)?,
            value_dim,
        },
        conv_tokens: conv_tokens(fields, "mamba_d_conv")?,
        conv_bias: fields.flag("mamba_conv_bias")?.unwrap_or(true),
        proj_bias: fields.flag("mamba_proj_bias")?.unwrap_or(false),
        limits: limits(fields)?,
        norm: None,
        factors: None,
    })
}

/// The width of all heads, where the config says it apart from them, and what says it.
fn width(fields: &Fields<'_>) -> Result<Option<(usize, &'static str)>> {
    if let Some(width) = fields.size("mamba_d_ssm", LARGEST_WIDTH)? {
        return Ok(Some((width, "mamba_d_ssm")));
    }
    let hidden = fields.required_size("hidden_size", LARGEST_WIDTH)?;
    let expand = fields.size("mamba_expand", LARGEST_WIDTH / hidden)?;
    Ok(expand.map(|expand| (expand * hidden, "mamba_expand * hidden_size")))
}

/// The limits of steps, from 0 to any number where they are not written.
fn limits(fields: &Fields<'_>) -> Result<[f32; 2]> {
    const NAME: &str = "time_step_limit";
    let Some(list) = fields.list(NAME)? else { return Ok([0.0, f32::INFINITY]) };
    let number = |value: &Value| match value.get("__float__").unwrap_or(value) {
        // As Python writes what JSON has no number for.
        Value::String(word) if word == "Infinity" => Some(f32::INFINITY),
        value => value.as_f64().map(|number| number as f32),
    };
    match list.iter().map(number).collect::<Option<Vec<f32>>>().as_deref() {
        Some(&[least, most]) if 0.0 <= least && least <= most => Ok([least, most]),
        _ => Err(fields.error(NAME, "two numbers from 0, the larger behind", shown(&Value::from(list)))),
    }
}

/// The inputs that a convolution reads.
fn conv_tokens(fields: &Fields<'_>, name: &str) -> Result<usize> {
    let tokens = fields.required_size(name, LARGEST_WIDTH)?;
    match (2..=MOST_CONV_TOKENS).contains(&tokens) {
        true => Ok(tokens),
        false => {
            let expected = format!("from 2 to {MOST_CONV_TOKENS} (the convolutions that are computed)");
            Err(fields.error(name, expected, tokens.to_string()))
        }
    }
}

/// The width of each of `count` heads.
fn head_width(fields: &Fields<'_>, name: &str, count: usize) -> Result<usize> {
    let width = fields.required_size(name, LARGEST_WIDTH)?;
    let most = MOST_HEAD_WIDTH.min(LARGEST_WIDTH / count);
    if width > most {
        return Err(fields.error(name, format!("a number up to {most}"), width.to_string()));
    }
    Ok(width)
}

/// Whether a size is left to others.
fn is_auto(fields: &Fields<'_>, name: &str) -> bool {
    fields.value(name).and_then(Value::as_str) == Some("auto")
}

/// The factor in a field; 1 where it is not written.
pub fn factor(fields: &Fields<'_>, name: &str) -> Result<f32> {
    Ok(fields.positive(name)?.map_or(1.0, |factor| factor as f32))
}

/// So many factors in a list; all 1 where it is not written.
pub fn factors<const N: usize>(fields: &Fields<'_>, name: &str) -> Result<[f32; N]> {
    let Some(list) = fields.list(name)? else { return Ok([1.0; N]) };
    let number = |value: &Value| value.as_f64().map(|factor| factor as f32).filter(|factor| factor.is_normal());
    let read: Option<Vec<f32>> = list.iter().map(number).collect();
    let read = read.and_then(|factors| <[f32; N]>::try_from(factors).ok());
    read.ok_or_else(|| fields.error(name, format!("{N} numbers other than 0"), shown(&Value::from(list))))
}
