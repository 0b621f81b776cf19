//! The types of an attention plan.

use std::ops::Range;

use offshoot_core::ids::{GroupIx, PageId};

/// Contiguous keys and values of one segment: `tokens` tokens from absolute position `first_position`, in `pages` (a
/// range of `AttentionPlan::pages`), the first of them in slot `first_position % page_tokens` of the first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpan {
    pub pages: Range<u32>,
    pub first_position: u32,
    pub tokens: u32,
}

/// Rows x spans -> one partial (o, m, l) per row and head. Spans are in rising, adjoining positions, and belong to
/// segments on the path of every row. A row may see nothing of an item that holds it; its partial is then the empty one
/// (l = 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    pub rows: Range<u32>,
    /// Range into `AttentionPlan::spans`.
    pub spans: Range<u32>,
}

/// Compressed lists: list `i` is `values[offsets[i] .. offsets[i + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    pub offsets: Vec<u32>,
    pub values: Vec<u32>,
}

impl Csr {
    /// The items of each of so many rows, which rise.
    pub(super) fn of_items(items: &[WorkItem], rows: usize) -> Csr {
        // The number of items of a row: the sum of the differences up to it.
        let mut steps = vec![0i32; rows + 1];
        for item in items {
            steps[item.rows.start as usize] += 1;
            steps[item.rows.end as usize] -= 1;
        }
        let mut offsets = Vec::with_capacity(rows + 1);
        let (mut held, mut end) = (0i32, 0u32);
        offsets.push(0);
        for step in &steps[..rows] {
            held += step;
            end += held.unsigned_abs();
            offsets.push(end);
        }
        let mut next = offsets.clone();
        let mut values = vec![0u32; end as usize];
        for (index, item) in (0u32..).zip(items) {
            for next in &mut next[item.rows.start as usize..item.rows.end as usize] {
                values[*next as usize] = index;
                *next += 1;
            }
        }
        Csr { offsets, values }
    }

    /// The lists of those values that `kept` gives another number, in the same order.
    pub(super) fn only(&self, kept: &[Option<u32>]) -> Csr {
        let mut own = Csr { offsets: Vec::with_capacity(self.offsets.len()), values: Vec::new() };
        own.offsets.push(0);
        for list in self.offsets.windows(2) {
            let values = &self.values[list[0] as usize..list[1] as usize];
            own.values.extend(values.iter().filter_map(|&value| kept[value as usize]));
            own.offsets.push(u32::try_from(own.values.len()).expect("no more values than before"));
        }
        own
    }
}

/// One step's attention, as integers. A row sees position `p` iff `p <= pos(row)` and, with a window, `pos(row) - p <
/// window`; spans may hold positions that some of the item's rows do not see: backends mask by this rule alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionPlan {
    pub page_tokens: u32,
    pub tile: u32,
    /// The page group of `pages`.
    pub group: GroupIx,
    pub window: Option<u32>,
    /// The device whose positions the spans count, of several that share each sequence; `None`: all positions count.
    pub member: Option<Member>,
    /// Whether a backend may compute the first steps of a tile once for neighbouring items that begin with the same
    /// spans, and each item's rest from there. Only less than a tile is left to that: planners share whole ones.
    pub joins_beginnings: bool,
    pub items: Vec<WorkItem>,
    pub spans: Vec<KvSpan>,
    pub pages: Vec<PageId>,
    /// Absolute position of each row.
    pub row_positions: Vec<u32>,
    /// Row -> its items, in rising position order: the order in which their partials merge. Items are listed so that a
    /// row's items have rising indices.
    pub merge: Csr,
    /// For each row that is alone in its leaf segment and newest there: the span that ends with it and grows with it
    /// (see `advance`). In the order of rows.
    pub growing: Vec<GrowingSpan>,
    /// Tokens whose keys and values a plan without sharing would read; see [`PlanStats`](super::PlanStats).
    pub flat_kv_tokens: u64,
}

impl AttentionPlan {
    /// The spans of an item.
    pub(super) fn spans_of(&self, item: &WorkItem) -> &[KvSpan] {
        &self.spans[item.spans.start as usize..item.spans.end as usize]
    }
}

/// A span that ends at its row and grows with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingSpan {
    /// Index into `AttentionPlan::spans`.
    pub span: u32,
    /// Unused entries of `AttentionPlan::pages` after the span's own.
    pub room: u32,
}

/// Device `number` of `of`. It holds positions `[number * page_tokens, (number + 1) * page_tokens)` of every `of *
/// page_tokens`, which it counts without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub number: u32,
    pub of: u32,
    /// Slots of its pages: one `of`th of a page.
    pub page_tokens: u32,
}
