//! The pages of a segment, by the reach of the layers that read them.

use std::ops::{Index, IndexMut};

use crate::Reach;
use offshoot_core::ids::PageId;

/// For each reach the pages of its groups: by page number, and of one page number by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageLists([Vec<PageId>; Reach::BOTH.len()]);

impl PageLists {
    pub fn iter(&self) -> impl Iterator<Item = PageId> {
        self.0.iter().flatten().copied()
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

impl Index<Reach> for PageLists {
    type Output = Vec<PageId>;

    fn index(&self, reach: Reach) -> &Vec<PageId> {
        &self.0[reach as usize]
    }
}

impl IndexMut<Reach> for PageLists {
    fn index_mut(&mut self, reach: Reach) -> &mut Vec<PageId> {
        &mut self.0[reach as usize]
    }
}
