//! Random forests as they occur in the engine: all shapes of trees, decode rows and prompt chunks mixed, leaves without
//! rows. Used by `offshoot check` and by every test that plans or computes attention.

use std::collections::HashSet;

use crate::ids::{SegmentId, TokenId};
use crate::kv::{Forest, KvSlot, PagePool, PrefixTree, StepRow};

use crate::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForestShape {
    /// One path of some hundred short segments, with a few twigs.
    DeepChain,
    /// One prompt, many samples.
    Star,
    /// A tree that forks after every token.
    OneTokenSegments,
    /// Branches without tokens, next to and below others with tokens.
    EmptyLeaves,
    /// Branches that split earlier ones at any position.
    MidPageForks,
    /// Few-shot header, problems, this many samples.
    Many(u32),
    /// Several roots, everything mixed.
    Ragged,
    /// A long document, with this many questions anywhere in it.
    Document(u32),
}

impl ForestShape {
    pub const ALL: [ForestShape; 7] = [
        ForestShape::DeepChain,
        ForestShape::Star,
        ForestShape::OneTokenSegments,
        ForestShape::EmptyLeaves,
        ForestShape::MidPageForks,
        ForestShape::Many(2000),
        ForestShape::Ragged,
    ];
}

/// A step of a random tree. Every segment in `rows` is leased.
pub struct GrownForest {
    pub tree: PrefixTree,
    pub pool: PagePool,
    /// Depth-first.
    pub rows: Vec<StepRow>,
    pub forest: Forest,
}

/// Builds the tree, rows and forest of `shape` for `seed`.
pub fn grow(shape: ForestShape, page_tokens: u32, seed: u64) -> GrownForest {
    let mut builder = ForestBuilder {
        tree: PrefixTree::new(page_tokens),
        pool: PagePool::new(40_000),
        dice: Dice::new(seed),
        ends: Vec::new(),
    };
    builder.plant(shape);
    let mut rows = builder.schedule();
    builder.tree.depth_first(&mut rows);
    let forest = builder.tree.forest(&rows);
    let grown = GrownForest { tree: builder.tree, pool: builder.pool, rows, forest };
    grown.check().unwrap_or_else(|broken| panic!("{shape:?}, {page_tokens} slots a page, seed {seed}: {broken}"));
    grown
}

impl GrownForest {
    fn check(&self) -> Result<(), String> {
        self.tree.check_integrity(&self.pool)?;
        self.forest.check()?;
        self.tree.check_ready(&self.forest)?;
        assert_eq!(self.rows.len(), self.forest.row_positions.len());
        Ok(())
    }
}

struct ForestBuilder {
    tree: PrefixTree,
    pool: PagePool,
    dice: Dice,
    /// All segments that were admitted or forked.
    ends: Vec<SegmentId>,
}

impl ForestBuilder {
    fn plant(&mut self, shape: ForestShape) {
        match shape {
            ForestShape::DeepChain => {
                let mut at = self.prompt(1, 200);
                for _ in 0..self.dice.within(50, 300) {
                    at = self.branch(at, 1, 12);
                    if self.dice.one_in(40) {
                        self.branch(at, 1, 40);
                    }
                }
            }
            ForestShape::Star => {
                let at = self.prompt(1, 400);
                for _ in 0..self.dice.within(1, 120) {
                    self.branch(at, 1, 90);
                }
            }
            ForestShape::OneTokenSegments => {
                self.prompt(1, 1);
                for _ in 0..self.dice.within(1, 150) {
                    let at = self.any();
                    self.branch(at, 1, 1);
                }
            }
            ForestShape::EmptyLeaves => {
                self.prompt(1, 150);
                for _ in 0..self.dice.within(4, 60) {
                    let at = self.any();
                    let longest = if self.dice.one_in(2) { 0 } else { 30 };
                    self.branch(at, 0, longest);
                }
            }
            ForestShape::MidPageForks => {
                self.prompt(20, 300);
                for _ in 0..self.dice.within(2, 80) {
                    let at = self.any();
                    self.branch_inside(at, 1, 60);
                }
            }
            ForestShape::Many(samples) => {
                let header = self.prompt(1, 500);
                let problems: Vec<_> = (0..20).map(|_| self.prompt_after(header, 1, 150)).collect();
                for _ in 0..samples {
                    let at = self.dice.pick(&problems);
                    self.branch(at, 1, 70);
                }
            }
            ForestShape::Document(questions) => {
                let document = self.prompt(1500, 4000);
                for _ in 0..questions {
                    let at = self.branch_inside(document, 1, 120);
                    if self.dice.one_in(3) {
                        self.branch(at, 1, 60);
                    }
                }
            }
            ForestShape::Ragged => {
                for _ in 0..self.dice.within(1, 5) {
                    self.prompt(1, 300);
                }
                for _ in 0..self.dice.within(1, 150) {
                    let at = self.any();
                    match self.dice.within(0, 3) {
                        0 => self.branch_inside(at, 0, 80),
                        1 => self.prompt_after(at, 1, 120),
                        _ => self.branch(at, 0, 40),
                    };
                }
            }
        }
    }

