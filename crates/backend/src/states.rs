//! Recurrent layers: their states of fixed size, the memory of these, and the ops in prose. The ops themselves are in
//! `Backend`.
//!
//! # One token
//! A layer projects its input to queries and keys (`key_heads` each, of `key_dim`) and values (`value_heads`, of
//! `value_dim`): a row of `ConvShape::width` channels. Then, at position `t`:
//!
//! 1. *Convolution* over the last `n` = `ConvShape::tokens` inputs of a channel:
//!    `x'[t][c] = silu(bias[c] + sum over k < n of w[c][k] * x[t - n + 1 + k][c])`, with zeros before the first
//!    position.
//! 2. *State*: the matrix `S` of each value head, `[key_dim, value_dim]`, changes as [`StateKind`] says. Value head `h`
//!    uses the key head `h / (value_heads / key_heads)`.
//! 3. *Output*: `o[h] = S^T q`, with the state that this token has changed.
//!
//! # Gated delta rule
//! [`StateKind::Delta`] (Gated Delta Networks, Yang et al. 2024, arXiv 2412.06464, section 3; as Qwen3-Next and Qwen3.5
//! have them):
//!
//! 1. *Norms*: `q = q' / sqrt(sum(q'^2) + 1e-6) / sqrt(key_dim)` and `k = k' / sqrt(sum(k'^2) + 1e-6)`, head by head.
//! 2. *Gates*, one of each for a value head `h`: `beta = sigmoid(b[h])` and
//!    `decay = exp(rate[h] * softplus(a[h] + dt[h]))`, where `rate = -exp(A_log)`.
//! 3. `S = decay * S`, then `S = S + k (beta * (v - S^T k))^T`.
//!
//! # Delta rule with decays by channel
//! [`StateKind::Channel`] (Kimi Delta Attention, Kimi Team 2025, arXiv 2510.26692): the same with a decay for each row
//! `i` of `S`, `decay[i] = exp(rate[h] * softplus(f[h][i] + dt[h][i]))`.
//!
//! # Sums
//! [`StateKind::Sum`] (Mamba-2, Dao and Gu 2024, arXiv 2405.21060; as Nemotron-H, Granite 4, Bamba and Falcon-H1 have
//! it): keys are what Mamba calls B, queries C, values x, key heads groups. Neither has a norm. With
//! `step = clamp(softplus(g[h] + dt[h]), limits)` and `decay = exp(rate[h] * step)`, `S = decay * S + k (step * v)^T`,
//! and `skip[h] * v` is added to the output.
//!
//! # Selective scan
//! [`StateKind::Scan`] (Mamba-1, Gu and Dao 2023, arXiv 2312.00752; as Jamba has it): a column `s` of `state` numbers
//! for each channel `c`. With `step = softplus(g[c] + dt[c])`, `s[n] = exp(step * rate[n][c]) * s[n] + step * x[c] *
//! B[n]`, and the output is `sum over n of s[n] * C[n] + skip[c] * x[c]`.
//!
//! # Gated convolution
//! [`StateKind::Conv`] (LFM2): a layer projects to B, C and x, its convolution without silu reads `B * x`, and the
//! output is what it gives times C. There is no other state.
//!
//! # State
//! What the next token needs of all before it: `S` of every value head, and the convolution's last inputs. As many of
//! these are kept as a row reads, its own included, so one more than the next token reads. So the last token's own row
//! can be computed again from the state after it (`StateRun::is_in`): its convolution reads what is kept, its output is
//! read from `S` as it is, and nothing changes. States are f32. With [`StateDtype::Bf16`], `S` is rounded to bf16 (to
//! nearest even) after every token, before it is read, and stored so; the convolution's inputs stay f32. So it is the
//! same rounding however steps divide a sequence, and memory holds all that a computation goes on from. A backend that
//! computes runs in chunks may round `S` at their ends alone.
//!
//! # Order
//! The runs of a step are computed one after the other, and the rows of a run token by token, so that the state after a
//! token does not depend on how steps divide a sequence.

use std::fmt;

use serde::{Deserialize, Serialize};

use offshoot_core::named;

