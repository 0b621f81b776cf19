//! How a plan follows a step whose tree did not change but for one token a row. Items, merge lists and the rows of each
//! stay; only what says how far a row's own span reaches changes.
//!
//! The invariant: an advanced plan passes `AttentionPlan::check` for the forest of the advanced rows, and each row
//! reads what it would read by a plan made anew. Where an item ends in a page that is full, the row brings a page
//! ([`NewPage`]): it goes behind the span's others, which move to the end of `AttentionPlan::pages` where they have no
//! room behind them. So a step costs the pages that were turned, and moves of whole lists, which double their room, are
//! rare.

use super::{AttentionPlan, KvSpan};
use crate::ids::PageId;

/// A span that ends with a row and grows with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingSpan {
    /// Index into `AttentionPlan::spans`.
    pub span: u32,
    /// Unused places of `AttentionPlan::pages` behind the span's own.
    pub room: u32,
}

/// Row `row`, whose page is full, goes on in the first slot of `page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPage {
    pub row: u32,
    pub page: PageId,
}

impl AttentionPlan {
    /// Whether the same plan serves when every row is one token further: each row grows a span of its own.
    pub fn can_advance(&self) -> bool {
        self.growing.len() == self.row_positions.len()
    }

    /// Makes every row one token longer; only where `can_advance`. `new_pages` name, in rising order, exactly the rows
    /// that stand in the last slot of a page.
    pub fn advance(&mut self, new_pages: &[NewPage]) {
        debug_assert!(self.can_advance() && self.are_full_rows(new_pages));
        for new_page in new_pages {
            self.add_page(new_page);
        }
        for growing in &self.growing {
            self.spans[growing.span as usize].tokens += 1;
        }
        self.row_positions.iter_mut().for_each(|position| *position += 1);
        // With a window too: what a row no longer sees is not worth replanning, here as in a flat plan.
        self.flat_kv_tokens += self.row_positions.len() as u64;
    }

    /// Whether these are the rows whose pages are full.
    fn are_full_rows(&self, new_pages: &[NewPage]) -> bool {
        let full = (0u32..).zip(&self.row_positions).filter(|&(_, &at)| (at + 1).is_multiple_of(self.page_tokens));
        full.map(|(row, _)| row).eq(new_pages.iter().map(|new_page| new_page.row))
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
