//! Tree attention compared with a dense definition in f64: forests of every shape, every planner, code path and dtype.
//! A row's result must be close to the definition, and equal bit for bit for every plan and any other rows in the step.

use std::ops::Range;

use offshoot_backend::{Dtype, HeadLayout, KvDtype, KvShape, Scoring, Values};
use offshoot_core::dice::{Dice, noise};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_cpu::attention::{AttentionScratch, SECTION, TILE, tree_attention};
use offshoot_cpu::kv::{KvStore, PAGE_TOKENS};
use offshoot_cpu::{Cores, CpuBuffer, Isa, Team};
use offshoot_fixtures::forests::{ForestShape, GrownForest, grow};
use offshoot_kv::plan::{AttentionPlan, CostModel, Csr, KvSpan, PlanHints, Planner, WorkItem};
use offshoot_kv::{Forest, KvSlot, StepRow};

use crate::full::some_or_full;

const LAYER: LayerIx = LayerIx(1);
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: HeadLayout,
    dtype: Dtype,
    window: Option<u32>,
    /// Largest absolute query element: small for a flat softmax, large for a peaked one.
    sharpness: f32,
    softcap: Option<f32>,
    /// Whether each query head has a sink: a score that belongs to no position.
    has_sinks: bool,
}

impl Case {
    fn scale(&self) -> f32 {
        (self.heads.head_dim as f32).powf(-0.5)
    }

    /// Scores without cap and sinks, which are at most `sharpness * head_dim * scale`.
    fn plain(heads: HeadLayout, dtype: Dtype) -> Self {
        Case { heads, dtype, window: None, sharpness: 1.0, softcap: None, has_sinks: false }
    }

    /// Some sinks above all scores, some below.
    fn sinks(&self) -> Option<Vec<f32>> {
        self.has_sinks.then(|| (0..self.heads.q_heads).map(|head| 3.0 * (head as f32 * 1.7).sin()).collect())
    }

    fn hints(&self) -> PlanHints {
        PlanHints {
            group: offshoot_core::ids::GroupIx(0),
            tile: TILE,
            window: self.window,
            q_heads: self.heads.q_heads as u32,
            kv_heads: self.heads.kv_heads as u32,
            head_dim: self.heads.head_dim as u32,
            kv_element_bytes: self.dtype.bytes() as u32,
            latents: None,
            cost: CostModel::CPU,
        }
    }

    fn random(dice: &mut Dice, dtype: Dtype) -> Self {
        let (q_heads, kv_heads) = dice.pick(&[(3, 3), (1, 1), (4, 1), (7, 1), (8, 1), (8, 2)]);
        let head_dim = dice.pick(&[2, 18, 16, 32, 64, 64, 80, 96, 128]);
        let values = match dice.pick(&[0, 0, 0, 1, 2]) {
            0 => Values::Beside(head_dim),
            1 => Values::Beside(dice.pick(&[2, 8, 16, 24, 64, 112])),
            _ => Values::InKeys(dice.pick(&[2, 16, head_dim]).min(head_dim)),
        };
        Case {
            heads: HeadLayout { q_heads, kv_heads, head_dim, values, expanded: false },
            dtype,
            window: dice.pick(&[None, None, Some(1), Some(17), Some(64), Some(100)]),
            sharpness: dice.pick(&[1.0, 30.0]),
            softcap: dice.pick(&[None, None, Some(5.0)]),
            has_sinks: dice.pick(&[false, false, true]),
        }
    }
}

/// For each row of a forest the slots of its context, positions `0 ..= position(row)`.
fn contexts(forest: &Forest) -> Vec<Vec<KvSlot>> {
    let context = |(&segment, &position): (&u32, &u32)| {
        let mut slots = vec![None; position as usize + 1];
        let mut at = Some(segment);
        while let Some(ix) = at {
            let segment = &forest.segments[ix as usize];
            let first_page = segment.first_position / PAGE_TOKENS;
            for p in segment.first_position..(segment.first_position + segment.tokens).min(position + 1) {
                let page = segment.pages.start + p / PAGE_TOKENS - first_page;
                slots[p as usize] = Some(KvSlot { page: forest.pages[page as usize], slot: p % PAGE_TOKENS });
            }
            at = segment.parent;
        }
        slots.into_iter().map(|slot| slot.expect("a path has no gaps")).collect()
    };
    forest.row_segments.iter().zip(&forest.row_positions).map(context).collect()
}

