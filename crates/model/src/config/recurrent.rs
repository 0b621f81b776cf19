//! The description of a recurrent layer as data: the state that it keeps of a sequence (`LayerState`), and in what the
//! projections, gates and norms around that state differ. `layout` lists the tensors, `recurrent` computes.

use std::fmt;

use offshoot_backend::{ConvShape, DeltaHeads, GatedNorm, LayerState, StateKind};

/// A layer with a state of fixed size instead of keys and values, and the last inputs of a short convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrentSpec {
    /// The gated delta rule, with one decay for each value head (Qwen3-Next, Qwen3.5).
    Delta(DeltaSpec),
    /// The gated delta rule, with a decay for each channel of keys (Kimi Linear).
    Channel(ChannelSpec),
    /// Mamba-2: keys and values are added to what is left of the state. Its groups are key heads here.
    Sum(SumSpec),
    /// Mamba-1, with norms within (Jamba).
    Scan(ScanSpec),
    /// A gated convolution and nothing else (LFM2).
    Conv(ConvSpec),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSpec {
    pub heads: DeltaHeads,
    pub conv_tokens: usize,
    /// Epsilon of the gated norm of each value head.
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelSpec {
    /// As many key heads as value heads.
    pub heads: DeltaHeads,
    pub conv_tokens: usize,
    /// The width between the two projections of decays, and between those of output gates.
    pub rank: usize,
    /// Epsilon of the gated norm of each value head.
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumSpec {
    pub heads: DeltaHeads,
    pub conv_tokens: usize,
    pub conv_bias: bool,
    /// Whether the projections in and out have biases.
    pub proj_bias: bool,
    /// The least and the largest step, by which inputs are multiplied and the logarithms of decays, too.
    pub limits: [f32; 2],
    /// What becomes of the output with its gate; `None`: it is multiplied by the gate's silu.
    pub norm: Option<GatedNorm>,
    /// By what parts of the input projection are multiplied (Falcon-H1).
    pub factors: Option<SumFactors>,
}

/// Factors of what the input projection gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumFactors {
    pub gate: f32,
    pub values: f32,
    pub keys: f32,
    pub queries: f32,
    pub steps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScanSpec {
    pub channels: usize,
    /// Numbers that a state holds of each channel.
    pub state: usize,
    /// The width of what steps are projected from.
    pub rank: usize,
    pub conv_tokens: usize,
    pub conv_bias: bool,
    /// Whether the projections in and out have biases.
    pub proj_bias: bool,
    /// Epsilon of the norms of what steps, inputs and outputs are made of.
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvSpec {
    pub width: usize,
    pub tokens: usize,
    /// Whether the convolution and the projections in and out have biases.
    pub bias: bool,
}

impl RecurrentSpec {
    /// What it keeps of a sequence.
    pub fn state(&self) -> LayerState {
        let of_heads = |kind: fn(DeltaHeads) -> StateKind, heads: DeltaHeads, tokens| LayerState {
            kind: kind(heads),
            conv: ConvShape { width: heads.conv_width(), tokens },
        };
        match *self {
            Self::Delta(DeltaSpec { heads, conv_tokens, .. }) => of_heads(StateKind::Delta, heads, conv_tokens),
            Self::Channel(ChannelSpec { heads, conv_tokens, .. }) => of_heads(StateKind::Channel, heads, conv_tokens),
            Self::Sum(SumSpec { heads, conv_tokens, .. }) => of_heads(StateKind::Sum, heads, conv_tokens),
            Self::Scan(ScanSpec { channels, state, conv_tokens, .. }) => LayerState {
                kind: StateKind::Scan { channels, state },
                conv: ConvShape { width: channels, tokens: conv_tokens },
            },
            Self::Conv(ConvSpec { width, tokens, .. }) => {
                LayerState { kind: StateKind::Conv, conv: ConvShape { width, tokens } }
            }
        }
    }

    /// Elements of a row that the layer projects first: what goes through the convolution and, where that is gated,
    /// its gates.
    pub fn input_width(&self) -> usize {
        let width = self.state().conv.width;
        if matches!(self, Self::Conv(_)) { 3 * width } else { width }
    }

    /// Elements of what the layer gives before its projection out.
    pub fn out_width(&self) -> usize {
        match self {
            Self::Delta(DeltaSpec { heads, .. })
            | Self::Channel(ChannelSpec { heads, .. })
            | Self::Sum(SumSpec { heads, .. }) => heads.value_width(),
            Self::Scan(ScanSpec { channels, .. }) => *channels,
            Self::Conv(ConvSpec { width, .. }) => *width,
        }
    }

    /// Whether what it gives is multiplied by a gate before the projection out.
    pub fn is_gated(&self) -> bool {
        !matches!(self, Self::Conv(_))
    }
}

/// For example `gated delta rule, 16 key heads of 128, 32 value heads of 128`.
impl fmt::Display for RecurrentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delta(DeltaSpec { heads, .. }) => write!(f, "gated delta rule, {heads}"),
            Self::Channel(ChannelSpec { heads, .. }) => write!(f, "gated delta rule by channel, {heads}"),
            Self::Sum(SumSpec { heads: DeltaHeads { key_heads, value_heads, key_dim, value_dim }, .. }) => {
                write!(f, "Mamba-2, {value_heads} heads of {value_dim} in {key_heads} groups, states of {key_dim}")
            }
            Self::Scan(ScanSpec { channels, state, .. }) => {
                write!(f, "Mamba-1, {channels} channels, states of {state}")
            }
            Self::Conv(ConvSpec { width, tokens, .. }) => {
                write!(f, "gated convolution of {width} over {tokens} tokens")
            }
        }
    }
}
