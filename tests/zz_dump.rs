mod common;
use common::forests::{Shape, grow};
use offshoot::backend::HeadLayout;
use offshoot::backend::cuda::device_plan::{DevicePlan, Tiling};
use offshoot::ids::{PageId, SegmentId, TokenId};
use offshoot::kv::{PagePool, PrefixTree, StepRow};
use offshoot::plan::*;
use std::collections::BTreeMap;

const DIR: &str = "/work/main/.dev/attention/";
fn bytes(w: &[u32]) -> Vec<u8> {
    w.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn dump(name: &str, plan: &AttentionPlan, heads: HeadLayout, dtype: &str, rows_checked: usize) {
    let d = heads.head_dim;
    let wide = if dtype == "f32" || d % 16 != 0 {
        None
    } else if d <= 128 {
        Some(128)
    } else {
        Some(64)
    };
    let tiling = Tiling { narrow_rows: 16, wide_rows: wide, blocks: 264 };
    let rows = plan.row_positions.len();
    let padded = rows + 2;
    let t = std::time::Instant::now();
    let words = DevicePlan::build(plan, heads, padded, &tiling);
    let us = t.elapsed().as_micros();
    std::fs::write(format!("{DIR}{name}.words"), bytes(words.words())).unwrap();
    std::fs::write(format!("{DIR}{name}.pos"), bytes(&plan.row_positions)).unwrap();
    let step = rows.div_ceil(rows_checked).max(1);
    let mut ctx: BTreeMap<usize, BTreeMap<u32, u32>> = (0..rows).step_by(step).map(|r| (r, BTreeMap::new())).collect();
    for item in &plan.items {
        for (&row, ctx) in ctx.range_mut(item.rows.start as usize..item.rows.end as usize) {
            for span in &plan.spans[item.spans.start as usize..item.spans.end as usize] {
                for p in span.first_position..span.first_position + span.tokens {
                    let page = span.pages.start + p / 32 - span.first_position / 32;
                    let at = plan.row_positions[row];
                    if p <= at && plan.window.is_none_or(|w| at - p < w) {
                        ctx.insert(p, plan.pages[page as usize].0 * 32 + p % 32);
                    }
                }
            }
        }
    }
    let mut flat = vec![];
    for (row, c) in &ctx {
        flat.push(*row as u32);
        flat.push(c.len() as u32);
        flat.extend(c.values());
    }
    std::fs::write(format!("{DIR}{name}.ctx"), bytes(&flat)).unwrap();
    let pages = plan.pages.iter().map(|p| p.0).max().unwrap() + 1;
    let kv: u64 = plan
        .items
        .iter()
        .flat_map(|i| &plan.spans[i.spans.start as usize..i.spans.end as usize])
        .map(|s| s.tokens as u64)
        .sum();
    let mul: u64 = plan
        .items
        .iter()
        .map(|i| {
            i.rows.len() as u64
                * plan.spans[i.spans.start as usize..i.spans.end as usize].iter().map(|s| s.tokens as u64).sum::<u64>()
        })
        .sum();
    println!(
        "DUMP {{\"name\":\"{name}\",\"rows\":{rows},\"padded\":{padded},\"slots\":{},\"pages\":{pages},\"q\":{},\"kv\":{},\"d\":{d},\"dtype\":\"{dtype}\",\"kv_tokens\":{kv},\"row_tokens\":{mul},\"wide\":{},\"narrow\":{},\"build_us\":{us}}}",
        words.partial_slots(),
        heads.q_heads,
        heads.kv_heads,
        words.words()[0],
        words.words()[1]
    );
}

fn hints(h: HeadLayout, window: Option<u32>) -> PlanHints {
    PlanHints {
        tile: 1,
        window,
        q_heads: h.q_heads as u32,
        kv_heads: h.kv_heads as u32,
        head_dim: h.head_dim as u32,
        kv_element_bytes: 2,
    }
}

fn levels(levels: &[(u32, usize)]) -> (PrefixTree, Vec<StepRow>) {
    let (mut tree, mut pool) = (PrefixTree::new(32), PagePool::new(60_000));
    let text = |n: u32| -> Vec<TokenId> { (0..n).map(TokenId).collect() };
    let mut ends: Vec<SegmentId> = vec![];
    let mut end = 0;
    for (i, &(tokens, n)) in levels.iter().enumerate() {
        end += tokens;
        if i == 0 {
            let e = tree.admit(&mut pool, &text(tokens)).unwrap();
            tree.mark_computed(e, tokens - (levels.len() == 1) as u32);
            ends = vec![e];
            assert_eq!(n, 1);
            continue;
        }
        let mut next = vec![];
        for e in ends {
            for _ in 0..n {
                let b = tree.fork(e);
                tree.append(&mut pool, b, &text(tokens)).unwrap();
                tree.mark_computed(b, end - (i + 1 == levels.len()) as u32);
                next.push(b);
            }
        }
        ends = next;
    }
    let mut rows: Vec<_> = ends.iter().map(|&segment| StepRow { segment, position: end - 1 }).collect();
    tree.depth_first(&mut rows);
    (tree, rows)
}

#[test]
fn dump_all() {
    let h = |q_heads, kv_heads, head_dim| HeadLayout { q_heads, kv_heads, head_dim };
    let layouts = [
        h(8, 2, 128),
        h(4, 4, 64),
        h(7, 1, 80),
        h(8, 8, 96),
        h(16, 2, 128),
        h(4, 2, 256),
        h(9, 3, 32),
        h(2, 1, 16),
        h(6, 2, 112),
        h(40, 1, 64),
    ];
    let dtypes = ["bf16", "f16", "bf16", "f16", "f16", "bf16", "bf16", "f16", "bf16", "f16"];
    let mut n = 0;
    for shape in
        [Shape::Ragged, Shape::Star, Shape::MidPageForks, Shape::DeepChain, Shape::EmptyLeaves, Shape::OneTokenSegments]
    {
        for planner in [Planner::Tree, Planner::Balanced, Planner::Flat] {
            let grown = grow(shape, 32, n as u64 + 5);
            let heads = layouts[n % 10];
            let window = [None, None, Some(33), Some(200)][n % 4];
            let plan = planner.plan(&grown.forest, &hints(heads, window));
            dump(&format!("r{n}"), &plan, heads, dtypes[n % 10], 10000);
            n += 1;
        }
    }
    for (heads, dtype) in [(h(8, 2, 64), "f32"), (h(4, 4, 18), "bf16"), (h(20, 1, 128), "f32")] {
        let grown = grow(Shape::Ragged, 32, n as u64 + 50);
        let plan = Planner::Tree.plan(&grown.forest, &hints(heads, None));
        dump(&format!("r{n}"), &plan, heads, dtype, 10000);
        n += 1;
    }
    let gqa = h(32, 8, 128);
    let item = |rows: u32,
                pages: std::ops::Range<u32>,
                tokens: u32,
                items: &mut Vec<WorkItem>,
                spans: &mut Vec<KvSpan>,
                first_row: u32| {
        spans.push(KvSpan { pages, first_position: 0, tokens });
        items.push(WorkItem { rows: first_row..first_row + rows, spans: spans.len() as u32 - 1..spans.len() as u32 });
    };
    let (mut items, mut spans) = (vec![], vec![]);
    item(2560, 0..75, 2400, &mut items, &mut spans, 0);
    let base = AttentionPlan {
        page_tokens: 32,
        tile: 1,
        window: None,
        items: vec![],
        spans: vec![],
        pages: vec![],
        row_positions: vec![],
        merge: Csr::default(),
        growing: vec![],
        flat_kv_tokens: 0,
    };
    dump(
        "wide",
        &AttentionPlan {
            items,
            spans,
            pages: (0..75).map(PageId).collect(),
            row_positions: vec![2399; 2560],
            ..base.clone()
        },
        gqa,
        "bf16",
        8,
    );
    let (mut items, mut spans) = (vec![], vec![]);
    for r in 0..2560 {
        item(1, r * 8..r * 8 + 8, 256, &mut items, &mut spans, r);
    }
    dump(
        "narrow",
        &AttentionPlan {
            items,
            spans,
            pages: (0..2560 * 8).map(PageId).collect(),
            row_positions: vec![255; 2560],
            ..base.clone()
        },
        gqa,
        "bf16",
        8,
    );
    for (name, heads, dtype, lv) in [
        ("apps3_gqa", gqa, "bf16", vec![(2400, 1), (500, 20), (256, 128)]),
        ("apps3_gqa_g64", gqa, "bf16", vec![(2400, 1), (500, 20), (64, 128)]),
        ("chunk_1024_512", h(32, 32, 128), "f16", vec![(512, 1), (512, 32)]),
        ("one_8k", gqa, "bf16", vec![(8192, 1)]),
        ("hydragen_1024", h(8, 1, 128), "bf16", vec![(2048, 1), (64, 1024)]),
    ] {
        let (tree, rows) = levels(&lv);
        let plan = Planner::Tree.plan(&tree.forest(&rows), &hints(heads, None));
        dump(name, &plan, heads, dtype, 8);
    }
}
