//! Openings: where a plan keeps whole tiles (`AttentionPlan::tile`), what rows share of a tile that they do not share
//! to its end would be read by each of them alone. An opening computes its whole steps once, for all of these rows, and
//! the tile of each goes on from the state that it finds there. A row's operations are the same, in the same order, so
//! its bits are, too. `tiling` makes row tiles of them.

use std::ops::Range;

use super::builder::PlanBuilder;
use super::layout::{KV_BLOCK_TOKENS, STEP_KV_BLOCKS, Workers, word};
use super::tiles::Opening;
use offshoot_kv::plan::WorkItem;

/// What the tiles of an opening cost beside their steps, in steps: loading queries and first keys, writing states, and
/// reading them again.
const OPENING_COST: usize = 4;

/// Positions of a step.
const STEP_TOKENS: u32 = STEP_KV_BLOCKS as u32 * KV_BLOCK_TOKENS;

impl PlanBuilder<'_> {
    /// Lists the openings of the plan, if they spare more than waiting for them takes.
    pub(super) fn find_openings(&mut self) {
        self.scratch.openings.clear();
        let Some(least) = self.tiling.openings_spare else { return };
        let a_row_fits = self.group as usize <= self.tiling.most_rows();
        if !(self.keeps_tiles && self.plan.joins_beginnings && self.plan.window.is_none() && a_row_fits) {
            return;
        }
        let (mut first, mut spared) = (0, 0);
        while first < self.plan.items.len() {
            let steps = self.steps_alike(first);
            // Where the next one begins like its successor for longer, that is the better opening.
            if steps == 0 || self.steps_alike(first + 1) > steps {
                first += 1;
                continue;
            }
            let follow = (first + 1..).take_while(|&item| self.steps_alike(item - 1) >= steps).count();
            let opening = self.opening(first..first + 1 + follow, steps);
            // The range is empty if the first item's own rows are within these steps.
            first += opening.items.len().max(1);
            if let Some(steps) = self.spared_steps(&opening) {
                self.scratch.openings.push(opening);
                spared += steps;
            }
        }
        let blocks = match self.tiling.workers {
            Workers::Blocks(blocks)
            | Workers::BlocksAndDecodeWarps(blocks)
            | Workers::BlocksThenTeams { blocks, .. }
            | Workers::LatentBlocks(blocks) => blocks,
        };
        if spared < least * blocks {
            self.scratch.openings.clear();
        }
    }

    /// The whole steps of the spans with which item `item` and the next one begin alike; 0 if their rows do not adjoin,
    /// or if these spans hold a whole tile, which the planner chose not to share.
    fn steps_alike(&self, item: usize) -> u32 {
        let Some([item, next]) = self.plan.items.get(item..item + 2).and_then(|pair| pair.first_chunk()) else {
            return 0;
        };
        if item.rows.end != next.rows.start {
            return 0;
        }
        let [spans, of_next] =
            [item, next].map(|item| &self.plan.spans[item.spans.start as usize..item.spans.end as usize]);
        let alike = spans.iter().zip(of_next).take_while(|(a, b)| a == b);
        let tokens = alike.map(|(span, _)| span.tokens).sum::<u32>();
        if tokens < self.plan.tile { tokens / STEP_TOKENS } else { 0 }
    }

    /// The opening of these items, which begin with `steps` steps alike, or of the first of them: up to one that has
    /// rows within these steps.
    fn opening(&self, items: Range<usize>, steps: u32) -> Opening {
        let of_plan = &self.plan.items[items.clone()];
        let end = self.plan.spans[of_plan[0].spans.start as usize].first_position + steps * STEP_TOKENS;
        let positions = |rows: &Range<u32>| &self.plan.row_positions[rows.start as usize..rows.end as usize];
        let is_behind = |item: &&WorkItem| positions(&item.rows).iter().all(|&at| at >= end);
        let behind = of_plan.iter().take_while(is_behind).count();
        let first_row = of_plan[0].rows.start;
        let end_row = of_plan[..behind].last().map_or(first_row, |last| last.rows.end);
        let items = items.start..items.start + behind;
        Opening { items, rows: first_row..end_row, kv_blocks: steps * word(STEP_KV_BLOCKS) }
    }

    /// The steps of tiles that an opening spares, beyond its own cost; `None` if it spares none.
    fn spared_steps(&self, opening: &Opening) -> Option<usize> {
        let row_tiles = |rows: &Range<u32>| rows.len().div_ceil(self.rows_a_tile as usize);
        let items = &self.plan.items[opening.items.clone()];
        let (without, own) = (items.iter().map(|item| row_tiles(&item.rows)).sum::<usize>(), row_tiles(&opening.rows));
        let steps = opening.kv_blocks as usize / STEP_KV_BLOCKS;
        let spared = (without * steps).checked_sub(own * (steps + OPENING_COST)).filter(|&spared| spared > 0)?;
        Some(spared * self.heads.kv_heads)
    }
}
