//! The GPU's kernels of attention attribution on the CPU, instruction by instruction (`emulator`), against the
//! definition in f64: random forests, every planner, level bounds anywhere, rows that have moved on since their plan
//! was made.

use crate::emulated_attention::score_factors;
use crate::emulator;
use crate::full::some_or_full;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When, page_place};
use float8::F8E4M3;
use offshoot_backend::{Dtype, HeadLayout, KvDtype, LevelBounds, MOST_LEVELS, Values};
use offshoot_cases::setting::{ScoreTerms, Setting};
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cuda::attention::level_words::level_words;
use offshoot_cuda::compile::elements::{HeadWidths, KvElement, PageLayout};
use offshoot_cuda::compile::units;
use offshoot_fixtures::forests::{ForestShape, context, grow};
use offshoot_kv::plan::{AttentionPlan, CostModel, PlanHints, Planner};
use offshoot_kv::{KvSlot, PagePool, PrefixTree, StepRow};

const PAGE: usize = 32;
fn hints(setting: &Setting) -> PlanHints {
    let small = |size: usize| u32::try_from(size).unwrap();
    PlanHints {
        group: offshoot_core::ids::GroupIx(0),
        tile: 1,
        window: setting.window,
        q_heads: small(setting.heads.q_heads),
        kv_heads: small(setting.heads.kv_heads),
        head_dim: small(setting.heads.head_dim),
        kv_element_bytes: small(setting.dtype.bytes()),
        latents: None,
        cost: CostModel::CPU,
    }
}

/// Elements of `dtype` where they can be read as words.
fn words(dtype: Dtype, values: &[f32]) -> Vec<u32> {
    dtype.encode(values).chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

/// Keys and values `[page][kv head][keys, values beside them][32][width]`; what no row sees, and every value, is not a
/// number.
fn kv(setting: &Setting, layout: PageLayout, contexts: &[Vec<KvSlot>]) -> Vec<u32> {
    let HeadLayout { kv_heads, head_dim, .. } = setting.heads;
    let pages = contexts.iter().flatten().map(|slot| slot.page.ix() + 1).max().unwrap();
    let bytes = if setting.kv == KvDtype::Fp8 { 1 } else { setting.dtype.bytes() };
    let of_head = setting.heads.stored_width() / kv_heads;
    let mut kv = vec![f32::NAN; pages * kv_heads * of_head * PAGE];
    for &slot in contexts.iter().flatten() {
        for (i, x) in setting.kv(slot).take(kv_heads * head_dim).enumerate() {
            let (head, element) = (i / head_dim, i % head_dim);
            let run = (slot.page.ix() * kv_heads + head) * of_head * PAGE;
            let place = page_place(layout, slot.slot as usize, element, head_dim, bytes) / bytes;
            kv[run + place] = x;
        }
    }
    match setting.kv {
        KvDtype::Model => words(setting.dtype, &kv),
        KvDtype::Fp8 => {
            let codes: Vec<u8> = kv.iter().map(|&x| F8E4M3::from_f32(x).to_bits()).collect();
            codes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
        }
    }
}

/// One step, and which of its rows are attributed.
struct Step<'a> {
    setting: &'a Setting,
    plan: &'a AttentionPlan,
    rows: &'a [u32],
    bounds: &'a [LevelBounds],
    kv: &'a [u32],
}

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

const ANY: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };

