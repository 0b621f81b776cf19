//! The tiles of attention plans, and the pages that they read.

use offshoot_core::ids::{GroupIx, PageId};
use offshoot_cpu::attention::TILE;
use offshoot_cpu::attention::tiles::{PageSlots, PlanTiles, TilePage};
use offshoot_kv::plan::{AttentionPlan, Csr, KvSpan, WorkItem};

/// One item with one row at position `last`, over spans of `(first position, tokens, pages)`.
fn plan(last: u32, runs: &[(u32, u32, &[u32])]) -> AttentionPlan {
    let mut pages = Vec::new();
    let mut spans = Vec::new();
    for &(first_position, tokens, held) in runs {
        let from = pages.len() as u32;
        pages.extend(held.iter().map(|&page| PageId(page)));
        spans.push(KvSpan { pages: from..pages.len() as u32, first_position, tokens });
    }
    AttentionPlan {
        page_tokens: 16,
        tile: TILE,
        group: GroupIx(0),
        window: None,
        member: None,
        joins_beginnings: false,
        items: vec![WorkItem { rows: 0..1, spans: 0..spans.len() as u32 }],
        spans,
        pages,
        row_positions: vec![last],
        growing: Vec::new(),
        merge: Csr { offsets: vec![0, 1], values: vec![0] },
        flat_kv_tokens: 0,
    }
}

fn resolve(plan: &AttentionPlan) -> PlanTiles {
    let mut tiles = PlanTiles::default();
    tiles.resolve(plan, 2);
    tiles
}

#[test]
fn a_page_of_three_segments_is_gathered_from_three_pages() {
    let found = resolve(&plan(80, &[(60, 6, &[3, 9]), (66, 1, &[7]), (67, 14, &[5, 6])]));
    assert_eq!(found.tiles.len(), 2);
    assert_eq!(found.tiles[0].lanes, 60..64);
    assert_eq!(found.tiles[0].pages[3], TilePage::Stored(PageId(3)));
    assert_eq!(found.tiles[1].lanes, 0..17);
    assert_eq!(found.tiles[1].pages[0], TilePage::Gathered(0..3));
    assert_eq!(found.tiles[1].pages[1], TilePage::Stored(PageId(6)));
    let slots_of = |page, slots| PageSlots { page: PageId(page), slots };
    assert_eq!(found.gathered, [slots_of(9, 0..2), slots_of(7, 2..3), slots_of(5, 3..16)]);
}

#[test]
fn a_split_page_stays_whole_and_an_odd_start_is_gathered() {
    let found = resolve(&plan(20, &[(0, 5, &[4]), (5, 16, &[4, 8])]));
    assert_eq!(found.tiles[0].pages[..2], [TilePage::Stored(PageId(4)), TilePage::Stored(PageId(8))]);
    let found = resolve(&plan(20, &[(5, 16, &[4, 8])]));
    assert_eq!(found.tiles[0].pages[0], TilePage::Gathered(0..1));
    assert_eq!(found.gathered, [PageSlots { page: PageId(4), slots: 5..16 }]);
    assert_eq!(found.tiles[0].lanes, 5..21);
}

#[test]
fn rows_see_neither_the_future_nor_what_left_the_window() {
    let tiles =
        |window: Option<u32>| resolve(&AttentionPlan { window, ..plan(130, &[(64, 67, &[1, 2, 3, 4, 5])]) }).tiles;
    let tile = &tiles(None)[0];
    assert_eq!(tile.visible(&(0..64)), 0..0);
    assert_eq!(tile.visible(&(0..65)), 0..1);
    assert_eq!(tile.visible(&(0..131)), 0..64);
    assert_eq!(tile.visible(&(91..101)), 27..37);
    assert!(tile.visible(&(128..131)).is_empty());
    let is_whole = |window: Option<u32>| tiles(window)[0].is_whole();
    assert!(is_whole(None) && is_whole(Some(67)) && !is_whole(Some(66)));
    assert_eq!(tiles(None)[1].visible(&(0..131)), 0..3);
}
