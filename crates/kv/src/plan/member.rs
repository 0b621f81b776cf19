//! The share of a plan that one of several devices computes which hold the keys and values of the same heads. They are
//! divided by positions: of each page, every device holds an equal run of neighbouring slots as a smaller page of the
//! same id. A row's partial states of all devices merge through their log-sum-exp, as those of work items do.

use std::ops::Range;

use super::{AttentionPlan, Csr, KvSpan, Member, WorkItem};
use crate::KvSlot;

impl Member {
    /// How many of the positions below `position` it holds: the number that it gives to the first one from `position`
    /// on.
    pub fn held_below(self, position: u32) -> u32 {
        let page = self.of * self.page_tokens;
        let in_page = (position % page).saturating_sub(self.number * self.page_tokens);
        position / page * self.page_tokens + in_page.min(self.page_tokens)
    }

    /// Which of `slots` of a page it holds, as slots of its own.
    pub fn slots(self, slots: Range<u32>) -> Range<u32> {
        self.held_below(slots.start)..self.held_below(slots.end)
    }

    /// Its own slot for what is at `at`, if it holds that.
    pub fn slot(self, at: KvSlot) -> Option<KvSlot> {
        let own = self.slots(at.slot..at.slot + 1);
        (!own.is_empty()).then_some(KvSlot { page: at.page, slot: own.start })
    }

    /// The positions of a span that it holds; `None` if there are none.
    fn span(self, span: &KvSpan) -> Option<KvSpan> {
        let page = |position: u32| position / self.page_tokens;
        let own = self.held_below(span.first_position)..self.held_below(span.first_position + span.tokens);
        let before = span.first_position / (self.of * self.page_tokens);
        let pages = || span.pages.start + page(own.start) - before..span.pages.start + page(own.end - 1) + 1 - before;
        (!own.is_empty()).then(|| KvSpan { pages: pages(), first_position: own.start, tokens: own.end - own.start })
    }
}

impl AttentionPlan {
    /// The positions that `row` sees, as the plan's spans count them.
    pub fn seen(&self, row: usize) -> Range<u32> {
        let end = self.row_positions[row] + 1;
        let begin = self.window.map_or(0, |window| end.saturating_sub(window));
        match self.member {
            None => begin..end,
            Some(member) => member.held_below(begin)..member.held_below(end),
        }
    }

