//! Advances a plan to the next step when every row is one token further and the tree is otherwise unchanged. Items,
//! merge lists and rows stay; only the ends of the rows' own spans change.
//!
//! Invariant: an advanced plan passes `AttentionPlan::check` for the forest of the advanced rows, and each row reads
//! what a new plan would make it read. A row whose last page is full brings a new one ([`NewPage`]), which is appended
//! to its span's pages; if there is no room after them, they move to the end of `AttentionPlan::pages` with twice the
//! room. So a step costs time linear in the new pages, amortised.

use super::{AttentionPlan, GrowingSpan, KvSpan};
use offshoot_core::ids::{GroupIx, PageId};

/// Row `row`, whose page of `group` is full, continues in the first slot of `page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPage {
    pub group: GroupIx,
    pub row: u32,
    pub page: PageId,
}

/// The new pages of one group.
pub fn of_group(new_pages: &[NewPage], group: GroupIx) -> impl Iterator<Item = &NewPage> {
    new_pages.iter().filter(move |new_page| new_page.group == group)
}

impl AttentionPlan {
    /// Whether the plan can be advanced: each row has a span of its own that grows.
    pub fn can_advance(&self) -> bool {
        self.growing.len() == self.row_positions.len()
    }

    /// Moves every row one token further; requires `can_advance`. `new_pages` lists for each group, in rising order,
    /// exactly the rows in the last slot of a page; those of other groups than the plan's are ignored.
    pub fn advance(&mut self, new_pages: &[NewPage]) {
        debug_assert!(self.can_advance() && self.are_full_rows(new_pages));
        for new_page in of_group(new_pages, self.group) {
            self.add_page(new_page);
        }
        for growing in &self.growing {
            self.spans[growing.span as usize].tokens += 1;
        }
        self.row_positions.iter_mut().for_each(|position| *position += 1);
        // Also with a window: positions that a row no longer sees stay in its span and are masked.
        self.flat_kv_tokens += self.row_positions.len() as u64;
    }

    /// Moves every row one token further in a plan whose spans do not grow, as another one has the rows' own.
    pub fn advance_rows(&mut self) {
        self.row_positions.iter_mut().for_each(|position| *position += 1);
    }

    /// Whether these are the rows whose pages are full.
    fn are_full_rows(&self, new_pages: &[NewPage]) -> bool {
        let full = (0u32..).zip(&self.row_positions).filter(|&(_, &at)| (at + 1).is_multiple_of(self.page_tokens));
        full.map(|(row, _)| row).eq(of_group(new_pages, self.group).map(|new_page| new_page.row))
    }

    fn add_page(&mut self, new_page: &NewPage) {
        let GrowingSpan { span, room } = &mut self.growing[new_page.row as usize];
        let KvSpan { pages, .. } = &mut self.spans[*span as usize];
        if *room == 0 {
            let (first, held) = (self.pages.len(), pages.len());
            self.pages.extend_from_within(pages.start as usize..pages.end as usize);
            self.pages.resize(first + 2 * held + 1, new_page.page);
            let first = u32::try_from(first).expect("a step has fewer than 2^32 pages");
            *pages = first..first + (pages.end - pages.start);
            *room = pages.end - pages.start + 1;
        }
        self.pages[pages.end as usize] = new_page.page;
        pages.end += 1;
        *room -= 1;
    }
}
