//! The words of a device plan, read here as the kernels read them: for every forest, planner and tiling each row meets
//! each position that it sees exactly once, in the right page and slot, and still does when its position has moved on,
//! and few words with it. No GPU is needed.

use crate::full::some_or_full;
use offshoot_backend::HeadLayout;
use offshoot_core::dice::Dice;
use offshoot_core::ids::{PageId, SegmentId, TokenId};
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{
    KV_BLOCK_TOKENS, PlanWord, READER_SHIFT, TILE_FIELDS, TILE_KV_BLOCKS, TILE_WORDS, Tiling, Workers,
};
use offshoot_cuda::attention::leaf_tiles::LeafTiles;
use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::plan::{AttentionPlan, CostModel, Member, NewPage, PlanHints, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};

/// Where the keys and values of positions lie: position and (page, slot), by rising positions.
type Context = Vec<(u32, (u32, u32))>;

struct Words<'a> {
    words: &'a [u32],
    heads: HeadLayout,
    /// Whose KV blocks they have.
    member: Member,
    /// Whether a row has a state for each tile of the plan.
    whole_tiles: bool,
}

const WHOLE: Member = Member { number: 0, of: 1, page_tokens: KV_BLOCK_TOKENS };

/// As in kernels/attention/plan.cuh.
const SHARED_KV_BLOCK: u32 = 1 << 31;

struct Tile {
    rows: std::ops::Range<usize>,
    kv_blocks: std::ops::Range<usize>,
    slot: usize,
    /// Smallest and largest position of the rows when the plan was made.
    positions: (u32, u32),
    states: u32,
    /// Whether its states are those of rows' first steps, and whether it goes on from such states.
    opens: bool,
    continues: bool,
    /// Words of the first KV blocks.
    first_kv_blocks: Vec<u32>,
}