/// `[rows, q_heads, MOST_LEVELS]`
fn level_lse(kernel: &Emulated, step: &Step<'_>) -> Vec<f32> {
    let Step { setting, plan, rows, bounds, kv } = *step;
    let positions = &plan.row_positions;
    let heads = setting.heads;
    let stored = heads.qkv_width() - heads.q_width();
    let query = |(row, &position): (usize, &u32)| {
        setting.query(row, position as usize).chain(std::iter::repeat_n(f32::NAN, stored)).collect::<Vec<_>>()
    };
    let qkv: Vec<f32> = positions.iter().enumerate().flat_map(query).collect();
    let qkv = words(setting.dtype, &qkv);
    let words = level_words(plan);
    let bounds: Vec<u32> = bounds.iter().flat_map(|bounds| bounds.words()).collect();
    let mut out = vec![f32::NAN; rows.len() * heads.q_heads * MOST_LEVELS];
    let (mut out_at, mut qkv_at, mut kv_at, mut words_at) =
        (out.as_mut_ptr(), qkv.as_ptr(), kv.as_ptr(), words.as_ptr());
    let (mut positions_at, mut rows_at, mut bounds_at) = (positions.as_ptr(), rows.as_ptr(), bounds.as_ptr());
    let (mut group, mut kv_heads) = (heads.group() as u32, heads.kv_heads as u32);
    let mut width = heads.qkv_width() as u32;
    let (mut scale, mut cap_rate) = score_factors(setting);
    let args = [
        at(&mut out_at),
        at(&mut qkv_at),
        at(&mut kv_at),
        at(&mut words_at),
        at(&mut positions_at),
        at(&mut rows_at),
        at(&mut bounds_at),
        at(&mut group),
        at(&mut kv_heads),
        at(&mut width),
        at(&mut scale),
        at(&mut cap_rate),
    ];
    let grid = rows.len() * heads.kv_heads * heads.group().div_ceil(if heads.head_dim > 256 { 4 } else { 8 });
    // SAFETY: the arguments of level_lse, in its order, each with memory for what its head says.
    unsafe { kernel.launch(grid as u32, 256, 0, ANY, &args) };
    out
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most.is_finite() { most + scores.iter().map(|score| (score - most).exp()).sum::<f64>().ln() } else { most }
}

/// The definition, `[q_heads][MOST_LEVELS]`.
fn exact(setting: &Setting, row: usize, context: &[KvSlot], bounds: &LevelBounds) -> Vec<f64> {
    let (heads, last) = (setting.heads, context.len() - 1);
    let d = heads.head_dim;
    let query: Vec<f32> = setting.query(row, last).collect();
    let sees = |p: usize| setting.window.is_none_or(|window| last - p < window as usize);
    let mut lse = Vec::new();
    for (head, query) in query.chunks_exact(d).enumerate() {
        let mut scores = vec![Vec::new(); MOST_LEVELS];
        for (p, &at) in context.iter().enumerate().filter(|&(p, _)| sees(p)) {
            let key = setting.kv(at).skip(head / heads.group() * d);
            let dot: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * f64::from(k)).sum();
            let level = (0..MOST_LEVELS).find(|&level| bounds.level(level).contains(&(p as u32))).unwrap();
            scores[level].push(setting.scoring::<Vec<f32>>(None).score_exactly(dot));
        }
        lse.extend(scores.iter().map(|scores| log_sum_exp(scores)));
    }
    lse
}

fn assert_close(found: &[f32], exact: &[f64], case: &str) {
    assert_eq!(found.len(), exact.len());
    for (at, (&found, &exact)) in found.iter().zip(exact).enumerate() {
        let found = f64::from(found);
        assert!(
            found == exact || (found - exact).abs() < 2e-5 * (1.0 + exact.abs()),
            "{case}, {at}: {found}, not {exact}"
        );
    }
}

fn bounds(dice: &mut Dice, positions: u32) -> LevelBounds {
    let mut ends: Vec<u32> = (0..dice.within(0, 7)).map(|_| dice.within(0, positions + 3)).collect();
    ends.sort_unstable();
    LevelBounds::behind(&ends).unwrap()
}

fn compile(setting: &Setting, layout: PageLayout) -> Option<Emulated> {
    Emulated::compile(
        &units::level_lse(
            setting.dtype,
            if setting.kv == KvDtype::Fp8 { KvElement::Fp8 } else { KvElement::Plain },
            layout,
            HeadWidths::of(setting.heads),
        ),
        "level_lse",
    )
}

