//! What `explain` says of a plan, held against the plan itself: the bytes of all segments are the plan's, and what it
//! calls shared has an item.

use crate::forms::{PLENTY, for_each_forest, latent_hints, star};
use crate::hints::hints;

use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::plan::{
    AttentionPlan, CopyRoom, CostModel, Explained, ExplainedForm, LatentForm, LatentFormChoice, LatentRates, PlanHints,
    Planner, Split, Treatment, WhySlower, WorkItem, explain,
};
use offshoot_kv::{Forest, ForestSegment};

fn for_each(mut visit: impl FnMut(&str, &Forest, &PlanHints, AttentionPlan, Vec<Explained>)) {
    for shape in ForestShape::ALL {
        let seeds = if matches!(shape, ForestShape::Many(_)) { 1 } else { 8 };
        for (seed, page_tokens) in (0..seeds).flat_map(|seed| [(seed, 16), (seed, 32), (seed, 64)]) {
            let grown = grow(shape, page_tokens, seed);
            for window in [None, Some(1), Some(50), Some(200)] {
                for tile in [1, 64] {
                    let hints = hints(tile, window);
                    let case = format!("{shape:?}, seed {seed}, page {page_tokens}, {hints:?}");
                    let (plan, explained) = explain(&grown.forest, &hints, &CopyRoom::NONE);
                    visit(&case, &grown.forest, &hints, plan, explained);
                }
            }
        }
    }
}

#[test]
fn it_explains_the_plan_that_is_made_and_all_of_its_bytes() {
    for_each(|case, forest, hints, plan, explained| {
        assert_eq!(plan, Planner::Balanced.plan(forest, hints), "{case}");
        let stats = plan.stats(hints);
        assert_eq!(explained.iter().map(|e| e.read_bytes).sum::<u64>(), stats.kv_bytes_read, "{case}");
        assert_eq!(explained.iter().map(|e| e.flat_bytes).sum::<u64>(), stats.flat_kv_bytes, "{case}");
    });
}

#[test]
fn the_shared_segments_are_those_with_an_item() {
    let mut counts = [0; 4];
    for_each(|case, forest, _, plan, explained| {
        // Every item holds rows of one segment, which may begin late where some of its own see nothing of it.
        let mut shared: usize = 0;
        for item in &plan.items {
            let own = forest.row_segments[item.rows.start as usize] as usize;
            if item.rows.end as usize > forest.own_rows(own).end {
                shared += 1;
                let is_shared = |(segment, e): (&ForestSegment, &Explained)| {
                    let holds = segment.rows.start <= item.rows.start && segment.rows.end == item.rows.end;
                    holds && matches!(e.treatment, Treatment::Shared { .. })
                };
                assert!(forest.segments.iter().zip(&explained).any(is_shared), "{case}: {item:?}");
            }
        }
        let mut items = 0;
        for (index, e) in explained.iter().enumerate() {
            match e.treatment {
                Treatment::Shared { items: of_it } => {
                    items += of_it;
                    counts[0] += 1;
                    let weighed = e.weighed.expect("what is shared was weighed");
                    assert!(weighed.shared_ns < weighed.folded_ns && e.rows > 1, "{case}: {e:?}");
                }
                Treatment::Folded => counts[1] += 1,
                Treatment::Own { items } => {
                    counts[2] += 1;
                    assert!(forest.is_leaf(index) && items > 0, "{case}: {e:?}");
                }
                Treatment::Unseen => {
                    counts[3] += 1;
                    assert_eq!(e.read_bytes, 0, "{case}: {e:?}");
                }
            }
        }
        assert_eq!(items, shared, "{case}: items of rows of several segments");
    });
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}

