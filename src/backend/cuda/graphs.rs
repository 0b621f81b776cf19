//! The graphs of one step's shapes: a shape is run op by op the first time (kernels are loaded, memory is found), captured
//! the second time, and from then on enqueued with one call.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::graph::Graph;
use crate::backend::StepShape;

/// Graphs kept at most: each holds some hundred launches.
const MOST: usize = 64;

/// How a step of some shape is to be run.
pub enum Way<'a> {
    OpByOp,
    Capture,
    Replay(&'a Graph),
}

#[derive(Default)]
pub struct Graphs {
    /// `None`: seen once.
    shapes: HashMap<StepShape, Option<Kept>>,
    clock: u64,
    /// The count of moves at which they were captured.
    moves: u64,
}

struct Kept {
    graph: Graph,
    last_used: u64,
}

impl Graphs {
    /// Forgets all: an address has changed.
    pub fn clear(&mut self) {
        self.shapes.clear();
    }

    /// How to run a step of `shape` when memory has moved `moves` times.
    pub fn way(&mut self, shape: StepShape, moves: u64) -> Way<'_> {
        if std::mem::replace(&mut self.moves, moves) != moves {
            self.clear();
        }
        self.clock += 1;
        let clock = self.clock;
        match self.shapes.entry(shape) {
            Entry::Vacant(unseen) => {
                unseen.insert(None);
                Way::OpByOp
            }
            Entry::Occupied(seen) => match seen.into_mut() {
                None => Way::Capture,
                Some(kept) => {
                    kept.last_used = clock;
                    Way::Replay(&kept.graph)
                }
            },
        }
    }

    /// Keeps the graph of `shape`, in place of the one that was used longest ago where there are too many.
    pub fn keep(&mut self, shape: StepShape, graph: Graph) {
        let kept = self.shapes.iter().filter_map(|(shape, kept)| Some((kept.as_ref()?.last_used, *shape)));
        if kept.clone().count() >= MOST
            && let Some((_, oldest)) = kept.min_by_key(|&(last_used, _)| last_used)
        {
            self.shapes.insert(oldest, None);
        }
        self.shapes.insert(shape, Some(Kept { graph, last_used: self.clock }));
    }
}