/// KV memory with the tokens of all contexts; all other slots of their pages hold NaN.
fn fill(case: &Case, contexts: &[Vec<KvSlot>]) -> KvStore {
    let mut slots: Vec<(u32, u32)> = contexts.iter().flatten().map(|at| (at.page.0, at.slot)).collect();
    slots.sort_unstable();
    slots.dedup();
    let pages = slots.iter().map(|&(page, _)| page).max().map_or(0, |last| last as usize + 1);
    let shape = KvShape::uniform(2, case.heads, case.dtype, pages);
    let mut kv = KvStore::new(&shape, KvDtype::Model).unwrap();
    let mut held: Vec<u32> = slots.iter().map(|&(page, _)| page).collect();
    held.dedup();
    let all = held.iter().flat_map(|&page| (0..PAGE_TOKENS).rev().map(move |slot| KvSlot { page: PageId(page), slot }));
    let all: Vec<KvSlot> = all.collect();
    let mut qkv = CpuBuffer::new(all.len(), case.heads.qkv_width());
    qkv.data.fill(f32::NAN);
    kv.append(&Cores::new(Isa::Portable), LAYER, &qkv, &all);
    let slots: Vec<KvSlot> = slots.iter().map(|&(page, slot)| KvSlot { page: PageId(page), slot }).collect();
    let mut qkv = CpuBuffer::new(slots.len(), case.heads.qkv_width());
    for (row, at) in qkv.data.chunks_exact_mut(case.heads.qkv_width()).zip(&slots) {
        for (i, x) in row.iter_mut().enumerate() {
            *x = noise([1, at.page.0.into(), at.slot.into(), i as u64]);
        }
    }
    kv.append(&Cores::new(Isa::Portable), LAYER, &qkv, &slots);
    kv
}

/// Queries that depend on segment and position only.
fn queries(case: &Case, rows: &[StepRow]) -> CpuBuffer {
    let mut qkv = CpuBuffer::new(rows.len(), case.heads.qkv_width());
    for (x, row) in qkv.data.chunks_exact_mut(case.heads.qkv_width()).zip(rows) {
        for (i, x) in x.iter_mut().enumerate() {
            *x = noise([2, row.segment.0.into(), row.position.into(), i as u64]) * case.sharpness;
        }
    }
    qkv
}

fn attend(isa: Isa, case: &Case, qkv: &CpuBuffer, kv: &KvStore, plan: &AttentionPlan) -> CpuBuffer {
    let mut out = CpuBuffer::new(qkv.rows, case.heads.out_width());
    out.data.fill(f32::NAN);
    let sinks = case.sinks();
    let scoring = Scoring { scale: case.scale(), softcap: case.softcap, sinks: sinks.as_ref() };
    tree_attention(&Cores::new(isa), &mut AttentionScratch::default(), &mut out, qkv, kv, LAYER, plan, scoring, None);
    out
}