impl Words<'_> {
    fn header(&self, word: PlanWord) -> usize {
        self.words[word as usize] as usize
    }

    fn tiles(&self, count: PlanWord, at: PlanWord) -> Vec<Tile> {
        let (count, at) = (self.header(count), self.header(at));
        assert!(at.is_multiple_of(4), "tiles are read 16 bytes at a time");
        let words = self.words[at..at + count * TILE_WORDS].chunks_exact(TILE_WORDS);
        let number = |word: &u32| *word as usize;
        words
            .map(|tile| Tile {
                rows: number(&tile[0])..number(&tile[0]) + number(&tile[1]),
                kv_blocks: number(&tile[2])..number(&tile[2]) + number(&tile[3]),
                slot: number(&tile[4]),
                positions: (tile[5], tile[6]),
                states: tile[7] & 3,
                opens: tile[7] & 4 != 0,
                continues: tile[7] & 8 != 0,
                first_kv_blocks: tile[TILE_FIELDS..].to_vec(),
            })
            .collect()
    }

    /// The slots named for a row.
    fn states(&self, row: usize) -> &[u32] {
        let merge = &self.words[self.header(PlanWord::MergeAt) + row..];
        let states = self.header(PlanWord::StatesAt);
        &self.words[states + merge[0] as usize..states + merge[1] as usize]
    }

    /// Whether the states of a row are merged by the kernels, and there is one.
    fn is_alone(&self, row: usize) -> bool {
        self.member.of == 1 && self.states(row).len() == 1
    }

    /// The number of the row, from 1, that alone reads a KV block of its tile; 0: all do.
    fn reader(&self, kv_block: usize) -> usize {
        let word = self.words[self.header(PlanWord::KvBlocksAt) + 2 * kv_block];
        let is_shared = word & SHARED_KV_BLOCK != 0;
        if is_shared { 0 } else { (word >> READER_SHIFT) as usize }
    }

    /// What the KV block holds for `at`, a row that reads it of a tile whose largest position is `last`.
    fn kv_block(&self, kv_block: usize, at: u32, last: u32) -> Context {
        let words = &self.words[self.header(PlanWord::KvBlocksAt) + 2 * kv_block..][..2];
        let page = if words[0] & SHARED_KV_BLOCK != 0 { words[0] } else { words[0] & ((1 << READER_SHIFT) - 1) };
        let (base, from, to) = ((words[1] >> 12) * KV_BLOCK_TOKENS, words[1] >> 6 & 63, words[1] & 63);
        let to = to.min((last + 1).saturating_sub(base));
        let window = self.words[PlanWord::Window as usize];
        let seen = |slot: &u32| base + slot <= at && at - (base + slot) < window;
        let Member { number, of, .. } = self.member;
        assert_eq!(base / KV_BLOCK_TOKENS % of, number, "a KV block of another member");
        // As a slot of the page of all.
        let place = |slot: u32| (self.page(page, slot), number * KV_BLOCK_TOKENS + slot);
        (from..to).filter(seen).map(|slot| (base + slot, place(slot))).collect()
    }

    /// The page that holds `slot` of a KV block: of one of several pages, the part's.
    fn page(&self, page: u32, slot: u32) -> u32 {
        if page & SHARED_KV_BLOCK == 0 {
            return page;
        }
        let list = &self.words[(page & !SHARED_KV_BLOCK) as usize..];
        let parts = list[1..=2 * list[0] as usize].chunks_exact(2);
        let mut holding = parts.filter(|part| (part[1] >> 6 & 63..part[1] & 63).contains(&slot));
        let part = holding.next().expect("a part holds each slot");
        assert!(holding.next().is_none(), "two parts hold slot {slot}");
        part[0]
    }

    /// That a tile of so many rows, the first of which is at `lowest`, has no KV block for another row, and that where
    /// some are one row's alone the others end before all rows: the kernel does not mask these.
    fn check_readers(&self, tile: &Tile, rows: usize, lowest: u32) {
        let readers: Vec<usize> = tile.kv_blocks.clone().map(|kv_block| self.reader(kv_block)).collect();
        assert!(readers.iter().all(|&reader| reader <= rows), "readers of a tile of {rows} rows: {readers:?}");
        if readers.iter().all(|&reader| reader == 0) {
            return;
        }
        let window = self.words[PlanWord::Window as usize];
        assert!(self.member.of == 1 && !self.whole_tiles && window == u32::MAX, "none of these plans has readers");
        for (kv_block, _) in tile.kv_blocks.clone().zip(readers).filter(|&(_, reader)| reader == 0) {
            let place = self.words[self.header(PlanWord::KvBlocksAt) + 2 * kv_block + 1];
            let end = (place >> 12) * KV_BLOCK_TOKENS + (place & 63);
            assert!(end <= lowest + 1, "all rows read up to {end}, and the first is at {lowest}");
        }
    }

    /// What each row of a whole step gathers for each query head, by tiles and merge lists.
    fn gather(&self, positions: &[u32], partial_slots: usize, tiling: &Tiling) -> Vec<Vec<Context>> {
        let (group, q_heads) = (self.heads.group(), self.heads.q_heads);
        let mut rows = vec![vec![None; q_heads]; positions.len()];
        let mut partials = vec![vec![None; q_heads]; partial_slots];
        let wide = self.tiles(PlanWord::WideTiles, PlanWord::WideAt);
        let narrow = self.tiles(PlanWord::NarrowTiles, PlanWord::NarrowAt);
        assert!(wide.iter().all(|tile| tile.rows.len() <= tiling.wide_rows.unwrap_or(0)));
        assert!(narrow.iter().all(|tile| tile.rows.len() <= tiling.narrow_rows));
        for tiles in [&wide, &narrow] {
            assert!(tiles.iter().all(|tile| !tile.rows.is_empty() && !tile.kv_blocks.is_empty()));
        }
        assert!(wide.is_sorted_by_key(|tile| !tile.opens), "openings come first, as others wait for them");
        assert!(narrow.iter().all(|tile| !tile.opens && !tile.continues), "nobody waits in narrow tiles");
        let opening_rows = wide.iter().filter(|tile| tile.opens).map(|tile| tile.rows.len()).sum::<usize>();
        assert_eq!(self.header(PlanWord::OpeningRows), opening_rows, "what others wait for");
        for tile in wide.iter().chain(&narrow) {
            let rows_at = || tile.rows.clone().map(|packed| positions[packed / group]);
            let (first, last) = (rows_at().min().expect("a row"), rows_at().max().expect("a row"));
            let moved = positions[0] - self.words[PlanWord::FirstPosition as usize];
            assert_eq!(
                (first, last),
                (tile.positions.0 + moved, tile.positions.1 + moved),
                "a tile knows its positions"
            );
            let alone = |packed: usize| self.is_alone(packed / group);
            let expected = match tile.opens {
                true => (false, false),
                false => (tile.rows.clone().any(alone), tile.rows.clone().all(alone)),
            };
            assert_eq!(
                expected,
                (tile.states > 0, tile.states == 1),
                "a tile knows whether its rows have other states"
            );
            let list = self.header(PlanWord::KvBlocksAt) + 2 * tile.kv_blocks.start;
            let known = 2 * tile.kv_blocks.len().min(TILE_KV_BLOCKS);
            assert_eq!(
                self.words[list..list + known],
                tile.first_kv_blocks[..known],
                "a tile knows its first KV blocks"
            );
            let of_tile = tile.rows.start / group..tile.rows.end.div_ceil(group);
            self.check_readers(tile, of_tile.len(), first);
            for (number, row) in (1..).zip(of_tile) {
                let reads = |kv_block: &usize| [0, number].contains(&self.reader(*kv_block));
                let kv_blocks = tile.kv_blocks.clone().filter(reads);
                let seen = by_position(kv_blocks.flat_map(|p| self.kv_block(p, positions[row], last)).collect());
                let slot = tile.slot + row - tile.rows.start / group;
                let packed = tile.rows.start.max(row * group)..tile.rows.end.min((row + 1) * group);
                for (packed, kv_head) in packed.flat_map(|p| (0..self.heads.kv_heads).map(move |h| (p, h))) {
                    let head = kv_head * group + packed % group;
                    let mut context = match tile.continues {
                        true => partials[slot][head].take().expect("an opening has written its state"),
                        false => Context::new(),
                    };
                    assert!(goes_on(&context, &seen), "row {row} goes on behind what its opening has");
                    context.extend_from_slice(&seen);
                    let state = match self.is_alone(row) && !tile.opens {
                        true => &mut rows[row][head],
                        false => &mut partials[slot][head],
                    };
                    assert_eq!(state.replace(context), None, "two tiles write the state of row {row}, head {head}");
                }
            }
        }
        for (row, heads) in rows.iter_mut().enumerate() {
            for (head, context) in heads.iter_mut().enumerate().filter(|(_, context)| context.is_none()) {
                let mut whole = Context::new();
                let mut behind = false;
                for &slot in self.states(row) {
                    let state = partials[slot as usize][head].take().expect("a state is written and merged once");
                    assert!(
                        !self.whole_tiles || !behind || state.is_empty(),
                        "row {row}: what it does not see comes last"
                    );
                    behind |= state.is_empty();
                    assert!(goes_on(&whole, &state), "row {row} merges in the order of positions");
                    whole.extend(state);
                }
                *context = Some(whole);
            }
        }
        assert!(partials.iter().flatten().all(Option::is_none), "every state is merged");
        rows.into_iter().map(|heads| heads.into_iter().flatten().collect()).collect()
    }
}