#[test]
fn all_items_of_a_node_are_priced_and_all_bytes_of_their_forms() {
    let (mut several, mut cut, mut absorbed) = (0, 0, 0);
    for_each_forest(4, |case, forest| {
        for (tile, room) in [(1, &PLENTY), (64, &PLENTY), (1, &CopyRoom { pages: [7, 5], ..PLENTY })] {
            // Long items are split, and copies cost next to nothing.
            let hints = latent_hints(tile);
            let latents = LatentRates { start: 0.0, expanding: 0.0, byte: 1e-6, ..hints.cost.latents };
            let split = Some(Split { parts: 8, tokens: 64 });
            let hints = PlanHints { cost: CostModel { split, latents, ..hints.cost }, ..hints };
            let (plan, explained) = explain(forest, &hints, room);
            let plans = Planner::Balanced.plan_forms(forest, &hints, LatentFormChoice::Cheapest, room);
            let read: u64 = explained.iter().map(|e| e.read_bytes).sum();
            assert_eq!(read, plans.stats(&hints).kv_bytes_read, "{case}, tile {tile}");

            let forms = || explained.iter().filter_map(|e| e.form);
            let copied: u64 = plans.copied.iter().map(tokens).sum();
            // Those of nodes; rows of a prompt that share a leaf may read copies, too.
            let of_nodes = forms().map(|form| form.copied).sum::<u64>();
            let has_prompt = (0..forest.segments.len()).any(|index| forest.has_prompt(index));
            assert!(of_nodes == copied || has_prompt && of_nodes < copied, "{case}, tile {tile}: {of_nodes}, {copied}");
            if copied == 0 {
                absorbed += 1;
                continue;
            }
            let shared = plan.items.iter().filter(|item| {
                let own = forest.row_segments[item.rows.start as usize] as usize;
                item.rows.end as usize > forest.own_rows(own).end
            });
            let shared: u64 = shared.map(|item| tokens_of(&plan, item)).sum();
            assert_eq!(forms().map(|form| form.tokens).sum::<u64>(), shared, "{case}, tile {tile}");
            several += explained.iter().filter(|e| matches!(e.treatment, Treatment::Shared { items: 2.. })).count();
            cut += forms().filter(|form| (1..form.tokens).contains(&form.copied)).count();
        }
    });
    assert!(several > 20 && cut > 5 && absorbed > 5, "{several} split, {cut} of two forms, {absorbed} absorbed");
}

/// Tokens that all items of a plan read.
fn tokens(plan: &AttentionPlan) -> u64 {
    plan.items.iter().map(|item| tokens_of(plan, item)).sum()
}

fn tokens_of(plan: &AttentionPlan, item: &WorkItem) -> u64 {
    let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
    spans.iter().map(|span| u64::from(span.tokens)).sum()
}

#[test]
fn why_a_slower_form_is_taken_is_said() {
    let form = |trunk: u32, leaves: u32, room: &CopyRoom<'_>| -> ExplainedForm {
        let (_, explained) = explain(&star(trunk, leaves, 0), &latent_hints(1), room);
        explained[0].form.expect("the trunk may be read from copies")
    };
    let few = CopyRoom { pages: [1027, 1], ..PLENTY };
    let read = form(32_768, 512, &few);
    assert_eq!((read.form, read.tokens, read.copied), (LatentForm::Kept, 32_768, 16 * 1027));
    assert_eq!(read.why_slower, Some(WhySlower::Pages));
    let read = form(32_768, 512, &PLENTY);
    assert_eq!((read.form, read.copied, read.why_slower), (LatentForm::Kept, 32_768, None));
    // A single page holds too little for an item's states to pay.
    let read = form(32_768, 512, &CopyRoom { pages: [1, 1], ..PLENTY });
    assert_eq!((read.form, read.why_slower), (LatentForm::Absorbed, Some(WhySlower::Pages)));
    // Pages for a part that saves less than it costs to read any copies.
    let read = form(32_768, 512, &CopyRoom { pages: [16, 1], ..PLENTY });
    assert_eq!((read.form, read.why_slower), (LatentForm::Absorbed, Some(WhySlower::Pages)));
    let read = form(64, 512, &PLENTY);
    assert_eq!((read.form, read.why_slower), (LatentForm::Absorbed, Some(WhySlower::Start)));

    // There is room for copies of the step alone.
    let read = form(32_768, 2048, &CopyRoom { pages: [1, usize::MAX - 1], ..PLENTY });
    assert_eq!((read.form, read.copied, read.why_slower), (LatentForm::Again, 32_768, Some(WhySlower::Pages)));

    // Under more and more rows: absorbed is faster, then copies do not pay, then they are read.
    let mut order: Vec<Option<WhySlower>> = Vec::new();
    for leaves in 2..512 {
        let read = form(100_000, leaves, &PLENTY);
        if read.form != LatentForm::Absorbed {
            break;
        }
        assert_eq!(read.why_slower.is_some(), read.copied_ns < read.absorbed_ns, "{leaves} rows: {read:?}");
        order.push(read.why_slower);
    }
    order.dedup();
    assert_eq!(order, [None, Some(WhySlower::Making)]);
}
