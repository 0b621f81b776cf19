//! The description of one layer as data: its attention, its feed-forward block and its norms. Layers of one model may
//! differ in any of these. `layout` lists the tensors, the decoder computes.

use crate::backend::HeadLayout;

use super::RopeConfig;

/// One layer of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    pub attention: AttentionSpec,
    pub feed_forward: FeedForward,
    pub norms: LayerNorms,
}

/// Softmax attention. Features of other families (logit softcaps, attention sinks, keys used as values) belong here
/// once `Backend::tree_attention` supports them.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    pub heads: HeadLayout,
    /// The sliding window: positions that a row attends to, its own included. `None`: all.
    pub window: Option<u32>,
    pub rope: RopeConfig,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Epsilon of the rms norm of each query and key head before rope (Qwen3).
    pub head_norm: Option<f32>,
    pub qkv_bias: bool,
    pub out_bias: bool,
}

/// The feed-forward block of a layer. A mixture of experts would be another variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// The same matrices for all rows; `width`: the intermediate size.
    Dense { activation: Activation, width: usize, bias: bool },
}

/// The activation function, and with it the form of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `down(silu(gate x) * up x)`
    GatedSilu,
    /// `fc2(gelu(fc1 x))`
    Gelu,
}

/// The norms of a layer, and with them how attention and feed-forward are added to the residual `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayerNorms {
    /// `x += attention(norm(x))`, then `x += feed_forward(norm(x))`.
    Sequential { attention: Norm, feed_forward: Norm },
    /// `y = norm(x)`, then `x += attention(y) + feed_forward(y)` (Phi).
    Parallel(Norm),
}

/// The kind of a norm.
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

/// Layers of the same kind share one attention plan per step: heads and window determine which keys and values are
/// read.
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

/// The distinct values of `items`, in order of first occurrence.
pub fn kinds<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kinds = Vec::new();
    for item in items {
        if !kinds.contains(&item) {
            kinds.push(item);
        }
    }
    kinds
}

/// The index of `kind` in the `kinds` of all layers.
pub fn kind_index<T: PartialEq>(kinds: &[T], kind: &T) -> usize {
    kinds.iter().position(|other| other == kind).expect("the kinds are those of all layers")
}