/// In the order of positions, of which there is none twice.
fn by_position(mut context: Context) -> Context {
    if !context.is_sorted() {
        context.sort_unstable();
    }
    let twice = context.windows(2).find(|pair| pair[0].0 == pair[1].0);
    assert_eq!(twice, None, "a position is met again");
    context
}

/// Whether `next` lies behind `before`.
fn goes_on(before: &Context, next: &Context) -> bool {
    before.last().is_none_or(|end| next.first().is_none_or(|next| end.0 < next.0))
}

/// What each row sees, by the plan itself.
fn contexts(plan: &AttentionPlan) -> Vec<Context> {
    let mut contexts = vec![Context::new(); plan.row_positions.len()];
    for item in &plan.items {
        let rows = item.rows.start as usize..item.rows.end as usize;
        for span in &plan.spans[item.spans.start as usize..item.spans.end as usize] {
            for position in span.first_position..span.first_position + span.tokens {
                let page = span.pages.start + position / plan.page_tokens - span.first_position / plan.page_tokens;
                let place = (plan.pages[page as usize].0, position % plan.page_tokens);
                for (context, &at) in contexts[rows.clone()].iter_mut().zip(&plan.row_positions[rows.clone()]) {
                    if position <= at && plan.window.is_none_or(|window| at - position < window) {
                        context.push((position, place));
                    }
                }
            }
        }
    }
    contexts.into_iter().map(by_position).collect()
}

fn check(plan: &AttentionPlan, words: &DevicePlan, positions: &[u32], heads: HeadLayout, tiling: &Tiling, case: &str) {
    let words_read = Words { words: words.words(), heads, member: WHOLE, whole_tiles: plan.tile > 1 };
    let found = words_read.gather(positions, words.partial_slots(), tiling);
    for (row, (expected, found)) in contexts(plan).iter().zip(&found).enumerate() {
        assert!(found.len() == heads.q_heads && found.iter().all(|f| f == expected), "{case}: row {row}");
    }
}

/// That each row gathers from the words of all members together what it sees, each position from the member that stores
/// it.
fn check_members(plan: &AttentionPlan, of_members: &[DevicePlan], heads: HeadLayout, tiling: &Tiling, case: &str) {
    let positions = &plan.row_positions;
    let mut together = vec![vec![Context::new(); heads.q_heads]; positions.len()];
    for (member, words) in members(of_members.len()).zip(of_members) {
        let read = Words { words: words.words(), heads, member, whole_tiles: false };
        assert_eq!(read.header(PlanWord::Rows), 0, "{case}: the kernels merge no rows");
        for (rows, found) in together.iter_mut().zip(read.gather(positions, words.partial_slots(), tiling)) {
            rows.iter_mut().zip(found).for_each(|(all, own)| all.extend(own));
        }
    }
    for (row, (expected, found)) in contexts(plan).iter().zip(together).enumerate() {
        assert!(found.iter().all(|of_head| *of_head == found[0]), "{case}: row {row}");
        // No position is two members'.
        assert!(found.into_iter().next().map(by_position).as_ref() == Some(expected), "{case}: row {row}");
    }
}

fn members(of: usize) -> impl Iterator<Item = Member> {
    let of = u32::try_from(of).expect("few members");
    (0..of).map(move |number| Member { number, of, page_tokens: KV_BLOCK_TOKENS })
}

/// The words of all members.
fn of_members(
    of: usize,
    plan: &AttentionPlan,
    heads: HeadLayout,
    rows_padded: usize,
    tiling: &Tiling,
) -> Vec<DevicePlan> {
    let words = |member| {
        let mut words = DevicePlan::of_member(member);
        words.rebuild(plan, heads, rows_padded, tiling);
        words
    };
    members(of).map(words).collect()
}