/// The most inputs that a convolution reads.
pub const MOST_CONV_TOKENS: usize = 8;

/// Added to the sum of squares of queries and of keys.
pub const L2_EPS: f32 = 1e-6;

/// How the matrices of states are stored.
#[warn(missing_docs)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateDtype {
    /// 32 bits
    #[default]
    F32,
    /// 16 bits: half the memory, and results that differ by its rounding
    Bf16,
}

named!(StateDtype { F32 = "f32", Bf16 = "bf16" });

impl StateDtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            StateDtype::F32 => 4,
            StateDtype::Bf16 => 2,
        }
    }

    pub fn is_f32(&self) -> bool {
        *self == StateDtype::F32
    }
}

/// The heads of a layer whose state is a matrix for each of them. A row of its projection has the queries of all key
/// heads, their keys, and the values of all value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    pub key_heads: usize,
    /// A multiple of `key_heads`.
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// `16 key heads of 128, 32 value heads of 128`
impl fmt::Display for DeltaHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = self;
        write!(f, "{key_heads} key heads of {key_dim}, {value_heads} value heads of {value_dim}")
    }
}

impl DeltaHeads {
    /// Width of the queries of all key heads, and of their keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of the values of all value heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution.
    pub fn conv_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Channels of queries, of keys and of values.
    pub fn conv_segments(&self) -> [usize; 3] {
        [self.key_width(), self.key_width(), self.value_width()]
    }

    /// Elements of one value head's matrix.
    pub fn matrix(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// The heads of each of `count` ranks; `None` if these do not divide them.
    fn of_rank(&self, count: usize) -> Option<Self> {
        let divides = self.key_heads.is_multiple_of(count) && self.value_heads.is_multiple_of(count);
        let (key_heads, value_heads) = (self.key_heads / count, self.value_heads / count);
        divides.then_some(Self { key_heads, value_heads, ..*self })
    }
}

/// What a layer's state is, beside the last inputs of its convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// A matrix for each value head, changed by the gated delta rule.
    Delta(DeltaHeads),
    /// A matrix as of the delta rule with a decay for each of its rows; there are as many key heads as value heads.
    Channel(DeltaHeads),
    /// A matrix for each value head, to which keys and values are added.
    Sum(DeltaHeads),
    /// `state` numbers for each of `channels`.
    Scan { channels: usize, state: usize },
    /// Nothing: of gated convolutions.
    Conv,
}

/// The convolution of a layer, channel by channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels.
    pub width: usize,
    /// Inputs of a channel that a row reads, its own the last: at most [`MOST_CONV_TOKENS`]. A state keeps as many.
    pub tokens: usize,
}

/// The state of one recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerState {
    pub kind: StateKind,
    pub conv: ConvShape,
}

/// `gated delta rule, 16 key heads of 128, 32 value heads of 128`
impl fmt::Display for LayerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StateKind::Delta(heads) => write!(f, "gated delta rule, {heads}"),
            StateKind::Channel(heads) => write!(f, "gated delta rule with decays by channel, {heads}"),
            StateKind::Sum(heads) => write!(f, "sums of keys and values, {heads}"),
            StateKind::Scan { channels, state } => write!(f, "selective scan, {channels} channels of {state}"),
            StateKind::Conv => write!(f, "gated convolution of {} channels", self.conv.width),
        }
    }
}

impl LayerState {
    /// The state of a layer with the gated delta rule.
    pub fn delta(heads: DeltaHeads, tokens: usize) -> Self {
        Self::of_heads(StateKind::Delta, heads, tokens)
    }

    /// The state of a layer that has a matrix for each value head.
    pub fn of_heads(kind: fn(DeltaHeads) -> StateKind, heads: DeltaHeads, tokens: usize) -> Self {
        Self { kind: kind(heads), conv: ConvShape { width: heads.conv_width(), tokens } }
    }

    /// The heads of a layer that has a matrix for each value head.
    pub fn heads(&self) -> Option<DeltaHeads> {
        match self.kind {
            StateKind::Delta(heads) | StateKind::Channel(heads) | StateKind::Sum(heads) => Some(heads),
            StateKind::Scan { .. } | StateKind::Conv => None,
        }
    }

