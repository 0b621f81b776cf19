//! The graphs of one step's shapes: a shape is run op by op the first time (kernels are loaded, memory is found), captured
//! the second time, and from then on enqueued with one call. In between, the first step of a shape that is the one before, every
//! row one token further, is run op by op once more: such steps recur, so that it pays to try how they go fastest.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::graph::Graph;
use crate::backend::StepShape;

/// Graphs kept at most: each holds some hundred launches.
const MOST: usize = 64;

/// How a step of some shape is to be run.
pub enum Way<'a> {
    /// Whether it is the first that `recurs`.
    OpByOp {
        recurs: bool,
    },
    Capture,
    Replay(&'a Graph),
}

#[derive(Default)]
pub struct Graphs {
    shapes: HashMap<StepShape, Seen>,
    clock: u64,
    /// The count of moves at which they were captured.
    moves: u64,
}

/// What is known of a shape that was run.
struct Seen {
    recurs: bool,
    kept: Option<Kept>,
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

    /// How to run a step of `shape` when memory has moved `moves` times; it `recurs` where it is the one before, advanced.
    pub fn way(&mut self, shape: StepShape, recurs: bool, moves: u64) -> Way<'_> {
        if std::mem::replace(&mut self.moves, moves) != moves {
            self.clear();
        }
        self.clock += 1;
        let clock = self.clock;
        match self.shapes.entry(shape) {
            Entry::Vacant(unseen) => {
                unseen.insert(Seen { recurs, kept: None });
                Way::OpByOp { recurs }
            }
            Entry::Occupied(seen) => match seen.into_mut() {
                seen @ Seen { recurs: false, .. } if recurs => {
                    *seen = Seen { recurs, kept: None };
                    Way::OpByOp { recurs }
                }
                Seen { kept: None, .. } => Way::Capture,
                Seen { kept: Some(kept), .. } => {
                    kept.last_used = clock;
                    Way::Replay(&kept.graph)
                }
            },
        }
    }

    /// Keeps the graph of `shape`, in place of the one that was used longest ago where there are too many.
    pub fn keep(&mut self, shape: StepShape, graph: Graph) {
        let kept = self.shapes.iter().filter_map(|(shape, seen)| Some((seen.kept.as_ref()?.last_used, *shape)));
        if kept.clone().count() >= MOST
            && let Some((_, oldest)) = kept.min_by_key(|&(last_used, _)| last_used)
            && let Some(seen) = self.shapes.get_mut(&oldest)
        {
            seen.kept = None;
        }
        if let Some(seen) = self.shapes.get_mut(&shape) {
            seen.kept = Some(Kept { graph, last_used: self.clock });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ways without a graph.
    fn way(graphs: &mut Graphs, recurs: bool, moves: u64) -> Option<bool> {
        let shape = StepShape { rows: 8, wanted: 8, draws: true, has_levels: false };
        match graphs.way(shape, recurs, moves) {
            Way::OpByOp { recurs } => Some(recurs),
            Way::Capture => None,
            Way::Replay(_) => unreachable!("nothing was captured"),
        }
    }

    #[test]
    fn a_shape_is_tried_once_when_it_first_recurs() {
        let mut graphs = Graphs::default();
        let met = [false, false, true, true, false].map(|recurs| way(&mut graphs, recurs, 0));
        assert_eq!(met, [Some(false), None, Some(true), None, None]);
        let moved = [true, true].map(|recurs| way(&mut graphs, recurs, 1));
        assert_eq!(moved, [Some(true), None]);
    }
}
