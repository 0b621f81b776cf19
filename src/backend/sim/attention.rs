//! What the attention of one step takes in one layer, from the integers of its plan: keys and values that its items
//! read, products, states written and merged.

use super::profile::{DeviceProfile, Products};
use crate::backend::HeadLayout;
use crate::plan::{AttentionPlan, KvSpan, Tiles, WorkItem};

impl DeviceProfile {
    /// Nanoseconds of one layer's attention by `plan`, elements of keys and values of `kv_element_bytes` bytes each.
    /// Products and reads go on beside each other: the longer of the two counts, and of the shorter the part that is
    /// not hidden.
    pub fn attention_ns(&self, plan: &AttentionPlan, heads: HeadLayout, kv_element_bytes: usize) -> f64 {
        let (times, cost, how) = (&self.attention, self.cost_model(), self.multiplies());
        let (mut reads, mut products) = (0.0, 0.0);
        let mut met = Met::of(plan);
        for item in &plan.items {
            let work = Work::of(plan, item, heads, kv_element_bytes, &mut met);
            reads += work.first_bytes * times.first_byte_ns + work.again_bytes * times.again_byte_ns;
            products += how.ns(&work);
        }
        let merge = match merged_states(plan) {
            0 => 0.0,
            states => times.merge_ns + states as f64 * state_bytes(heads) * cost.state_byte,
        };
        times.launch_ns
            + cost.item * plan.items.len() as f64
            + reads.max(products)
            + times.unhidden * reads.min(products)
            + merge
    }

    fn multiplies(&self) -> Multiplies {
        match (self.attention.products, self.cost_model().tiles) {
            (Some(Products::FlopsPerS(rate)), _) => Multiplies::FlopsPerS(rate),
            (_, Some(tiles)) => Multiplies::Tiles(tiles),
            (_, None) => Multiplies::FlopsPerS(self.linear.flops_per_s),
        }
    }
}

/// One item, counted.
struct Work {
    rows: u64,
    tokens: u64,
    /// Bytes of keys and values that no item before it read, and of those that one did: these are near by then.
    first_bytes: f64,
    again_bytes: f64,
    heads: HeadLayout,
}

impl Work {
    fn of(plan: &AttentionPlan, item: &WorkItem, heads: HeadLayout, kv_element_bytes: usize, met: &mut Met) -> Self {
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let tokens: u64 = spans.iter().map(|span| u64::from(span.tokens)).sum();
        let first_tokens: f64 = spans.iter().map(|span| f64::from(span.tokens) * met.new_share(plan, span)).sum();
        let token_bytes = (2 * heads.kv_heads * heads.head_dim * kv_element_bytes) as f64;
        let again_tokens = tokens as f64 - first_tokens;
        let (first_bytes, again_bytes) = (first_tokens * token_bytes, again_tokens * token_bytes);
        Self { rows: item.rows.len() as u64, tokens, first_bytes, again_bytes, heads }
    }

    /// Rows x heads of a group.
    fn packed(&self) -> u64 {
        self.rows * self.heads.group() as u64
    }
}

/// How products are timed.
enum Multiplies {
    FlopsPerS(f64),
    Tiles(Tiles),
}

impl Multiplies {
    fn ns(&self, work: &Work) -> f64 {
        match *self {
            Multiplies::FlopsPerS(rate) => {
                let width = (work.heads.q_heads * work.heads.head_dim) as f64;
                4.0 * (work.rows * work.tokens) as f64 * width / rate * 1e9
            }
            Multiplies::Tiles(tiles) if work.packed() <= u64::from(tiles.narrow_rows) => 0.0,
            Multiplies::Tiles(Tiles { rows, start, token, half_token, .. }) => {
                let (full, rest) = (work.packed() / u64::from(rows), work.packed() % u64::from(rows));
                let last = match rest {
                    0 => 0.0,
                    rest if 2 * rest <= u64::from(rows) => half_token,
                    _ => token,
                };
                let tiles = full as f64 + f64::from(u8::from(rest > 0));
                let tokens = work.tokens as f64;
                work.heads.kv_heads as f64 * (tiles * start + tokens * (full as f64 * token + last))
            }
        }
    }
}

/// The pages that a step's items have read so far.
struct Met(Vec<bool>);

impl Met {
    fn of(plan: &AttentionPlan) -> Self {
        Met(vec![false; plan.pages.iter().map(|page| page.ix() + 1).max().unwrap_or(0)])
    }

    /// What part of the span's pages nobody has read before; now it is read.
    fn new_share(&mut self, plan: &AttentionPlan, span: &KvSpan) -> f64 {
        let pages = &plan.pages[span.pages.start as usize..span.pages.end as usize];
        let new = pages.iter().filter(|page| !std::mem::replace(&mut self.0[page.ix()], true)).count();
        new as f64 / pages.len() as f64
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

#[cfg(test)]
mod tests {
    use super::super::profile::DeviceProfile;
    use crate::backend::HeadLayout;
    use crate::ids::TokenId;
    use crate::kv::{PagePool, PrefixTree, StepRow};
    use crate::plan::{PlanHints, Planner};

    /// Microseconds of 32 rows of 32 heads behind 2,048 tokens that they share or do not, by a plan.
    fn us(shared: bool, planner: Planner) -> f64 {
        let profile = DeviceProfile::named("h200").expect("it is built in");
        let heads = HeadLayout { q_heads: 32, kv_heads: 32, head_dim: 128 };
        let (mut pool, mut tree) = (PagePool::new(32 * 70), PrefixTree::new(32));
        let rows = (0..32).map(|row| {
            let text: Vec<TokenId> = vec![TokenId(if shared { 0 } else { row }); 2048];
            let trunk = tree.admit(&mut pool, &text).expect("pages enough");
            let segment = tree.fork(trunk);
            tree.append(&mut pool, segment, &[TokenId(row)]).expect("pages enough");
            tree.mark_computed(segment, 2048);
            StepRow { segment, position: 2048 }
        });
        let mut rows: Vec<StepRow> = rows.collect();
        tree.depth_first(&mut rows);
        let cost = profile.cost_model();
        let hints =
            PlanHints { tile: 1, window: None, q_heads: 32, kv_heads: 32, head_dim: 128, kv_element_bytes: 2, cost };
        let plan = planner.plan(&tree.forest(&rows), &hints);
        profile.attention_ns(&plan, heads, 2) / 1e3
    }

    #[test]
    fn pages_that_are_read_again_are_read_faster_but_not_for_nothing() {
        let (unshared, flat, tree) = (us(false, Planner::Flat), us(true, Planner::Flat), us(true, Planner::Balanced));
        assert!(3.0 * tree < flat && 2.0 * flat < unshared, "{tree} us, {flat} us, {unshared} us");
    }
}
