//! Plans of latent attention, in every form.

use crate::hints::hints;

use offshoot_core::ids::PageId;
use offshoot_fixtures::forests::{ForestShape, context, grow};
use offshoot_kv::plan::{
    AttentionPlan, CopyRoom, CostModel, FormPlans, LatentForm, LatentFormChoice, LatentHints, PlanFault, PlanHints,
    Planner, WorkItem,
};
use offshoot_kv::{CopyCache, CopyStore, Forest};

/// Heads of DeepSeek-V2-Lite.
pub fn latent_hints(tile: u32) -> PlanHints {
    let latents = LatentHints { nope: 128, rope: 64, value: 128, tile, copy_element_bytes: 2, has_copies: true };
    PlanHints { q_heads: 16, kv_heads: 1, head_dim: 576, latents: Some(latents), ..hints(tile, None) }
}

const CHOICES: [LatentFormChoice; 6] = [
    LatentFormChoice::Cheapest,
    LatentFormChoice::All(LatentForm::Absorbed),
    LatentFormChoice::All(LatentForm::Kept),
    LatentFormChoice::All(LatentForm::Again),
    LatentFormChoice::Random(3),
    LatentFormChoice::Random(4),
];

pub const PLENTY: CopyRoom<'static> = CopyRoom { pages: [usize::MAX - 1; CopyStore::COUNT], holds: &|_, _| false };

pub fn for_each_forest(seeds: u64, mut visit: impl FnMut(&str, &Forest)) {
    for shape in ForestShape::ALL {
        let seeds = if matches!(shape, ForestShape::Many(_)) { seeds.div_ceil(10) } else { seeds };
        for seed in 0..seeds {
            for page_tokens in [16, 64] {
                visit(&format!("{shape:?}, seed {seed}, page {page_tokens}"), &grow(shape, page_tokens, seed).forest);
            }
        }
    }
}

/// How often each position of a row is covered by the row's items.
fn covered(plan: &AttentionPlan, row: usize, counts: &mut [u32]) {
    let items = plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize;
    for &item in &plan.merge.values[items] {
        let item = &plan.items[item as usize];
        for span in &plan.spans[item.spans.start as usize..item.spans.end as usize] {
            for position in span.first_position..span.first_position + span.tokens {
                if position <= plan.row_positions[row] {
                    counts[position as usize] += 1;
                }
            }
        }
    }
}

fn all(plans: &FormPlans) -> [&AttentionPlan; 3] {
    let [kept, again] = &plans.copied;
    [&plans.absorbed, kept, again]
}

#[test]
fn the_plans_of_all_forms_cover_what_their_rows_see_exactly_once() {
    let (mut items, mut forests) = ([0; 3], 0);
    for_each_forest(2, |case, forest| {
        forests += 1;
        for (planner, tile) in Planner::ALL.into_iter().flat_map(|planner| [(planner, 1), (planner, 64)]) {
            for (number, choice) in CHOICES.into_iter().enumerate() {
                // Plenty of pages, or so few that items are cut: one for each choice, and the other in the next forest.
                let few = CopyRoom { pages: [7, 5], ..PLENTY };
                let room = if (forests + number) % 2 == 0 { &PLENTY } else { &few };
                let plans = planner.plan_forms(forest, &latent_hints(tile), choice, room);
                plans.check(forest).unwrap_or_else(|fault| panic!("{case}, {planner:?}, {choice:?}: {fault}"));
                for row in (0..forest.row_positions.len()).step_by(7) {
                    let mut counts = vec![0; context(forest, row).len()];
                    all(&plans).iter().for_each(|plan| covered(plan, row, &mut counts));
                    assert!(counts.iter().all(|&count| count == 1), "{case}, {planner:?}, {choice:?}: row {row}");
                }
                all(&plans).iter().zip(&mut items).for_each(|(plan, items)| *items += plan.items.len());
            }
        }
    });
    assert!(items.iter().all(|&items| items > 300), "items of each form: {items:?}");
}

#[test]
fn without_copies_the_plan_is_that_of_other_attention() {
    for_each_forest(3, |case, forest| {
        for planner in Planner::ALL {
            let hints = latent_hints(1);
            let absorbed = |hints: &PlanHints, choice, room: &CopyRoom<'_>| {
                let plans = planner.plan_forms(forest, hints, choice, room);
                assert!(plans.copied.iter().all(|plan| plan.items.is_empty()), "{case}");
                assert_eq!(plans.absorbed, planner.plan(forest, hints), "{case}");
            };
            absorbed(&hints, LatentFormChoice::All(LatentForm::Absorbed), &PLENTY);
            absorbed(&hints, LatentFormChoice::All(LatentForm::Again), &CopyRoom::NONE);
            let never = hints.latents.map(|latents| LatentHints { has_copies: false, ..latents });
            absorbed(&PlanHints { latents: never, ..hints }, LatentFormChoice::All(LatentForm::Again), &PLENTY);
            let other_tile = hints.latents.map(|latents| LatentHints { tile: 64, ..latents });
            absorbed(&PlanHints { latents: other_tile, ..hints }, LatentFormChoice::All(LatentForm::Again), &PLENTY);
        }
    });
}