const LAYOUTS: [(usize, usize); 5] = [(1, 1), (4, 2), (8, 2), (7, 1), (40, 2)];

/// The heads that read latents, and how the kernel of latents tiles them.
fn latent_case(dice: &mut Dice) -> (HeadLayout, Tiling) {
    let tiling = Tiling {
        narrow_rows: 0,
        wide_rows: Some(64),
        workers: Workers::LatentBlocks(dice.pick(&[3, 132])),
        most_slots: usize::MAX,
        openings_spare: None,
        cached_kv_blocks: None,
    };
    (HeadLayout::new(dice.pick(&[4, 12, 16, 20, 32, 64, 128]), 1, 64), tiling)
}

/// With it a window, and the tile of the plan: any position, or whole ones.
fn any_case(dice: &mut Dice) -> (HeadLayout, Tiling, Option<u32>, u32) {
    if dice.one_in(5) {
        let (heads, tiling) = latent_case(dice);
        return (heads, tiling, dice.pick(&[None, None, None, Some(33)]), dice.pick(&[1, 1, 1, 128]));
    }
    let (q_heads, kv_heads) = dice.pick(&LAYOUTS);
    let wide_rows = dice.pick(&[None, Some(64), Some(128)]);
    let workers = dice.pick(&[
        Workers::Blocks(2),
        Workers::Blocks(16),
        Workers::Blocks(264),
        Workers::BlocksAndDecodeWarps(132),
        Workers::BlocksThenTeams { blocks: 132, teams: 4 },
    ]);
    let tiling = Tiling {
        narrow_rows: dice.pick(&[8, 16]),
        wide_rows,
        workers,
        most_slots: usize::MAX,
        openings_spare: None,
        cached_kv_blocks: None,
    };
    let window = dice.pick(&[None, None, Some(1), Some(33), Some(200)]);
    let tile = dice.pick(&[1, 1, 64, 128, 256]);
    // As deterministic kernels have it, with openings even if they spare one step.
    let deterministic = Tiling { narrow_rows: 0, wide_rows: Some(128), openings_spare: Some(0), ..tiling };
    let tiling = if tile > 1 && dice.within(0, 1) == 1 { deterministic } else { tiling };
    (HeadLayout::new(q_heads, kv_heads, 64), tiling, window, tile)
}

fn plan_hints(heads: HeadLayout, window: Option<u32>, tile: u32) -> PlanHints {
    let number = |n: usize| u32::try_from(n).expect("few heads");
    PlanHints {
        group: offshoot_core::ids::GroupIx(0),
        tile,
        window,
        q_heads: number(heads.q_heads),
        kv_heads: number(heads.kv_heads),
        head_dim: number(heads.head_dim),
        kv_element_bytes: 2,
        latents: None,
        cost: CostModel::CUDA,
    }
}

#[test]
fn every_row_meets_each_position_that_it_sees_once() {
    for shape in ForestShape::ALL {
        let (shape, seeds) = match shape {
            ForestShape::Many(_) => (ForestShape::Many(60), 1),
            shape => (shape, some_or_full(1, 3)),
        };
        for seed in 0..seeds {
            let grown = grow(shape, KV_BLOCK_TOKENS, seed);
            let mut dice = Dice::new(seed);
            for planner in Planner::ALL {
                let (heads, tiling, window, tile) = any_case(&mut dice);
                let plan = planner.plan(&grown.forest, &plan_hints(heads, window, tile));
                let case = format!(
                    "{shape:?}, seed {seed}, {planner:?}, {heads:?}, {tiling:?}, window {window:?}, tile {tile}"
                );
                let rows = plan.row_positions.len();
                let words = DevicePlan::build(&plan, heads, rows + 3, &tiling);
                let read = Words { words: words.words(), heads, member: WHOLE, whole_tiles: tile > 1 };
                assert!((rows..rows + 3).all(|row| read.states(row).is_empty()), "{case}: padded rows merge nothing");
                assert!(
                    words.words()[PlanWord::WideTicket as usize..=PlanWord::LeftBlocks as usize]
                        .iter()
                        .all(|&w| w == 0),
                    "{case}"
                );
                for (count, at) in
                    [(PlanWord::WideTiles, PlanWord::WideAt), (PlanWord::NarrowTiles, PlanWord::NarrowAt)]
                {
                    for tiles in read.tiles(count, at).chunk_by(|a, b| a.opens == b.opens) {
                        let longest_first = tiles.is_sorted_by(|a, b| a.kv_blocks.len() >= b.kv_blocks.len());
                        assert!(longest_first, "{case}: longest first");
                    }
                }
                check(&plan, &words, &plan.row_positions, heads, &tiling, &case);
            }
        }
    }
}

/// A tree that is decoded: every leaf has one row, its newest token. `plant` makes the leaves' paths.
fn decode_step(
    plant: impl FnOnce(&mut PrefixTree, &mut PagePool) -> Vec<SegmentId>,
    hints: &PlanHints,
    planner: Planner,
) -> AttentionPlan {
    decode_step_of_pages(KV_BLOCK_TOKENS, plant, hints, planner)
}