/// The definition: softmax over all visible positions at once, in f64, on the stored numbers. Returns the result of one
/// row and head.
fn dense(
    isa: Isa,
    case: &Case,
    qkv: &CpuBuffer,
    kv: &KvStore,
    context: &[KvSlot],
    row: usize,
    head: usize,
) -> Vec<f64> {
    let d = case.heads.head_dim;
    let kv_head = head / case.heads.group();
    let hidden = case.window.map_or(0, |window| context.len().saturating_sub(window as usize));
    let operand = isa.attention_operand(case.dtype);
    let q: Vec<f64> = qkv.row(row)[head * d..][..d].iter().map(|&x| operand.round(x).into()).collect();
    let score = |&at: &KvSlot| {
        let k = kv.key(LAYER, kv_head, at);
        let score = q.iter().zip(k).map(|(q, k)| q * f64::from(k)).sum::<f64>() * f64::from(case.scale());
        case.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = context[hidden..].iter().map(score).collect();
    let sink = case.sinks().map(|sinks| f64::from(sinks[head]));
    let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let mut out = vec![0.0; case.heads.value_dim()];
    let mut sum = sink.map_or(0.0, |sink| (sink - most).exp());
    for (s, &at) in scores.iter().zip(&context[hidden..]) {
        let p = (s - most).exp();
        sum += p;
        out.iter_mut().zip(kv.value(LAYER, kv_head, at)).for_each(|(o, v)| *o += p * f64::from(v));
    }
    out.iter().map(|o| o / sum).collect()
}

/// The largest allowed error of an element. Keys and values are at most 1 in absolute value, and so are results.
///
/// With u = 2^-24: a score is a sum of d products; its error is at most (d + 2) u times the sum of their sizes, d *
/// sharpness, times the scale. An error e of all scores changes numerators and their sum by at most e each: 2 e in
/// total. Sums over n positions have errors of at most n u; exp, rescaling in n / 64 tiles and the division add a few
/// u. If numerators are rounded to bf16, each changes by at most a relative 2^-8, in the weighted sum but not in the
/// sum of weights. The largest numerator is 1 and is exact; a second one is below 1 and changes by at most 2^-9; the
/// changes of further ones have either sign: 2^-9 in total. Sections change this by weights of at most 1 that sum to 1,
/// and merging them adds a few u. A cap brings errors of a few u times itself, by its tanh, and its slope is at most 1;
/// a sink is a score without products, whose unit changes by a division and a product.
fn tolerance(isa: Isa, case: &Case, positions: usize) -> f64 {
    let u = Dtype::F32.rounding();
    let d = case.heads.head_dim as f64;
    let score = (d + 2.0) * u * d * f64::from(case.sharpness) * f64::from(case.scale());
    let rounding = match isa.attention_operand(case.dtype) {
        Dtype::F32 => 0.0,
        rounded => rounded.rounding() / 2.0,
    };
    let cap = f64::from(case.softcap.unwrap_or(0.0)) * 8.0 * u;
    let sink = if case.has_sinks { 3.0 * 4.0 * u } else { 0.0 };
    2.0 * (score + cap + sink) + (2.0 * positions as f64 + 16.0) * u * 1.5 + rounding
}

/// A plan with one item per row, over its whole context.
fn alone(forest: &Forest, case: &Case) -> AttentionPlan {
    let contexts = contexts(forest);
    let items = contexts.iter().enumerate().map(|(row, context)| (row..row + 1, 0..context.len() as u32));
    by_hand(case, forest, &contexts, items.collect())
}

/// A plan with one item per tile, shared by all neighbouring rows with the same slots in it (one row's slots may be a
/// prefix of another's).
fn tile_by_tile(forest: &Forest, case: &Case) -> AttentionPlan {
    let contexts = contexts(forest);
    let mut items = Vec::new();
    let longest = contexts.iter().map(Vec::len).max().unwrap_or(0);
    for first in (0..longest).step_by(TILE as usize) {
        let in_tile = |row: usize| {
            let context = &contexts[row];
            &context[first.min(context.len())..(first + TILE as usize).min(context.len())]
        };
        let mut row = 0;
        while row < contexts.len() {
            let mut widest = in_tile(row);
            let mut end = row + 1;
            while end < contexts.len() && !in_tile(end).is_empty() {
                let next = in_tile(end);
                let (short, long) = if next.len() < widest.len() { (next, widest) } else { (widest, next) };
                if !long.starts_with(short) {
                    break;
                }
                widest = long;
                end += 1;
            }
            if !widest.is_empty() {
                items.push((row..end, first as u32..(first + widest.len()) as u32));
            }
            row = end;
        }
    }
    by_hand(case, forest, &contexts, items)
}

/// A plan of items `(rows, positions)`. The slots of an item are those of its row with the longest context.
fn by_hand(
    case: &Case,
    forest: &Forest,
    contexts: &[Vec<KvSlot>],
    items: Vec<(Range<usize>, Range<u32>)>,
) -> AttentionPlan {
    let mut plan = AttentionPlan {
        group: offshoot_core::ids::GroupIx(0),
        page_tokens: PAGE_TOKENS,
        tile: TILE,
        window: case.window,
        member: None,
        joins_beginnings: false,
        items: Vec::new(),
        spans: Vec::new(),
        pages: Vec::new(),
        row_positions: forest.row_positions.clone(),
        growing: Vec::new(),
        merge: Csr::default(),
        flat_kv_tokens: 0,
    };
    let mut merge = vec![Vec::new(); contexts.len()];
    for (rows, positions) in items {
        rows.clone().for_each(|row| merge[row].push(plan.items.len() as u32));
        let longest = rows.clone().max_by_key(|&row| contexts[row].len()).unwrap();
        let first_span = plan.spans.len() as u32;
        // One span per run of slots in the same page.
        let mut position = positions.start;
        while position < positions.end {
            let slots = &contexts[longest][position as usize..positions.end as usize];
            let run = slots.chunk_by(|a, b| a.page == b.page).next().unwrap();
            let first_page = plan.pages.len() as u32;
            plan.pages.push(run[0].page);
            let tokens = run.len() as u32;
            plan.spans.push(KvSpan { pages: first_page..first_page + 1, first_position: position, tokens });
            position += tokens;
        }
        plan.items
            .push(WorkItem { rows: rows.start as u32..rows.end as u32, spans: first_span..plan.spans.len() as u32 });
    }
    plan.merge.offsets.push(0);
    for list in merge {
        plan.merge.values.extend(list);
        plan.merge.offsets.push(plan.merge.values.len() as u32);
    }
    plan
}

fn plans(forest: &Forest, case: &Case) -> Vec<(String, AttentionPlan)> {
    let mut plans =
        vec![("alone".to_string(), alone(forest, case)), ("tile by tile".to_string(), tile_by_tile(forest, case))];
    plans.extend(Planner::ALL.map(|planner| (format!("{planner:?}"), planner.plan(forest, &case.hints()))));
    plans
}

/// The bits of one row.
fn bits(out: &CpuBuffer, row: usize) -> Vec<u32> {
    out.row(row).iter().map(|x| x.to_bits()).collect()
}

/// Checks that all plans give equal bits on each code path, and compares about `checked` rows with the definition.
fn check(what: &str, case: &Case, grown: &GrownForest, checked: usize) {
    let forest = &grown.forest;
    let contexts = contexts(forest);
    let kv = fill(case, &contexts);
    let qkv = queries(case, &grown.rows);
    let plans = plans(forest, case);
    let every = contexts.len().div_ceil(checked);
    for isa in Isa::available() {
        // The clear loops are slow and treat each row separately, so two plans are enough.
        let clear = isa == Isa::Portable;
        let expected = attend(isa, case, &qkv, &kv, &plans[0].1);
        for (name, plan) in &plans[1..if clear { 2 } else { plans.len() }] {
            let out = attend(isa, case, &qkv, &kv, plan);
            for row in 0..out.rows {
                assert_eq!(
                    bits(&out, row),
                    bits(&expected, row),
                    "{what}, {case:?}, {isa}: row {row} by {name} and alone"
                );
            }
        }
        for row in (0..contexts.len()).step_by(every) {
            let tolerance = tolerance(isa, case, contexts[row].len());
            for head in 0..case.heads.q_heads {
                let d = case.heads.value_dim();
                let dense = dense(isa, case, &qkv, &kv, &contexts[row], row, head);
                for (i, (exact, &x)) in dense.iter().zip(&expected.row(row)[head * d..][..d]).enumerate() {
                    let error = (f64::from(x) - exact).abs();
                    assert!(
                        error <= tolerance,
                        "{what}, {case:?}, {isa}: row {row}, head {head}[{i}]: {x} for {exact}"
                    );
                }
            }
        }
        if !clear {
            check_subsets(what, isa, case, grown, &kv, &expected);
        }
    }
}

/// Checks that steps with only some of the rows give the same bits: siblings and chunks do not matter.
fn check_subsets(what: &str, isa: Isa, case: &Case, grown: &GrownForest, kv: &KvStore, expected: &CpuBuffer) {
    for part in 0..3 {
        let kept: Vec<usize> = (0..grown.rows.len()).filter(|&row| Dice::new(row as u64).next() % 3 == part).collect();
        if kept.is_empty() {
            continue;
        }
        let rows: Vec<StepRow> = kept.iter().map(|&row| grown.rows[row]).collect();
        let forest = grown.tree.forest(&rows);
        let qkv = queries(case, &rows);
        for (name, plan) in plans(&forest, case) {
            let out = attend(isa, case, &qkv, kv, &plan);
            for (row, &of) in kept.iter().enumerate() {
                assert_eq!(
                    bits(&out, row),
                    bits(expected, of),
                    "{what}, {case:?}, {isa}: row {of} without siblings, {name}"
                );
            }
        }
    }
}

/// Where CI has some of the seeds, it leaves out the first ones, which draw small heads without windows: seed 0 heads
/// of two elements and no window for any dtype, those before 4 no window for f32.
fn check_shape(shape: ForestShape, seeds: Range<u64>) {
    for seed in seeds {
        let grown = grow(shape, PAGE_TOKENS, seed);
        for dtype in DTYPES {
            let case = Case::random(&mut Dice::new(seed ^ (77 * dtype.bytes() as u64)), dtype);
            check(&format!("{shape:?}, seed {seed}"), &case, &grown, 25);
        }
    }
}

#[test]
fn deep_chains() {
    check_shape(ForestShape::DeepChain, some_or_full(1..2, 0..2));
}

#[test]
fn stars() {
    check_shape(ForestShape::Star, some_or_full(3..6, 0..6));
}

#[test]
fn one_token_segments() {
    check_shape(ForestShape::OneTokenSegments, 0..10);
}

#[test]
fn empty_leaves() {
    check_shape(ForestShape::EmptyLeaves, 0..8);
}

#[test]
fn mid_page_forks() {
    check_shape(ForestShape::MidPageForks, some_or_full(4..8, 0..8));
}

#[test]
fn ragged_forests() {
    check_shape(ForestShape::Ragged, some_or_full(4..8, 0..8));
}

#[test]
fn two_thousand_leaves() {
    let grown = grow(ForestShape::Many(2000), PAGE_TOKENS, 3);
    let heads = HeadLayout::new(2, 1, 16);
    for dtype in DTYPES {
        check("2000 leaves", &Case::plain(heads, dtype), &grown, 20);
    }
}

#[test]
fn every_head_dim() {
    let grown = grow(ForestShape::MidPageForks, PAGE_TOKENS, 5);
    for head_dim in (2..=256).step_by(2).filter(|d| d % 16 == 0 || d % 26 == 0 || *d < 16) {
        for dtype in DTYPES {
            let heads = HeadLayout::new(2, 2, head_dim);
            check("head_dim", &Case::plain(heads, dtype), &grown, 4);
        }
    }
}

#[test]
fn values_of_another_width_or_in_the_keys() {
    let grown = grow(ForestShape::MidPageForks, PAGE_TOKENS, 6);
    for (head_dim, values) in [
        (16, Values::Beside(24)),
        (24, Values::Beside(16)),
        (2, Values::Beside(64)),
        (192, Values::Beside(128)),
        (24, Values::InKeys(16)),
        (18, Values::InKeys(2)),
        (40, Values::InKeys(40)),
        (152, Values::InKeys(136)),
        (576, Values::InKeys(512)),
    ] {
        for dtype in DTYPES {
            let heads = HeadLayout { q_heads: 3, kv_heads: 1, head_dim, values, expanded: false };
            check("values", &Case { has_sinks: head_dim == 24, ..Case::plain(heads, dtype) }, &grown, 4);
        }
    }
}

/// Few rows over contexts of several sections, whose tasks share them, and windows that begin in any of them.
#[test]
fn contexts_of_several_sections() {
    let mut longest = 0;
    for (seed, questions) in [(0, 0), (1, 1), (2, 5), (3, 12)] {
        let grown = grow(ForestShape::Document(questions), PAGE_TOKENS, seed);
        longest = longest.max(grown.forest.row_positions.iter().max().map_or(0, |last| last / SECTION));
        for dtype in DTYPES {
            let dice = &mut Dice::new(seed ^ (91 * dtype.bytes() as u64));
            let window = dice.pick(&[None, None, Some(17), Some(SECTION), Some(1500)]);
            let case = Case { window, ..Case::random(dice, dtype) };
            check(&format!("document, seed {seed}"), &case, &grown, 3);
        }
    }
    assert!(longest >= 3, "a row sees four sections");
}

/// One row, whose context all threads share if the layer has few key heads: the same bits by any number of threads, and
/// among other rows, with the log-sum-exps.
#[test]
fn one_row_has_the_same_bits_by_any_number_of_threads_and_among_others() {
    let grown = grow(ForestShape::Document(7), PAGE_TOKENS, 2);
    let rows = &grown.rows;
    let row = (0..rows.len()).max_by_key(|&row| rows[row].position).expect("a forest has rows");
    assert!(rows[row].position >= 2 * SECTION && rows.len() > 3, "a row of three sections, and others");
    for (q_heads, kv_heads) in [(1, 1), (6, 1), (6, 3)] {
        for dtype in DTYPES {
            let case = Case { has_sinks: kv_heads == 3, ..Case::plain(HeadLayout::new(q_heads, kv_heads, 32), dtype) };
            let kv = fill(&case, &contexts(&grown.forest));
            let sinks = case.sinks();
            let alone = grown.tree.forest(&rows[row..row + 1]);
            for isa in Isa::available() {
                let attend = |threads: usize, rows: &[StepRow], forest: &Forest| {
                    let (qkv, plan) = (queries(&case, rows), Planner::Balanced.plan(forest, &case.hints()));
                    let [mut out, mut lse] =
                        [case.heads.out_width(), q_heads].map(|width| CpuBuffer::new(rows.len(), width));
                    let scoring = Scoring { scale: case.scale(), softcap: None, sinks: sinks.as_ref() };
                    let (cores, mut scratch) =
                        (Cores { isa, team: Team::new(threads).into() }, AttentionScratch::default());
                    tree_attention(&cores, &mut scratch, &mut out, &qkv, &kv, LAYER, &plan, scoring, Some(&mut lse));
                    [out, lse]
                };
                let expected = attend(1, rows, &grown.forest).map(|all| bits(&all, row));
                for threads in [1, 2, 4, 8] {
                    let found = attend(threads, &rows[row..row + 1], &alone).map(|one| bits(&one, 0));
                    assert_eq!(found, expected, "{isa}, {case:?}, {threads} threads");
                }
            }
        }
    }
}

/// A row's bits depend neither on the number of threads nor on earlier uses of the scratch memory.
#[test]
fn threads_and_scratch_change_nothing() {
    let mut scratch = AttentionScratch::default();
    let heads = HeadLayout::new(8, 2, 64);
    let shapes = ForestShape::ALL.into_iter().filter(|shape| !matches!(shape, ForestShape::Many(_)));
    for shape in shapes.chain([ForestShape::Document(2)]) {
        let grown = grow(shape, PAGE_TOKENS, 11);
        let contexts = contexts(&grown.forest);
        for dtype in DTYPES {
            let case = Case::plain(heads, dtype);
            let kv = fill(&case, &contexts);
            let qkv = queries(&case, &grown.rows);
            let plan = tile_by_tile(&grown.forest, &case);
            // The clear loops use neither threads nor scratch memory.
            for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Portable) {
                let expected = attend(isa, &case, &qkv, &kv, &plan);
                for threads in [1, 3, 8] {
                    let cores = Cores { isa, team: Team::new(threads).into() };
                    let mut out = CpuBuffer::new(qkv.rows, case.heads.out_width());
                    let scoring = Scoring::scaled(case.scale());
                    tree_attention(&cores, &mut scratch, &mut out, &qkv, &kv, LAYER, &plan, scoring, None);
                    assert_eq!(out.data, expected.data, "{shape:?}, {isa}, {dtype:?}, {threads} threads");
                }
            }
        }
    }
}
