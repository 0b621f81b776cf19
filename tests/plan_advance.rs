//! A plan advances with its rows: as long as pages have room it is as good as one made anew, and it says when it is not.

use std::collections::BTreeMap;

use offshoot::check::dice::Dice;
use offshoot::check::forests::{Grown, Shape, grow};
use offshoot::ids::PageId;
use offshoot::kv::{Forest, StepRow};
use offshoot::plan::{AttentionPlan, CostModel, PlanHints, Planner};

/// Llama-3-8B's heads; tiles of one position as on the GPU, larger ones as on the CPU.
fn hints(tile: u32, window: Option<u32>) -> PlanHints {
    let cost = if tile == 1 { CostModel::CUDA } else { CostModel::CPU };
    PlanHints { tile, window, q_heads: 32, kv_heads: 8, head_dim: 128, kv_element_bytes: 2, cost }
}

/// Visits decode steps of some trees of every shape, by all planners, with tiles and windows in all combinations. Each leaf
/// has a row, if its page has `room` (by the page size) for so many tokens more.
fn for_each_decode_step(
    seeds: u64,
    mut room: impl FnMut(u32) -> u32,
    mut visit: impl FnMut(&str, &mut Grown, Vec<StepRow>, Planner, PlanHints),
) {
    for shape in Shape::ALL {
        let seeds = if matches!(shape, Shape::Many(_)) { seeds.div_ceil(10) } else { seeds };
        for (seed, page) in (0..seeds).flat_map(|seed| [(seed, 16), (seed, 32), (seed, 64)]) {
            let mut grown = grow(shape, page, seed);
            let room = room(page);
            let rows = leaf_rows(&mut grown, |slot| slot + room < page);
            if rows.is_empty() {
                continue;
            }
            for window in [None, Some(1), Some(50), Some(200)] {
                for (tile, planner) in [1, 64].into_iter().flat_map(|tile| Planner::ALL.map(|p| (tile, p))) {
                    let hints = hints(tile, window);
                    let case = format!("{shape:?}, seed {seed}, page {page}, {planner:?}, {hints:?}");
                    visit(&case, &mut grown, rows.clone(), planner, hints);
                }
            }
        }
    }
}

/// The newest token of each leaf whose slot `filter` takes, depth-first; whatever is before it has been computed.
fn leaf_rows(grown: &mut Grown, filter: impl Fn(u32) -> bool) -> Vec<StepRow> {
    let forest = &grown.forest;
    let leaves = (0..forest.segments.len()).filter(|&index| forest.is_leaf(index));
    let held = leaves.map(|index| &forest.segments[index]).filter(|segment| segment.tokens > 0);
    let rows = held.map(|segment| StepRow { segment: segment.id, position: segment.end() - 1 });
    let rows: Vec<StepRow> = rows.filter(|row| filter(row.position % forest.page_tokens)).collect();
    for row in &rows {
        grown.tree.mark_computed(row.segment, row.position);
    }
    rows
}

/// The forest once every row is a token further, in pages that have room.
fn go_on(forest: &mut Forest) {
    for (position, &segment) in forest.row_positions.iter_mut().zip(&forest.row_segments) {
        *position += 1;
        forest.segments[segment as usize].tokens += 1;
    }
    forest.check().unwrap();
}

/// What `row` sees: each position with its page.
fn seen(plan: &AttentionPlan, row: usize) -> BTreeMap<u32, PageId> {
    let position = plan.row_positions[row];
    let first = plan.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let mut seen = BTreeMap::new();
    for &item in &plan.merge.values[plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize] {
        let spans = plan.items[item as usize].spans.clone();
        for span in &plan.spans[spans.start as usize..spans.end as usize] {
            let covered = span.first_position.max(first)..(span.first_position + span.tokens).min(position + 1);
            for at in covered {
                let page = span.pages.start + at / plan.page_tokens - span.first_position / plan.page_tokens;
                assert_eq!(seen.insert(at, plan.pages[page as usize]), None, "row {row} sees position {at} twice");
            }
        }
    }
    seen
}

#[test]
fn an_advanced_plan_is_as_good_as_a_new_one() {
    let mut dice = Dice::new(3);
    let mut advances = 0;
    for_each_decode_step(
        8,
        |page| dice.within(1, page / 2),
        |case, grown, rows, planner, hints| {
            let mut forest = grown.tree.forest(&rows);
            let mut plan = planner.plan(&forest, &hints);
            let mut stats = plan.stats(&hints);
            let last_slot = rows.iter().map(|row| row.position % forest.page_tokens).max().expect("rows");
            for _ in last_slot + 1..forest.page_tokens {
                assert!(plan.can_advance(), "{case}: pages have room");
                plan.advance();
                stats.advance(&hints, rows.len());
                go_on(&mut forest);
                plan.check(&forest).unwrap_or_else(|fault| panic!("{case}: {fault}"));
                assert_eq!(plan.stats(&hints), stats, "{case}");
                if planner == Planner::Flat {
                    assert_eq!(stats.kv_bytes_read, stats.flat_kv_bytes, "{case}");
                }
                let new = planner.plan(&forest, &hints);
                if hints.window.is_none() && (planner != Planner::Balanced || hints.cost.split.is_none()) {
                    assert_eq!(plan, new, "{case}");
                }
                for row in (0..rows.len()).step_by(rows.len().div_ceil(8)) {
                    assert_eq!(seen(&plan, row), seen(&new, row), "{case}, row {row}");
                }
                advances += 1;
            }
            assert!(!plan.can_advance(), "{case}: a page is full");
        },
    );
    assert!(advances > 10_000, "only {advances} advances");
}

#[test]
fn a_plan_can_advance_if_each_row_is_alone_and_has_room() {
    let mut dice = Dice::new(5);
    let mut counts = [0; 3];
    for_each_decode_step(
        8,
        |_| 1,
        |case, grown, mut rows, planner, hints| {
            let can_advance =
                |grown: &Grown, rows: &[StepRow]| planner.plan(&grown.tree.forest(rows), &hints).can_advance();
            assert!(can_advance(grown, &rows), "{case}");
            counts[0] += 1;
            let row = dice.pick(&rows);
            let last_slot = grown.forest.page_tokens - 1;
            let full = leaf_rows(grown, |slot| slot == last_slot);
            if let Some(&full) = full.first() {
                let mut rows = rows.clone();
                rows.push(full);
                grown.tree.depth_first(&mut rows);
                assert!(!can_advance(grown, &rows), "{case}: a page is full");
                counts[1] += 1;
            }
            if row.position > 0 {
                // Beside it in its segment, or in a segment above it.
                rows.push(StepRow { position: row.position - 1, ..row });
                grown.tree.depth_first(&mut rows);
                assert!(!can_advance(grown, &rows), "{case}: a row is not alone, or has others beneath it");
                counts[2] += 1;
            }
        },
    );
    assert!(counts.iter().all(|&count| count > 1000), "{counts:?}");
}
