//! Tree attention's kernels on the CPU, instruction by instruction (`emulator`), against the dense definition:
//! random forests, every planner, several blocks, with asynchronous work done at once and as late as the kernel's waits
//! allow. What only a GPU shows (`offshoot-lab check`, compute-sanitizer) is not repeated here.

mod checks;
mod kernel;
mod leaves;
mod memory;

use std::ops::Range;

use offshoot_backend::{Dtype, HeadLayout, KvDtype, Values};
use offshoot_cases::dense::dense_lse;
use offshoot_cases::setting::{ScoreTerms, Setting};
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{NARROW_WARPS, PlanWord, Tiling, Workers};
use offshoot_cuda::attention::leaf_tiles::LeafTiles;
use offshoot_cuda::compile::elements::{HeadWidths, HopperKernel};
use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::plan::Planner;

use crate::emulator::Schedule;
use crate::full::some_or_full;
use checks::{
    LargestOpenings, assert_exact, assert_lse, check, check_deterministic, check_members, exact, exact_of, lse_of,
    schedules,
};
use kernel::{Kernel, Step, attend, hints};
use leaves::{Leaves, check_leaves};
use memory::{kept, kv};

pub use kernel::score_factors;

const PAGE: usize = 32;
/// Tile of deterministic plans: few positions, so that rows have several states. Where there are openings, tiles have
/// two steps more, so that openings have several steps.
const TILE: u32 = 128;
const OPENED_TILE: u32 = 256;

/// A kernel and the settings that it is tried with.
#[derive(Clone, Copy)]
struct Variant {
    widths: HeadWidths,
    dtype: Dtype,
    kv: KvDtype,
}

impl Variant {
    fn compile(self, deterministic: bool) -> Option<Kernel> {
        Kernel::hopper(self.dtype, self.widths, self.kv, deterministic)
    }

    /// In two forests of four scores are so far apart that the largest one rises by much in the course of a tile, in
    /// one of them by more than weights of bf16 may.
    fn setting(self, (q_heads, kv_heads): (usize, usize), window: Option<u32>, seed: u64) -> Setting {
        let Variant { widths: HeadWidths { key: head_dim, values }, dtype, kv } = self;
        let sharpness = match (seed % 4, dtype, kv) {
            (0, Dtype::Bf16, KvDtype::Model) => 2048.0,
            (0 | 1, ..) => 64.0,
            _ => 1.0,
        };
        let terms = ScoreTerms { softcap: (seed % 3 == 2).then_some(20.0), has_sinks: seed % 2 == 1 };
        let heads = HeadLayout { q_heads, kv_heads, head_dim, values, expanded: false };
        Setting { heads, dtype, kv, window, sharpness, terms }
    }

    fn shapes(self, seeds: Range<u64>) {
        let Some(kernel) = self.compile(false) else { return };
        self.shapes_by(&kernel, &[(7, 1), (6, 2), (8, 1), (16, 1), (8, 4)], seeds);
    }

    /// The kernel of other GPUs with heads so many, of which the `seed`-th is that of a seed.
    fn portable_shapes(self, layouts: &[(usize, usize)], seeds: Range<u64>) {
        let Some(kernel) = Kernel::portable(self.dtype, self.widths, self.kv, false) else { return };
        self.shapes_by(&kernel, layouts, seeds);
    }

    fn shapes_by(self, kernel: &Kernel, layouts: &[(usize, usize)], seeds: Range<u64>) {
        let shapes = [
            ForestShape::MidPageForks,
            ForestShape::Star,
            ForestShape::EmptyLeaves,
            ForestShape::Many(60),
            ForestShape::OneTokenSegments,
        ];
        for seed in seeds {
            let (window, blocks) = if seed % 2 == 0 { (None, 3) } else { (Some(100), 1) };
            let number = seed as usize % shapes.len();
            let heads = layouts[seed as usize % layouts.len()];
            check(kernel, &self.setting(heads, window, seed), shapes[number], seed, blocks);
        }
    }

    fn members(self, seeds: Range<u64>) {
        let Some(kernel) = self.compile(false) else { return };
        let shapes = [ForestShape::Star, ForestShape::MidPageForks, ForestShape::Many(60), ForestShape::EmptyLeaves];
        for seed in seeds {
            let (window, of) = if seed % 2 == 0 { (None, 2) } else { (Some(40), 4) };
            let number = seed as usize % shapes.len();
            check_members(&kernel, &self.setting((8, 1), window, seed), shapes[number], seed, of);
        }
    }