/// One row at the end of each of so many leaves of 100 tokens, beneath a trunk; or a prompt of so many rows.
pub fn star(trunk: u32, leaves: u32, prompt_rows: u32) -> Forest {
    crate::plans::forest(&match prompt_rows {
        0 => [(None, trunk, 0)].into_iter().chain((0..leaves).map(|_| (Some(0), 100, 1))).collect::<Vec<_>>(),
        rows => vec![(None, trunk, rows)],
    })
}

#[test]
fn few_rows_are_absorbed_and_many_read_copies() {
    let form = |forest: &Forest| {
        let plans = Planner::Balanced.plan_forms(forest, &latent_hints(1), LatentFormChoice::Cheapest, &PLENTY);
        plans.copied.map(|plan| plan.items.len())
    };
    assert_eq!(form(&star(32_768, 8, 0)), [0, 0]);
    assert_eq!(form(&star(32_768, 512, 0)), [1, 0]);
    // A prompt's rows: the copies hold their own latents, too.
    assert_eq!(form(&star(32_768, 0, 16)), [0, 0]);
    assert_eq!(form(&star(32_768, 0, 2048)), [0, 1]);
    // What is shared is too short to be worth a launch.
    assert_eq!(form(&star(64, 512, 0)), [0, 0]);
}

#[test]
fn prompts_read_one_copy_of_what_they_share() {
    let rows = |trunk_rows: u32, leaf: u32| {
        let leaves = (0..10).map(|_| (Some(0), leaf, leaf));
        let forest = crate::plans::forest(&[(None, 2000, trunk_rows)].into_iter().chain(leaves).collect::<Vec<_>>());
        let plans = Planner::Balanced.plan_forms(&forest, &latent_hints(1), LatentFormChoice::Cheapest, &PLENTY);
        let rows = |plan: &AttentionPlan| plan.items.iter().map(|item| item.rows.len()).collect::<Vec<_>>();
        all(&plans).map(rows)
    };
    // The step computes the trunk, too: its copy is made in the step. Short ends are absorbed.
    assert_eq!(rows(2000, 200), [vec![200; 10], vec![], vec![4000]]);
    assert_eq!(rows(0, 200), [vec![200; 10], vec![2000], vec![]]);
    // Long ends are worth copies of their own, by the tokens that their rows see: half of them.
    assert_eq!(rows(0, 2000), [vec![], vec![20_000], vec![2000; 10]]);
}

#[test]
fn few_rows_below_each_trunk_read_no_copy_that_prompts_have_left() {
    // As a job's samples after its prompts: 16 trunks, 16 rows each.
    let group = |trunk: u32| [vec![(None, 2000, 0)], vec![(Some(17 * trunk), 250, 1); 16]].concat();
    let forest = crate::plans::forest(&(0..16).flat_map(group).collect::<Vec<_>>());
    let held = CopyRoom { holds: &|_, _| true, ..PLENTY };
    let plans = Planner::Balanced.plan_forms(&forest, &latent_hints(1), LatentFormChoice::Cheapest, &held);
    assert_eq!(all(&plans).map(|plan| plan.items.len()), [16 * 17, 0, 0]);
}

#[test]
fn what_is_shared_for_copies_alone_is_not_shared_without_them() {
    let hints = PlanHints { q_heads: 128, ..latent_hints(1) };
    let never = hints.latents.map(|latents| LatentHints { has_copies: false, ..latents });
    let mut differ = 0;
    for (trunk, rows) in [512, 1024, 2048].into_iter().flat_map(|trunk| [16, 32, 64, 96].map(|rows| (trunk, rows))) {
        let forest = star(trunk, rows, 0);
        let plans = Planner::Balanced.plan_forms(&forest, &hints, LatentFormChoice::Cheapest, &PLENTY);
        if plans.copied.iter().all(|plan| plan.items.is_empty()) {
            let expected = Planner::Balanced.plan(&forest, &PlanHints { latents: never, ..hints });
            assert_eq!(plans.absorbed, expected, "{rows} rows below {trunk} tokens");
            differ += u32::from(Planner::Balanced.plan(&forest, &hints) != expected);
        }
    }
    assert!(differ > 0, "no tree is shared for the sake of copies that are not made");
}