    /// The work of one member, whose spans count its positions. Items of which it holds nothing are left out, so a row
    /// may have none. The plan is not advanced.
    #[must_use]
    pub fn of_member(&self, member: Member) -> AttentionPlan {
        assert!(self.member.is_none(), "the plan of all devices");
        assert_eq!(self.page_tokens, member.of * member.page_tokens, "members hold equal parts of a page");
        assert!(self.tile == 1 || self.tile.is_multiple_of(self.page_tokens), "tiles are whole pages");
        let mut own = AttentionPlan {
            page_tokens: member.page_tokens,
            tile: self.tile.div_ceil(member.of),
            group: self.group,
            window: self.window,
            member: Some(member),
            joins_beginnings: false,
            items: Vec::new(),
            spans: Vec::new(),
            pages: self.pages.clone(),
            row_positions: self.row_positions.clone(),
            merge: Csr::default(),
            growing: Vec::new(),
            flat_kv_tokens: 0,
        };
        let end = |list: usize| u32::try_from(list).expect("no more than the plan of all devices has");
        let mut kept = vec![None; self.items.len()];
        for (kept, item) in kept.iter_mut().zip(&self.items) {
            let first = own.spans.len();
            own.spans.extend(self.spans_of(item).iter().filter_map(|span| member.span(span)));
            if own.spans.len() > first {
                *kept = Some(end(own.items.len()));
                own.items.push(WorkItem { rows: item.rows.clone(), spans: end(first)..end(own.spans.len()) });
            }
        }
        own.merge = self.merge.only(&kept);
        own.flat_kv_tokens = (0..own.row_positions.len()).map(|row| own.seen(row).len() as u64).sum();
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::ids::{GroupIx, PageId};

    const fn member(number: u32) -> Member {
        Member { number, of: 4, page_tokens: 2 }
    }

    const MEMBERS: [Member; 4] = [member(0), member(1), member(2), member(3)];

    #[test]
    fn every_position_is_held_once_and_counted_in_order() {
        for position in 0..50 {
            let holders: Vec<_> =
                MEMBERS.iter().filter(|member| member.held_below(position + 1) > member.held_below(position)).collect();
            assert_eq!(holders.len(), 1, "position {position}");
            assert_eq!(holders[0].number, position / 2 % 4);
            let at = KvSlot { page: PageId(7), slot: position % 8 };
            let own = KvSlot { page: PageId(7), slot: position % 2 };
            assert_eq!(holders[0].slot(at), Some(own));
            assert_eq!(MEMBERS.iter().filter_map(|member| member.slot(at)).count(), 1);
            assert_eq!(MEMBERS.iter().map(|member| member.held_below(position)).sum::<u32>(), position);
        }
        assert_eq!(MEMBERS.map(|member| member.slots(1..5)), [1..2, 0..2, 0..1, 0..0]);
    }

    /// Two rows that share a prefix of 13 tokens: at position 14 in a segment of their own, and at 12.
    fn plan(window: Option<u32>) -> AttentionPlan {
        AttentionPlan {
            page_tokens: 8,
            tile: 1,
            group: GroupIx(0),
            window,
            member: None,
            joins_beginnings: false,
            items: vec![WorkItem { rows: 0..2, spans: 0..1 }, WorkItem { rows: 0..1, spans: 1..2 }],
            spans: vec![
                KvSpan { pages: 0..2, first_position: 0, tokens: 13 },
                KvSpan { pages: 2..3, first_position: 13, tokens: 2 },
            ],
            pages: vec![PageId(5), PageId(3), PageId(9)],
            row_positions: vec![14, 12],
            merge: Csr { offsets: vec![0, 2, 3], values: vec![0, 1, 0] },
            growing: Vec::new(),
            flat_kv_tokens: 28,
        }
    }

    /// The position in all of position `own` of a member.
    fn position(member: Member, own: u32) -> u32 {
        own / 2 * 8 + member.number * 2 + own % 2
    }

    #[test]
    fn members_see_together_what_the_plan_sees() {
        for window in [None, Some(5), Some(9)] {
            let whole = plan(window);
            for row in 0..2 {
                let mut found = Vec::new();
                for member in MEMBERS {
                    let own = whole.of_member(member);
                    let seen = own.seen(row);
                    for &item in &own.merge.values[own.merge.offsets[row] as usize..own.merge.offsets[row + 1] as usize]
                    {
                        let item = &own.items[item as usize];
                        assert!(item.rows.contains(&(row as u32)) && !item.spans.is_empty());
                        for span in &own.spans[item.spans.start as usize..item.spans.end as usize] {
                            for at in
                                (span.first_position..span.first_position + span.tokens).filter(|p| seen.contains(p))
                            {
                                let page = span.pages.start + at / 2 - span.first_position / 2;
                                assert!(span.pages.contains(&page));
                                found.push((position(member, at), own.pages[page as usize]));
                            }
                        }
                    }
                }
                found.sort_unstable();
                let page = |p: u32| {
                    PageId(if p >= 13 {
                        9
                    } else if p >= 8 {
                        3
                    } else {
                        5
                    })
                };
                let expected: Vec<_> = whole.seen(row).map(|p| (p, page(p))).collect();
                assert_eq!(found, expected, "row {row}, window {window:?}");
            }
        }
    }

    #[test]
    fn an_item_of_others_falls_out() {
        // Positions 13 and 14 are those of the third member and of the fourth.
        let items = MEMBERS.map(|member| plan(None).of_member(member).items.len());
        assert_eq!(items, [1, 1, 2, 2]);
        let first = plan(None).of_member(MEMBERS[0]);
        assert_eq!((first.merge.offsets, first.merge.values), (vec![0, 1, 2], vec![0, 0]));
    }
}