    /// So few rows beside so many blocks that merges take one head at a time, or two, and that some blocks have no wide
    /// tile: these are given narrow ones first.
    fn few_rows(self) {
        let Some(kernel) = self.compile(false) else { return };
        let (setting, seed) = (self.setting((4, 1), None, 2), 0);
        let grown = grow(ForestShape::Many(6), 32, seed);
        let (kv, exact) = (kv(&setting, kernel.layout, &grown), exact(&setting, &grown));
        let names: Vec<usize> = (0..grown.rows.len()).collect();
        let plan = Planner::Tree.plan(&grown.forest, &hints(&setting, 1));
        let step = Step { setting: &setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
        let heads = grown.rows.len() * setting.heads.q_heads;
        let mut mixed = 0;
        for (rounds, warps) in [(1, heads), (2, heads * 2 / 3)] {
            let blocks = warps.div_ceil(NARROW_WARPS);
            assert_eq!(heads.div_ceil(NARROW_WARPS * blocks), rounds, "{heads} heads, {blocks} blocks");
            let tiling = Tiling {
                narrow_rows: 8,
                wide_rows: Some(128),
                workers: Workers::BlocksAndDecodeWarps(blocks),
                most_slots: usize::MAX,
                openings_spare: None,
                cached_kv_blocks: None,
            };
            let made = DevicePlan::build(&plan, setting.heads, names.len(), &tiling);
            let [wide, narrow] = [PlanWord::WideTiles, PlanWord::NarrowTiles].map(|at| made.words()[at as usize]);
            let busy = wide as usize * setting.heads.kv_heads;
            mixed += usize::from((1..blocks).contains(&busy) && narrow > 0);
            let found = attend(&kernel, &step, &tiling, &schedules(seed)[..1], None);
            assert_exact(&setting, &found[0], &exact, &format!("{blocks} blocks"));
        }
        assert!(mixed > 0, "no case has blocks with wide tiles and blocks without");
    }

    /// So few rows and heads beside so many blocks that a warp merges a quarter of a row's columns.
    fn few_latents(self) {
        const QUARTERS: usize = 4;
        const MERGING_WARPS: usize = 8;
        let Some(kernel) = self.compile(false) else { return };
        let (setting, seed) = (self.setting((2, 1), None, 2), 0);
        let grown = grow(ForestShape::Many(6), 32, seed);
        let (kv, exact) = (kv(&setting, kernel.layout, &grown), exact(&setting, &grown));
        let names: Vec<usize> = (0..grown.rows.len()).collect();
        let plan = Planner::Tree.plan(&grown.forest, &hints(&setting, 1));
        let step = Step { setting: &setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
        let blocks = (grown.rows.len() * setting.heads.q_heads * QUARTERS).div_ceil(MERGING_WARPS);
        let tiling = kernel.tiling(&setting, blocks);
        let made = DevicePlan::build(&plan, setting.heads, names.len(), &tiling);
        assert!(made.partial_slots() > 0, "no row has several states");
        let mut lse = lse_of(&step);
        let found = attend(&kernel, &step, &tiling, &schedules(seed)[..2], Some(&mut lse[..]));
        assert_exact(&setting, &found[0], &exact, &format!("{blocks} blocks"));
        assert_eq!(found[1], found[0], "bits where asynchronous work is done later");
        assert_lse(&setting, &lse, &exact_of(&setting, &grown, dense_lse), None, &format!("{blocks} blocks"));
    }

    /// `None` if kernels cannot be emulated here.
    fn deterministic(self, seeds: Range<u64>) -> Option<LargestOpenings> {
        let kernel = self.compile(true)?;
        let mut largest = LargestOpenings::default();
        let shapes = [
            ForestShape::MidPageForks,
            ForestShape::Star,
            ForestShape::EmptyLeaves,
            ForestShape::DeepChain,
            ForestShape::Many(40),
        ];
        let layouts = [(4, 1), (6, 2), (7, 1), (1, 1), (16, 1)];
        // Longer than a tile, and shorter: rows of one item see other tiles of it.
        let windows = [None, Some(200), Some(70)];
        for seed in seeds {
            let (number, blocks) = (seed as usize, if seed % 2 == 0 { 3 } else { 1 });
            // One of them, which is none where many rows share the longest keys, or all.
            for &window in some_or_full(&windows[(number + 2) % 3..][..1], &windows) {
                largest.see_all(&check_deterministic(
                    &kernel,
                    &self.setting(layouts[number], window, seed),
                    shapes[number],
                    seed,
                    blocks,
                ));
            }
        }
        let has_openings = HopperKernel::of(self.dtype, self.widths)
            .is_some_and(|kernel| kernel.has_openings(self.widths, kept(self.kv)));
        assert_eq!(largest.rows > 0, has_openings, "openings of {} rows", largest.rows);
        Some(largest)
    }
}

#[test]
fn heads_of_128_bf16() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Model }.shapes(some_or_full(0..3, 0..5));
}

