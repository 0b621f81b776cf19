//! The pages of a segment, by the reach of the layers that read them.

use std::ops::{Index, IndexMut};

use crate::Reach;
use offshoot_core::ids::PageId;

/// For each reach the pages of its groups: by page number, and of one page number by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageLists {
    all: Vec<PageId>,
    window: Vec<PageId>,
}

impl PageLists {
    pub fn iter(&self) -> impl Iterator<Item = PageId> {
        self.all.iter().chain(&self.window).copied()
    }

    pub fn len(&self) -> usize {
        self.all.len() + self.window.len()
    }
}

impl Index<Reach> for PageLists {
    type Output = Vec<PageId>;

    fn index(&self, reach: Reach) -> &Vec<PageId> {
        match reach {
            Reach::All => &self.all,
            Reach::Window => &self.window,
        }
    }
}

impl IndexMut<Reach> for PageLists {
    fn index_mut(&mut self, reach: Reach) -> &mut Vec<PageId> {
        match reach {
            Reach::All => &mut self.all,
            Reach::Window => &mut self.window,
        }
    }
}
