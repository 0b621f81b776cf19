//! What a kernel must hold: results by the definition, alone and by members of a group, and bits that depend on a row
//! alone.

use std::collections::BTreeMap;

use offshoot_backend::{HeadLayout, Scoring};
use offshoot_cases::dense::{dense, dense_lse, relative_error};
use offshoot_cases::setting::Setting;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{PlanWord, TILE_WORDS, Tiling};
use offshoot_cuda::compile::elements::PageLayout;
use offshoot_cuda::compile::units::{self, MemberStates};
use offshoot_fixtures::forests::{ForestShape, GrownForest, context, grow};
use offshoot_kv::plan::{Member, Planner};
use offshoot_kv::{Forest, PagePool, PrefixTree, StepRow};

use super::kernel::{Kernel, Memory, PADDED, Step, attend, hints, made_earlier};
use super::memory::{bits, element_bytes, kv, kv_where, no_kv, number_of, place, seen_slots, value};
use super::{OPENED_TILE, PAGE, TILE};
use crate::emulated_exchanges::Ranks as Exchange;
use crate::emulator::{Emulated, Schedule, When};
use crate::full::some_or_full;

/// Members of a group have together what one alone has: each attends to its slots of all pages, and they merge what
/// they found.
pub(super) fn check_members(kernel: &Kernel, setting: &Setting, shape: ForestShape, seed: u64, of: usize) {
    let grown = grow(shape, (of * PAGE) as u32, seed);
    let exact = exact(setting, &grown);
    let names: Vec<usize> = (0..grown.rows.len()).collect();
    let (q_heads, value_dim) = (setting.heads.q_heads, setting.heads.value_dim());
    let tiling = kernel.tiling(setting, 2);
    let states = MemberStates { ranks: of, members: of, element: setting.dtype, value_dim, is_permuted: true };
    let Some(merge) = Emulated::compile(&units::merge_members(states), "merge_members") else { return };
    for (planner, how) in Planner::ALL.into_iter().zip(schedules(seed).into_iter().cycle()) {
        let plan = planner.plan(&grown.forest, &hints(setting, 1));
        let rows_padded = names.len() + PADDED;
        let members = (0..of as u32).map(|number| Member { number, of: of as u32, page_tokens: PAGE as u32 });
        let found: Vec<Memory> = members
            .map(|member| {
                let own = |slot| member.slot(slot);
                let kv = kv_where(setting, kernel.layout, &grown, own);
                let step = Step { setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
                let mut words = DevicePlan::of_member(member);
                words.rebuild(&plan, setting.heads, rows_padded, &tiling);
                let mut memory = Memory::of(&step, &made_earlier(words.words()), words.partial_slots());
                memory.launch(kernel, setting, &tiling, how, std::ptr::null_mut(), std::ptr::null_mut(), 0);
                memory
            })
            .collect();
        let out = merged(&merge, setting, found, rows_padded);
        let own = q_heads / of * value_dim;
        let row = |row: usize| out.iter().flat_map(move |out| &out[row * own..][..own]).copied();
        let real: Vec<u16> = (0..names.len()).flat_map(row).collect();
        let case = format!("{of} members, {shape:?}, seed {seed}, {setting}, {planner}");
        assert_exact(setting, &real, &exact, &case);
        assert!((names.len()..rows_padded).flat_map(row).all(|bits| bits == 0), "{case}: padded rows are zeros");
    }
}

/// What members merge what they found to: each has the results of its heads, in pieces of some units.
pub(super) fn merged(merge: &Emulated, setting: &Setting, mut found: Vec<Memory>, rows: usize) -> Vec<Vec<u16>> {
    const UNITS: usize = 14;
    let (q_heads, value_dim) = (setting.heads.q_heads, setting.heads.value_dim());
    let members = found.len();
    let units = rows * q_heads / members;
    let mut exchange = Exchange::new(members, 0);
    let mut out = vec![vec![bits(setting.dtype, f32::NAN); units * value_dim]; members];
    for first in (0..units).step_by(UNITS) {
        let mut own: Vec<Vec<u64>> = (found.iter_mut().zip(&mut out).enumerate())
            .map(|(number, (found, out))| {
                // The first member alone is given sinks.
                let sinks = found.sinks.as_ref().filter(|_| number == 0);
                let sinks = sinks.map_or(0, |sinks| sinks.as_ptr() as u64);
                let found = [found.words.at() as u64, found.partials.at() as u64, sinks, q_heads as u64];
                let piece = [first as u64, UNITS.min(units - first) as u64, 3];
                [out.as_mut_ptr() as u64].into_iter().chain(found).chain(piece).collect()
            })
            .collect();
        exchange.launch(merge, 4, first as u32, &mut own, None);
    }
    out
}

/// All schedules that a kernel must serve.
pub(super) fn schedules(seed: u64) -> [Schedule; 3] {
    let seed = u32::try_from(seed).expect("a small seed");
    let schedule = |copies, products| Schedule { copies, products, seed, held: None };
    [schedule(When::AtOnce, When::AtOnce), schedule(When::AtOnce, When::Late), schedule(When::Late, When::Late)]
}

pub(super) fn assert_exact(setting: &Setting, found: &[u16], exact: &[Vec<f64>], case: &str) {
    let out: Vec<f32> = found.iter().map(|&bits| value(setting.dtype, bits)).collect();
    let error = relative_error(out.chunks_exact(setting.heads.out_width()).zip(exact.iter().map(Vec::as_slice)));
    assert!(error <= setting.tolerance(), "{case}: {error:.2e} off, {:.2e} allowed", setting.tolerance());
}

/// The results of a forest's rows by the definition.
pub(super) fn exact(setting: &Setting, grown: &GrownForest) -> Vec<Vec<f64>> {
    exact_of(setting, grown, dense)
}

/// What a definition says of a forest's rows.
pub(super) fn exact_of(setting: &Setting, grown: &GrownForest, dense: Definition) -> Vec<Vec<f64>> {
    let stored = |(number, slot)| (number, setting.kv(slot).collect());
    let stored: BTreeMap<(u32, u32), Vec<f32>> = seen_slots(grown).into_iter().map(stored).collect();
    let sinks = setting.sinks();
    let of_row = |row: usize| {
        let context = context(&grown.forest, row);
        let hidden = setting.window.map_or(0, |window| context.len().saturating_sub(window as usize));
        let seen: Vec<&[f32]> = context[hidden..].iter().map(|&slot| stored[&number_of(slot)].as_slice()).collect();
        let query: Vec<f32> = setting.query(row, context.len() - 1).collect();
        dense(setting.heads, &setting.scoring(sinks.as_ref()), &query, &seen)
    };
    (0..grown.rows.len()).map(of_row).collect()
}

pub(super) type Definition = fn(HeadLayout, &Scoring<'_, Vec<f32>>, &[f32], &[&[f32]]) -> Vec<f64>;

/// Room for the log-sum-exps of a step.
pub(super) fn lse_of(step: &Step<'_>) -> Vec<f32> {
    vec![f32::NAN; (step.names.len() + PADDED) * step.setting.heads.q_heads]
}

/// Log-sum-exps are those of the definition; those of a blind row, which sees nothing, are its sinks alone.
pub(super) fn assert_lse(setting: &Setting, found: &[f32], exact: &[Vec<f64>], blind: Option<usize>, case: &str) {
    let heads = setting.heads.q_heads;
    let nothing = vec![f64::NEG_INFINITY; heads];
    let of_blind = setting.sinks().map(|sinks| sinks.into_iter().map(f64::from).collect());
    for (row, found) in found.chunks_exact(heads).enumerate() {
        let expected = match exact.get(row) {
            Some(_) if blind == Some(row) => of_blind.as_ref().unwrap_or(&nothing),
            Some(exact) => exact,
            None => &nothing,
        };
        for (&found, &expected) in found.iter().zip(expected) {
            let differs = (f64::from(found) - expected).abs();
            let is_close = f64::from(found) == expected || differs <= 1e-4 * (1.0 + expected.abs());
            // Merges of padded rows have their sinks, or not: nobody reads them.
            let is_any = row >= exact.len() && found.is_finite();
            assert!(is_close || is_any, "{case}, row {row}: {found} instead of {expected}");
        }
    }
}

/// A row of which the plan has no item sees nothing: its result is zeros.
pub(super) fn check_blind(kernel: &Kernel, step: &Step<'_>, exact: &[Vec<f64>], tiling: &Tiling, case: &str) {
    let blind = step.names.len() / 2;
    let mut fewer = step.plan.clone();
    fewer.items.retain(|item| item.rows != (blind as u32..blind as u32 + 1));
    fewer.growing.clear();
    if fewer.items.len() == step.plan.items.len() {
        return;
    }
    let step = Step { plan: &fewer, ..*step };
    let mut lse = lse_of(&step);
    let found = attend(kernel, &step, tiling, &schedules(0)[..1], Some(&mut lse)).swap_remove(0);
    let width = step.setting.heads.out_width();
    assert!(
        found[blind * width..][..width].iter().all(|&bits| bits == 0),
        "{case}: results of a row that sees nothing"
    );
    assert_lse(step.setting, &lse, exact, Some(blind), case);
}

pub(super) fn check(kernel: &Kernel, setting: &Setting, shape: ForestShape, seed: u64, blocks: usize) {
    let grown = grow(shape, 32, seed);
    let (kv, exact) = (kv(setting, kernel.layout, &grown), exact(setting, &grown));
    let exact_lse = exact_of(setting, &grown, dense_lse);
    let names: Vec<usize> = (0..grown.rows.len()).collect();
    let tiling = kernel.tiling(setting, blocks);
    for (number, planner) in Planner::ALL.into_iter().enumerate() {
        let case = format!("{shape:?}, seed {seed}, {setting}, {planner}, {blocks} blocks");
        let plan = planner.plan(&grown.forest, &hints(setting, 1));
        let step = Step { setting, plan: &plan, names: &names, kv: &kv, narrow_heads: None };
        // Each planner meets each of the two late schedules with every other seed.
        let all = schedules(seed);
        let [at_once, late @ ..] = all;
        let two = [late[(number + seed as usize) % 2], at_once];
        // One planner for each seed: `Balanced` for seed 0, and for seed 1, of several key heads, `Tree`.
        let is_tried_whole = number == Planner::ALL.len() - 1 - seed as usize % Planner::ALL.len();
        let some = if is_tried_whole { &all[..] } else { &two[..1] };
        // Log-sum-exps of rows with several states, and with one, in a launch whose results are compared as well.
        let mut lse = (is_tried_whole || planner == Planner::Flat).then(|| lse_of(&step));
        let found = attend(kernel, &step, &tiling, some_or_full(some, &two), lse.as_deref_mut());
        assert!(found.iter().all(|run| *run == found[0]), "{case}: other bits when asynchronous work is done later");
        assert_exact(setting, &found[0], &exact, &case);
        if let Some(lse) = &lse {
            assert_lse(setting, lse, &exact_lse, None, &case);
        }
        if planner == Planner::Flat {
            check_blind(kernel, &step, &exact_lse, &tiling, &case);
        }
        let kv_heads = u32::try_from(setting.heads.kv_heads).expect("few heads");
        if !some_or_full(is_tried_whole, true) {
            continue;
        }
        // One key head leaves no choice.
        for heads in (1..=kv_heads).filter(|heads| kv_heads > 1 && kv_heads.is_multiple_of(*heads)) {
            let step = Step { narrow_heads: Some(heads), ..step };
            let found_by = attend(kernel, &step, &tiling, &schedules(seed)[2..], None);
            assert!(found_by[0] == found[0], "{case}: other bits where a warp takes {heads} key heads");
        }
    }
}

/// The context of a row of a forest in one segment with pages of its own: its step, and those pages as `kv` lays them
/// out.
pub(super) fn laid_anew(
    setting: &Setting,
    layout: PageLayout,
    grown: &GrownForest,
    row: usize,
    kv: &[u8],
) -> (Forest, Vec<u8>) {
    let from = context(&grown.forest, row);
    let text: Vec<TokenId> = (0..).map(TokenId).take(from.len()).collect();
    let (mut tree, mut pool) = (PrefixTree::new(PAGE as u32), PagePool::new(from.len().div_ceil(PAGE)));
    let segment = tree.admit(&mut pool, &text).expect("a page for each of its pages");
    let position = tree.end(segment) - 1;
    tree.mark_computed(segment, position);
    let forest = tree.forest(&[StepRow { segment, position }]);
    let (mut laid, bytes) = (no_kv(setting, from.len().div_ceil(PAGE)), element_bytes(setting));
    for (&from, &to) in from.iter().zip(&context(&forest, 0)) {
        for element in 0..setting.heads.stored_width() {
            let stored = &kv[place(setting, layout, from, element)..][..bytes];
            laid[place(setting, layout, to, element)..][..bytes].copy_from_slice(stored);
        }
    }
    (forest, laid)
}

/// Each row of a forest has the same bits by every planner, alone, among some of the others, and wherever its context
/// lies: with openings, where the kernel has them, and without. Returns the largest openings.
pub(super) fn check_deterministic(
    kernel: &Kernel,
    setting: &Setting,
    shape: ForestShape,
    seed: u64,
    blocks: usize,
) -> LargestOpenings {
    let grown = grow(shape, 32, seed);
    let (kv, exact) = (kv(setting, kernel.layout, &grown), exact(setting, &grown));
    let tiling = kernel.tiling(setting, blocks);
    let openings = tiling.openings_spare.map(|_| 0);
    let tiling = Tiling { openings_spare: openings, ..tiling };
    let tile = if openings.is_some() { OPENED_TILE } else { TILE };
    let mut largest = LargestOpenings::default();
    let mut attend = |names: &[usize], planner: Planner, runs: &[Schedule]| {
        let rows: Vec<StepRow> = names.iter().map(|&row| grown.rows[row]).collect();
        let plan = planner.plan(&grown.tree.forest(&rows), &hints(setting, tile));
        largest.see(DevicePlan::build(&plan, setting.heads, rows.len(), &tiling).words());
        attend(kernel, &Step { setting, plan: &plan, names, kv: &kv, narrow_heads: None }, &tiling, runs, None)
    };
    let case = format!("{shape:?}, seed {seed}, {setting}, {blocks} blocks");
    let all: Vec<usize> = (0..exact.len()).collect();
    let width = setting.heads.out_width();
    let schedules = schedules(seed);
    let (once, latest) = (&schedules[..1], &schedules[2..]);
    let found = attend(&all, Planner::Tree, some_or_full(latest, &schedules)).swap_remove(0);
    assert_exact(setting, &found, &exact, &case);
    let others = [Planner::Flat, Planner::Balanced, Planner::SingleLevel];
    for &planner in some_or_full(&others[..2], &others) {
        assert!(attend(&all, planner, once)[0] == found, "{case}: {planner} gives other bits than tree");
    }
    let mut dice = Dice::new(seed);
    let some: Vec<usize> = all.iter().copied().filter(|_| dice.within(0, 3) == 0).collect();
    let one = dice.next() as usize % all.len();
    for (names, planner) in
        [(&some[..], Planner::Tree), (&some[..], Planner::Balanced), (&[one][..], Planner::Balanced)]
    {
        let fewer = attend(names, planner, once).swap_remove(0);
        for (&row, bits) in names.iter().zip(fewer.chunks_exact(width)) {
            let beside = &found[row * width..][..width];
            assert!(bits == beside, "{case}: row {row} has other bits among {} rows than among all", names.len());
        }
    }
    let longest = all.iter().copied().max_by_key(|&row| grown.forest.row_positions[row]).expect("a row");
    for row in [one, longest] {
        let (forest, kv) = laid_anew(setting, kernel.layout, &grown, row, &kv);
        let plan = Planner::Balanced.plan(&forest, &hints(setting, tile));
        let step = Step { setting, plan: &plan, names: &[row], kv: &kv, narrow_heads: None };
        let found_anew = self::attend(kernel, &step, &tiling, once, None).swap_remove(0);
        assert!(found_anew == found[row * width..][..width], "{case}: row {row} has other bits in pages of its own");
    }
    largest
}

/// The most steps and the most packed rows of an opening.
#[derive(Default)]
pub(super) struct LargestOpenings {
    pub(super) steps: u32,
    pub(super) rows: u32,
}

impl LargestOpenings {
    pub(super) fn see(&mut self, words: &[u32]) {
        let [count, at] = [PlanWord::WideTiles, PlanWord::WideAt].map(|word| words[word as usize] as usize);
        for tile in words[at..at + count * TILE_WORDS].chunks_exact(TILE_WORDS) {
            // A tile's second word counts its packed rows, the fourth its KV blocks; the eighth says whether it opens.
            if tile[7] & 4 != 0 {
                *self = Self { steps: self.steps.max(tile[3] / 2), rows: self.rows.max(tile[1]) };
            }
        }
    }

    pub(super) fn see_all(&mut self, other: &Self) {
        *self = Self { steps: self.steps.max(other.steps), rows: self.rows.max(other.rows) };
    }
}
