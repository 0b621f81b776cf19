//! `cargo bench -p offshoot-lab --bench plan`: what a step costs in integers, before anything is multiplied. First
//! every part of planning a decode step on a GPU, from the scheduler's rows to the words that travel, for 256 to 2,560
//! leaves in three levels, of different lengths and of those of the tree `apps3`, and what the steps after it cost,
//! whose tree is the same; then forests of every shape of the plan suite, decode rows and prompt chunks mixed; and what
//! it takes a step to free pages behind windows: of 256 to 2,560 branches that decode, and in a tree of 20,000 prompts.
//! Medians of 200. With `-- decode` the first alone, with `-- behind` the last.

use std::hint::black_box;
use std::time::{Duration, Instant};

use offshoot_backend::{Filters, HeadLayout, Pick, RowToken, SampleRequest, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{PageId, TokenId};
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{KV_BLOCK_TOKENS, Tiling, Workers};
use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::plan::{AttentionPlan, CostModel, NewPage, PlanHints, Planner};
use offshoot_kv::{PageGroups, PagePool, PrefixTree, StepRow, Window};

const REPETITIONS: usize = 200;
/// Llama-3-8B's.
const HEADS: HeadLayout = HeadLayout::new(32, 8, 128);
/// An H200's.
const TILING: Tiling = Tiling {
    narrow_rows: 8,
    wide_rows: Some(128),
    workers: Workers::BlocksAndDecodeWarps(132),
    most_slots: usize::MAX,
    openings_spare: None,
    cached_kv_blocks: None,
};

fn main() {
    if std::env::args().any(|argument| argument == "behind") {
        return behind_windows();
    }
    for leaves in [256, 1024, 2560] {
        decode(leaves, Lengths::Different);
    }
    decode(2560, Lengths::Apps3);
    if std::env::args().any(|argument| argument == "decode") {
        return;
    }
    for shape in ForestShape::ALL.into_iter().chain([ForestShape::Many(2560)]) {
        plan_all(shape);
    }
    behind_windows();
}

/// What a step pays for pages behind windows.
fn behind_windows() {
    for branches in [256, 1024, 2560] {
        branches_behind_windows(branches);
    }
    prompts_behind_windows();
}

/// Branches below one prompt, each a token further in every step, of which each frees its pages after 64 tokens, in
/// different steps: one in 64 of them in each. As the engine does it, each is asked in every step that is planned anew.
fn branches_behind_windows(branches: u32) {
    const WINDOW: Window = Window { tokens: 128, unit: 64 };
    let mut tree = PrefixTree::with_groups(16, PageGroups::mixed(1, 1, WINDOW));
    let mut pool = PagePool::new(2_000_000);
    let text = |first: u32, tokens: u32| -> Vec<TokenId> { (first..first + tokens).map(TokenId).collect() };
    let prompt = tree.admit(&mut pool, &text(0, 256)).expect("pages");
    tree.lay_ahead(&mut pool, prompt).expect("pages");
    tree.mark_computed(prompt, 256);
    let fork = |branch| {
        let segment = tree.fork(prompt);
        tree.append(&mut pool, segment, &text(branch, 200 + branch % 64)).expect("pages");
        tree.mark_computed(segment, tree.end(segment));
        segment
    };
    let segments: Vec<_> = (0..branches).map(fork).collect();
    let (mut times, mut freed) = (Vec::new(), 0);
    for _ in 0..REPETITIONS {
        for &segment in &segments {
            tree.append(&mut pool, segment, &text(0, 1)).expect("pages");
            tree.mark_computed(segment, tree.end(segment));
        }
        let start = Instant::now();
        for &segment in &segments {
            let upto = WINDOW.passed(tree.computed(segment).min(tree.end(segment) - 1));
            freed += tree.free_behind(&mut pool, segment, upto);
        }
        times.push(start.elapsed());
    }
    times.sort();
    let (median, each) = (times[times.len() / 2], freed as f64 / REPETITIONS as f64);
    println!("\n{branches} branches behind their windows: {median:?} a step, {each:.0} pages freed in each");
    time("nothing to free", || {
        for &segment in &segments {
            let upto = WINDOW.passed(tree.end(segment) - 1);
            _ = black_box(tree.free_behind(&mut pool, segment, upto));
        }
    });
}

/// Frees the pages of prompts behind a window: of all at once, of none, and of one that was computed further.
fn prompts_behind_windows() {
    const PROMPTS: u32 = 20_000;
    let groups = PageGroups::mixed(1, 1, Window { tokens: 64, unit: 16 });
    let mut tree = PrefixTree::with_groups(16, groups).laying_ahead(u32::MAX);
    let mut pool = PagePool::new(2_000_000);
    let mut admit = |tree: &mut PrefixTree, number: u32, tokens: u32| {
        let text: Vec<TokenId> = std::iter::once(number).chain(1..tokens).map(TokenId).collect();
        let prompt = tree.admit(&mut pool, &text).expect("pages");
        tree.lay_ahead(&mut pool, prompt).expect("pages");
        prompt
    };
    let prompts: Vec<_> = (0..PROMPTS).map(|number| admit(&mut tree, number, 256)).collect();
    let long = admit(&mut tree, PROMPTS, 100_000);
    println!("\npages behind windows, {} segments", tree.stats().segments);
    prompts.iter().for_each(|&prompt| tree.mark_computed(prompt, 256));
    let start = Instant::now();
    let freed = tree.free_behind_prompts(&mut pool, &[]);
    println!("{:>20}: {:?}, {:?} a page", format!("{freed} pages"), start.elapsed(), start.elapsed() / freed as u32);
    time("nothing to free", || _ = black_box(tree.free_behind_prompts(&mut pool, &[])));
    let mut computed = 64;
    time("a page of one prompt", || {
        computed += 16;
        tree.mark_computed(long, computed);
        _ = black_box(tree.free_behind_prompts(&mut pool, &[]));
    });
}

/// How many tokens problems and leaves have.
#[derive(Clone, Copy, Debug)]
enum Lengths {
    /// Leaves from 1 to 256.
    Different,
    /// All the same, as in the tree of that name in the table of attention's times.
    Apps3,
}

impl Lengths {
    fn problem(self) -> u32 {
        match self {
            Lengths::Different => 180,
            Lengths::Apps3 => 500,
        }
    }

    fn leaf(self, leaf: u32) -> u32 {
        match self {
            Lengths::Different => 1 + leaf * 37 % 256,
            Lengths::Apps3 => 256,
        }
    }
}

/// A few-shot header, 20 problems, and the leaves beneath them.
struct Samples {
    tree: PrefixTree,
    /// In the order in which the branches came.
    rows: Vec<StepRow>,
}

fn samples(leaves: u32, lengths: Lengths) -> Samples {
    let mut dice = Dice::new(1);
    let (mut tree, mut pool) = (PrefixTree::new(KV_BLOCK_TOKENS), PagePool::new(100_000));
    let mut text = |tokens: u32| -> Vec<TokenId> { (0..tokens).map(|_| TokenId(dice.within(0, 4999))).collect() };
    let header = text(2400);
    let problems: Vec<_> = (0..20)
        .map(|_| {
            let problem = tree.admit(&mut pool, &[header.clone(), text(lengths.problem())].concat()).expect("pages");
            tree.mark_computed(problem, tree.end(problem));
            problem
        })
        .collect();
    let mut rows = Vec::new();
    for leaf in 0..leaves {
        let segment = tree.fork(problems[(leaf * 20 / leaves) as usize]);
        let own = text(lengths.leaf(leaf));
        tree.append(&mut pool, segment, &own).expect("pages");
        let position = tree.end(segment) - 1;
        tree.mark_computed(segment, position);
        rows.push(StepRow { segment, position });
    }
    Samples { tree, rows }
}

fn decode(leaves: u32, lengths: Lengths) {
    let Samples { tree, rows } = samples(leaves, lengths);
    println!("\na decode step of {leaves} leaves in three levels, on a GPU; lengths: {lengths:?}");
    let mut all = Duration::ZERO;
    let mut part = |what: &str, run: &mut dyn FnMut()| all += time(what, run);
    let mut ordered = rows.clone();
    part("depth first", &mut || {
        ordered.copy_from_slice(&rows);
        tree.depth_first(black_box(&mut ordered));
    });
    part("forest", &mut || drop(black_box(tree.forest(&ordered))));
    let (forest, hints) = (tree.forest(&ordered), hints(1));
    part("plan", &mut || drop(black_box(Planner::Balanced.plan(&forest, &hints))));
    let plan = Planner::Balanced.plan(&forest, &hints);
    part("stats", &mut || _ = black_box(plan.stats(&hints)));
    part("step batch", &mut || drop(black_box(batch(&tree, &ordered, Vec::new()))));
    let mut words = DevicePlan::default();
    part("device words", &mut || words.rebuild(black_box(&plan), HEADS, ordered.len(), &TILING));
    println!("{:>20}: {all:?}", "all");
    time("plan, device words", || {
        let plan = Planner::Balanced.plan(black_box(&forest), &hints);
        words.rebuild(&plan, HEADS, ordered.len(), &TILING);
    });
    follow(batch(&tree, &ordered, vec![plan]), words);
}

/// The steps after it, by the same tree: what follows of the batch, the plan and its words. The medians of the steps in
/// which rows turn a page and of all others.
fn follow(mut batch: StepBatch, mut words: DevicePlan) {
    let uniforms = vec![0.5; batch.tokens.len()];
    let (mut quiet, mut turning, mut turned) = (Vec::new(), Vec::new(), 0);
    for _ in 0..2 * KV_BLOCK_TOKENS {
        let start = Instant::now();
        let full = (0u32..).zip(&batch.positions).filter(|&(_, at)| (at + 1).is_multiple_of(KV_BLOCK_TOKENS));
        let new_pages: Vec<NewPage> = full
            .map(|(row, _)| NewPage { group: offshoot_core::ids::GroupIx(0), row, page: PageId(1_000_000 + row) })
            .collect();
        batch.advance(&uniforms, &new_pages);
        black_box(words.advance(&new_pages)).expect("two pages may be turned");
        turned += new_pages.len();
        if new_pages.is_empty() { &mut quiet } else { &mut turning }.push(start.elapsed());
    }
    for (what, mut times) in [("advance", quiet), ("advance, turning", turning)] {
        times.sort();
        if let Some(median) = times.get(times.len() / 2) {
            println!("{what:>20}: {median:?}");
        }
    }
    println!("{:>20}: {:.1} a step", "pages turned", turned as f64 / f64::from(2 * KV_BLOCK_TOKENS));
}

fn batch(tree: &PrefixTree, rows: &[StepRow], plans: Vec<AttentionPlan>) -> StepBatch {
    let filters = Filters { temperature: 0.8, top_p: 0.95, ..Filters::default() };
    let pick = Pick::Random { filters, uniform: 0.5 };
    StepBatch {
        tokens: (0..).take(rows.len()).map(RowToken::Sampled).collect(),
        positions: rows.iter().map(|row| row.position).collect(),
        slots: vec![rows.iter().map(|row| tree.slot(row.segment, row.position)).collect()],
        logit_rows: (0..).take(rows.len()).collect(),
        plans,
        state_runs: Vec::new(),
        adapters: Vec::new(),
        requests: rows.iter().map(|_| SampleRequest::of(pick)).collect::<Vec<_>>().into(),
        expansions: None,
    }
}

fn plan_all(shape: ForestShape) {
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
    PlanHints {
        tile,
        group: offshoot_core::ids::GroupIx(0),
        window: None,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        kv_element_bytes: 2,
        latents: None,
        cost,
    }
}

fn time(what: &str, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("{what:>20}: {:?}", times[REPETITIONS / 2]);
    times[REPETITIONS / 2]
}
