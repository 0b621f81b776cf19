//! What `explain` says of a plan, held against the plan itself: the bytes of all segments are the plan's, and what it
//! calls shared has an item.

use crate::hints::hints;

use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::plan::{AttentionPlan, CopyRoom, Explained, PlanHints, Planner, Treatment, explain};
use offshoot_kv::{Forest, ForestSegment};

fn for_each(mut visit: impl FnMut(&str, &Forest, &PlanHints, AttentionPlan, Vec<Explained>)) {
    for shape in ForestShape::ALL {
        let seeds = if matches!(shape, ForestShape::Many(_)) { 1 } else { 8 };
        for (seed, page_tokens) in (0..seeds).flat_map(|seed| [(seed, 16), (seed, 32), (seed, 64)]) {
            let grown = grow(shape, page_tokens, seed);
            for window in [None, Some(1), Some(50), Some(200)] {
                for tile in [1, 64] {
                    let hints = hints(tile, window);
                    let case = format!("{shape:?}, seed {seed}, page {page_tokens}, {hints:?}");
                    let (plan, explained) = explain(&grown.forest, &hints, &CopyRoom::NONE);
                    visit(&case, &grown.forest, &hints, plan, explained);
                }
            }
        }
    }
}

#[test]
fn it_explains_the_plan_that_is_made_and_all_of_its_bytes() {
    for_each(|case, forest, hints, plan, explained| {
        assert_eq!(plan, Planner::Balanced.plan(forest, hints), "{case}");
        let stats = plan.stats(hints);
        assert_eq!(explained.iter().map(|e| e.read_bytes).sum::<u64>(), stats.kv_bytes_read, "{case}");
        assert_eq!(explained.iter().map(|e| e.flat_bytes).sum::<u64>(), stats.flat_kv_bytes, "{case}");
    });
}

#[test]
fn the_shared_segments_are_those_with_an_item() {
    let mut counts = [0; 4];
    for_each(|case, forest, _, plan, explained| {
        // Every item holds rows of one segment, which may begin late where some of its own see nothing of it.
        let mut shared: usize = 0;
        for item in &plan.items {
            let own = forest.row_segments[item.rows.start as usize] as usize;
            if item.rows.end as usize > forest.own_rows(own).end {
                shared += 1;
                let is_shared = |(segment, e): (&ForestSegment, &Explained)| {
                    let holds = segment.rows.start <= item.rows.start && segment.rows.end == item.rows.end;
                    holds && matches!(e.treatment, Treatment::Shared { .. })
                };
                assert!(forest.segments.iter().zip(&explained).any(is_shared), "{case}: {item:?}");
            }
        }
        let mut items = 0;
        for (index, e) in explained.iter().enumerate() {
            match e.treatment {
                Treatment::Shared { items: of_it } => {
                    items += of_it;
                    counts[0] += 1;
                    let weighed = e.weighed.expect("what is shared was weighed");
                    assert!(weighed.shared_ns < weighed.folded_ns && e.rows > 1, "{case}: {e:?}");
                }
                Treatment::Folded => counts[1] += 1,
                Treatment::Own { items } => {
                    counts[2] += 1;
                    assert!(forest.is_leaf(index) && items > 0, "{case}: {e:?}");
                }
                Treatment::Unseen => {
                    counts[3] += 1;
                    assert_eq!(e.read_bytes, 0, "{case}: {e:?}");
                }
            }
        }
        assert_eq!(items, shared, "{case}: items of rows of several segments");
    });
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}