#[test]
fn heads_of_64_f16() {
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Model }.shapes(some_or_full(1..3, 0..5));
}

#[test]
fn heads_of_80_f16() {
    Variant { widths: HeadWidths::even(80), dtype: Dtype::F16, kv: KvDtype::Model }.shapes(some_or_full(1..2, 1..3));
}

#[test]
fn heads_of_96_bf16() {
    Variant { widths: HeadWidths::even(96), dtype: Dtype::Bf16, kv: KvDtype::Model }.shapes(some_or_full(0..1, 0..2));
}

#[test]
fn heads_of_256_bf16() {
    Variant { widths: HeadWidths::even(256), dtype: Dtype::Bf16, kv: KvDtype::Model }.shapes(some_or_full(0..1, 0..3));
}

#[test]
fn heads_of_512_bf16() {
    Variant { widths: HeadWidths::even(512), dtype: Dtype::Bf16, kv: KvDtype::Model }.shapes(some_or_full(1..2, 1..3));
}

/// A long document below few rows: each team of warps takes several narrow tiles, and wide ones have many steps.
#[test]
fn long_segments_by_large_heads() {
    let all = [(256, (4, 2)), (512, (4, 4))];
    for &(head_dim, heads) in some_or_full(&all[..1], &all) {
        let variant = Variant { widths: HeadWidths::even(head_dim), dtype: Dtype::Bf16, kv: KvDtype::Model };
        let Some(kernel) = variant.compile(false) else { return };
        check(&kernel, &variant.setting(heads, None, 2), ForestShape::Document(2), 1, 1);
    }
}

#[test]
fn deterministic_rows_of_large_heads_do_too() {
    Variant { widths: HeadWidths::even(256), dtype: Dtype::F16, kv: KvDtype::Model }.deterministic(0..1);
    Variant { widths: HeadWidths::even(512), dtype: Dtype::Bf16, kv: KvDtype::Model }.deterministic(0..1);
}

#[test]
fn members_of_heads_of_128() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Model }.members(some_or_full(0..2, 0..4));
}

#[test]
fn members_of_heads_of_64_and_eight_bits() {
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Fp8 }.members(some_or_full(1..2, 0..2));
}

#[test]
fn members_of_large_heads() {
    Variant { widths: HeadWidths::even(256), dtype: Dtype::Bf16, kv: KvDtype::Model }.members(some_or_full(1..2, 1..3));
}

#[test]
fn few_rows_by_heads_of_128() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Model }.few_rows();
}

#[test]
fn few_rows_by_heads_of_64() {
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Model }.few_rows();
}

#[test]
fn eight_bits_beside_bf16() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Fp8 }.shapes(some_or_full(0..1, 0..2));
}

#[test]
fn eight_bits_beside_f16() {
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Fp8 }.shapes(some_or_full(1..2, 0..2));
}

#[test]
fn deterministic_rows_depend_on_their_own_tokens_alone() {
    let largest = Variant { widths: HeadWidths::even(64), dtype: Dtype::Bf16, kv: KvDtype::Model }.deterministic(0..5);
    if let Some(LargestOpenings { steps, rows }) = largest {
        // More than one warpgroup takes, and more than a first step.
        assert!(rows > 64 && steps > 1, "openings of at most {rows} rows and {steps} steps");
    }
}

/// Their rings have other lengths.
#[test]
fn deterministic_rows_of_f16_and_of_other_heads_do_too() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Model }.deterministic(0..2);
    Variant { widths: HeadWidths::even(80), dtype: Dtype::F16, kv: KvDtype::Model }.deterministic(1..2);
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Model }.deterministic(1..2);
}

#[test]
fn deterministic_rows_of_eight_bits_do_too() {
    Variant { widths: HeadWidths::even(128), dtype: Dtype::Bf16, kv: KvDtype::Fp8 }
        .deterministic(some_or_full(0..1, 0..2));
    Variant { widths: HeadWidths::even(64), dtype: Dtype::F16, kv: KvDtype::Fp8 }
        .deterministic(some_or_full(1..3, 0..5));
}

