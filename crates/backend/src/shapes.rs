//! Shapes of attention: the heads in a row of queries, keys and values, and the size of the memory for keys, values and
//! states. `states` has those of recurrent layers.

use std::fmt;

use super::kv_dtype::KvDtype;
use super::routes::RouteShape;
use super::states::StateShape;
use super::weights::Dtype;
use offshoot_core::ids::{GroupIx, LayerIx};
use offshoot_kv::LayerPlace;

/// The heads of attention. A row of `qkv` has `q_heads` query heads, then `kv_heads` key heads, each of `head_dim`
/// elements, then the value heads, where they lie beside the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    pub q_heads: usize,
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub head_dim: usize,
    pub values: Values,
    /// Whether keys and values are copies of latents, which were rounded to the KV dtype before: they are stored in the
    /// compute dtype.
    pub expanded: bool,
}

/// Where values lie, and how many elements one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Values {
    /// Beside the keys: a value head for each key head.
    Beside(usize),
    /// In the keys, stored once: the first so many elements of a key are its value, as of latents.
    InKeys(usize),
}

/// `32 / 8 x 128`: heads of queries, of keys, and their width; then that of values, if it is another one.
impl fmt::Display for HeadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {} x {}", self.q_heads, self.kv_heads, self.head_dim)?;
        match self.values {
            Values::Beside(width) if width == self.head_dim => Ok(()),
            Values::Beside(width) => write!(f, ", values of {width}"),
            Values::InKeys(width) => write!(f, ", the first {width} are the value"),
        }
    }
}

impl HeadLayout {
    /// Heads whose values are as wide as their keys, beside them.
    pub const fn new(q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { q_heads, kv_heads, head_dim, values: Values::Beside(head_dim), expanded: false }
    }

    /// What keys and values are rounded to where the KV dtype is `kv`.
    pub fn kv_dtype(&self, kv: KvDtype) -> KvDtype {
        if self.expanded { KvDtype::Model } else { kv }
    }

    /// Elements of a row of `qkv`.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + self.stored_width()
    }

    /// Elements of a row's query heads.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Elements of a value.
    pub fn value_dim(&self) -> usize {
        match self.values {
            Values::Beside(width) | Values::InKeys(width) => width,
        }
    }

    /// Elements of what a row's query heads read: a value for each.
    pub fn out_width(&self) -> usize {
        self.q_heads * self.value_dim()
    }

    /// Elements that are stored of a token: its key heads, and its value heads where they lie beside these.
    pub fn stored_width(&self) -> usize {
        let beside = match self.values {
            Values::Beside(width) => width,
            Values::InKeys(_) => 0,
        };
        self.kv_heads * (self.head_dim + beside)
    }

    /// Whether values are as wide as keys, beside them.
    pub fn has_even_values(&self) -> bool {
        self.values == Values::Beside(self.head_dim)
    }

    /// Whether the first elements of a key are its value.
    pub fn values_in_keys(&self) -> bool {
        matches!(self.values, Values::InKeys(_))
    }

    /// Query heads per key head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

/// The largest `head_dim` of a model, but for latents. It must also be even, because 16-bit keys are stored in pairs.
pub const MOST_HEAD_DIM: usize = 512;

/// Which heads `head_norm` normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    Query,
    Key,
    Value,
}

impl HeadKind {
    pub const ALL: [HeadKind; 3] = [HeadKind::Query, HeadKind::Key, HeadKind::Value];

    /// The first of these heads in a row of `qkv`, and their number.
    pub fn place(self, heads: HeadLayout) -> (usize, usize) {
        match self {
            HeadKind::Query => (0, heads.q_heads),
            HeadKind::Key => (heads.q_heads, heads.kv_heads),
            HeadKind::Value => (heads.q_heads + heads.kv_heads, heads.kv_heads),
        }
    }
}

