//! Estimates the time of tree attention in one layer from the step's plan: reads of keys and values, products, and
//! partial states written and merged.

use super::profile::{DeviceProfile, ProductTimes};
use offshoot_backend::HeadLayout;
use offshoot_kv::plan::{AttentionPlan, KvSpan, LatentRates, Tiles, WorkItem};

impl DeviceProfile {
    /// Nanoseconds of one layer's attention by `plan`, with `kv_element_bytes` bytes per element of keys and values.
    /// Products and reads overlap: the longer of the two counts in full, the shorter with its share `unhidden`.
    pub fn attention_ns(&self, plan: &AttentionPlan, heads: HeadLayout, kv_element_bytes: usize) -> f64 {
        let (times, cost, how) = (&self.attention, self.cost_model(), self.product_times());
        let (mut reads, mut products) = (0.0, 0.0);
        let mut read_pages = PagesRead::of(plan);
        for item in &plan.items {
            let work = ItemWork::of(plan, item, heads, kv_element_bytes, &mut read_pages);
            reads += work.first_bytes * times.first_byte_ns + work.again_bytes * times.again_byte_ns;
            products += match heads.has_even_values() {
                true => how.ns(&work),
                false => work.latent_ns(&cost.latents),
            };
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

    fn product_times(&self) -> ProductTimes {
        let of_backend = || match self.cost_model().tiles {
            Some(tiles) => ProductTimes::Tiles(tiles),
            None => ProductTimes::FlopsPerS(self.linear.flops_per_s),
        };
        self.attention.products.unwrap_or_else(of_backend)
    }
}

/// The work of one item of the plan.
struct ItemWork {
    rows: u64,
    tokens: u64,
    /// Bytes of keys and values read for the first time in the step, and bytes that an earlier item read too (likely
    /// cached).
    first_bytes: f64,
    again_bytes: f64,
    heads: HeadLayout,
}

impl ItemWork {
    fn of(
        plan: &AttentionPlan,
        item: &WorkItem,
        heads: HeadLayout,
        kv_element_bytes: usize,
        read_pages: &mut PagesRead,
    ) -> Self {
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let tokens: u64 = spans.iter().map(|span| u64::from(span.tokens)).sum();
        let first_tokens: f64 =
            spans.iter().map(|span| f64::from(span.tokens) * read_pages.new_share(plan, span)).sum();
        let token_bytes = (heads.stored_width() * kv_element_bytes) as f64;
        let again_tokens = tokens as f64 - first_tokens;
        let (first_bytes, again_bytes) = (first_tokens * token_bytes, again_tokens * token_bytes);
        Self { rows: item.rows.len() as u64, tokens, first_bytes, again_bytes, heads }
    }

    /// Products of either form of latent attention, whose kernels have rates of their own.
    fn latent_ns(&self, rates: &LatentRates) -> f64 {
        let packed = self.packed().next_multiple_of(u64::from(rates.rows)) * self.heads.kv_heads as u64;
        let widths = self.heads.head_dim + self.heads.value_dim();
        (packed * self.tokens) as f64 * widths as f64 * rates.product
    }

    /// Rows x query heads per key head.
    fn packed(&self) -> u64 {
        self.rows * self.heads.group() as u64
    }
}

impl ProductTimes {
    fn ns(&self, work: &ItemWork) -> f64 {
        match *self {
            ProductTimes::FlopsPerS(rate) => {
                let width = (work.heads.q_heads * work.heads.head_dim) as f64;
                4.0 * (work.rows * work.tokens) as f64 * width / rate * 1e9
            }
            ProductTimes::Tiles(tiles) if work.packed() <= u64::from(tiles.narrow_rows) => 0.0,
            ProductTimes::Tiles(Tiles { rows, start, token, half_token, .. }) => {
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
struct PagesRead(Vec<bool>);

impl PagesRead {
    fn of(plan: &AttentionPlan) -> Self {
        PagesRead(vec![false; plan.pages.iter().map(|page| page.ix() + 1).max().unwrap_or(0)])
    }

    /// The share of the span's pages not read before; marks them as read.
    fn new_share(&mut self, plan: &AttentionPlan, span: &KvSpan) -> f64 {
        let pages = &plan.pages[span.pages.start as usize..span.pages.end as usize];
        let new = pages.iter().filter(|page| !std::mem::replace(&mut self.0[page.ix()], true)).count();
        new as f64 / pages.len() as f64
    }
}

/// The number of partial states of rows that have more than one.
fn merged_states(plan: &AttentionPlan) -> u64 {
    plan.merge.offsets.windows(2).map(|ends| u64::from(ends[1] - ends[0])).filter(|&states| states > 1).sum()
}

/// Bytes of `o`, `m` and `l` of all query heads, in f32.
fn state_bytes(heads: HeadLayout) -> f64 {
    (4 * heads.q_heads * (heads.value_dim() + 2)) as f64
}

#[cfg(test)]
mod tests {
    use super::super::profile::DeviceProfile;
    use offshoot_backend::HeadLayout;
    use offshoot_core::ids::{GroupIx, TokenId};
    use offshoot_kv::plan::{PlanHints, Planner};
    use offshoot_kv::{PagePool, PrefixTree, StepRow};

    /// Microseconds of 32 rows of 32 heads after 2,048 tokens each, shared or not.
    fn us(shared: bool, planner: Planner) -> f64 {
        let profile = DeviceProfile::named("h200").expect("it is built in");
        let heads = HeadLayout::new(32, 32, 128);
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
        let hints = PlanHints {
            tile: 1,
            group: GroupIx(0),
            window: None,
            q_heads: 32,
            kv_heads: 32,
            head_dim: 128,
            kv_element_bytes: 2,
            latents: None,
            cost,
        };
        let plan = planner.plan(&tree.forest(&rows), &hints);
        profile.attention_ns(&plan, heads, 2) / 1e3
    }

    #[test]
    fn pages_that_are_read_again_are_read_faster_but_not_for_nothing() {
        let (unshared, flat, tree) = (us(false, Planner::Flat), us(true, Planner::Flat), us(true, Planner::Balanced));
        assert!(3.0 * tree < flat && 2.0 * flat < unshared, "{tree} us, {flat} us, {unshared} us");
    }
}