/// Values in keys, and values of another width than keys, by the kernel without tensor cores: keys wider than 512, and
/// values that take turns with keys, or not. Few rows, as a thread asks the others for each of their weights.
#[test]
fn heads_with_other_values() {
    let check_widths = |key, values, (dtype, kv), heads| {
        let variant = Variant { widths: HeadWidths { key, values }, dtype, kv };
        let Some(kernel) = Kernel::portable(dtype, variant.widths, kv, false) else { return };
        for seed in 0..some_or_full(1, 3) {
            let window = (seed == 1).then_some(100);
            check(&kernel, &variant.setting(heads, window, seed + 1), ForestShape::EmptyLeaves, seed, 2);
        }
    };
    let [f16, bf16] = [Dtype::F16, Dtype::Bf16].map(|dtype| (dtype, KvDtype::Model));
    check_widths(24, Values::InKeys(16), f16, (7, 1));
    check_widths(576, Values::InKeys(512), bf16, (3, 1));
    check_widths(24, Values::InKeys(16), (Dtype::Bf16, KvDtype::Fp8), (7, 1));
    check_widths(24, Values::Beside(40), bf16, (6, 2));
    check_widths(264, Values::Beside(136), f16, (2, 2));
}

/// Latents by the kernel of other GPUs with tensor cores: in tiles of one row and of several, also where a row fills
/// more than one.
#[test]
fn latents_by_other_tensor_cores() {
    let layouts = [(256, 64, 2, (5, 1), 1), (256, 32, 1, (20, 1), 2)];
    for (rank, rope, groups, heads, seed) in layouts.into_iter().take(some_or_full(1, 2)) {
        let widths = HeadWidths { key: rank + rope, values: Values::InKeys(rank) };
        for kv in [KvDtype::Model, KvDtype::Fp8] {
            let variant = Variant { widths, dtype: Dtype::Bf16, kv };
            let Some(kernel) = Kernel::latent(Dtype::Bf16, widths, kv, groups) else { return };
            variant.shapes_by(&kernel, &[heads], seed..seed + some_or_full(1, 3));
        }
    }
}

/// Latents and their rotated part, which all heads share: groups that fill a tile with several rows, with one, and with
/// half of one.
#[test]
fn latents() {
    let variant = |rank, dtype| Variant {
        widths: HeadWidths { key: rank + 64, values: Values::InKeys(rank) },
        dtype,
        kv: KvDtype::Model,
    };
    let shapes = |variant: Variant, layouts: &[(usize, usize)], seeds| {
        let Some(kernel) = variant.compile(false) else { return };
        variant.shapes_by(&kernel, layouts, seeds);
    };
    let layouts = some_or_full(&[(20, 1)][..], &[(16, 1), (20, 1), (64, 1)][..]);
    shapes(variant(256, Dtype::F16), layouts, 0..some_or_full(1, 5));
    // Latents of 512 run the code of those of 256 with other counts: `offshoot-lab check` runs both on a GPU.
    let layouts = some_or_full(&[][..], &[(16, 1), (128, 1), (20, 1)][..]);
    shapes(variant(512, Dtype::Bf16), layouts, 0..some_or_full(0, 5));
}

