//! Lists the tiles of an attention plan and the pages each of them reads. Integers only, computed once per call for all
//! heads.

use std::ops::Range;

use super::splits::{SECTION, TILE};
use crate::kv::SLOTS;
use offshoot_core::ids::PageId;
use offshoot_kv::plan::AttentionPlan;

/// Pages per tile.
pub const PAGES: usize = TILE as usize / SLOTS;

/// One tile of one work item. Lane `i` is position `first_position + i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTile {
    /// The item's rows.
    pub rows: Range<usize>,
    /// A multiple of `TILE`.
    pub first_position: u32,
    /// Lanes covered by the item's spans. A row may see fewer of them.
    pub lanes: Range<usize>,
    pub pages: [TilePage; PAGES],
    /// The positions that every one of the rows sees.
    pub seen_by_all: Range<u32>,
    /// Page reads of this tile and all tiles before it: end of its range of `PlanTiles::reads`.
    pub reads: usize,
}

/// The keys and values of 16 aligned positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TilePage {
    /// None of them belongs to the item.
    #[default]
    Absent,
    /// All that belong to the item are in one page.
    Stored(PageId),
    /// They are gathered from the pages in this range of [`PlanTiles::gathered`], because segments begin inside a page.
    Gathered(Range<usize>),
}

/// Slots of a page that are copied to a gathered page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSlots {
    pub page: PageId,
    pub slots: Range<usize>,
}

/// All tiles of a plan in the order of its items, so that the tiles of each row have rising positions.
#[derive(Default)]
pub struct PlanTiles {
    pub tiles: Vec<PlanTile>,
    /// What gathered pages are made of.
    pub gathered: Vec<PageSlots>,
    /// The pages that tiles read, in the order of the tiles.
    pub reads: Vec<PageRead>,
}

/// A tile of `rows` in section number `section` reads this page: all of its keys, and the values below slot `slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRead {
    pub page: PageId,
    pub slots: usize,
    pub rows: Range<usize>,
    pub section: u32,
}

impl PlanTiles {
    /// Replaces the tiles by those of `plan`. `pair`: slots that share a word of values (see `kv`).
    pub fn resolve(&mut self, plan: &AttentionPlan, pair: usize) {
        assert_eq!((plan.tile, plan.page_tokens), (TILE, SLOTS as u32), "plan made for the CPU's tiles and pages");
        self.tiles.clear();
        self.gathered.clear();
        self.reads.clear();
        for item in &plan.items {
            let rows = item.rows.start as usize..item.rows.end as usize;
            let common = |all: Range<u32>, seen: Range<u32>| all.start.max(seen.start)..all.end.min(seen.end);
            let seen_by_all = rows.clone().map(|row| plan.seen(row)).fold(0..u32::MAX, common);
            let from = self.tiles.len();
            for span in &plan.spans[item.spans.start as usize..item.spans.end as usize] {
                let end = span.first_position + span.tokens;
                let mut position = span.first_position;
                for &page in &plan.pages[span.pages.start as usize..span.pages.end as usize] {
                    let upto = end.min((position / plan.page_tokens + 1) * plan.page_tokens);
                    if self.tiles.len() == from
                        || self.tiles[self.tiles.len() - 1].first_position != position / TILE * TILE
                    {
                        self.tiles.push(PlanTile::empty(rows.clone(), position, seen_by_all.clone()));
                    }
                    self.add(page, position..upto);
                    position = upto;
                }
            }
            for tile in from..self.tiles.len() {
                self.gather_odd_start(tile, pair);
            }
        }
    }

    /// Adds `positions`, whose slots are in `page`, to the last tile.
    fn add(&mut self, page: PageId, positions: Range<u32>) {
        let tile = self.tiles.last_mut().expect("a tile was pushed before");
        let lanes = (positions.start - tile.first_position) as usize..(positions.end - tile.first_position) as usize;
        let slots = lanes.start % SLOTS..(lanes.end - 1) % SLOTS + 1;
        self.reads.push(PageRead { page, slots: slots.end, rows: tile.rows.clone(), section: tile.section() });
        tile.reads = self.reads.len();
        let tile_page = &mut tile.pages[lanes.start / SLOTS];
        match tile_page {
            TilePage::Absent => *tile_page = TilePage::Stored(page),
            TilePage::Stored(known) if *known == page => {}
            TilePage::Stored(known) => {
                let earlier = tile.lanes.start.max(lanes.start / SLOTS * SLOTS) % SLOTS..slots.start;
                let from = self.gathered.len();
                self.gathered.push(PageSlots { page: *known, slots: earlier });
                self.gathered.push(PageSlots { page, slots });
                *tile_page = TilePage::Gathered(from..from + 2);
            }
            TilePage::Gathered(range) => {
                self.gathered.push(PageSlots { page, slots });
                range.end += 1;
            }
        }
        if tile.lanes.is_empty() {
            tile.lanes = lanes;
        } else {
            assert_eq!(tile.lanes.end, lanes.start, "the spans of an item adjoin");
            tile.lanes.end = lanes.end;
        }
    }

    /// The sections that have tiles; the first one if none has.
    pub fn sections(&self) -> Range<u32> {
        let sections = || self.tiles.iter().map(PlanTile::section);
        sections().min().unwrap_or(0)..sections().max().unwrap_or(0) + 1
    }

    /// The number of page reads before the first tile of `sections`.
    pub fn first_read(&self, sections: &Range<u32>) -> usize {
        self.reads.iter().position(|read| sections.contains(&read.section)).unwrap_or(self.reads.len())
    }

    /// If the tile begins with the second slot of a pair, gathers that page without the first slot: it is not part of
    /// the item and may hold garbage, which the pair's product would include.
    fn gather_odd_start(&mut self, tile: usize, pair: usize) {
        let tile = &mut self.tiles[tile];
        let tile_page = &mut tile.pages[tile.lanes.start / SLOTS];
        if let (false, TilePage::Stored(page)) = (tile.lanes.start.is_multiple_of(pair), &*tile_page) {
            let page_end = (tile.lanes.start / SLOTS + 1) * SLOTS;
            let slots = tile.lanes.start % SLOTS..(tile.lanes.end.min(page_end) - 1) % SLOTS + 1;
            self.gathered.push(PageSlots { page: *page, slots });
            *tile_page = TilePage::Gathered(self.gathered.len() - 1..self.gathered.len());
        }
    }
}

impl PlanTile {
    fn empty(rows: Range<usize>, position: u32, seen_by_all: Range<u32>) -> Self {
        Self {
            rows,
            first_position: position / TILE * TILE,
            lanes: 0..0,
            pages: Default::default(),
            seen_by_all,
            reads: 0,
        }
    }

    /// The number of the section that it lies in.
    pub fn section(&self) -> u32 {
        self.first_position / SECTION
    }

    /// The lanes that a row attends to which sees the positions `seen`.
    pub fn visible(&self, seen: &Range<u32>) -> Range<usize> {
        let lane = |position: u32| position.saturating_sub(self.first_position).min(TILE) as usize;
        lane(seen.start).max(self.lanes.start)..lane(seen.end).min(self.lanes.end)
    }

    /// Whether every row attends to all `TILE` lanes.
    pub fn is_whole(&self) -> bool {
        self.visible(&self.seen_by_all) == (0..TILE as usize)
    }
}