fn decode_step_of_pages(
    page_tokens: u32,
    plant: impl FnOnce(&mut PrefixTree, &mut PagePool) -> Vec<SegmentId>,
    hints: &PlanHints,
    planner: Planner,
) -> AttentionPlan {
    let (mut tree, mut pool) = (PrefixTree::new(page_tokens), PagePool::new(10_000));
    let leaves = plant(&mut tree, &mut pool);
    let mut rows = Vec::new();
    for segment in leaves {
        let position = tree.end(segment) - 1;
        tree.mark_computed(segment, position);
        rows.push(StepRow { segment, position });
    }
    tree.depth_first(&mut rows);
    planner.plan(&tree.forest(&rows), hints)
}

fn text(tokens: u32) -> Vec<TokenId> {
    (0..tokens).map(TokenId).collect()
}

/// A trunk and as many leaves of twenty tokens.
fn star(tree: &mut PrefixTree, pool: &mut PagePool, trunk: u32, leaves: usize) -> Vec<SegmentId> {
    let trunk_end = tree.admit(pool, &text(trunk)).expect("pages");
    tree.mark_computed(trunk_end, trunk);
    let leaves: Vec<_> = (0..leaves).map(|_| tree.fork(trunk_end)).collect();
    leaves.iter().for_each(|&leaf| tree.append(pool, leaf, &text(20)).expect("pages"));
    leaves
}

/// Leaves at any depth.
fn bush(tree: &mut PrefixTree, pool: &mut PagePool, dice: &mut Dice) -> Vec<SegmentId> {
    let tokens = dice.within(1, 200);
    let mut ends = vec![tree.admit(pool, &text(tokens)).expect("pages")];
    tree.mark_computed(ends[0], tokens);
    for _ in 0..dice.within(1, 12) {
        let at = dice.within(1, u32::try_from(ends.len()).expect("a bush")) as usize - 1;
        let at = ends.swap_remove(at);
        tree.mark_computed(at, tree.end(at));
        for _ in 0..dice.within(1, 5) {
            let branch = tree.fork(at);
            tree.append(pool, branch, &text(dice.within(1, 70))).expect("pages");
            ends.push(branch);
        }
    }
    ends
}

#[test]
fn a_plan_fills_no_more_slots_than_it_may_where_long_items_can_be_divided_less() {
    let (mut same, mut divided_less) = (0, 0);
    for seed in 0..10 {
        let mut dice = Dice::new(100 + seed);
        for planner in Planner::ALL {
            let (heads, tiling, window, tile) = any_case(&mut dice);
            let (trunk, leaves) = (dice.within(300, 1500), dice.within(1, 8) as usize);
            let plant = |tree: &mut PrefixTree, pool: &mut PagePool| star(tree, pool, trunk, leaves);
            let plan = decode_step(plant, &plan_hints(heads, window, tile), planner);
            let build = |most_slots| DevicePlan::build(&plan, heads, leaves, &Tiling { most_slots, ..tiling });
            let (most, least) = (build(usize::MAX).partial_slots(), build(0).partial_slots());
            assert!(least <= most, "items are divided by {least} slots into {most}");
            for may in [most, most.saturating_sub(1), most.midpoint(least), least] {
                let case = format!("seed {seed}, {planner:?}, {heads:?}, {tiling:?}, tile {tile}, at most {may} slots");
                let words = build(may);
                assert!(words.partial_slots() <= may.max(least), "{case}: {}", words.partial_slots());
                if may >= most {
                    assert!(words.words() == build(usize::MAX).words(), "{case}: what fits is as it was");
                    same += 1;
                } else {
                    check(&plan, &words, &plan.row_positions, heads, &tiling, &case);
                    divided_less += usize::from(least < most);
                }
            }
        }
    }
    assert!(same > 10 && divided_less > 10, "{same} plans as they were, {divided_less} not");
}

#[test]
fn few_words_follow_a_decode_step_from_page_to_page() {
    let (mut steps, mut patched, mut anew, mut with_openings) = (0, 0, 0, 0);
    for seed in 0..30 {
        for planner in Planner::ALL {
            let mut dice = Dice::new(seed);
            let (heads, tiling, window, tile) = any_case(&mut dice);
            let hints = plan_hints(heads, window, tile);
            let mut plan = decode_step(|tree, pool| bush(tree, pool, &mut dice), &hints, planner);
            let build = |plan: &AttentionPlan| DevicePlan::build(plan, heads, plan.row_positions.len() + 5, &tiling);
            let mut words = build(&plan);
            let case = format!("seed {seed}, {planner:?}, {heads:?}, {tiling:?}, window {window:?}, tile {tile}");
            check(&plan, &words, &plan.row_positions, heads, &tiling, &case);
            with_openings += u32::from(words.words()[PlanWord::OpeningRows as usize] > 0);
            let mut next_page = 10_000;
            for _ in 0..4 * KV_BLOCK_TOKENS {
                let new_pages = new_pages(&plan, &mut next_page);
                plan.advance(&new_pages);
                let before = words.words().to_vec();
                let changed = if words.leaves_tiles(&plan) { None } else { words.advance(&new_pages) };
                match changed {
                    Some(changed) => {
                        let after = words.words();
                        assert_eq!(changed.is_empty(), new_pages.is_empty(), "{case}");
                        assert!(before.len() == after.len() && before[..changed.start] == after[..changed.start]);
                        assert!(before[changed.end..] == after[changed.end..], "{case}: others are where they were");
                        patched += new_pages.len();
                    }
                    None => {
                        assert!(words.words() == before, "{case}: nothing is changed by halves");
                        words = build(&plan);
                        anew += 1;
                    }
                }
                steps += 1;
                if steps % some_or_full(7, 2) == 0 {
                    check(&plan, &words, &plan.row_positions, heads, &tiling, &format!("{case}, advanced"));
                }
            }
        }
    }
    assert!(steps > 1000 && patched > 1000 && anew > 20, "{steps} steps, {patched} pages turned, {anew} made anew");
    assert!(with_openings > 0, "no plan has an opening");
}

