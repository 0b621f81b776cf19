//! Decode steps whose leaves share tiles of latents, alone or behind what they have in common.

use offshoot_cases::dense::dense_lse;
use offshoot_cases::setting::Setting;
use offshoot_core::dice::Dice;
use offshoot_core::ids::{GroupIx, SegmentId, TokenId};
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{PlanWord, READER_BITS, READER_SHIFT, TILE_WORDS};
use offshoot_cuda::attention::leaf_tiles::LeafTiles;
use offshoot_fixtures::forests::GrownForest;
use offshoot_kv::plan::{NewPage, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};

use super::PAGE;
use super::checks::{assert_exact, assert_lse, exact, exact_of, lse_of, schedules};
use super::kernel::{Kernel, PADDED, Step, attend_by, hints};
use super::memory::kv;

/// Which rows a decode step has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leaves {
    /// One prompt, nine samples that end in different places of their pages.
    Star,
    /// Three problems below a header, five samples each.
    Problems,
    /// Prompts without anything in common, which share no tile.
    Roots,
    /// Samples of a prompt between prompts alone, which have tiles of their own.
    Mixed,
}

/// A tree whose rows are at the ends of segments.
struct Decode {
    tree: PrefixTree,
    pool: PagePool,
    dice: Dice,
    leaves: Vec<SegmentId>,
}

impl Decode {
    fn new(leaves: Leaves, seed: u64) -> Self {
        let (tree, pool) = (PrefixTree::new(PAGE as u32), PagePool::new(500));
        let mut decode = Self { tree, pool, dice: Dice::new(seed), leaves: Vec::new() };
        match leaves {
            Leaves::Star => decode.star(None, 70, &[1, 5, 31, 32, 33, 64, 65, 100, 130]),
            Leaves::Problems => {
                let header = decode.prompt(40);
                for (problem, samples) in
                    [(25, [3, 60, 33, 90, 1]), (50, [66, 66, 66, 66, 66]), (7, [120, 2, 8, 40, 31])]
                {
                    decode.star(Some(header), problem, &samples);
                }
            }
            Leaves::Roots => decode.roots(&[3, 33, 64, 70, 96, 97, 130]),
            Leaves::Mixed => {
                decode.roots(&[40]);
                decode.star(None, 70, &[10, 40, 50]);
                decode.roots(&[33, 100]);
            }
        }
        decode
    }

    fn text(&mut self, tokens: u32) -> Vec<TokenId> {
        (0..tokens).map(|_| TokenId(self.dice.within(0, 4999))).collect()
    }

    fn prompt(&mut self, tokens: u32) -> SegmentId {
        let text = self.text(tokens);
        self.tree.admit(&mut self.pool, &text).expect("the pool is large enough")
    }

    fn roots(&mut self, tokens: &[u32]) {
        for &tokens in tokens {
            let root = self.prompt(tokens);
            let leaf = self.branch(root, 2);
            self.leaves.push(leaf);
        }
    }

    fn branch(&mut self, at: SegmentId, tokens: u32) -> SegmentId {
        let branch = self.tree.fork(at);
        self.append(branch, tokens);
        branch
    }

    fn append(&mut self, branch: SegmentId, tokens: u32) {
        let text = self.text(tokens);
        self.tree.append(&mut self.pool, branch, &text).expect("the pool is large enough");
    }

    /// Samples of so many tokens below a prompt of so many, or a part of a prompt.
    fn star(&mut self, header: Option<SegmentId>, tokens: u32, samples: &[u32]) {
        let prompt = match header {
            Some(header) => self.branch(header, tokens),
            None => self.prompt(tokens),
        };
        for &tokens in samples {
            let leaf = self.branch(prompt, tokens);
            self.leaves.push(leaf);
        }
    }

