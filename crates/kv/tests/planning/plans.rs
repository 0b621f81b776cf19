//! Every planner on every shape of forest: `check` proves each plan, and is itself tried on plans that were spoilt.

use crate::hints::hints;

use offshoot_core::dice::Dice;
use offshoot_core::ids::PageId;
use offshoot_fixtures::forests::{ForestShape, context, grow};
use offshoot_kv::plan::{AttentionPlan, KvSpan, Member, PlanFault, PlanHints, Planner};
use offshoot_kv::{Forest, ForestSegment, KvSlot, StepRow};

use crate::full::some_or_full;

/// All planners on some forests of every shape, with tiles, pages and windows in all combinations.
fn for_each_plan(seeds: u64, mut visit: impl FnMut(&str, Planner, &Forest, &PlanHints, AttentionPlan)) {
    for shape in ForestShape::ALL {
        let seeds = if matches!(shape, ForestShape::Many(_)) { seeds.div_ceil(10) } else { seeds };
        for (seed, page_tokens) in (0..seeds).flat_map(|seed| [(seed, 16), (seed, 32), (seed, 64)]) {
            let grown = grow(shape, page_tokens, seed);
            for window in [None, Some(1), Some(50), Some(200)] {
                for tile in [1, 64] {
                    for planner in Planner::ALL {
                        let hints = hints(tile, window);
                        let plan = planner.plan(&grown.forest, &hints);
                        let case = format!("{shape:?}, seed {seed}, page {page_tokens}, {planner:?}, {hints:?}");
                        visit(&case, planner, &grown.forest, &hints, plan);
                    }
                }
            }
        }
    }
}

#[test]
fn every_plan_covers_what_its_rows_see_exactly_once() {
    for_each_plan(40, |case, _, forest, _, plan| {
        plan.check(forest).unwrap_or_else(|fault| panic!("{case}: {fault}"));
    });
}

#[test]
fn stats_compare_with_the_flat_plan() {
    for_each_plan(10, |case, planner, forest, hints, plan| {
        let (stats, flat) = (plan.stats(hints), Planner::Flat.plan(forest, hints).stats(hints));
        assert_eq!(stats.flat_kv_bytes, flat.kv_bytes_read, "{case}");
        assert!(stats.items == plan.items.len() && stats.partials == plan.merge.values.len(), "{case}");
        assert!(stats.kv_bytes_read <= stats.flat_kv_bytes || hints.window.is_some(), "{case}: {stats:?}");
        if planner == Planner::Tree && hints.tile == 1 {
            let held: u64 = forest.segments.iter().map(|s| u64::from(s.tokens)).sum();
            assert!(stats.kv_bytes_read <= held * hints.token_bytes(), "{case}: a token is read twice");
        }
    });
}

/// The positions that a row sees by the items of a member, in order, and the page and slot of all of each.
fn seen_by(plan: &AttentionPlan, member: Member, row: usize) -> Vec<(u32, KvSlot)> {
    let (page, seen) = (member.page_tokens, plan.seen(row));
    let items = plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize;
    let items = plan.merge.values[items].iter().map(|&item| &plan.items[item as usize]);
    let spans = items.flat_map(|item| &plan.spans[item.spans.start as usize..item.spans.end as usize]);
    let of_span = |span: &KvSpan| {
        let (first, pages) = (span.first_position, span.pages.clone());
        let held = move |at: u32| {
            let place = pages.start + at / page - first / page;
            assert!(pages.contains(&place), "position {at} lies in the span's pages");
            let slot = member.number * page + at % page;
            (at / page * page * member.of + slot, KvSlot { page: plan.pages[place as usize], slot })
        };
        (first..first + span.tokens).filter(|at| seen.contains(at)).map(held).collect::<Vec<_>>()
    };
    spans.flat_map(of_span).collect()
}