    /// Elements of a row that the layer gives.
    pub fn out_width(&self) -> usize {
        self.heads().map_or(self.conv.width, |heads| heads.value_width())
    }

    /// The matrices of a state, and the elements of one: `[key_dim, value_dim]`, or of a scan `[state, block]`, where
    /// channels are cut into blocks of [`scan_block`].
    pub fn matrices(&self) -> (usize, usize) {
        match self.kind {
            StateKind::Delta(heads) | StateKind::Channel(heads) | StateKind::Sum(heads) => {
                (heads.value_heads, heads.matrix())
            }
            StateKind::Scan { channels, state } => {
                let block = scan_block(channels);
                (channels / block, state * block)
            }
            StateKind::Conv => (0, 0),
        }
    }

    /// Bytes of a state: its matrices, and the last inputs of its convolution.
    pub fn state_bytes(&self, dtype: StateDtype) -> usize {
        self.matrix_bytes(dtype) + self.tail_bytes()
    }

    /// Bytes of all its matrices.
    pub fn matrix_bytes(&self, dtype: StateDtype) -> usize {
        let (count, elements) = self.matrices();
        count * elements * dtype.bytes()
    }

    /// The last inputs of the convolution that a state keeps, all channels.
    pub fn tail(&self) -> usize {
        self.conv.tokens * self.conv.width
    }

    /// Bytes of these.
    pub fn tail_bytes(&self) -> usize {
        self.tail() * size_of::<f32>()
    }

    /// That of each of `count` ranks; `None` if these do not divide its heads.
    pub fn of_rank(&self, count: usize) -> Option<Self> {
        let of_heads = |kind, heads: DeltaHeads| Some(Self::of_heads(kind, heads.of_rank(count)?, self.conv.tokens));
        let conv = ConvShape { width: self.conv.width / count, ..self.conv };
        let divides = self.conv.width.is_multiple_of(count);
        match self.kind {
            StateKind::Delta(heads) => of_heads(StateKind::Delta, heads),
            StateKind::Channel(heads) => of_heads(StateKind::Channel, heads),
            StateKind::Sum(heads) => of_heads(StateKind::Sum, heads),
            StateKind::Scan { channels, state } => {
                divides.then_some(Self { kind: StateKind::Scan { channels: channels / count, state }, conv })
            }
            StateKind::Conv => divides.then_some(Self { kind: StateKind::Conv, conv }),
        }
    }
}

/// Channels of a scan whose states are one matrix: the most, up to 64, that divide them and are a power of two.
pub fn scan_block(channels: usize) -> usize {
    1 << channels.trailing_zeros().min(6)
}

/// The size of the memory for states: `slots` states of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// The state of each recurrent layer.
    pub layers: Vec<LayerState>,
    pub slots: usize,
    pub dtype: StateDtype,
}

impl StateShape {
    /// Bytes of one state, all layers.
    pub fn state_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.state_bytes(self.dtype)).sum()
    }
}

/// How a layer's matrices change with a token: the learned part of its gates, with a number for each value head. Of the
/// layer's own [`StateKind`].
#[derive(Clone, Copy, Debug)]
pub enum StateRule<'a, V> {
    /// Gates are f32 `[R, 2 * value_heads]`: b of all value heads, then a.
    Delta {
        /// `-exp(A_log)`
        rate: &'a V,
        /// Added to `a`.
        dt: &'a V,
    },
    /// Gates are f32 `[R, value_heads]`: steps before their bias.
    Sum {
        /// `-exp(A_log)`
        rate: &'a V,
        /// Added to steps.
        dt: &'a V,
        /// Times values: added to the output.
        skip: &'a V,
        /// The least step and the largest.
        limits: [f32; 2],
    },
}

/// The learned part of a selective scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRule<'a, V> {
    /// `-exp(A_log)`, `[state, channels]`
    pub rate: &'a V,
    /// Added to steps, `[channels]`.
    pub dt: &'a V,
    /// Times `x`: added to the output, `[channels]`.
    pub skip: &'a V,
}