/// Rows of each of the tiles that some of their rows read alone, if several do.
fn shared_tiles(words: &DevicePlan, heads: HeadLayout) -> Vec<std::ops::Range<usize>> {
    let read = Words { words: words.words(), heads, member: WHOLE, whole_tiles: false };
    let tiles = read.tiles(PlanWord::WideTiles, PlanWord::WideAt);
    let is_shared = |tile: &Tile| tile.kv_blocks.clone().any(|kv_block| read.reader(kv_block) > 0);
    let group = heads.group();
    let rows = |tile: Tile| tile.rows.start / group..tile.rows.end / group;
    tiles.into_iter().filter(is_shared).map(rows).collect()
}

/// Problems, perhaps below a header, and leaves of each.
fn samples(tree: &mut PrefixTree, pool: &mut PagePool, dice: &mut Dice) -> Vec<SegmentId> {
    let (mut header, mut leaves) = (None, Vec::new());
    if dice.one_in(2) {
        let tokens = dice.within(1, 700);
        header = Some(tree.admit(pool, &text(tokens)).expect("pages"));
        header.iter().for_each(|&header| tree.mark_computed(header, tokens));
    }
    for _ in 0..dice.within(1, 5) {
        let own = text(dice.within(1, 400));
        let problem = match header {
            Some(header) => {
                let problem = tree.fork(header);
                tree.append(pool, problem, &own).expect("pages");
                problem
            }
            None => tree.admit(pool, &own).expect("pages"),
        };
        tree.mark_computed(problem, tree.end(problem));
        for _ in 0..dice.within(1, 12) {
            let leaf = tree.fork(problem);
            tree.append(pool, leaf, &text(dice.within(1, 300))).expect("pages");
            leaves.push(leaf);
        }
    }
    leaves
}

#[test]
fn leaves_that_share_tiles_follow_a_decode_step_from_page_to_page() {
    let (mut patched, mut anew, mut joined) = (0, 0, 0);
    let mut seen = [0; 16];
    for seed in 0..some_or_full(24, 100) {
        let mut dice = Dice::new(seed);
        let (heads, tiling) = latent_case(&mut dice);
        let leaf_tiles = LeafTiles { leaves: dice.within(1, 5), joins: dice.one_in(2) };
        let hints = plan_hints(heads, None, 1);
        let planner = dice.pick(&Planner::ALL);
        let mut plan = match dice.one_in(3) {
            true => decode_step(|tree, pool| bush(tree, pool, &mut dice), &hints, planner),
            false => decode_step(|tree, pool| samples(tree, pool, &mut dice), &hints, planner),
        };
        let case = format!("seed {seed}, {planner:?}, {heads:?}, {tiling:?}, {leaf_tiles:?}");
        let rows = plan.row_positions.len();
        let mut words = DevicePlan::default();
        let build = |words: &mut DevicePlan, plan: &AttentionPlan| {
            words.rebuild_with(plan, heads, rows + 5, &tiling, Some(leaf_tiles));
        };
        build(&mut words, &plan);
        check(&plan, &words, &plan.row_positions, heads, &tiling, &case);
        let mut next_page = 10_000;
        let first_page = |row: usize| {
            let first = &plan.items[plan.merge.values[plan.merge.offsets[row] as usize] as usize];
            plan.pages[plan.spans[first.spans.start as usize].pages.start as usize]
        };
        let first_pages: Vec<PageId> = (0..rows).map(first_page).collect();
        for _ in 0..3 * KV_BLOCK_TOKENS {
            let shared = shared_tiles(&words, heads);
            let below_one_root =
                |rows: &std::ops::Range<usize>| first_pages[rows.clone()].windows(2).all(|pair| pair[0] == pair[1]);
            assert!(shared.iter().all(below_one_root), "{case}: {shared:?}, first pages {first_pages:?}");
            let new_pages = new_pages(&plan, &mut next_page);
            plan.advance(&new_pages);
            let turns = |rows: &&std::ops::Range<usize>| {
                new_pages.iter().filter(|page| rows.contains(&(page.row as usize))).count() > 1
            };
            match words.advance(&new_pages) {
                Some(_) => patched += shared.iter().filter(turns).count(),
                None => {
                    build(&mut words, &plan);
                    anew += 1;
                }
            }
            if !new_pages.is_empty() || dice.one_in(10) {
                check(&plan, &words, &plan.row_positions, heads, &tiling, &format!("{case}, advanced"));
            }
            for rows in &shared {
                seen[rows.len()] += 1;
            }
            joined += usize::from(leaf_tiles.joins && !shared.is_empty());
        }
    }
    assert!(seen[1] == 0 && seen[2..=4].iter().all(|&seen| seen > 0), "tiles of so many leaves: {seen:?}");
    assert!(patched > 10 && anew > 10 && joined > 10, "{patched} turned together, {anew} anew, {joined} joined");
}