#[test]
fn members_of_a_plan_see_together_what_all_sees_once() {
    let mut plans = 0;
    for_each_plan(some_or_full(1, 3), |case, _, forest, hints, plan| {
        // Every third plan meets one of them, or every plan all.
        plans += 1;
        let met = if plans % 3 == 0 { &[2, 4, 8][plans / 3 % 3..][..1] } else { &[] };
        let met = some_or_full(met, &[2, 4, 8]);
        if met.is_empty() {
            return;
        }
        let contexts: Vec<_> = (0..forest.row_positions.len()).map(|row| context(forest, row)).collect();
        for &of in met {
            let members: Vec<AttentionPlan> = (0..of)
                .map(|number| plan.of_member(Member { number, of, page_tokens: plan.page_tokens / of }))
                .collect();
            assert!(members.iter().all(|own| own.tile == hints.tile.div_ceil(of)), "{case}");
            for (row, all) in contexts.iter().enumerate() {
                let mut found = vec![None; all.len()];
                for own in &members {
                    let seen = seen_by(own, own.member.expect("a member's plan"), row);
                    assert!(seen.is_sorted_by_key(|at| at.0), "{case}: row {row} of {of}");
                    for (position, slot) in seen {
                        let twice = found[position as usize].replace(slot);
                        assert_eq!(twice, None, "{case}: row {row} of {of} sees position {position} once");
                    }
                }
                let seen = plan.seen(row);
                let expected = |position: u32| seen.contains(&position).then_some(all[position as usize]);
                let expected: Vec<_> = (0..all.len() as u32).map(expected).collect();
                assert_eq!(found, expected, "{case}: row {row} of {of}");
            }
        }
    });
}

/// Rows whose keys and values are stored already may be taken in parts, one by one too: each sees what it sees in the
/// whole step. `check_ready` tells such a part from a step that could be computed now.
#[test]
fn a_part_of_a_step_shows_its_rows_the_same_context() {
    let mut unready = 0;
    for (shape, seed) in ForestShape::ALL.into_iter().flat_map(|shape| (0..5).map(move |seed| (shape, seed))) {
        let (grown, mut dice) = (grow(shape, 16, seed), Dice::new(seed));
        grown.tree.check_ready(&grown.forest).unwrap();
        for rarity in [2, 4, u32::MAX] {
            let mut kept: Vec<usize> = (0..grown.rows.len()).filter(|_| dice.one_in(rarity)).collect();
            if kept.is_empty() {
                kept.push(grown.rows.len() - 1);
            }
            let rows: Vec<StepRow> = kept.iter().map(|&row| grown.rows[row]).collect();
            let part = grown.tree.forest(&rows);
            part.check().unwrap();
            unready += usize::from(grown.tree.check_ready(&part).is_err());
            for (row, &of) in kept.iter().enumerate() {
                assert_eq!(context(&part, row), context(&grown.forest, of), "{shape:?}, seed {seed}: row {of}");
            }
        }
    }
    assert!(unready > 20, "{unready} parts lack a row that another one needs");
}

/// Spoils a good plan in one way; `None` where the plan has nothing to spoil so.
type Spoil = fn(&mut AttentionPlan, &mut Dice) -> Option<()>;

fn any(dice: &mut Dice, of: usize) -> Option<usize> {
    (of > 0).then(|| dice.within(0, u32::try_from(of).unwrap() - 1) as usize)
}

/// A span that a row's newest token depends on: the last of an item.
fn last_span(plan: &AttentionPlan, dice: &mut Dice) -> Option<usize> {
    any(dice, plan.items.len()).map(|item| plan.items[item].spans.end as usize - 1)
}