#[test]
fn logarithms_are_those_of_the_definition_whatever_the_plan() {
    let mut dice = Dice::new(5);
    let (model, fp8) = (KvDtype::Model, KvDtype::Fp8);
    let (plain, swizzled) = (PageLayout::Plain, PageLayout::Swizzled);
    // Heads of a group that fill no block, and more than one; windows; swizzled rows of 64 to 1024 bytes.
    for (number, (dtype, kept, layout, shape, (q_heads, kv_heads, head_dim, window))) in [
        (Dtype::F16, model, plain, ForestShape::MidPageForks, (4, 2, 80, 100)),
        (Dtype::Bf16, model, swizzled, ForestShape::Ragged, (11, 1, 64, 17)),
        (Dtype::F32, model, plain, ForestShape::DeepChain, (2, 2, 18, 1)),
        (Dtype::Bf16, fp8, swizzled, ForestShape::EmptyLeaves, (3, 1, 128, 1000)),
        (Dtype::F16, model, swizzled, ForestShape::MidPageForks, (2, 1, 128, 50)),
        (Dtype::F16, fp8, swizzled, ForestShape::Ragged, (2, 1, 64, 9)),
        (Dtype::Bf16, model, plain, ForestShape::EmptyLeaves, (2, 1, 64, 20)),
        (Dtype::Bf16, model, swizzled, ForestShape::MidPageForks, (5, 1, 512, 60)),
        (Dtype::F16, model, swizzled, ForestShape::EmptyLeaves, (2, 1, 96, 20)),
        (Dtype::Bf16, model, PageLayout::Panels, ForestShape::EmptyLeaves, (2, 1, 576, 20)),
    ]
    .into_iter()
    .enumerate()
    {
        // Those of latents have their values in them.
        let values = if head_dim == 576 { Values::InKeys(512) } else { Values::Beside(head_dim) };
        let heads = HeadLayout { q_heads, kv_heads, head_dim, values, expanded: false };
        let terms = ScoreTerms { softcap: (number % 3 == 1).then_some(3.0), has_sinks: true };
        let of = |window| Setting { heads, dtype, kv: kept, window, sharpness: 4.0, terms };
        let Some(kernel) = compile(&of(None), layout) else { return };
        for setting in [of(None), of(Some(window))].into_iter().skip(number % 2) {
            let grown = grow(shape, PAGE as u32, number as u64);
            let contexts: Vec<_> = (0..grown.rows.len()).map(|row| context(&grown.forest, row)).collect();
            let kv = kv(&setting, layout, &contexts);
            let mut wanted: Vec<u32> = (0..3).map(|_| dice.within(0, grown.rows.len() as u32 - 1)).collect();
            wanted.sort_unstable();
            let bounds: Vec<LevelBounds> =
                wanted.iter().map(|&row| bounds(&mut dice, contexts[row as usize].len() as u32)).collect();
            let mut first: Option<Vec<f32>> = None;
            let two = [Planner::ALL[number % 4], Planner::ALL[(number + 1) % 4]];
            for &planner in some_or_full(&two[..], &Planner::ALL) {
                let plan = planner.plan(&grown.forest, &hints(&setting));
                let step = Step { setting: &setting, plan: &plan, rows: &wanted, bounds: &bounds, kv: &kv };
                let found = level_lse(&kernel, &step);
                let first = first.get_or_insert_with(|| found.clone());
                let same = found.iter().zip(first).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{shape:?}, {setting}: other bits by the {planner} plan");
                let by_ask = found.chunks(heads.q_heads * MOST_LEVELS).zip(wanted.iter().zip(&bounds));
                for (found, (&row, bounds)) in by_ask {
                    let exact = exact(&setting, row as usize, &contexts[row as usize], bounds);
                    assert_close(found, &exact, &format!("{shape:?}, {setting}, {planner}, row {row}"));
                }
            }
        }
    }
}

