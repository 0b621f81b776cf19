//! Latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1): a token keeps one latent vector and one rotated
//! part of a key, which all heads share. The widths are here, and what becomes of a row before attention reads it;
//! `Backend` has the ops.
//!
//! # Two forms
//! With a latent `c` of `rank` elements and a rotated part `r` of `rope` elements, key `h` of a token is `[K_h c, r]`
//! and value `h` is `V_h c`, where `K_h` `[nope, rank]` and `V_h` `[value, rank]` are the maps of head `h`
//! ([`Backend::latent_maps`](crate::Backend::latent_maps)). A query is `[q, p]`, of `nope` and `rope` elements.
//!
//! - *Expanded*: keys and values of all heads are computed and read as those of other models
//!   ([`LatentHeads::expanded`]): `nope + rope + value` products for each pair of row and position and head.
//! - *Absorbed*: `q . K_h c = (K_h^T q) . c`, so the query becomes `[K_h^T q, p]`, all heads read `[c, r]` as their one
//!   key and `c` as its value ([`LatentHeads::absorbed`]), and `V_h` maps what they have read: `2 rank + rope`
//!   products, and few bytes.
//!
//! They are the same numbers but for rounding, of which the KV dtype is no part: latents are rounded to it when they
//! are stored, and what is computed of them is not. A map is linear, so results over some positions in one form and
//! over others in the other form merge by their log-sum-exps, once the absorbed ones are mapped.

use std::fmt;

use super::shapes::{HeadLayout, MOST_ROPES, Values};
use offshoot_core::ids::LayerIx;

/// The widths of latent attention, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Query heads. In the expanded form there are as many key heads.
    pub heads: usize,
    /// Elements of a latent.
    pub rank: usize,
    /// Elements of the first part of a query and of an expanded key, which is not rotated.
    pub nope: usize,
    /// Elements of the last part of a query and of a key, which is rotated.
    pub rope: usize,
    /// Elements of an expanded value.
    pub value: usize,
}

/// `16 x (128 + 64) / 128 from 512`: heads, the parts of their keys, their values, and the rank of latents.
impl fmt::Display for LatentHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, rank, nope, rope, value } = self;
        write!(f, "{heads} x ({nope} + {rope}) / {value} from {rank}")
    }
}

impl LatentHeads {
    /// The heads of the absorbed form, which are those of what is stored: each token's latent and rotated part is one
    /// key head, and its latent the value.
    pub fn absorbed(&self) -> HeadLayout {
        let head_dim = self.rank + self.rope;
        HeadLayout { q_heads: self.heads, kv_heads: 1, head_dim, values: Values::InKeys(self.rank), expanded: false }
    }

    /// The heads of the expanded form.
    pub fn expanded(&self) -> HeadLayout {
        let head_dim = self.nope + self.rope;
        let values = Values::Beside(self.value);
        HeadLayout { q_heads: self.heads, kv_heads: self.heads, head_dim, values, expanded: true }
    }

    /// Elements of a row's queries, `[heads, nope + rope]`.
    pub fn query_width(&self) -> usize {
        self.heads * (self.nope + self.rope)
    }

    /// Elements of a token's latent and rotated part.
    pub fn latent_width(&self) -> usize {
        self.rank + self.rope
    }

    /// Rows of the matrix of all maps, `[heads, nope + value]` by `rank`: for each head those of `K_h`, then those of
    /// `V_h`.
    pub fn map_rows(&self) -> usize {
        self.heads * (self.nope + self.value)
    }

    /// Elements of a row of what all heads have read, mapped: `[heads, value]`.
    pub fn out_width(&self) -> usize {
        self.heads * self.value
    }
}

/// What is done to a row's queries and latent before attention reads them; see
/// [`Backend::prepare_latents`](crate::Backend::prepare_latents).
pub struct LatentSteps<'a, V, R> {
    pub heads: LatentHeads,
    /// The weights of the norm of latents, `[rank]`, and its epsilon.
    pub norm: &'a V,
    pub eps: f32,
    /// The last `rotary` elements of each query, and of the latent row where a table says so, are rotated by these, one
    /// after the other.
    pub ropes: [Option<&'a R>; MOST_ROPES],
    /// The layer that latents belong to.
    pub layer: LayerIx,
}