/// So many problems of so many tokens, or none where these are 0, and as many leaves of each, of so many tokens.
fn even_samples(
    [problems, tokens, leaves, own]: [u32; 4],
) -> impl FnOnce(&mut PrefixTree, &mut PagePool) -> Vec<SegmentId> {
    move |tree, pool| {
        let leaf = |tree: &mut PrefixTree, pool: &mut PagePool, problem: Option<SegmentId>| match problem {
            None => tree.admit(pool, &text(own)).expect("pages"),
            Some(problem) => {
                let leaf = tree.fork(problem);
                tree.append(pool, leaf, &text(own)).expect("pages");
                leaf
            }
        };
        let mut all = Vec::new();
        for number in 0..problems {
            // Different ones, that share nothing.
            let of_problem: Vec<TokenId> = (0..tokens).map(|i| TokenId(1000 * (number + 1) + i)).collect();
            let problem = (tokens > 0).then(|| tree.admit(pool, &of_problem).expect("pages"));
            problem.iter().for_each(|&problem| tree.mark_computed(problem, tokens));
            all.extend((0..leaves).map(|_| leaf(tree, pool, problem)));
        }
        all
    }
}

#[test]
fn leaves_share_tiles_where_that_was_fastest() {
    let (_, tiling) = latent_case(&mut Dice::new(0));
    let tiling = Tiling { workers: Workers::LatentBlocks(132), ..tiling };
    // As measured on an H200: heads, the tree, the tiles that leaves share, and partial states of rows.
    for (heads, tree, shared, slots) in [
        (16, [64, 96, 40, 66], 640, 0),
        (20, [64, 96, 40, 66], 896, 0),
        (16, [1, 2048, 1024, 128], 256, 0),
        (16, [1, 2048, 256, 128], 64, 512),
    ] {
        let heads = HeadLayout::new(heads, 1, 64);
        let plan = decode_step(even_samples(tree), &plan_hints(heads, None, 1), Planner::Tree);
        let words = DevicePlan::build(&plan, heads, plan.row_positions.len(), &tiling);
        let found = (shared_tiles(&words, heads).len(), words.partial_slots());
        assert_eq!(found, (shared, slots), "{heads:?}, {tree:?}");
    }
}

#[test]
fn leaves_of_a_tile_share_the_room_for_their_next_pages() {
    let heads = HeadLayout::new(16, 1, 64);
    // One block, for which no list is divided.
    let tiling = Tiling { workers: Workers::LatentBlocks(1), ..latent_case(&mut Dice::new(0)).1 };
    let plant = |tree: &mut PrefixTree, pool: &mut PagePool| star(tree, pool, 70, 6);
    let plan = decode_step(plant, &plan_hints(heads, None, 1), Planner::Tree);
    let page = |row: u32| NewPage { group: offshoot_core::ids::GroupIx(0), row, page: PageId(10_000) };
    for leaf_tiles in [LeafTiles { leaves: 3, joins: false }, LeafTiles { leaves: 1, joins: true }] {
        let mut words = DevicePlan::default();
        words.rebuild_with(&plan, heads, 6, &tiling, Some(leaf_tiles));
        assert_eq!(shared_tiles(&words, heads), [0..3, 3..6], "{leaf_tiles:?}");
        let before = words.words().to_vec();
        // Two for each row of the first tile, after one for the other tile.
        let pages = |of_first: usize| [vec![page(5)], vec![page(1); of_first]].concat();
        assert_eq!(words.advance(&pages(7)), None, "{leaf_tiles:?}");
        assert!(words.words() == before, "{leaf_tiles:?}: nothing is changed by halves");
        assert!(words.advance(&pages(6)).is_some(), "{leaf_tiles:?}: what was taken is given back");
        assert_eq!(words.advance(&[page(0)]), None, "{leaf_tiles:?}: one row has taken all");
        assert!(words.advance(&[page(3), page(4)]).is_some(), "{leaf_tiles:?}: the other tile has room");
        words.rebuild_with(&plan, heads, 6, &tiling, Some(leaf_tiles));
        assert!(words.words() == before, "{leaf_tiles:?}");
        assert!(words.advance(&[page(0), page(0), page(1)]).is_some(), "{leaf_tiles:?}: there is room again");
    }
}