#[test]
fn a_copy_for_a_prompt_pays_in_its_step() {
    // As many rows decode beneath a trunk as a prompt has behind it.
    let kept = |prompt: bool, rows: u32| {
        let leaves = if prompt { vec![(Some(0), rows, rows)] } else { vec![(Some(0), 1, 1); rows as usize] };
        let forest = crate::plans::forest(&[vec![(None, 10_000, 0)], leaves].concat());
        let plans = Planner::Tree.plan_forms(&forest, &latent_hints(1), LatentFormChoice::Cheapest, &PLENTY);
        !plans.copied[CopyStore::Kept as usize].items.is_empty()
    };
    let least = |prompt| (2..2048).find(|&rows| kept(prompt, rows)).expect("many rows read copies");
    let (decode, prompt) = (least(false), least(true));
    assert!(2 * decode < prompt, "{decode} rows that decode, {prompt} of a prompt");
}

#[test]
fn copies_that_are_there_are_read_under_fewer_rows() {
    let held = CopyRoom { holds: &|_, _| true, ..PLENTY };
    let least = |room: &CopyRoom<'_>| {
        let copied = |rows: &u32| {
            let forest = star(100_000, *rows, 0);
            let plans = Planner::Balanced.plan_forms(&forest, &latent_hints(1), LatentFormChoice::Cheapest, room);
            !plans.copied[CopyStore::Kept as usize].items.is_empty()
        };
        (2..512).find(copied).expect("many rows read copies")
    };
    let (new, held) = (least(&PLENTY), least(&held));
    assert!(held < new, "{held} rows read a copy that is there, {new} one that is not");
}

#[test]
fn no_more_pages_are_copied_than_there_are() {
    for_each_forest(4, |case, forest| {
        for choice in CHOICES {
            for pages in [0, 1, 3, 40] {
                let room = CopyRoom { pages: [pages; CopyStore::COUNT], holds: &|_, _| false };
                let plans = Planner::Tree.plan_forms(forest, &latent_hints(1), choice, &room);
                plans.check(forest).unwrap_or_else(|fault| panic!("{case}, {choice:?}: {fault}"));
                for plan in &plans.copied {
                    let mut copied: Vec<PageId> = plan.pages.clone();
                    copied.sort_unstable();
                    copied.dedup();
                    assert!(copied.len() <= pages, "{case}, {choice:?}: {} of {pages} pages", copied.len());
                }
            }
        }
    });
}

/// The positions that the items of a plan read.
fn read(plan: &AttentionPlan) -> Vec<std::ops::Range<u32>> {
    let of_item = |item: &WorkItem| {
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let last = spans.last().expect("an item has spans");
        spans[0].first_position..last.first_position + last.tokens
    };
    plan.items.iter().map(of_item).collect()
}

#[test]
fn what_no_pages_are_left_for_is_read_as_latents() {
    let forest = star(32_768, 512, 0);
    let only = |range| vec![range];
    let room = |pages| CopyRoom { pages: [pages, 1], ..PLENTY };
    for (choice, tile) in [
        (LatentFormChoice::Cheapest, 1),
        (LatentFormChoice::All(LatentForm::Kept), 1),
        (LatentFormChoice::Cheapest, 64),
    ] {
        let plans = |pages| {
            let plans = Planner::Tree.plan_forms(&forest, &latent_hints(tile), choice, &room(pages));
            all(&plans).map(read)
        };
        let whole = plans(2048);
        assert_eq!((&whole[1], whole[0].len()), (&only(0..32_768), 512), "{choice:?}");
        // One page less than a whole tile.
        let cut = plans(1027);
        let end = if tile == 1 { 16 * 1027 } else { 16 * 1024 };
        assert_eq!((&cut[1], &cut[0][0], cut[0].len()), (&only(0..end), &(end..32_768), 513), "{choice:?}");
    }
    // Rows of a prompt before the cut see nothing behind it.
    let prompt = star(1000, 0, 400);
    let room = CopyRoom { pages: [1, 50], ..PLENTY };
    let plans = Planner::Tree.plan_forms(&prompt, &latent_hints(1), LatentFormChoice::All(LatentForm::Again), &room);
    let again = &plans.copied[CopyStore::Again as usize];
    assert_eq!((read(again), read(&plans.absorbed)), (only(0..800), only(800..1000)));
    assert_eq!((again.items[0].rows.clone(), plans.absorbed.items[0].rows.clone()), (0..400, 200..400));
}

