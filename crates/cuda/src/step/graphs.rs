//! Captured graphs by step shape: a shape runs op by op the first time (kernels and memory are loaded), is captured the
//! second time, and then enqueued with one call. A shape that recurs runs op by op once more, to autotune its products;
//! most shapes of steps with prompts, and of a job's last steps, never recur. Steps of models with states use graphs
//! only where each row is a run of its own (`Step::repeats`).

use std::collections::HashMap;

use crate::driver::graph::Graph;
use offshoot_backend::StepShape;

/// Most graphs kept; each holds some hundred launches.
const MOST: usize = 64;

/// Number of runs from which a shape counts as recurring even if none of its steps was an advanced one.
const OFTEN: u32 = 16;

/// How to run a step of some shape.
pub enum LaunchMode<'a> {
    OpByOp,
    /// Op by op, with autotuning of products that have no known fastest algorithm.
    Tuning,
    Capture,
    Replay(&'a Graph),
}

impl LaunchMode<'_> {
    /// For the log.
    pub fn name(&self) -> &'static str {
        match self {
            LaunchMode::OpByOp => "op by op",
            LaunchMode::Tuning => "op by op, products are timed",
            LaunchMode::Capture => "captured as a graph",
            LaunchMode::Replay(_) => "a graph",
        }
    }
}

#[derive(Default)]
pub struct Graphs {
    shapes: HashMap<StepShape, ShapeHistory>,
    clock: u64,
    /// The number of address changes at which they were captured.
    moves: u64,
}

/// Record of a shape that was run.
#[derive(Default)]
struct ShapeHistory {
    times: u32,
    was_tuned: bool,
    /// A graph of this shape could not be allocated.
    does_without: bool,
    cached: Option<CachedGraph>,
}

struct CachedGraph {
    graph: Graph,
    last_used: u64,
}

impl Graphs {
    /// Drops all graphs: an address has changed.
    fn clear(&mut self) {
        self.shapes.clear();
    }

    /// How to run a step of `shape` after `moves` address changes. `is_advanced`: it repeats the step before, every row
    /// one token further, so the shape recurs.
    pub fn way(&mut self, shape: StepShape, is_advanced: bool, moves: u64) -> LaunchMode<'_> {
        if std::mem::replace(&mut self.moves, moves) != moves {
            self.clear();
        }
        self.clock += 1;
        let seen = self.shapes.entry(shape).or_default();
        seen.times = seen.times.saturating_add(1);
        if !seen.was_tuned && (is_advanced || seen.times >= OFTEN) {
            // The captured graph uses the old algorithms.
            (seen.was_tuned, seen.cached) = (true, None);
            return LaunchMode::Tuning;
        }
        match &mut seen.cached {
            None if seen.times == 1 || seen.does_without => LaunchMode::OpByOp,
            None => LaunchMode::Capture,
            Some(kept) => {
                kept.last_used = self.clock;
                LaunchMode::Replay(&kept.graph)
            }
        }
    }

    /// Captures no graph of `shape` from now on, for lack of memory.
    pub fn do_without(&mut self, shape: StepShape) {
        self.shapes.entry(shape).or_default().does_without = true;
    }

    /// The graph of `shape`, if it was captured.
    pub fn graph(&self, shape: StepShape) -> Option<&Graph> {
        Some(&self.shapes.get(&shape)?.cached.as_ref()?.graph)
    }

    /// Keeps the graph of `shape`; if there are too many, it replaces the least recently used one.
    pub fn keep(&mut self, shape: StepShape, graph: Graph) {
        let kept = self.shapes.iter().filter_map(|(shape, seen)| Some((seen.cached.as_ref()?.last_used, *shape)));
        if kept.clone().count() >= MOST
            && let Some((_, oldest)) = kept.min_by_key(|&(last_used, _)| last_used)
            && let Some(seen) = self.shapes.get_mut(&oldest)
        {
            seen.cached = None;
        }
        if let Some(seen) = self.shapes.get_mut(&shape) {
            seen.cached = Some(CachedGraph { graph, last_used: self.clock });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::CopiesShape;

    const COPIES: CopiesShape = CopiesShape { is_read: false, expansions: 0 };
    const SHAPE: StepShape =
        StepShape { rows: 8, logit_rows: 8, samples: true, adapters: false, absorbs: false, copies: [COPIES; 2] };

    #[test]
    fn a_shape_is_tried_once_when_it_first_recurs() {
        let mut graphs = Graphs::default();
        assert!(matches!(graphs.way(SHAPE, false, 0), LaunchMode::OpByOp));
        assert!(matches!(graphs.way(SHAPE, false, 0), LaunchMode::Capture));
        assert!(matches!(graphs.way(SHAPE, true, 0), LaunchMode::Tuning));
        assert!(matches!(graphs.way(SHAPE, true, 0), LaunchMode::Capture));
        assert!(matches!(graphs.way(SHAPE, true, 1), LaunchMode::Tuning), "memory has moved");
        assert!(matches!(graphs.way(SHAPE, false, 1), LaunchMode::Capture));
    }

    #[test]
    fn a_shape_without_memory_for_a_graph_is_run_op_by_op() {
        let mut graphs = Graphs::default();
        assert!(matches!(graphs.way(SHAPE, false, 0), LaunchMode::OpByOp));
        assert!(matches!(graphs.way(SHAPE, false, 0), LaunchMode::Capture));
        graphs.do_without(SHAPE);
        assert!((0..5).all(|_| matches!(graphs.way(SHAPE, false, 0), LaunchMode::OpByOp)));
    }

    #[test]
    fn a_shape_that_was_run_often_recurs_though_it_never_advances() {
        let mut graphs = Graphs::default();
        let mut tried =
            |times, moves| (0..times).filter(|_| matches!(graphs.way(SHAPE, false, moves), LaunchMode::Tuning)).count();
        assert_eq!(tried(OFTEN - 1, 0), 0);
        assert_eq!(tried(10 * OFTEN, 0), 1);
        assert_eq!(tried(OFTEN - 1, 1), 0, "memory has moved");
        assert_eq!(tried(1, 1), 1);
    }
}