/// What one norm of queries or keys covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNormSpan {
    /// Each head separately, by the same weights `[head_dim]`.
    Head,
    /// Each head separately, by weights of its own: `[heads * head_dim]` (StableLM 2).
    EachHead,
    /// All heads as one vector, by weights `[heads * head_dim]` (OLMo).
    AllHeads,
}

/// How `head_norm` normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadNormForm {
    pub span: HeadNormSpan,
    /// Whether the mean is subtracted first.
    pub centred: bool,
}

impl HeadNormForm {
    /// Each head by the same weights.
    pub const PLAIN: Self = Self { span: HeadNormSpan::Head, centred: false };

    /// Elements that are normalised together, and the length of the weights, of `count` heads.
    pub fn widths(self, heads: HeadLayout, count: usize) -> [usize; 2] {
        let (one, all) = (heads.head_dim, count * heads.head_dim);
        match self.span {
            HeadNormSpan::Head => [one, one],
            HeadNormSpan::EachHead => [one, all],
            HeadNormSpan::AllHeads => [all, all],
        }
    }
}

/// Rotations of the heads of one layer, at most.
pub const MOST_ROPES: usize = 2;

/// What is done to the heads of a row of `qkv` before attention reads them.
pub struct HeadSteps<'a, V, R> {
    pub heads: HeadLayout,
    /// First, for each of `HeadKind::ALL` the weights of its norm, if it has one; last, if `norms_after_rope`.
    pub norms: [Option<&'a V>; 3],
    pub form: HeadNormForm,
    pub eps: f32,
    pub norms_after_rope: bool,
    /// Then queries, keys and values are clamped to at most this size.
    pub clip: Option<f32>,
    /// Then, in this order.
    pub ropes: [Option<&'a R>; MOST_ROPES],
    /// The layer that keys and values belong to, and whether they are those of this row: they are then appended to it.
    pub layer: LayerIx,
    pub stores: bool,
}

/// The size of the KV memory: `pages` pages of `page_tokens` tokens, of the bytes that one page group of layers needs.
#[derive(Clone, Debug)]
pub struct KvShape {
    /// Heads of each layer.
    pub heads: Vec<HeadLayout>,
    /// Page group of each layer and its part of the group's pages. Layers that use the same part have the same heads.
    pub places: Vec<LayerPlace>,
    /// The compute dtype. Keys and values have it too unless changed by `Backend::set_kv_dtype`.
    pub dtype: Dtype,
    pub pages: usize,
    /// The states of recurrent layers, which have them instead of keys and values.
    pub states: StateShape,
    /// What is kept of the tokens' experts; `None`: nothing.
    pub routes: Option<RouteShape>,
}

impl KvShape {
    /// The shape of `layers` layers with the same heads.
    pub fn uniform(layers: usize, heads: HeadLayout, dtype: Dtype, pages: usize) -> Self {
        Self::one_group(vec![heads; layers], dtype, pages)
    }

    /// The shape of layers that are all in one page group.
    pub fn one_group(heads: Vec<HeadLayout>, dtype: Dtype, pages: usize) -> Self {
        let places = (0..heads.len()).map(|part| LayerPlace { group: GroupIx(0), part }).collect();
        Self { heads, places, dtype, pages, states: StateShape::default(), routes: None }
    }

    /// This shape with room for `slots` states.
    #[must_use]
    pub fn with_states(mut self, slots: usize) -> Self {
        self.states.slots = slots;
        self
    }

    /// The heads of the layers that use each part of a page. Panics if they differ, or a part is not used.
    pub fn parts(&self) -> Vec<HeadLayout> {
        let mut parts: Vec<Option<HeadLayout>> =
            vec![None; self.places.iter().map(|place| place.part + 1).max().unwrap_or(0)];
        for (heads, place) in self.heads.iter().zip(&self.places) {
            let part = parts[place.part].get_or_insert(*heads);
            assert_eq!(part, heads, "layers that use the same part of a page have the same heads");
        }
        parts.into_iter().map(|part| part.expect("each part of a page is some layer's")).collect()
    }

    pub fn layers(&self) -> usize {
        self.heads.len()
    }
}