/// Those of rows whose pages are full.
fn new_pages(plan: &AttentionPlan, next_page: &mut u32) -> Vec<NewPage> {
    let full = (0u32..).zip(&plan.row_positions).filter(|&(_, at)| (at + 1).is_multiple_of(plan.page_tokens));
    let new_page = |(row, _)| {
        *next_page += 1;
        NewPage { group: offshoot_core::ids::GroupIx(0), row, page: PageId(*next_page) }
    };
    full.map(new_page).collect()
}

#[test]
fn members_have_together_what_rows_see_and_none_what_another_one_stores() {
    let groups = [(0u32, 2), (1, 4), (2, 8)];
    for (number, shape) in ForestShape::ALL.into_iter().enumerate() {
        let shape = if matches!(shape, ForestShape::Many(_)) { ForestShape::Many(60) } else { shape };
        // One number of members for each shape, or all.
        for &(seed, of) in some_or_full(&groups[number % 3..][..1], &groups) {
            let grown = grow(shape, KV_BLOCK_TOKENS * of, u64::from(seed));
            let mut dice = Dice::new(u64::from(seed));
            for planner in Planner::ALL {
                let (heads, tiling, window, _) = any_case(&mut dice);
                let plan = planner.plan(&grown.forest, &plan_hints(heads, window, 1));
                let case = format!("{of} members, {shape:?}, {planner:?}, {heads:?}, {tiling:?}, window {window:?}");
                let words = of_members(of as usize, &plan, heads, plan.row_positions.len() + 3, &tiling);
                check_members(&plan, &words, heads, &tiling, &case);
            }
        }
    }
}

#[test]
fn members_follow_a_decode_step_from_page_to_page() {
    let (mut patched, mut anew) = (0, 0);
    for seed in 0..some_or_full(3, 5) {
        for planner in Planner::ALL {
            let mut dice = Dice::new(seed);
            let of = dice.pick(&[2, 4, 8]);
            let (heads, tiling, window, _) = any_case(&mut dice);
            let hints = plan_hints(heads, window, 1);
            let plant = |tree: &mut PrefixTree, pool: &mut PagePool| bush(tree, pool, &mut dice);
            let mut plan = decode_step_of_pages(KV_BLOCK_TOKENS * of, plant, &hints, planner);
            let case = format!("seed {seed}, {of} members, {planner:?}, {heads:?}, {tiling:?}, window {window:?}");
            let rows = plan.row_positions.len() + 5;
            let mut words = of_members(of as usize, &plan, heads, rows, &tiling);
            let mut next_page = 10_000;
            for step in 0..3 * KV_BLOCK_TOKENS * of {
                let new_pages = new_pages(&plan, &mut next_page);
                plan.advance(&new_pages);
                let changed: Vec<_> = words.iter_mut().map(|words| words.advance(&new_pages)).collect();
                assert!(changed.windows(2).all(|pair| pair[0].is_some() == pair[1].is_some()), "{case}: all or none");
                if changed.iter().any(Option::is_none) {
                    words = of_members(of as usize, &plan, heads, rows, &tiling);
                    anew += 1;
                } else {
                    patched += new_pages.len();
                }
                if step % 13 == 0 || !new_pages.is_empty() {
                    check_members(&plan, &words, heads, &tiling, &format!("{case}, advanced"));
                }
            }
        }
    }
    assert!(patched > 100 && anew > 10, "{patched} pages turned, {anew} made anew");
}

#[test]
fn one_long_item_is_divided_among_all_blocks_and_many_short_ones_are_not() {
    let heads = HeadLayout::new(8, 2, 128);
    let many = Tiling {
        narrow_rows: 16,
        wide_rows: Some(128),
        workers: Workers::Blocks(264),
        most_slots: usize::MAX,
        openings_spare: None,
        cached_kv_blocks: None,
    };
    let few = Tiling { workers: Workers::Blocks(16), ..many };
    let plan = |planner| decode_step(|tree, pool| star(tree, pool, 2400, 200), &plan_hints(heads, None, 1), planner);
    let (tree, flat) = (plan(Planner::Tree), plan(Planner::Flat));

    let words = DevicePlan::build(&tree, heads, 200, &many);
    let read = Words { words: words.words(), heads, member: WHOLE, whole_tiles: false };
    let wide = read.tiles(PlanWord::WideTiles, PlanWord::WideAt);
    // 800 packed rows are 7 tiles of two key heads; the trunk is 75 KV blocks.
    let parts = wide.len() / 7;
    assert!(wide.len() == 7 * parts && parts > 1 && 2 * wide.len() <= 264, "one round of {} tiles", wide.len());
    assert!(wide.iter().all(|tile| tile.kv_blocks.len() <= 75usize.div_ceil(parts)));
    assert_eq!(read.tiles(PlanWord::NarrowTiles, PlanWord::NarrowAt).len(), 200);
    assert_eq!(words.partial_slots(), 200 * (parts + 1));

    assert!(DevicePlan::build(&flat, heads, 200, &many).partial_slots().is_multiple_of(200));
    assert_eq!(DevicePlan::build(&flat, heads, 200, &few).partial_slots(), 0, "a row of one state needs no slot");
}
