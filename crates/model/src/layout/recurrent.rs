//! The tensors of recurrent layers, in the forms in which they are published: the gated delta rule with a module for
//! each projection (Qwen3.5), with one ordered by key head (Qwen3-Next) or with a decay for each channel (Kimi Linear),
//! Mamba-2, whose one projection gives all parts, Mamba-1 and gated convolutions.

use std::iter::once;
use std::ops::Range;

use super::names::LayerNames;
use super::tensors::{Dim, LinearTensors, TensorSpec, linear, vector};
use crate::config::{ChannelSpec, ConvSpec, DeltaRuleModules, DeltaSpec, RecurrentSpec, ScanSpec, SumSpec};
use offshoot_backend::{DeltaHeads, Split};

/// What a recurrent layer has beside its first projection and the one out of it.
#[derive(Clone, Debug)]
pub struct RecurrentTensors {
    pub conv: ConvTensors,
    pub rule: RuleTensors,
    /// The gate of what it gives: one projection after the other; none where that is not gated.
    pub gate: Vec<LinearTensors>,
    /// The weights of the norm with the gate.
    pub norm: Option<TensorSpec>,
}

/// The convolution.
#[derive(Clone, Debug)]
pub struct ConvTensors {
    /// `[channels, 1, tokens]` each, stacked.
    pub weights: Vec<TensorSpec>,
    pub bias: Option<TensorSpec>,
    /// The channels in the layer's order; `None`: as they are stored.
    pub channels: Option<Vec<Range<usize>>>,
    /// How ranks divide channels.
    pub segments: Vec<usize>,
}

/// What a layer's kind has of its own.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a model has some hundred of them")]
pub enum RuleTensors {
    Delta {
        /// The gates b and a of the value heads: all b, then all a.
        gates: LinearTensors,
        /// Logarithms of the decay rates, and what is added to a.
        a_log: TensorSpec,
        dt_bias: TensorSpec,
    },
    Channel {
        /// The gates b of the heads.
        beta: LinearTensors,
        /// The decays of all channels of keys: to a rank, and from it.
        decay: [LinearTensors; 2],
        /// `[1, 1, heads, 1]`
        a_log: TensorSpec,
        /// One for each channel of keys.
        dt_bias: TensorSpec,
    },
    Sum {
        /// The steps of the heads.
        steps: LinearTensors,
        a_log: TensorSpec,
        dt_bias: TensorSpec,
        /// By what inputs are multiplied before they are added to the output.
        skip: TensorSpec,
    },
    Scan {
        /// What steps are made of, inputs and outputs of the state.
        inner: [LinearTensors; 3],
        /// The weights of the norms of these.
        norms: [TensorSpec; 3],
        steps: LinearTensors,
        /// `[channels, state]`
        a_log: TensorSpec,
        dt_bias: TensorSpec,
        skip: TensorSpec,
    },
    Conv,
}

impl RuleTensors {
    fn linears(&self) -> Vec<&LinearTensors> {
        match self {
            Self::Delta { gates, .. } => vec![gates],
            Self::Channel { beta, decay: [down, up], .. } => vec![beta, down, up],
            Self::Sum { steps, .. } => vec![steps],
            Self::Scan { inner, steps, .. } => inner.iter().chain([steps]).collect(),
            Self::Conv => Vec::new(),
        }
    }

    fn others(&self) -> Vec<&TensorSpec> {
        match self {
            Self::Delta { a_log, dt_bias, .. } | Self::Channel { a_log, dt_bias, .. } => vec![a_log, dt_bias],
            Self::Sum { a_log, dt_bias, skip, .. } => vec![a_log, dt_bias, skip],
            Self::Scan { norms, a_log, dt_bias, skip, .. } => norms.iter().chain([a_log, dt_bias, skip]).collect(),
            Self::Conv => Vec::new(),
        }
    }
}

impl RecurrentTensors {
    pub fn linears(&self) -> impl Iterator<Item = &LinearTensors> {
        self.rule.linears().into_iter().chain(&self.gate)
    }

    /// Every tensor once, but for those of `input`, the layer's first projection.
    pub fn tensors<'a>(&'a self, input: Option<&'a LinearTensors>) -> impl Iterator<Item = &'a TensorSpec> {
        let mut names: Vec<&str> =
            input.into_iter().flat_map(LinearTensors::tensors).map(|spec| spec.name.as_str()).collect();
        let linears = self.linears().flat_map(LinearTensors::tensors);
        let conv = self.conv.weights.iter().chain(&self.conv.bias);
        linears.chain(conv).chain(self.rule.others()).chain(&self.norm).filter(move |spec| {
            let is_new = !names.contains(&spec.name.as_str());
            names.push(&spec.name);
            is_new
        })
    }
}

/// The ranges of each key head in rows that are ordered by key head, `width` to each: those of length `len` that begin
/// at `from`.
fn of_each(heads: DeltaHeads, width: usize, from: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..heads.key_heads).map(move |head| head * width + from).map(move |first| first..first + len)
}

fn dim(size: usize, field: &'static str) -> Dim {
    Dim { size, field }
}

