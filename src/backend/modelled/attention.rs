//! What the attention of one step takes in one layer, from the integers of its plan: keys and values that its items read,
//! products, states written and merged.

use super::profile::{AttentionTimes, Products};
use crate::backend::{Dtype, HeadLayout};
use crate::plan::{AttentionPlan, WorkItem};

impl AttentionTimes {
    /// Nanoseconds of one layer's attention by `plan`. Products and reads go on beside each other: the longer of the two
    /// counts, and of the shorter the part that is not hidden.
    pub fn ns(&self, plan: &AttentionPlan, heads: HeadLayout, dtype: Dtype) -> f64 {
        let (mut reads, mut products) = (0.0, 0.0);
        for item in &plan.items {
            let work = Work::of(plan, item, heads, dtype);
            reads += work.bytes * self.kv_byte_ns;
            products += self.products.ns(&work);
        }
        let merge = match merged_states(plan) {
            0 => 0.0,
            states => self.merge_ns + states as f64 * state_bytes(heads) * self.state_byte_ns,
        };
        self.launch_ns
            + self.item_ns * plan.items.len() as f64
            + reads.max(products)
            + self.unhidden * reads.min(products)
            + merge
    }
}

/// One item, counted.
struct Work {
    rows: u64,
    tokens: u64,
    bytes: f64,
    heads: HeadLayout,
}

impl Work {
    fn of(plan: &AttentionPlan, item: &WorkItem, heads: HeadLayout, dtype: Dtype) -> Self {
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let tokens: u64 = spans.iter().map(|span| u64::from(span.tokens)).sum();
        let token_bytes = 2 * heads.kv_heads * heads.head_dim * dtype.bytes();
        Self { rows: item.rows.len() as u64, tokens, bytes: (tokens * token_bytes as u64) as f64, heads }
    }

    /// Rows x heads of a group.
    fn packed(&self) -> u64 {
        self.rows * self.heads.group() as u64
    }
}

impl Products {
    fn ns(&self, work: &Work) -> f64 {
        match *self {
            Products::FlopsPerS(rate) => {
                let width = (work.heads.q_heads * work.heads.head_dim) as f64;
                4.0 * (work.rows * work.tokens) as f64 * width / rate * 1e9
            }
            Products::Tiles { narrow_rows, .. } if work.packed() <= u64::from(narrow_rows) => 0.0,
            Products::Tiles { rows, start_ns, token_ns, half_token_ns, .. } => {
                let (full, rest) = (work.packed() / u64::from(rows), work.packed() % u64::from(rows));
                let last = match rest {
                    0 => 0.0,
                    rest if 2 * rest <= u64::from(rows) => half_token_ns,
                    _ => token_ns,
                };
                let tiles = full as f64 + f64::from(u8::from(rest > 0));
                let tokens = work.tokens as f64;
                work.heads.kv_heads as f64 * (tiles * start_ns + tokens * (full as f64 * token_ns + last))
            }
        }
    }
}

/// Partial states of rows that have several.
fn merged_states(plan: &AttentionPlan) -> u64 {
    plan.merge.offsets.windows(2).map(|ends| u64::from(ends[1] - ends[0])).filter(|&states| states > 1).sum()
}

/// `o`, `m` and `l` of all query heads, f32.
fn state_bytes(heads: HeadLayout) -> f64 {
    (4 * heads.q_heads * (heads.head_dim + 2)) as f64
}