const SPOILS: [(&str, Spoil); 14] = [
    ("an item is dropped", |plan, dice| {
        let gone = any(dice, plan.items.len())?;
        plan.items.remove(gone);
        Some(())
    }),
    ("an item is dropped from the lists too", |plan, dice| {
        let gone = any(dice, plan.items.len())?;
        let rows = plan.items.remove(gone).rows;
        let gone = u32::try_from(gone).unwrap();
        for row in rows.rev().map(|row| row as usize) {
            let list = plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize;
            let place = list.start + plan.merge.values[list].iter().position(|&i| i == gone)?;
            plan.merge.values.remove(place);
            plan.merge.offsets[row + 1..].iter_mut().for_each(|offset| *offset -= 1);
        }
        plan.merge.values.iter_mut().filter(|i| **i > gone).for_each(|i| *i -= 1);
        Some(())
    }),
    ("a span begins a position later", |plan, dice| {
        let span = last_span(plan, dice)?;
        plan.spans[span].first_position += 1;
        Some(())
    }),
    ("a span runs past its segment", |plan, dice| {
        let span = last_span(plan, dice)?;
        plan.spans[span].tokens += 1000;
        Some(())
    }),
    ("a span is shorter", |plan, dice| {
        // Of a row's last item: what it ends with is the row itself.
        let row = any(dice, plan.row_positions.len())?;
        let item = plan.merge.values[plan.merge.offsets[row + 1] as usize - 1] as usize;
        let span = plan.items[item].spans.end as usize - 1;
        let end = plan.spans[span].first_position + plan.spans[span].tokens;
        plan.spans[span].tokens -= end - plan.row_positions[row];
        Some(())
    }),
    ("a page is listed in another's place", |plan, dice| {
        let span = any(dice, plan.spans.len())?;
        let page = plan.spans[span].pages.start as usize;
        plan.pages[page] = PageId(plan.pages[page].0 + 1);
        Some(())
    }),
    ("a page is doubled", |plan, dice| {
        let span = any(dice, plan.spans.len())?;
        plan.spans[span].pages.end += 1;
        plan.pages.push(PageId(0));
        Some(())
    }),
    ("two items swap rows", |plan, dice| {
        let (a, b) = (any(dice, plan.items.len())?, any(dice, plan.items.len())?);
        if plan.items[a].rows == plan.items[b].rows {
            return None;
        }
        let rows = plan.items[a].rows.clone();
        plan.items[a].rows = std::mem::replace(&mut plan.items[b].rows, rows);
        Some(())
    }),
    ("an item loses a row", |plan, dice| {
        let item = any(dice, plan.items.len())?;
        plan.items[item].rows.end -= 1;
        Some(())
    }),
    ("a merge list falls", |plan, dice| {
        let row = any(dice, plan.row_positions.len())?;
        let list = plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize;
        if list.len() < 2 {
            return None;
        }
        plan.merge.values[list].reverse();
        Some(())
    }),
    ("a row moves", |plan, dice| {
        let row = any(dice, plan.row_positions.len())?;
        plan.row_positions[row] += 1;
        Some(())
    }),
    ("a span that grows is forgotten", |plan, dice| {
        let gone = any(dice, plan.growing.len())?;
        plan.growing.remove(gone);
        Some(())
    }),
    ("another span is to grow", |plan, dice| {
        let grows = any(dice, plan.growing.len())?;
        plan.growing[grows].span += 1;
        Some(())
    }),
    ("a span that grows has room that is not there", |plan, dice| {
        let grows = any(dice, plan.growing.len())?;
        plan.growing[grows].room += u32::try_from(plan.pages.len()).unwrap();
        Some(())
    }),
];

#[test]
fn check_rejects_every_spoilt_plan() {
    let mut spoilt = [0; SPOILS.len()];
    let mut dice = Dice::new(7);
    for_each_plan(10, |case, _, forest, hints, plan| {
        if hints.window.is_some() {
            return; // what a window hides may be missing
        }
        for (count, (how, spoil)) in spoilt.iter_mut().zip(SPOILS) {
            let mut bad = plan.clone();
            if spoil(&mut bad, &mut dice).is_some() {
                assert!(bad.check(forest).is_err(), "{case}: not noticed that {how}");
                *count += 1;
            }
        }
    });
    for (count, (how, _)) in spoilt.into_iter().zip(SPOILS) {
        assert!(count > 100, "only {count} plans in which {how}");
    }
}

