//! A plan advances with its rows, from page to page: it stays as good as one made anew, and says when it cannot follow.

use crate::hints::hints;

use std::collections::BTreeMap;

use offshoot_core::dice::Dice;
use offshoot_core::ids::PageId;
use offshoot_fixtures::forests::{ForestShape, GrownForest, grow};
use offshoot_kv::plan::{AttentionPlan, Csr, NewPage, PlanHints, Planner, WorkItem};
use offshoot_kv::{Forest, StepRow};

/// Visits decode steps of some trees of every shape, by all planners, with tiles and windows in all combinations. Each
/// leaf has a row.
fn for_each_decode_step(seeds: u64, mut visit: impl FnMut(&str, &GrownForest, Vec<StepRow>, Planner, PlanHints)) {
    for shape in ForestShape::ALL {
        let seeds = if matches!(shape, ForestShape::Many(_)) { 1 } else { seeds };
        for (seed, page) in (0..seeds).flat_map(|seed| [(seed, 16), (seed, 32), (seed, 64)]) {
            let mut grown = grow(shape, page, seed);
            let rows = leaf_rows(&mut grown);
            if rows.is_empty() {
                continue;
            }
            for window in [None, Some(1), Some(50), Some(200)] {
                for (tile, planner) in [1, 64].into_iter().flat_map(|tile| Planner::ALL.map(|p| (tile, p))) {
                    let hints = hints(tile, window);
                    let case = format!("{shape:?}, seed {seed}, page {page}, {planner:?}, {hints:?}");
                    visit(&case, &grown, rows.clone(), planner, hints);
                }
            }
        }
    }
}

/// The newest token of each leaf, depth-first; whatever is before it has been computed.
fn leaf_rows(grown: &mut GrownForest) -> Vec<StepRow> {
    let forest = &grown.forest;
    let leaves = (0..forest.segments.len()).filter(|&index| forest.is_leaf(index));
    let held = leaves.map(|index| &forest.segments[index]).filter(|segment| segment.tokens > 0);
    let rows: Vec<StepRow> = held.map(|segment| StepRow { segment: segment.id, position: segment.end() - 1 }).collect();
    for row in &rows {
        grown.tree.mark_computed(row.segment, row.position);
    }
    rows
}

/// The forest once every row is a token further, and the new pages of those whose own are full: pages that no other row
/// has.
fn go_on(forest: &mut Forest) -> Vec<NewPage> {
    let mut new_pages = Vec::new();
    let mut turned = vec![None; forest.segments.len()];
    let mut next_page = forest.pages.iter().map(|page| page.0 + 1).max().unwrap_or(0);
    for (row, position) in (0u32..).zip(&mut forest.row_positions) {
        *position += 1;
        let segment = forest.row_segments[row as usize] as usize;
        forest.segments[segment].tokens += 1;
        if position.is_multiple_of(forest.page_tokens) {
            turned[segment] = Some(PageId(next_page));
            new_pages.push(NewPage { group: offshoot_core::ids::GroupIx(0), row, page: PageId(next_page) });
            next_page += 1;
        }
    }
    let mut pages = Vec::new();
    for (segment, turned) in forest.segments.iter_mut().zip(turned) {
        let first = pages.len() as u32;
        pages.extend_from_slice(&forest.pages[segment.pages.start as usize..segment.pages.end as usize]);
        pages.extend(turned);
        segment.pages = first..pages.len() as u32;
    }
    forest.pages = pages;
    forest.check().unwrap();
    new_pages
}

/// A plan without the places of its page lists.
fn division(plan: &AttentionPlan) -> (&[WorkItem], Vec<(u32, u32)>, &Csr, u64) {
    let spans = plan.spans.iter().map(|span| (span.first_position, span.tokens)).collect();
    (&plan.items, spans, &plan.merge, plan.flat_kv_tokens)
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
    let (mut compared, mut turned) = (0, 0);
    for_each_decode_step(3, |case, grown, rows, planner, hints| {
        let mut forest = grown.tree.forest(&rows);
        let mut plan = planner.plan(&forest, &hints);
        let mut stats = plan.stats(&hints);
        let steps = forest.page_tokens * 5 / 2;
        for step in 0..steps {
            assert!(plan.can_advance(), "{case}: every row is alone");
            let new_pages = go_on(&mut forest);
            plan.advance(&new_pages);
            stats.advance(&hints, rows.len());
            turned += new_pages.len();
            if !dice.one_in(20) && step + 1 < steps {
                continue;
            }
            plan.check(&forest).unwrap_or_else(|fault| panic!("{case}: {fault}"));
            assert_eq!(plan.stats(&hints), stats, "{case}");
            if planner == Planner::Flat {
                assert_eq!(stats.kv_bytes_read, stats.flat_kv_bytes, "{case}");
            }
            let new = planner.plan(&forest, &hints);
            if hints.window.is_none() && (planner != Planner::Balanced || hints.cost.split.is_none()) {
                assert_eq!(division(&plan), division(&new), "{case}");
                assert_eq!(stats, new.stats(&hints), "{case}");
            }
            for row in (0..rows.len()).step_by(rows.len().div_ceil(8)) {
                assert_eq!(seen(&plan, row), seen(&new, row), "{case}, row {row}");
            }
            compared += 1;
        }
        let pages = planner.plan(&forest, &hints).pages.len();
        assert!(plan.pages.len() <= 8 * pages, "{case}: {} pages are listed for {pages}", plan.pages.len());
    });
    assert!(compared > 3_000 && turned > 100_000, "only {compared} plans compared, {turned} pages turned");
}

#[test]
fn a_plan_can_advance_if_each_row_is_alone() {
    let mut dice = Dice::new(5);
    let mut refused = 0;
    for_each_decode_step(4, |case, grown, mut rows, planner, hints| {
        let can_advance = |rows: &[StepRow]| planner.plan(&grown.tree.forest(rows), &hints).can_advance();
        assert!(can_advance(&rows), "{case}");
        let row = dice.pick(&rows);
        if row.position > 0 {
            // Beside it in its segment, or in a segment above it.
            rows.push(StepRow { position: row.position - 1, ..row });
            grown.tree.depth_first(&mut rows);
            assert!(!can_advance(&rows), "{case}: a row is not alone, or has others beneath it");
            refused += 1;
        }
    });
    assert!(refused > 1000, "{refused}");
}