/// A warp that copies them may come after all others have gone as far as they can: nobody waits for ever, and bits are
/// the same.
#[test]
fn a_copying_warp_of_latents_may_be_late() {
    const COPYING_WARPS: Range<u32> = 8..12;
    let widths = HeadWidths { key: 320, values: Values::InKeys(256) };
    let variant = Variant { widths, dtype: Dtype::Bf16, kv: KvDtype::Model };
    let Some(kernel) = variant.compile(false) else { return };
    let (setting, seed) = (variant.setting((2, 1), None, 2), 0);
    let grown = grow(ForestShape::Document(1), PAGE as u32, seed);
    let names: Vec<usize> = (0..grown.rows.len()).collect();
    let plan = Planner::Tree.plan(&grown.forest, &hints(&setting, 1));
    let kv = kv(&setting, kernel.layout, &grown);
    let step = Step { setting: &setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
    let [at_once, _, late] = schedules(seed);
    let held = |seed| COPYING_WARPS.map(move |warp| Schedule { seed, held: Some(warp), ..late });
    let runs: Vec<Schedule> = (0..some_or_full(6, 20)).flat_map(held).collect();
    let found = attend(&kernel, &step, &kernel.tiling(&setting, 1), &[&[at_once], &runs[..]].concat(), None);
    assert_exact(&setting, &found[0], &exact(&setting, &grown), "one block");
    for (found_late, how) in found[1..].iter().zip(runs) {
        assert!(*found_late == found[0], "other bits where a warp is late: {how:?}");
    }
}

/// Their states where there are fewer rows and heads than warps that merge them.
#[test]
fn few_rows_of_latents() {
    let widths = HeadWidths { key: 320, values: Values::InKeys(256) };
    Variant { widths, dtype: Dtype::F16, kv: KvDtype::Model }.few_latents();
}

/// Leaves that share tiles of latents: several, all that a tile holds, and behind what they have in common; and such
/// that share none.
#[test]
fn leaves_share_tiles_of_latents() {
    let check = |kv, cases: &[(Leaves, LeafTiles, (usize, usize), usize)]| {
        let widths = HeadWidths { key: 320, values: Values::InKeys(256) };
        let variant = Variant { widths, dtype: Dtype::Bf16, kv };
        let Some(kernel) = variant.compile(false) else { return };
        for (seed, &(leaves, leaf_tiles, heads, blocks)) in (0..).zip(cases) {
            let setting = variant.setting(heads, None, seed);
            let shared = check_leaves(&kernel, &setting, leaves, leaf_tiles, blocks, seed);
            let may_share = !matches!(leaves, Leaves::Roots);
            assert_eq!(shared > 0, may_share, "{leaves:?}, {leaf_tiles:?}: {shared} tiles are shared");
        }
    };
    let (packed, joined) = (|leaves| LeafTiles { leaves, joins: false }, LeafTiles { leaves: 1, joins: true });
    let cases = [
        (Leaves::Star, joined, (16, 1), 3),
        (Leaves::Problems, LeafTiles { leaves: 4, joins: true }, (20, 1), 1),
        (Leaves::Mixed, packed(3), (20, 1), 3),
        (Leaves::Roots, packed(4), (16, 1), 1),
        (Leaves::Problems, joined, (12, 1), 3),
        (Leaves::Star, packed(2), (16, 1), 1),
        (Leaves::Star, packed(5), (12, 1), 3),
        (Leaves::Problems, packed(3), (16, 1), 1),
    ];
    check(KvDtype::Model, &cases[..some_or_full(5, 8)]);
    check(KvDtype::Fp8, &cases[..some_or_full(0, 8)]);
}

/// Latents of eight bits. Queries are converted to f16, or are f16 already.
#[test]
fn latents_of_eight_bits() {
    let shapes = |rank, dtype, layouts: &[(usize, usize)], seeds| {
        let widths = HeadWidths { key: rank + 64, values: Values::InKeys(rank) };
        let variant = Variant { widths, dtype, kv: KvDtype::Fp8 };
        let Some(kernel) = variant.compile(false) else { return };
        variant.shapes_by(&kernel, layouts, seeds);
    };
    shapes(256, Dtype::Bf16, some_or_full(&[(20, 1)][..], &[(16, 1), (20, 1), (64, 1)][..]), 0..some_or_full(1, 5));
    shapes(256, Dtype::F16, some_or_full(&[][..], &[(16, 1), (20, 1)][..]), 1..some_or_full(1, 3));
    shapes(512, Dtype::Bf16, some_or_full(&[][..], &[(16, 1), (128, 1)][..]), 0..some_or_full(0, 2));
}

/// The same by the kernel of other GPUs, and narrower ones.
#[test]
fn expanded_heads_before_hopper() {
    let variant = |key, value| Variant {
        widths: HeadWidths { key, values: Values::Beside(value) },
        dtype: Dtype::F16,
        kv: KvDtype::Model,
    };
    variant(192, 128).portable_shapes(&[(2, 2)], some_or_full(2..3, 0..3));
    variant(96, 64).portable_shapes(&[(6, 2)], some_or_full(1..2, 1..4));
    variant(64, 64).portable_shapes(&[(4, 1), (4, 2)], some_or_full(2..3, 1..3));
}

/// Keys and values of latents that are expanded: a key head for each query head.
#[test]
fn expanded_heads_of_192_bf16() {
    let widths = HeadWidths { key: 192, values: Values::Beside(128) };
    let variant = Variant { widths, dtype: Dtype::Bf16, kv: KvDtype::Model };
    let Some(kernel) = variant.compile(false) else { return };
    let layouts = some_or_full(&[(2, 2)][..], &[(2, 2), (4, 4), (6, 2)][..]);
    variant.shapes_by(&kernel, layouts, 0..some_or_full(1, 4));
}

#[test]
fn deterministic_rows_of_latents_do_too() {
    let widths = HeadWidths { key: 320, values: Values::InKeys(256) };
    for kv in [KvDtype::Model, KvDtype::Fp8] {
        Variant { widths, dtype: Dtype::Bf16, kv }.deterministic(0..1);
    }
}