#[test]
fn a_plan_with_copies_advances() {
    let forest = star(1000, 40, 0);
    let mut plans =
        Planner::Tree.plan_forms(&forest, &latent_hints(1), LatentFormChoice::All(LatentForm::Kept), &PLENTY);
    assert_eq!(plans.copied[CopyStore::Kept as usize].items.len(), 1);
    assert!(plans.absorbed.can_advance());
    plans.advance(&[]);
    let mut next = forest.clone();
    next.segments.iter_mut().skip(1).for_each(|leaf| leaf.tokens += 1);
    next.row_positions.iter_mut().for_each(|position| *position += 1);
    plans.check(&next).unwrap();
}

#[test]
fn a_copy_that_is_kept_holds_nothing_of_its_own_step() {
    // A prompt with rows above its continuations.
    let forest = crate::plans::forest(&[(None, 70, 10), (Some(0), 2, 2), (Some(0), 1, 1)]);
    let plans = |form| Planner::Tree.plan_forms(&forest, &latent_hints(1), LatentFormChoice::All(form), &PLENTY);
    assert!(plans(LatentForm::Kept).copied[CopyStore::Kept as usize].items.is_empty());
    let FormPlans { absorbed, copied: [kept, again] } = plans(LatentForm::Again);
    assert!(!again.items.is_empty());
    let swapped = FormPlans { absorbed, copied: [again, kept] };
    assert_eq!(swapped.check(&forest), Err(PlanFault::NotComputed { item: 0, segment: 0 }));
}

#[test]
fn stats_count_what_each_form_reads() {
    let forest = star(1000, 40, 0);
    let hints = latent_hints(1);
    let stats = |form| Planner::Tree.plan_forms(&forest, &hints, LatentFormChoice::All(form), &PLENTY).stats(&hints);
    let (absorbed, kept) = (stats(LatentForm::Absorbed), stats(LatentForm::Kept));
    assert_eq!(absorbed.kv_bytes_read, 5000 * 576 * 2);
    assert_eq!(kept.kv_bytes_read, 4000 * 576 * 2 + 1000 * 16 * 320 * 2);
    assert_eq!((absorbed.items, absorbed.partials, absorbed.row_tokens), (kept.items, kept.partials, kept.row_tokens));
    assert_eq!(absorbed.flat_kv_bytes, kept.flat_kv_bytes);
}

#[test]
fn each_cost_model_has_a_break_even_that_can_be() {
    for (cost, rows) in [(CostModel::CPU, 2..16), (CostModel::CUDA, 16..128)] {
        let hints = PlanHints { cost, ..latent_hints(1) };
        let held = CopyRoom { holds: &|_, _| true, ..PLENTY };
        let copied = |leaves: &u32| {
            let plans = Planner::Tree.plan_forms(&star(100_000, *leaves, 0), &hints, LatentFormChoice::Cheapest, &held);
            !plans.copied[CopyStore::Kept as usize].items.is_empty()
        };
        let least = (2..512).find(copied).expect("many rows read copies");
        assert!(rows.contains(&least), "{least} rows read copies");
    }
}

#[test]
fn pages_of_copies_are_numbered_and_expanded_once() {
    let forest = star(1000, 40, 0);
    let plans = |form, cache: &CopyCache| {
        cache.with_room(
            |_| 0,
            |room| Planner::Tree.plan_forms(&forest, &latent_hints(1), LatentFormChoice::All(form), room),
        )
    };
    let mut cache = CopyCache::new([100, 80]);
    for expanded in [1000, 0] {
        let copied = cache.assign(plans(LatentForm::Kept, &cache).copied, |_| 0);
        let [kept, again] = copied.expansions;
        let slots = kept.iter().map(|expansion| expansion.slots.len()).sum::<usize>();
        assert_eq!((slots, again.len()), (expanded, 0), "copies are kept");
        assert!(copied.plans[0].pages.iter().all(|page| page.ix() < 100));
    }
    // Another stamp: the pages hold something else now.
    let copied = cache.assign(plans(LatentForm::Kept, &cache).copied, |_| 1);
    assert_eq!(copied.expansions[0].len(), 1000usize.div_ceil(16));
    cache.undo();
    assert_eq!(cache.held(), 0, "what was not computed is forgotten");
    for _ in 0..2 {
        let copied = cache.assign(plans(LatentForm::Again, &cache).copied, |_| 0);
        let [kept, again] = copied.expansions;
        assert_eq!((kept.len(), again.len()), (0, 1000usize.div_ceil(16)), "they are made in each step");
    }
}