    fn any(&mut self) -> SegmentId {
        self.dice.pick(&self.ends)
    }

    fn text(&mut self, shortest: u32, longest: u32) -> Vec<TokenId> {
        (0..self.dice.within(shortest, longest)).map(|_| TokenId(self.dice.within(0, 4999))).collect()
    }

    fn prompt(&mut self, shortest: u32, longest: u32) -> SegmentId {
        let text = self.text(shortest, longest);
        self.admit(&text)
    }

    /// A prompt that continues the context of `at`.
    fn prompt_after(&mut self, at: SegmentId, shortest: u32, longest: u32) -> SegmentId {
        let mut text = self.tree.context(at);
        text.extend(self.text(shortest, longest));
        self.admit(&text)
    }

    fn admit(&mut self, text: &[TokenId]) -> SegmentId {
        let end = self.tree.admit(&mut self.pool, text).expect("the pool is large enough");
        self.ends.push(end);
        end
    }

    fn branch(&mut self, at: SegmentId, shortest: u32, longest: u32) -> SegmentId {
        let branch = self.tree.fork(at);
        self.extend(branch, shortest, longest)
    }

    fn branch_inside(&mut self, at: SegmentId, shortest: u32, longest: u32) -> SegmentId {
        let position = self.dice.within(0, self.tree.end(at));
        let branch = self.tree.fork_at(&mut self.pool, at, position);
        self.extend(branch, shortest, longest)
    }

    fn extend(&mut self, branch: SegmentId, shortest: u32, longest: u32) -> SegmentId {
        let text = self.text(shortest, longest);
        self.tree.append(&mut self.pool, branch, &text).expect("the pool is large enough");
        self.ends.push(branch);
        branch
    }

    /// Rows of one step: for each segment a decode row, a chunk, a chunk that stops before the end, all uncomputed
    /// tokens, a token computed before, or nothing. No token occurs twice.
    fn schedule(&mut self) -> Vec<StepRow> {
        let mut rows = Vec::new();
        let mut taken = HashSet::new();
        for segment in self.ends.clone() {
            let end = self.tree.end(segment);
            let newest = |tokens: u32| end.saturating_sub(tokens)..end;
            let chunk = self.dice.within(1, 80);
            let positions = match self.dice.within(0, 19) {
                0 => 0..0,
                1 => self.tree.computed(segment)..end,
                2 => newest(chunk),
                3 => newest(chunk).start..end - self.dice.within(0, chunk.min(end)),
                4 => self.tree.first_position(segment).saturating_sub(1)..self.tree.first_position(segment),
                _ => newest(1),
            };
            self.tree.mark_computed(segment, positions.start.max(self.tree.computed(segment)));
            let fresh = positions.filter(|&p| taken.insert(self.slot(segment, p)));
            rows.extend(fresh.map(|position| StepRow { segment, position }));
        }
        if rows.is_empty() {
            let longest = self.ends.iter().copied().max_by_key(|&s| self.tree.end(s)).expect("something was planted");
            let position = self.tree.end(longest) - 1;
            self.tree.mark_computed(longest, position.max(self.tree.computed(longest)));
            rows.push(StepRow { segment: longest, position });
        }
        rows
    }

    fn slot(&self, segment: SegmentId, position: u32) -> (u32, u32) {
        let slot = self.tree.slot(segment, position);
        (slot.page.0, slot.slot)
    }
}

/// The context of a row of a forest: the slots of its positions `0 ..= pos(row)`.
pub fn context(forest: &Forest, row: usize) -> Vec<KvSlot> {
    let position = forest.row_positions[row];
    let mut slots = vec![None; position as usize + 1];
    let mut at = Some(forest.row_segments[row]);
    while let Some(ix) = at {
        let segment = &forest.segments[ix as usize];
        let first_page = segment.first_position / forest.page_tokens;
        for p in segment.first_position..(segment.first_position + segment.tokens).min(position + 1) {
            let page = segment.pages.start + p / forest.page_tokens - first_page;
            slots[p as usize] = Some(KvSlot { page: forest.pages[page as usize], slot: p % forest.page_tokens });
        }
        at = segment.parent;
    }
    slots.into_iter().map(|slot| slot.expect("a path has no gaps")).collect()
}