#[test]
fn an_advanced_plan_serves_rows_that_have_moved_on_in_their_pages() {
    let heads = HeadLayout::new(4, 1, 32);
    let setting = Setting {
        heads,
        dtype: Dtype::F32,
        kv: KvDtype::Model,
        window: None,
        sharpness: 2.0,
        terms: ScoreTerms::default(),
    };
    let Some(kernel) = compile(&setting, PageLayout::Plain) else { return };
    let (mut tree, mut pool) = (PrefixTree::new(PAGE as u32), PagePool::new(100));
    let text = |len: usize| vec![TokenId(1); len];
    // The trunk ends in a page, of which each leaf has another.
    let trunk = tree.admit(&mut pool, &text(75)).unwrap();
    tree.mark_computed(trunk, 75);
    let leaves: Vec<_> = [3, 12, 30].map(|own| (tree.fork(trunk), own)).to_vec();
    let mut rows = Vec::new();
    for &(leaf, own) in &leaves {
        tree.append(&mut pool, leaf, &text(own)).unwrap();
        let position = tree.end(leaf) - 1;
        tree.mark_computed(leaf, position);
        rows.push(StepRow { segment: leaf, position });
    }
    let mut plan = Planner::Balanced.plan(&tree.forest(&rows), &hints(&setting));
    assert!(plan.can_advance());
    for &(leaf, _) in &leaves {
        tree.append(&mut pool, leaf, &text(4)).unwrap();
    }
    let contexts: Vec<Vec<KvSlot>> =
        leaves.iter().map(|&(leaf, _)| (0..tree.end(leaf)).map(|at| tree.slot(leaf, at)).collect()).collect();
    let kv = kv(&setting, PageLayout::Plain, &contexts);
    let bounds = [[5, 40], [75, 80], [90, 91]].map(|ends| LevelBounds::behind(&ends).unwrap());
    for moved in 0..5 {
        if moved > 0 {
            plan.advance(&[]);
        }
        let found =
            level_lse(&kernel, &Step { setting: &setting, plan: &plan, rows: &[0, 1, 2], bounds: &bounds, kv: &kv });
        for (row, found) in found.chunks(heads.q_heads * MOST_LEVELS).enumerate() {
            let seen = &contexts[row][..=plan.row_positions[row] as usize];
            assert_close(found, &exact(&setting, row, seen, &bounds[row]), &format!("row {row}, {moved} tokens on"));
        }
    }
}

#[test]
fn masses_are_means_over_heads_and_layers() {
    let Some(kernel) = Emulated::compile(&units::level_mass(), "level_mass") else { return };
    let (asks, q_heads, layers) = (3, 37, 2);
    let mut dice = Dice::new(1);
    let mut lse = |_| if dice.one_in(3) { f32::NEG_INFINITY } else { 20.0 * dice.number() };
    // The first row of each layer is padding.
    let padding = q_heads * MOST_LEVELS;
    let lse: Vec<Vec<f32>> = (0..layers)
        .map(|_| (0..asks * padding).map(|i| if i < padding { f32::NEG_INFINITY } else { lse(i) }).collect())
        .collect();
    let mut mass = vec![f32::NAN; asks * MOST_LEVELS];
    for (layer, lse) in lse.iter().enumerate() {
        let (mut mass_at, mut lse_at, mut heads) = (mass.as_mut_ptr(), lse.as_ptr(), q_heads as u32);
        let (mut share, mut is_first) = (1.0 / (q_heads * layers) as f32, u32::from(layer == 0));
        let args = [at(&mut mass_at), at(&mut lse_at), at(&mut heads), at(&mut share), at(&mut is_first)];
        // SAFETY: the arguments of level_mass, in its order, each with memory for what its head says.
        unsafe { kernel.launch(asks as u32, 32, 0, ANY, &args) };
    }
    for (ask, mass) in mass.chunks(MOST_LEVELS).enumerate() {
        let mut exact = [0.0; MOST_LEVELS];
        let mut heads = 0.0;
        for head in lse.iter().flat_map(|lse| lse[ask * padding..][..padding].chunks(MOST_LEVELS)) {
            let head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            let total = log_sum_exp(&head);
            if total.is_finite() {
                heads += 1.0 / (q_heads * layers) as f64;
                exact.iter_mut().zip(&head).for_each(|(sum, x)| *sum += (x - total).exp() / (q_heads * layers) as f64);
            }
        }
        assert_eq!(ask == 0, exact == [0.0; MOST_LEVELS]);
        for (mass, exact) in mass.iter().zip(exact) {
            assert!((f64::from(*mass) - exact).abs() < 1e-5, "{mass}, not {exact}");
        }
        assert!((mass.iter().copied().map(f64::from).sum::<f64>() - heads).abs() < 1e-5);
    }
}
