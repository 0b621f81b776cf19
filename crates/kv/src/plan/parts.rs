//! Parts of a plan: items that are cut in two, plans of some items alone, and the pages that an item reads.

use std::ops::Range;

use super::form_choice::ItemForm;
use super::{AttentionPlan, Csr, GrowingSpan, KvSpan, WorkItem};
use crate::Forest;

use offshoot_core::ids::PageId;

impl KvSpan {
    /// What of it lies in `positions`, which begin and end where a page does, or outside of it.
    fn within(&self, positions: &Range<u32>, page_tokens: u32) -> Option<KvSpan> {
        let end = self.first_position + self.tokens;
        let (from, to) = (self.first_position.max(positions.start), end.min(positions.end));
        let page = |position: u32| self.pages.start + position / page_tokens - self.first_position / page_tokens;
        (from < to).then(|| KvSpan { pages: page(from)..page(to - 1) + 1, first_position: from, tokens: to - from })
    }
}

impl AttentionPlan {
    /// The pages that an item reads, each with its slots. A page that two spans share comes twice.
    pub(crate) fn page_slots(&self, item: &WorkItem) -> impl Iterator<Item = (PageId, Range<u32>)> {
        self.spans_of(item).iter().flat_map(|span| self.slots_of(span))
    }

    /// The sum over an item's rows of its tokens that each sees, without regard to a window.
    pub(super) fn seen_tokens(&self, item: &WorkItem) -> u64 {
        let spans = self.spans_of(item);
        let first = spans[0].first_position;
        let tokens: u32 = spans.iter().map(|span| span.tokens).sum();
        let rows = &self.row_positions[item.rows.start as usize..item.rows.end as usize];
        rows.iter().map(|&position| u64::from((position + 1).saturating_sub(first).min(tokens))).sum()
    }

    /// The pages of a span, each with the slots that belong to it.
    pub(crate) fn slots_of(&self, span: &KvSpan) -> impl Iterator<Item = (PageId, Range<u32>)> {
        let (first, end, of) = (span.first_position, span.first_position + span.tokens, self.page_tokens);
        let pages = &self.pages[span.pages.start as usize..span.pages.end as usize];
        (first / of..).zip(pages).map(move |(number, &page)| {
            let begins = number * of;
            (page, first.max(begins) - begins..end.min(begins + of) - begins)
        })
    }

    /// The segments of an item's spans, from the last one upward.
    pub(super) fn segments_of<'a>(&'a self, item: &WorkItem, forest: &'a Forest) -> impl Iterator<Item = usize> + 'a {
        let mut at = forest.row_segments[item.rows.start as usize] as usize;
        self.spans_of(item).iter().rev().map(move |span| {
            while forest.segments[at].first_position > span.first_position {
                at = forest.segments[at].parent.expect("positions before it are its ancestors'") as usize;
            }
            at
        })
    }

    /// Cuts each item that has two forms in two, one behind the other.
    pub(super) fn cut_items(&mut self, chosen: &[ItemForm]) {
        if chosen.iter().all(|chosen| chosen.upto.is_none()) {
            return;
        }
        let (items, spans) = (std::mem::take(&mut self.items), std::mem::take(&mut self.spans));
        // Where the end of each span went.
        let mut moved = vec![0; spans.len()];
        for (item, chosen) in items.into_iter().zip(chosen) {
            let cut = chosen.upto.unwrap_or(u32::MAX);
            for part in [0..cut, cut..u32::MAX].into_iter().take(1 + usize::from(chosen.upto.is_some())) {
                let first = number(self.spans.len());
                for index in item.spans.clone() {
                    if let Some(span) = spans[index as usize].within(&part, self.page_tokens) {
                        moved[index as usize] = number(self.spans.len());
                        self.spans.push(span);
                    }
                }
                // Its own rows come first and rise: those before the part see nothing of it.
                let rows = &self.row_positions[item.rows.start as usize..item.rows.end as usize];
                let before = number(rows.iter().take_while(|&&position| position < part.start).count());
                let rows = item.rows.start + before..item.rows.end;
                self.items.push(WorkItem { rows, spans: first..number(self.spans.len()) });
            }
        }
        self.merge = Csr::of_items(&self.items, self.row_positions.len());
        self.growing.iter_mut().for_each(|growing| growing.span = moved[growing.span as usize]);
    }

    /// A plan of those items alone, none of which grows.
    pub(super) fn items_where(&self, keep: impl Fn(usize) -> bool) -> AttentionPlan {
        let mut own = AttentionPlan {
            items: Vec::new(),
            spans: Vec::new(),
            pages: Vec::new(),
            row_positions: self.row_positions.clone(),
            merge: Csr::default(),
            growing: Vec::new(),
            flat_kv_tokens: 0,
            ..*self
        };
        let mut kept = vec![None; self.items.len()];
        for (index, item) in self.items.iter().enumerate().filter(|&(index, _)| keep(index)) {
            kept[index] = Some(number(own.items.len()));
            let first = number(own.spans.len());
            for span in self.spans_of(item) {
                let page = number(own.pages.len());
                own.pages.extend(&self.pages[span.pages.start as usize..span.pages.end as usize]);
                own.spans.push(KvSpan { pages: page..number(own.pages.len()), ..span.clone() });
            }
            own.items.push(WorkItem { rows: item.rows.clone(), spans: first..number(own.spans.len()) });
        }
        own.merge = self.merge.only(&kept);
        own
    }

    /// Leaves out all other items, none of which grows. Pages stay.
    pub(super) fn retain_items(&mut self, keep: impl Fn(usize) -> bool) {
        let mut kept = vec![None; self.items.len()];
        let mut moved = vec![None; self.spans.len()];
        let (items, spans) = (std::mem::take(&mut self.items), std::mem::take(&mut self.spans));
        for (index, item) in items.into_iter().enumerate().filter(|&(index, _)| keep(index)) {
            kept[index] = Some(number(self.items.len()));
            let first = number(self.spans.len());
            for span in item.spans {
                moved[span as usize] = Some(number(self.spans.len()));
                self.spans.push(spans[span as usize].clone());
            }
            self.items.push(WorkItem { rows: item.rows, spans: first..number(self.spans.len()) });
        }
        self.merge = self.merge.only(&kept);
        for GrowingSpan { span, .. } in &mut self.growing {
            *span = moved[*span as usize].expect("items that grow stay");
        }
    }
}

pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a step has fewer than 2^32 spans and pages")
}
