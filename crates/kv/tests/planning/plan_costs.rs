//! What `balanced` decides by the cost model of each backend.

use offshoot_core::ids::{PageId, SegmentId};
use offshoot_kv::plan::{AttentionPlan, CostModel, LatentHints, PlanHints, Planner};
use offshoot_kv::{Forest, ForestSegment};

const PAGE_TOKENS: u32 = 32;
/// Tokens of each leaf.
const LEAF: u32 = 20;

/// Llama-3-8B's heads on the GPU.
const GROUPED: PlanHints = PlanHints {
    group: offshoot_core::ids::GroupIx(0),
    tile: 1,
    window: None,
    q_heads: 32,
    kv_heads: 8,
    head_dim: 128,
    kv_element_bytes: 2,
    latents: None,
    cost: CostModel::CUDA,
};

/// Hints of a model with as many KV heads as query heads.
const UNGROUPED: PlanHints = PlanHints { kv_heads: 32, ..GROUPED };

/// One row at the end of each of so many leaves of [`LEAF`] tokens, beneath a chain of segments of these lengths.
fn broom(chain: &[u32], leaves: u32) -> Forest {
    let mut forest = Forest { page_tokens: PAGE_TOKENS, ..Forest::default() };
    for (index, &tokens) in (0..).zip(chain) {
        push(&mut forest, u32::checked_sub(index, 1), tokens, 0..leaves);
    }
    let trunk = u32::try_from(chain.len()).unwrap().checked_sub(1);
    for row in 0..leaves {
        let leaf = push(&mut forest, trunk, LEAF, row..row + 1);
        forest.row_positions.push(forest.segments[leaf as usize].end() - 1);
        forest.row_segments.push(leaf);
    }
    forest.check().unwrap();
    forest
}

fn push(forest: &mut Forest, parent: Option<u32>, tokens: u32, rows: std::ops::Range<u32>) -> u32 {
    let first_position = parent.map_or(0, |parent| forest.segments[parent as usize].end());
    let pages = (first_position + tokens - 1) / PAGE_TOKENS - first_position / PAGE_TOKENS + 1;
    let first_page = forest.pages.len() as u32;
    let pages = first_page..first_page + pages;
    forest.pages.extend(pages.clone().map(PageId));
    let index = forest.segments.len() as u32;
    forest.segments.push(ForestSegment {
        id: SegmentId(index),
        parent,
        first_position,
        tokens,
        pages,
        held_from: first_position,
        rows,
    });
    index
}

fn balanced(forest: &Forest, hints: &PlanHints) -> AttentionPlan {
    let plan = Planner::Balanced.plan(forest, hints);
    plan.check(forest).unwrap();
    plan
}

/// The shortest trunk that is worth an item of its own above so many leaves.
fn shortest_shared(leaves: u32, hints: &PlanHints) -> u32 {
    let shares = |&tokens: &u32| balanced(&broom(&[tokens], leaves), hints).items.len() > leaves as usize;
    (1..).find(shares).expect("some length is worth it")
}

/// Tokens from which sharing pays: what the trunk's states move, written once and read once at 4.3 TB/s, and 1 us for
/// another item, over the keys and values that the leaves need not read.
fn break_even(leaves: u32, hints: &PlanHints) -> f64 {
    let q = f64::from(leaves);
    (2.0 * q * hints.state_bytes() as f64 + 4300.0 * 1000.0) / ((q - 1.0) * hints.token_bytes() as f64)
}

#[test]
fn on_the_gpu_a_trunk_is_shared_from_the_length_at_which_it_pays() {
    for hints in [GROUPED, UNGROUPED] {
        let mut before = u32::MAX;
        for leaves in [4, 8, 32, 128, 512] {
            let (found, expected) = (shortest_shared(leaves, &hints), break_even(leaves, &hints));
            // The estimate has the item start alone, the model among as many as fill the device; so they agree in
            // magnitude, and better for many leaves, whose states outweigh the item.
            let within = if leaves < 32 { 20.0 } else { 3.0 };
            let ratio = f64::from(found) / expected;
            assert!((1.0 / within..within).contains(&ratio), "{leaves} leaves: from {found}, estimated {expected:.0}");
            assert!(found <= before, "{leaves} leaves: from {found}, fewer leaves from {before} already");
            before = found;
        }
    }
}

#[test]
fn on_the_gpu_extremes_are_clear() {
    let shared = |chain: &[u32], leaves| balanced(&broom(chain, leaves), &GROUPED).items.len() - leaves as usize;
    assert_eq!(shared(&[1], 512), 0, "a token costs less to read than states to merge");
    assert_eq!(shared(&[100_000], 1), 0, "there is nobody to share with");
    assert_eq!(shared(&[2400], 2), 1, "a few-shot prompt is shared by two already");
    assert_eq!(shared(&[100_000], 512), 1, "long items are for the backend to divide");
    assert_eq!(shared(&[20; 100], 512), 1, "a chain is one item");
}

#[test]
fn a_second_shared_level_costs_fewer_states_than_the_first() {
    // Above the problem stands a header that another 64 leaves share, or one that is too short to be an item.
    let shortest = |header: u32| {
        let shares = |&tokens: &u32| {
            let mut forest = broom(&[header], 64);
            let problem = forest.segments.len() as u32;
            let leaves = 64..128;
            push(&mut forest, Some(0), tokens, leaves.clone());
            for row in leaves.clone() {
                let leaf = push(&mut forest, Some(problem), LEAF, row..row + 1);
                forest.row_positions.push(forest.segments[leaf as usize].end() - 1);
                forest.row_segments.push(leaf);
            }
            forest.segments[0].rows.end = leaves.end;
            forest.check().unwrap();
            balanced(&forest, &GROUPED).items.iter().any(|item| item.rows == leaves)
        };
        (1..).find(shares).expect("some length is worth it")
    };
    let (below_shared, below_folded) = (shortest(1000), shortest(1));
    assert!(below_shared < below_folded, "{below_shared} and {below_folded}");
}

#[test]
fn on_the_cpu_long_items_are_split_and_states_are_free() {
    let hints = PlanHints { tile: 64, cost: CostModel::CPU, ..GROUPED };
    let plan = balanced(&broom(&[100_000], 8), &hints);
    assert!(plan.items.len() > 20, "{} items", plan.items.len());
    // Two readers, a tile: 64 tokens of 4,096 bytes at 0.005 ns outweigh 1,000 ns.
    let shares = |tokens| balanced(&broom(&[tokens], 2), &hints).items[0].rows == (0..2);
    assert!(shares(64) && !shares(63));
}

#[test]
fn on_the_cpu_latents_are_read_once_for_all_rows() {
    let latents = LatentHints { nope: 64, rope: 64, value: 64, tile: 64, copy_element_bytes: 2, has_copies: false };
    let latents = Some(latents);
    let hints =
        PlanHints { tile: 64, q_heads: 12, kv_heads: 1, head_dim: 576, latents, cost: CostModel::CPU, ..GROUPED };
    // The products are as many in any plan: what is saved is to make latents operands.
    let trunk = |leaves: u32| balanced(&broom(&[2048], leaves), &hints).items[0].rows.clone();
    assert_eq!([trunk(2), trunk(32)], [0..2, 0..32]);
}