    /// The step of each leaf's newest token.
    fn rows(&mut self) -> Vec<StepRow> {
        let row = |&segment: &SegmentId| StepRow { segment, position: self.tree.end(segment) - 1 };
        let mut rows: Vec<StepRow> = self.leaves.iter().map(row).collect();
        self.tree.depth_first(&mut rows);
        for row in &rows {
            self.tree.mark_computed(row.segment, row.position);
        }
        rows
    }
}

/// The tiles of a plan in which a KV block has a reader.
fn tiles_with_readers(words: &[u32]) -> usize {
    let [count, at, kv_blocks_at] =
        [PlanWord::WideTiles, PlanWord::WideAt, PlanWord::KvBlocksAt].map(|word| words[word as usize] as usize);
    let tiles = words[at..at + count * TILE_WORDS].chunks_exact(TILE_WORDS);
    let has_readers = |tile: &&[u32]| {
        let kv_blocks = &words[kv_blocks_at + 2 * tile[2] as usize..][..2 * tile[3] as usize];
        kv_blocks.iter().step_by(2).any(|word| word >> READER_SHIFT & ((1 << READER_BITS) - 1) != 0)
    };
    tiles.filter(has_readers).count()
}

/// Rows have what the definition says in the step that a plan is made for and some steps later, by the same words with
/// new pages added. Returns the number of tiles in which a KV block has a reader.
pub(super) fn check_leaves(
    kernel: &Kernel,
    setting: &Setting,
    leaves: Leaves,
    leaf_tiles: LeafTiles,
    blocks: usize,
    seed: u64,
) -> usize {
    const LATER: u32 = 3;
    let mut decode = Decode::new(leaves, seed);
    let tiling = kernel.tiling(setting, blocks);
    let hints = hints(setting, 1);
    let rows = decode.rows();
    // A prompt of one row is no item of its own.
    let planner = if matches!(leaves, Leaves::Roots) { Planner::Flat } else { Planner::Tree };
    let mut plan = planner.plan(&decode.tree.forest(&rows), &hints);
    let mut words = DevicePlan::default();
    words.rebuild_with(&plan, setting.heads, rows.len() + PADDED, &tiling, Some(leaf_tiles));
    for moved in [0, LATER] {
        let case = format!("{leaves:?}, {leaf_tiles:?}, {setting}, {blocks} blocks, seed {seed}, {moved} steps later");
        for _ in 0..moved {
            for row in &rows {
                decode.append(row.segment, 1);
            }
            let page = |(row, &StepRow { segment, .. }): (u32, &StepRow)| {
                let position = plan.row_positions[row as usize] + 1;
                let page = decode.tree.slot(segment, position).page;
                position.is_multiple_of(PAGE as u32).then_some(NewPage { group: GroupIx(0), row, page })
            };
            let new_pages: Vec<NewPage> = (0..).zip(&rows).filter_map(page).collect();
            plan.advance(&new_pages);
            assert!(words.advance(&new_pages).is_some(), "{case}: there is room for some steps");
        }
        let rows = decode.rows();
        let forest = decode.tree.forest(&rows);
        assert_eq!(forest.row_positions, plan.row_positions, "{case}");
        let Decode { tree, pool, dice, leaves } = decode;
        let grown = GrownForest { tree, pool, rows, forest };
        let (kv, exact) = (kv(setting, kernel.layout, &grown), exact(setting, &grown));
        let names: Vec<usize> = (0..grown.rows.len()).collect();
        let step = Step { setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
        let mut lse = lse_of(&step);
        let found = attend_by(kernel, &step, &words, &tiling, &schedules(seed), Some(&mut lse));
        assert!(found.iter().all(|run| *run == found[0]), "{case}: other bits when asynchronous work is done later");
        assert_exact(setting, &found[0], &exact, &case);
        assert_lse(setting, &lse, &exact_of(setting, &grown, dense_lse), None, &case);
        decode = Decode { tree: grown.tree, pool: grown.pool, dice, leaves };
    }
    tiles_with_readers(words.words())
}
