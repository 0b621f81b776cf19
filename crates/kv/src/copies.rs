//! Copies of latents, expanded to keys and values: in which memory they lie, and what a step makes of them.
//! `copy_cache` says which page has one.

use std::ops::Range;

use offshoot_core::ids::PageId;

/// Where copies of latents lie that are expanded to keys and values: a KV memory of its own, with pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyStore {
    /// Pages of all layers, which stay for later steps.
    Kept,
    /// Pages of one layer, which all layers of a step use in turn.
    Again,
}

impl CopyStore {
    pub const COUNT: usize = 2;
    pub const ALL: [CopyStore; Self::COUNT] = [CopyStore::Kept, CopyStore::Again];
}

/// Slots of a page of latents that are expanded to the same slots of a page of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    pub from: PageId,
    pub to: PageId,
    pub slots: Range<u32>,
}