/// `rows` of a projection, divided by `split`.
fn view<const N: usize>(whole: &LinearTensors, rows: [Range<usize>; N], split: Split) -> LinearTensors {
    LinearTensors { rows: Some(rows.to_vec()), split, ..whole.clone() }
}

impl LayerNames<'_> {
    /// Its tensors, and its projections in and out.
    pub(super) fn recurrent(&self, spec: &RecurrentSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        match spec {
            RecurrentSpec::Delta(spec) => self.delta(spec),
            RecurrentSpec::Channel(spec) => self.channel(spec),
            RecurrentSpec::Sum(spec) => self.sum(spec),
            RecurrentSpec::Scan(spec) => self.scan(spec),
            RecurrentSpec::Conv(spec) => self.conv(spec),
        }
    }

    fn conv_weight(&self, name: &str, width: Dim, tokens: Dim) -> TensorSpec {
        TensorSpec { name: self.at(name), shape: vec![width, dim(1, "1"), tokens] }
    }

    fn out(&self, module: &str, width: Dim, bias: bool) -> LinearTensors {
        linear(&[(self.at(module), self.hidden)], width, bias).split(Split::Inputs)
    }

    fn delta(&self, spec: &DeltaSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        let DeltaSpec { heads, conv_tokens, .. } = *spec;
        let at = |module: &str| self.at(&format!("linear_attn.{module}"));
        let conv_width = dim(heads.conv_width(), "2 * linear key heads * width + linear value heads * width");
        let value_width = dim(heads.value_width(), "linear_num_value_heads * linear_value_head_dim");
        let value_heads = dim(heads.value_heads, "linear_num_value_heads");
        let projection = |module: &str, rows| linear(&[(at(module), rows)], self.hidden, false);
        let (qkv, gate, gates) = match self.modules().delta_rule {
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
        let tokens = dim(conv_tokens, "linear_conv_kernel_dim");
        let tensors = RecurrentTensors {
            conv: ConvTensors {
                weights: vec![self.conv_weight("linear_attn.conv1d.weight", conv_width, tokens)],
                bias: None,
                channels: None,
                segments: heads.conv_segments().to_vec(),
            },
            rule: RuleTensors::Delta {
                gates: gates.split(Split::outputs([heads.value_heads; 2])),
                a_log: vector(&at("A_log"), value_heads),
                dt_bias: vector(&at("dt_bias"), value_heads),
            },
            gate: vec![gate.split(Split::outputs([heads.value_width()]))],
            norm: Some(vector(&at("norm.weight"), dim(heads.value_dim, "linear_value_head_dim"))),
        };
        let out = self.out("linear_attn.out_proj", value_width, false);
        (tensors, [qkv.split(Split::outputs(heads.conv_segments())), out])
    }

    fn channel(&self, spec: &ChannelSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        let ChannelSpec { heads, conv_tokens, rank, .. } = *spec;
        let at = |module: &str| self.at(&format!("self_attn.{module}"));
        let count = dim(heads.value_heads, "linear_attn_config.num_heads");
        let keys = dim(heads.key_width(), "linear_attn_config: num_heads * head_dim");
        let values = dim(heads.value_width(), "linear_attn_config: num_heads * head_dim");
        let rank = dim(rank, "linear_attn_config.head_dim");
        let tokens = dim(conv_tokens, "linear_attn_config.short_conv_kernel_size");
        let parts = [("q", keys), ("k", keys), ("v", values)];
        let qkv = parts.map(|(name, width)| (at(&format!("{name}_proj")), width));
        let conv =
            parts.map(|(name, width)| self.conv_weight(&format!("self_attn.{name}_conv1d.weight"), width, tokens));
        // Every rank computes what lies between two projections.
        let low = |module: &str| linear(&[(at(module), rank)], self.hidden, false);
        let high =
            |module: &str, width: Dim| linear(&[(at(module), width)], rank, false).split(Split::outputs([width.size]));
        let tensors = RecurrentTensors {
            conv: ConvTensors {
                weights: conv.to_vec(),
                bias: None,
                channels: None,
                segments: heads.conv_segments().to_vec(),
            },
            rule: RuleTensors::Channel {
                beta: linear(&[(at("b_proj"), count)], self.hidden, false).split(Split::outputs([count.size])),
                decay: [low("f_a_proj"), high("f_b_proj", keys)],
                a_log: TensorSpec { name: at("A_log"), shape: vec![dim(1, "1"), dim(1, "1"), count, dim(1, "1")] },
                dt_bias: vector(&at("dt_bias"), keys),
            },
            gate: vec![low("g_a_proj"), high("g_b_proj", values)],
            norm: Some(vector(&at("o_norm.weight"), dim(heads.value_dim, "linear_attn_config.head_dim"))),
        };
        let qkv = linear(&qkv, self.hidden, false).split(Split::outputs(heads.conv_segments()));
        (tensors, [qkv, self.out("self_attn.o_proj", values, false)])
    }

    /// The rows of `in_proj` are the gate z, the values x, keys B, queries C and steps; the convolution has x, B and C.
    fn sum(&self, spec: &SumSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        let SumSpec { heads, conv_tokens, conv_bias, proj_bias, norm, .. } = *spec;
        let at = |module: &str| self.at(&format!("mamba.{module}"));
        let (keys, values) = (heads.key_width(), heads.value_width());
        let count = dim(heads.value_heads, "heads of Mamba");
        let width = dim(values, "heads of Mamba * their width");
        let conv_width = dim(heads.conv_width(), "heads of Mamba * their width + 2 * groups * width of states");
        let all = dim(
            values + conv_width.size + count.size,
            "2 * heads of Mamba * their width + 2 * groups * width of states + heads",
        );
        let whole = linear(&[(at("in_proj"), all)], self.hidden, proj_bias);
        // Queries, keys and values, where they begin behind `from`.
        let ordered = |from: usize| {
            let (x, b) = (from..from + values, from + values..from + values + keys);
            [b.end..b.end + keys, b, x]
        };
        let steps = values + conv_width.size;
        let tensors = RecurrentTensors {
            conv: ConvTensors {
                weights: vec![self.conv_weight(
                    "mamba.conv1d.weight",
                    conv_width,
                    dim(conv_tokens, "inputs of the convolution"),
                )],
                bias: conv_bias.then(|| vector(&at("conv1d.bias"), conv_width)),
                channels: Some(ordered(0).to_vec()),
                segments: heads.conv_segments().to_vec(),
            },
            rule: RuleTensors::Sum {
                steps: view(&whole, once(steps..steps + count.size), Split::outputs([count.size])),
                a_log: vector(&at("A_log"), count),
                dt_bias: vector(&at("dt_bias"), count),
                skip: vector(&at("D"), count),
            },
            gate: vec![view(&whole, once(0..values), Split::outputs([values]))],
            norm: norm.map(|_| vector(&at("norm.weight"), width)),
        };
        let input = view(&whole, ordered(values), Split::outputs(heads.conv_segments()));
        (tensors, [input, self.out("mamba.out_proj", width, proj_bias)])
    }

    /// The rows of `in_proj` are the channels x and the gate z, those of `x_proj` what steps are made of, B and C.
    fn scan(&self, spec: &ScanSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        let ScanSpec { channels, state, rank, conv_tokens, conv_bias, proj_bias, .. } = *spec;
        let at = |module: &str| self.at(&format!("mamba.{module}"));
        let width = dim(channels, "mamba_expand * hidden_size");
        let both = dim(2 * channels, "2 * mamba_expand * hidden_size");
        let (low, each) = (dim(rank, "mamba_dt_rank"), dim(state, "mamba_d_state"));
        let whole = linear(&[(at("in_proj"), both)], self.hidden, proj_bias);
        let inner = [0..rank, rank..rank + state, rank + state..rank + 2 * state];
        let x_proj =
            linear(&[(at("x_proj"), dim(rank + 2 * state, "mamba_dt_rank + 2 * mamba_d_state"))], width, false);
        let tensors = RecurrentTensors {
            conv: ConvTensors {
                weights: vec![self.conv_weight("mamba.conv1d.weight", width, dim(conv_tokens, "mamba_d_conv"))],
                bias: conv_bias.then(|| vector(&at("conv1d.bias"), width)),
                channels: None,
                segments: vec![channels],
            },
            rule: RuleTensors::Scan {
                inner: inner.map(|rows| view(&x_proj, [rows], Split::Whole)),
                norms: [("dt_layernorm", low), ("b_layernorm", each), ("c_layernorm", each)]
                    .map(|(name, width)| vector(&at(&format!("{name}.weight")), width)),
                steps: linear(&[(at("dt_proj"), width)], low, false).split(Split::outputs([channels])),
                a_log: TensorSpec { name: at("A_log"), shape: vec![width, each] },
                dt_bias: vector(&at("dt_proj.bias"), width),
                skip: vector(&at("D"), width),
            },
            gate: vec![view(&whole, once(channels..2 * channels), Split::outputs([channels]))],
            norm: None,
        };
        let input = view(&whole, once(0..channels), Split::outputs([channels]));
        (tensors, [input, self.out("mamba.out_proj", width, proj_bias)])
    }

    /// The rows of `in_proj` are B, C and x, each as wide as the residual stream.
    fn conv(&self, spec: &ConvSpec) -> (RecurrentTensors, [LinearTensors; 2]) {
        let ConvSpec { width, tokens, bias } = *spec;
        let at = |module: &str| self.at(&format!("conv.{module}"));
        let (one, three) = (dim(width, "hidden_size"), dim(3 * width, "3 * hidden_size"));
        let tensors = RecurrentTensors {
            conv: ConvTensors {
                weights: vec![self.conv_weight("conv.conv.weight", one, dim(tokens, "conv_L_cache"))],
                bias: bias.then(|| vector(&at("conv.bias"), one)),
                channels: None,
                segments: vec![width],
            },
            rule: RuleTensors::Conv,
            gate: Vec::new(),
            norm: None,
        };
        let input = linear(&[(at("in_proj"), three)], self.hidden, bias).split(Split::outputs([width; 3]));
        (tensors, [input, self.out("conv.out_proj", one, bias)])
    }
}
