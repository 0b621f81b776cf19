//! What one layer is, as data: its attention, its feed-forward part and its norms. Families and configs vary these by
//! layer, so nothing here is assumed of a whole model. Tensors are `layout`'s, arithmetic the decoder's.

use crate::backend::HeadLayout;

use super::RopeConfig;

/// One layer of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    pub attention: AttentionSpec,
    pub feed_forward: FeedForward,
    pub norms: LayerNorms,
}

/// Softmax attention over keys and values. What other families add to it (a softcap of its logits, sinks, keys that
/// serve as values) belongs here as soon as `Backend::tree_attention` honours it; a recurrent layer is another kind
/// beside this one.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    pub heads: HeadLayout,
    /// Positions that a row sees, its own included, where that hides anything.
    pub window: Option<u32>,
    pub rope: RopeConfig,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Epsilon of the rms norm of each query and key head before it turns (Qwen3).
    pub head_norm: Option<f32>,
    pub qkv_bias: bool,
    pub out_bias: bool,
}

/// What stands behind attention. A mixture of experts is another variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One pair of matrices for all rows; `width` elements inside.
    Dense { activation: Activation, width: usize, bias: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `down(silu(gate x) * up x)`
    GatedSilu,
    /// `fc2(gelu(fc1 x))`
    Gelu,
}

/// Which norms a layer has, and so how its two parts join the residual `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayerNorms {
    /// `x += attention(norm(x))`, then `x += feed_forward(norm(x))`.
    Sequential { attention: Norm, feed_forward: Norm },
    /// `y = norm(x)`, then `x += attention(y) + feed_forward(y)` (Phi).
    Parallel(Norm),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    Rms {
        eps: f32,
    },
    /// With a bias.
    Layer {
        eps: f32,
    },
}

/// Layers with the same kind of attention share a step's plan: heads and window decide what of keys and values is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionKind {
    pub heads: HeadLayout,
    pub window: Option<u32>,
}

impl AttentionSpec {
    pub fn kind(&self) -> AttentionKind {
        AttentionKind { heads: self.heads, window: self.window }
    }
}

impl Norm {
    pub fn eps(self) -> f32 {
        match self {
            Norm::Rms { eps } | Norm::Layer { eps } => eps,
        }
    }
}

/// The distinct values of `items`, in the order in which they first occur: what layers can share.
pub fn kinds<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kinds = Vec::new();
    for item in items {
        if !kinds.contains(&item) {
            kinds.push(item);
        }
    }
    kinds
}
