//! Builds a typical decode step of a job (the samples of one wave that run at once, each with half of its output) as
//! the forest that a planner would get, and computes what attention reads with each plan.

use std::collections::HashMap;

use serde::Serialize;

use super::job::PlannedJob;
use super::pool::{Pool, PromptShare, Wave};
use offshoot_core::ids::{PageId, SegmentId};
use offshoot_kv::plan::{CopyRoom, LatentFormChoice, PlanHints, Planner};
use offshoot_kv::{Forest, ForestSegment, PromptTree};

/// Bytes of keys and values that a step reads, all layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvReads {
    pub rows: u64,
    pub flat: u64,
    pub single: u64,
    pub balanced: u64,
}

/// A decode step, and the tree nodes that it consists of.
pub struct DecodeStep {
    pub forest: Forest,
    /// For each segment, its node in the prompt tree; `None` for a sample's own tokens.
    pub nodes: Vec<Option<u32>>,
}

impl DecodeStep {
    /// The first `most_rows` samples of `wave`. Samples of a single token are left out, because that token is sampled
    /// from the prompt's own row.
    pub fn of(job: &PlannedJob, tree: &PromptTree, wave: &Wave, pool: &Pool, most_rows: usize) -> Self {
        let mut rows_of: HashMap<u32, u32> = HashMap::new();
        let mut left = u32::try_from(most_rows).unwrap_or(u32::MAX);
        for &PromptShare { prompt, samples } in
            wave.shares.iter().filter(|share| job.per_prompt[share.prompt as usize].tokens > 1)
        {
            let rows = samples.min(left);
            left -= rows;
            if rows > 0 {
                *rows_of.entry(prompt).or_default() += rows;
            }
        }
        let forest = Forest { page_tokens: pool.page_tokens, ..Forest::default() };
        let mut step = DecodeStep { forest, nodes: Vec::new() };
        let mut segment_of: Vec<Option<u32>> = vec![None; tree.nodes().len()];
        let beneath = rows_beneath(tree, &rows_of);
        for (node, index) in tree.nodes().iter().zip(0u32..) {
            if beneath[index as usize] == 0 {
                continue;
            }
            let parent = node.parent.and_then(|parent| segment_of[parent as usize]);
            let segment = step.segment(parent, node.tokens(), Some(index), beneath[index as usize]);
            segment_of[index as usize] = Some(segment);
            for sorted in &tree.sorted()[tree.own(index as usize)] {
                let drawn = job.per_prompt[sorted.prompt as usize].tokens / 2;
                for _ in 0..rows_of.get(&sorted.prompt).copied().unwrap_or(0) {
                    step.row(segment, drawn);
                }
            }
        }
        debug_assert_eq!(step.forest.check(), Ok(()));
        step
    }
}

/// For each node, the number of rows at and below it.
fn rows_beneath(tree: &PromptTree, rows_of: &HashMap<u32, u32>) -> Vec<u32> {
    let own = |node: usize| {
        let prompts = tree.sorted()[tree.own(node)].iter();
        prompts.map(|sorted| u64::from(rows_of.get(&sorted.prompt).copied().unwrap_or(0))).sum()
    };
    let sums = tree.sums_beneath(own);
    sums.into_iter().map(|rows| u32::try_from(rows).expect("no more than the rows of a step")).collect()
}

/// Built depth-first.
impl DecodeStep {
    /// Adds a segment of `tokens` with the next `rows` rows at and below it.
    fn segment(&mut self, parent: Option<u32>, tokens: u32, node: Option<u32>, rows: u32) -> u32 {
        let forest = &mut self.forest;
        let count = |len: usize| u32::try_from(len).expect("pages and rows of a pool are counted in u32");
        let first = parent.map_or(0, |parent| forest.segments[parent as usize].end());
        let pages = (first + tokens - 1) / forest.page_tokens - first / forest.page_tokens + 1;
        let (page, row) = (count(forest.pages.len()), count(forest.row_positions.len()));
        let index = count(forest.segments.len());
        forest.pages.extend((page..page + pages).map(PageId));
        forest.segments.push(ForestSegment {
            id: SegmentId(index),
            parent,
            first_position: first,
            tokens,
            pages: page..page + pages,
            held_from: first,
            rows: row..row + rows,
        });
        self.nodes.push(node);
        index
    }

    /// Adds a sample below `parent` with `drawn` own tokens; its newest token is a row.
    fn row(&mut self, parent: u32, drawn: u32) {
        let segment = self.segment(Some(parent), drawn, None, 1);
        self.forest.row_positions.push(self.forest.segments[segment as usize].end() - 1);
        self.forest.row_segments.push(segment);
    }
}

/// The bytes that the step reads with each plan; `None` if it has no rows. `room`: what there is for copies of latents.
pub fn reads(forest: &Forest, hints: &[(PlanHints, u64)], room: &CopyRoom<'_>) -> Option<KvReads> {
    let rows = forest.row_positions.len() as u64;
    let read = |planner: Planner| {
        let of = |(hints, layers): &(PlanHints, u64)| {
            planner.plan_forms(forest, hints, LatentFormChoice::Cheapest, room).stats(hints).kv_bytes_read * layers
        };
        hints.iter().map(of).sum()
    };
    (rows > 0).then(|| KvReads {
        rows,
        flat: read(Planner::Flat),
        single: read(Planner::SingleLevel),
        balanced: read(Planner::Balanced),
    })
}
