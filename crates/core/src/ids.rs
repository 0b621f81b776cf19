//! Newtype indices. Everything that counts tokens, pages, segments, branches, rows or layers is named here, so that one
//! cannot be passed for another; this is the only file that converts between them and plain integers.
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id of index `ix`.
            ///
            /// # Panics
            ///
            /// When `ix` does not fit, which no machine's memory allows.
            pub fn new(ix: usize) -> Self {
                Self(<$inner>::try_from(ix).expect("an index into memory fits its id"))
            }

            /// The id as an index.
            pub fn ix(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

ids! {
    /// A word of the model's vocabulary.
    TokenId(u32);
    /// A page of KV memory: `Backend::page_tokens` slots, in every layer of one page group.
    PageId(u32);
    /// A slot for the state of one sequence in all recurrent layers.
    StateId(u32);
    /// A page group: layers that keep the same positions and share their pages. See `kv::PageGroups`.
    GroupIx(u32);
    /// A node of the prefix tree.
    SegmentId(u32);
    /// A node of a sampling tree. It names the same node as long as its tree lives: nodes are never removed.
    NodeId(u32);
    /// An engine-side leaf: something that can be extended.
    BranchId(u64);
    /// A query token of one step; rows are numbered depth-first.
    RowIx(u32);
    /// A transformer layer.
    LayerIx(u32);
    /// A version of the model's weights: 0 as they were loaded, one more with each update of an engine.
    WeightVersion(u64);
    /// A version of an adapter in one engine: an adapter that is loaded, or replaced, has one that none had before.
    AdapterVersion(u64);
}

impl WeightVersion {
    /// The weights that an engine is started with.
    pub const FIRST: WeightVersion = WeightVersion(0);

    /// The version after the next update.
    pub fn next(self) -> Self {
        WeightVersion(self.0 + 1)
    }
}
