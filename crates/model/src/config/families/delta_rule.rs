//! Reads the heads of gated delta-rule layers (Qwen3-Next, Qwen3.5 and Qwen3.6), and refuses what is computed
//! otherwise.

use offshoot_backend::DeltaHeads;
use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_WIDTH};
use super::super::layer::{CONV_TOKENS, DeltaRuleSpec};

/// `eps`: of the model's norms.
pub fn read(fields: &Fields<'_>, eps: f32) -> Result<DeltaRuleSpec> {
    let size = |name: &str| fields.required_size(name, LARGEST_WIDTH);
    let kernel = size("linear_conv_kernel_dim")?;
    if kernel != CONV_TOKENS {
        let expected = format!("{CONV_TOKENS} (the convolution that is computed)");
        return Err(fields.error("linear_conv_kernel_dim", expected, kernel.to_string()));
    }
    if fields.flag("attn_output_gate")? == Some(false) {
        return Err(fields.error("attn_output_gate", "true (attention of these models has a gate)", "false"));
    }
    let heads = DeltaHeads {
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
    };
    if !heads.value_heads.is_multiple_of(heads.key_heads) {
        let expected = format!("a multiple of linear_num_key_heads ({})", heads.key_heads);
        return Err(fields.error("linear_num_value_heads", expected, heads.value_heads.to_string()));
    }
    for (name, count, width) in [
        ("linear_key_head_dim", heads.key_heads, heads.key_dim),
        ("linear_value_head_dim", heads.value_heads, heads.value_dim),
    ] {
        let most = MOST_HEAD_WIDTH.min(LARGEST_WIDTH / count);
        if width > most {
            return Err(fields.error(name, format!("a number up to {most}"), width.to_string()));
        }
    }
    Ok(DeltaRuleSpec { heads, eps })
}

/// The largest width of a head: published ones have 128. It bounds a state, which grows with its square.
const MOST_HEAD_WIDTH: usize = 1024;
