//! The tensors of a gated delta-rule layer, in the two forms in which they are published: Qwen3.5 has a module for each
//! projection, Qwen3-Next one for what goes through the convolution and its gate, ordered by key head.

use std::ops::Range;

use super::names::LayerNames;
use super::tensors::{Dim, LinearTensors, TensorSpec, linear, vector};
use crate::config::{DeltaRuleModules, DeltaRuleSpec};
use offshoot_backend::{DeltaHeads, Split};

/// What a delta-rule layer has beside its projections.
#[derive(Clone, Debug)]
pub struct DeltaRuleTensors {
    /// The gates b and a of the value heads: all b, then all a.
    pub ba: LinearTensors,
    /// `[conv_width, 1, tokens]`
    pub conv: TensorSpec,
    /// Logarithms of the decay rates, and what is added to a.
    pub a_log: TensorSpec,
    pub dt_bias: TensorSpec,
    /// The weights of the gated norm, `[value_dim]`.
    pub norm: TensorSpec,
}

impl DeltaRuleTensors {
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.ba.tensors().chain([&self.conv, &self.a_log, &self.dt_bias, &self.norm])
    }
}

/// The ranges of each key head in rows that are ordered by key head, `width` to each: those of length `len` that begin
/// at `from`.
fn of_each(heads: DeltaHeads, width: usize, from: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..heads.key_heads).map(move |head| head * width + from).map(move |first| first..first + len)
}

impl LayerNames<'_> {
    /// Its tensors, and its projections: queries, keys and values; the gate; out.
    pub(super) fn delta_rule(&self, spec: &DeltaRuleSpec) -> (DeltaRuleTensors, [LinearTensors; 3]) {
        let DeltaRuleSpec { heads, .. } = *spec;
        let dim = |size, field| Dim { size, field };
        let at = |module: &str| self.at(&format!("linear_attn.{module}"));
        let conv_width = dim(heads.conv_width(), "2 * linear key heads * width + linear value heads * width");
        let value_width = dim(heads.value_width(), "linear_num_value_heads * linear_value_head_dim");
        let value_heads = dim(heads.value_heads, "linear_num_value_heads");
        let projection = |module: &str, rows| linear(&[(at(module), rows)], self.hidden, false);
        let (qkv, gate, ba) = match self.modules().delta_rule {
            DeltaRuleModules::Separate => (
                projection("in_proj_qkv", conv_width),
                projection("in_proj_z", value_width),
                linear(&[(at("in_proj_b"), value_heads), (at("in_proj_a"), value_heads)], self.hidden, false),
            ),
            DeltaRuleModules::ByKeyHead => {
                let each = heads.value_heads / heads.key_heads;
                let values = each * heads.value_dim;
                let (key, width) = (heads.key_dim, 2 * heads.key_dim + 2 * values);
                let both = dim(heads.conv_width() + heads.value_width(), "linear heads: 2 * keys + 2 * values");
                let gates = dim(2 * heads.value_heads, "2 * linear_num_value_heads");
                let of_qkvz = |from, len| of_each(heads, width, from, len);
                let qkv = of_qkvz(0, key).chain(of_qkvz(key, key)).chain(of_qkvz(2 * key, values)).collect();
                let z = of_qkvz(2 * key + values, values).collect();
                let ba = of_each(heads, 2 * each, 0, each).chain(of_each(heads, 2 * each, each, each)).collect();
                (
                    LinearTensors { rows: Some(qkv), ..projection("in_proj_qkvz", both) },
                    LinearTensors { rows: Some(z), ..projection("in_proj_qkvz", both) },
                    LinearTensors { rows: Some(ba), ..projection("in_proj_ba", gates) },
                )
            }
        };
        let conv = [conv_width, dim(1, "1"), dim(spec.state().conv.tokens, "linear_conv_kernel_dim")];
        let tensors = DeltaRuleTensors {
            ba: ba.split(Split::outputs([heads.value_heads; 2])),
            conv: TensorSpec { name: at("conv1d.weight"), shape: conv.to_vec() },
            a_log: vector(&at("A_log"), value_heads),
            dt_bias: vector(&at("dt_bias"), value_heads),
            norm: vector(&at("norm.weight"), dim(heads.value_dim, "linear_value_head_dim")),
        };
        let out = linear(&[(at("out_proj"), self.hidden)], value_width, false);
        let gate = gate.split(Split::outputs([heads.value_width()]));
        (tensors, [qkv.split(Split::outputs(heads.conv_segments())), gate, out.split(Split::Inputs)])
    }
}