/// A forest by hand: `(parent, tokens, own rows)`, the rows being the newest tokens; a page list of its own each.
pub fn forest(segments: &[(Option<u32>, u32, u32)]) -> Forest {
    let mut forest = Forest { page_tokens: 16, ..Forest::default() };
    for (index, &(parent, tokens, own)) in (0u32..).zip(segments) {
        let first_position = parent.map_or(0, |p| forest.segments[p as usize].end());
        let end = first_position + tokens;
        let first_page = forest.pages.len() as u32;
        let pages = if tokens == 0 { 0 } else { (end - 1) / 16 - first_position / 16 + 1 };
        forest.pages.extend((first_page..first_page + pages).map(PageId));
        let row = forest.row_positions.len() as u32;
        forest.row_positions.extend(end - own..end);
        forest.row_segments.extend((0..own).map(|_| index));
        forest.segments.push(ForestSegment {
            id: offshoot_core::ids::SegmentId(index),
            parent,
            first_position,
            tokens,
            pages: first_page..first_page + pages,
            held_from: first_position,
            rows: row..row + own,
        });
        let mut above = parent;
        while let Some(p) = above {
            forest.segments[p as usize].rows.end = row + own;
            above = forest.segments[p as usize].parent;
        }
    }
    forest.check().unwrap();
    forest
}

/// Rows and positions of each item.
fn items(plan: &AttentionPlan) -> Vec<(std::ops::Range<u32>, std::ops::Range<u32>)> {
    let positions = |item: &offshoot_kv::plan::WorkItem| {
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let last = spans.last().unwrap();
        spans[0].first_position..last.first_position + last.tokens
    };
    plan.items.iter().map(|item| (item.rows.clone(), positions(item))).collect()
}

#[test]
fn the_tail_of_an_unfinished_tile_goes_down_to_the_children() {
    let forest = forest(&[(None, 100, 0), (Some(0), 40, 0), (Some(1), 3, 1), (Some(1), 5, 1), (Some(0), 7, 1)]);
    let plan = |planner: Planner, tile| items(&planner.plan(&forest, &hints(tile, None)));
    assert_eq!(
        plan(Planner::Tree, 64),
        [(0..3, 0..64), (0..2, 64..128), (0..1, 128..143), (1..2, 128..145), (2..3, 64..107)]
    );
    assert_eq!(
        plan(Planner::Tree, 1),
        [(0..3, 0..100), (0..2, 100..140), (0..1, 140..143), (1..2, 140..145), (2..3, 100..107)]
    );
    assert_eq!(plan(Planner::SingleLevel, 64), [(0..3, 0..64), (0..1, 64..143), (1..2, 64..145), (2..3, 64..107)]);
    assert_eq!(plan(Planner::Flat, 64), [(0..1, 0..143), (1..2, 0..145), (2..3, 0..107)]);
}

#[test]
fn the_one_shared_level_lies_where_the_fewest_tokens_are_read() {
    let two_documents = |trunk, document| {
        let mut segments = vec![(None, trunk, 0)];
        for _ in 0..2 {
            let at = segments.len() as u32;
            segments.push((Some(0), document, 0));
            segments.extend([(Some(at), 5, 1); 3]);
        }
        let forest = forest(&segments);
        let mut shared = items(&Planner::SingleLevel.plan(&forest, &hints(1, None)));
        shared.retain(|(rows, _)| rows.len() > 1);
        shared
    };
    // Above all documents 5 of 6 readers are spared the trunk; above each document 2 of 3 are, and the document too.
    assert_eq!(two_documents(100, 20), [(0..6, 0..100)]);
    assert_eq!(two_documents(30, 100), [(0..3, 0..130), (3..6, 0..130)]);
}

