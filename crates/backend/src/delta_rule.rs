//! Gated delta-rule layers: their heads, the memory of their states, and the ops in prose (Gated Delta Networks, Yang
//! et al. 2024, arXiv 2412.06464, section 3; as Qwen3-Next and Qwen3.5 have them). The ops themselves are in `Backend`.
//!
//! # One token
//! The layer projects its input to queries and keys (`key_heads` each, of `key_dim`) and values (`value_heads`, of
//! `value_dim`): a row of `conv_width` channels. Then, at position `t`:
//!
//! 1. *Convolution*: `x'[t][c] = silu(sum over k of w[c][k] * x[t - 3 + k][c])`, with zeros before the first position.
//! 2. *Norms*: `q = q' / sqrt(sum(q'^2) + 1e-6) / sqrt(key_dim)` and `k = k' / sqrt(sum(k'^2) + 1e-6)`, head by head.
//! 3. *Gates*, one of each for a value head `h`: `beta = sigmoid(b[h])` and
//!    `decay = exp(rate[h] * softplus(a[h] + dt[h]))`, where `rate = -exp(A_log)`.
//! 4. *Delta rule*: the state `S` of the head, `[key_dim, value_dim]`, becomes
//!    `S = decay * S`, then `S = S + k (beta * (v - S^T k))^T`. Value head `h` uses the key head
//!    `h / (value_heads / key_heads)`.
//! 5. *Output*: `o[h] = S^T q`, with the state that this token has changed.
//!
//! # State
//! What the next token needs of all before it: `S` of every value head, and the convolution's last inputs. Four of
//! these are kept, one more than the next token reads. So the last token's own row can be computed again from the state
//! after it (`StateRun::is_in`): its convolution reads the four, its output is `S^T q`, and nothing changes. States are
//! f32. With [`StateDtype::Bf16`], `S` is rounded to bf16 (to nearest even) at the end of step 4 of every token, before
//! it is read, and stored so; the convolution's inputs stay f32. So it is the same rounding however steps divide a
//! sequence, and memory holds all that a computation goes on from. A backend that computes runs in chunks may round `S`
//! at their ends alone.
//!
//! # Order
//! The runs of a step are computed one after the other, and the rows of a run token by token, so that the state after a
//! token does not depend on how steps divide a sequence.

use std::fmt;

use serde::{Deserialize, Serialize};

use offshoot_core::named;

/// Inputs that the convolution reads: the row's own and those of the three positions before.
pub const CONV_TOKENS: usize = 4;

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

/// The heads of a gated delta-rule layer. A row of its projection has the queries of all key heads, their keys, and the
/// values of all value heads.
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

    /// Bytes of a layer's state: the matrices of all value heads, and the last inputs of its convolution.
    pub fn state_bytes(&self, dtype: StateDtype) -> usize {
        self.matrix_bytes(dtype) + self.tail_bytes()
    }

    /// Bytes of the matrices of all value heads.
    pub fn matrix_bytes(&self, dtype: StateDtype) -> usize {
        self.value_heads * self.matrix() * dtype.bytes()
    }

    /// Bytes of the last inputs of the convolution.
    pub fn tail_bytes(&self) -> usize {
        CONV_TOKENS * self.conv_width() * size_of::<f32>()
    }
}

/// The size of the memory for states: `slots` states of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// Heads of each delta-rule layer.
    pub heads: Vec<DeltaHeads>,
    pub slots: usize,
    pub dtype: StateDtype,
}

impl StateShape {
    /// Bytes of one state, all layers.
    pub fn state_bytes(&self) -> usize {
        self.heads.iter().map(|heads| heads.state_bytes(self.dtype)).sum()
    }
}

/// The learned gates of a delta-rule layer, one number for each value head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaGates<'a, V> {
    /// `-exp(A_log)`
    pub rate: &'a V,
    /// Added to `a`.
    pub dt: &'a V,
}
