//! `cargo bench --bench plan`: what a step costs in integers, before anything is multiplied: forests of every shape of the plan
//! suite, and 2,560 leaves in three levels, decode rows and prompt chunks mixed. Medians of 200.

use std::hint::black_box;
use std::time::Instant;

use offshoot::check::forests::{Shape, grow};
use offshoot::kv::StepRow;
use offshoot::plan::{CostModel, PlanHints, Planner};

const REPETITIONS: usize = 200;

fn main() {
    for shape in Shape::ALL.into_iter().chain([Shape::Many(2560)]) {
        plan_all(shape);
    }
}

fn plan_all(shape: Shape) {
    let grown = grow(shape, 16, 1);
    println!("\n{shape:?}: {} rows, {} segments", grown.rows.len(), grown.forest.segments.len());
    let mut rows: Vec<StepRow> = grown.rows.iter().rev().copied().collect();
    time("depth first", || grown.tree.depth_first(black_box(&mut rows)));
    time("forest", || drop(black_box(grown.tree.forest(&grown.rows))));
    for planner in Planner::ALL {
        for tile in [1, 64] {
            let run = || drop(black_box(planner.plan(&grown.forest, &hints(tile))));
            time(&format!("{planner:?}, tile {tile}"), run);
        }
    }
    let plan = Planner::Tree.plan(&grown.forest, &hints(64));
    time("check", || plan.check(&grown.forest).expect("the planners' plans are sound"));
}

fn hints(tile: u32) -> PlanHints {
    let cost = if tile == 1 { CostModel::CUDA } else { CostModel::CPU };
    PlanHints { tile, window: None, q_heads: 32, kv_heads: 8, head_dim: 128, kv_element_bytes: 2, cost }
}

fn time(what: &str, mut run: impl FnMut()) {
    let mut times: Vec<_> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("{what:>20}: {:?}", times[REPETITIONS / 2]);
}