#[test]
fn a_prompt_chunk_above_its_continuations_gets_its_tail_alone() {
    let forest = forest(&[(None, 70, 10), (Some(0), 2, 2), (Some(0), 1, 1)]);
    let plan = Planner::Tree.plan(&forest, &hints(64, None));
    // Rows 0..4 of the chunk are at 60..64: they see nothing of the second tile.
    assert_eq!(items(&plan), [(0..13, 0..64), (4..10, 64..70), (10..12, 64..72), (12..13, 64..71)]);
    assert_eq!(plan.merge.values[..6], [0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_window_leaves_out_tiles_that_nobody_sees() {
    let forest = forest(&[(None, 1000, 0), (Some(0), 10, 1), (Some(0), 500, 1)]);
    let plan = Planner::Tree.plan(&forest, &hints(64, Some(100)));
    // The first leaf's row at 1009 sees 910..; the second's at 1499 nothing of the trunk.
    assert_eq!(items(&plan), [(0..2, 896..960), (0..1, 960..1010), (1..2, 1344..1500)]);
    plan.check(&forest).unwrap();
}

#[test]
fn balanced_folds_thin_chains_and_shares_wide_trunks() {
    let chain: Vec<_> = (0..300u32).map(|i| (i.checked_sub(1), 20, u32::from(i == 299))).collect();
    let thin = Planner::Balanced.plan(&forest(&chain), &hints(64, None));
    assert!(thin.items.iter().all(|item| item.rows == (0..1)));
    assert_eq!(thin.spans.iter().map(|s| s.tokens).sum::<u32>(), 6000);

    let star: Vec<_> = [(None, 2400, 0)].into_iter().chain((0..64).map(|_| (Some(0), 30, 1))).collect();
    let star = forest(&star);
    let (balanced, tree) =
        [Planner::Balanced, Planner::Tree].map(|p| p.plan(&star, &hints(64, None)).stats(&hints(64, None))).into();
    assert_eq!(balanced.kv_bytes_read, tree.kv_bytes_read);
    assert!(balanced.items > tree.items, "the long trunk is split");

    let short = forest(&[(None, 3, 0), (Some(0), 300, 1), (Some(0), 300, 1)]);
    assert_eq!(items(&Planner::Balanced.plan(&short, &hints(1, None))), [(0..1, 0..303), (1..2, 0..303)]);
}

#[test]
fn faults_name_row_position_and_item() {
    let forest = forest(&[(None, 100, 0), (Some(0), 40, 1), (Some(0), 7, 1)]);
    let good = Planner::Tree.plan(&forest, &hints(64, None));
    let fault = |spoil: fn(&mut AttentionPlan)| {
        let mut plan = good.clone();
        spoil(&mut plan);
        plan.check(&forest).unwrap_err()
    };
    assert_eq!(fault(|p| p.spans[0].tokens = 63), PlanFault::Missing { row: 0, position: 63 });
    assert_eq!(
        fault(|p| p.items[1].rows = 0..2),
        PlanFault::Field { field: "rows of all items", expected: 4, found: 5 }
    );
    assert_eq!(fault(|p| p.spans[1].first_position = 65), PlanFault::Gap { item: 1, position: 101 });
    assert_eq!(fault(|p| p.items[1].rows = 1..2), PlanFault::OffPath { item: 1, row: 1, positions: 100..140 });
    assert_eq!(fault(|p| p.pages[0] = PageId(99)), PlanFault::WrongPages { item: 0, positions: 0..64 });
    assert_eq!(fault(|p| p.merge.values.swap(0, 1)), PlanFault::MergeList { row: 0, item: 0 });
    assert_eq!(fault(|p| p.growing.clear()), PlanFault::GrowingSpan { expected: vec![2, 4], found: vec![] });
}

#[test]
fn no_rows_no_items() {
    let empty = Forest { page_tokens: 16, ..Forest::default() };
    for planner in Planner::ALL {
        let plan = planner.plan(&empty, &hints(64, None));
        assert!(plan.items.is_empty() && plan.merge.offsets == [0]);
        plan.check(&empty).unwrap();
    }
}
