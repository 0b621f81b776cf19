//! Tree attention's kernels on the CPU, instruction by instruction (`emulator`), against the dense definition:
//! random forests, every planner, several blocks, with asynchronous work done at once and as late as the kernel's waits
//! allow. What only a GPU shows (`offshoot-lab check`, compute-sanitizer) is not repeated here.

use crate::emulated_exchanges::Ranks as Exchange;
use crate::emulator;
use crate::full::some_or_full;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;

use emulator::{Emulated, Schedule, When, page_place};
use float8::F8E4M3;
use half::{bf16, f16};
use offshoot_backend::{Dtype, HeadLayout, KvDtype, Scoring, Values};
use offshoot_cases::dense::{dense, dense_lse, relative_error};
use offshoot_cases::setting::{ScoreTerms, Setting};
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{NARROW_WARPS, PlanWord, TILE_WORDS, Tiling, Workers};
use offshoot_cuda::attention::{
    LatentLaunch, hopper_tiling, portable_tiling, shared_bytes_any, shared_bytes_large, shared_bytes_latent,
};
use offshoot_cuda::compile::elements::{HeadWidths, HopperKernel, KvElement, PageLayout};
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units::{self, MemberStates};
use offshoot_fixtures::forests::{ForestShape, GrownForest, context, grow};
use offshoot_kv::plan::{AttentionPlan, CostModel, Member, PlanHints, Planner};
use offshoot_kv::{Forest, KvSlot, PagePool, PrefixTree, StepRow};

const PAGE: usize = 32;
/// Tile of deterministic plans: few positions, so that rows have several states. Where there are openings, tiles have
/// two steps more, so that openings have several steps.
const TILE: u32 = 128;
const OPENED_TILE: u32 = 256;

fn bits(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

fn value(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

/// Memory at a multiple of 16 bytes.
struct Aligned<T> {
    memory: Vec<T>,
    from: usize,
    len: usize,
}

impl<T: Copy> Aligned<T> {
    fn of(values: &[T], room: usize, filler: T) -> Self {
        let mut memory = vec![filler; values.len() + room + 16];
        let from = memory.as_ptr().align_offset(16);
        memory[from..from + values.len()].copy_from_slice(values);
        Aligned { memory, from, len: values.len() + room }
    }

    fn at(&mut self) -> *mut T {
        self.memory[self.from..].as_mut_ptr()
    }

    fn values(&self) -> &[T] {
        &self.memory[self.from..][..self.len]
    }
}

/// An element of keys and values as the kernel finds it, in its first `element_bytes`.
fn stored(setting: &Setting, x: f32) -> [u8; 2] {
    match setting.kv {
        KvDtype::Model => bits(setting.dtype, x).to_le_bytes(),
        KvDtype::Fp8 => [F8E4M3::from_f32(x).to_bits(); 2],
    }
}

fn element_bytes(setting: &Setting) -> usize {
    match kept(setting.kv) {
        KvElement::Fp8 => 1,
        KvElement::Plain | KvElement::Rounded => 2,
    }
}

fn kept(kv: KvDtype) -> KvElement {
    match kv {
        KvDtype::Model => KvElement::Plain,
        KvDtype::Fp8 => KvElement::Fp8,
    }
}

/// Keys and values of a layer, none of them a number.
fn no_kv(setting: &Setting, pages: usize) -> Vec<u8> {
    let element = stored(setting, f32::NAN);
    let elements = pages * PAGE * setting.heads.stored_width();
    element[..element_bytes(setting)].repeat(elements)
}

/// Where a stored element of a token, by its place among all of the token's key heads, then value heads, lies in a
/// layer's pages.
fn place(setting: &Setting, layout: PageLayout, slot: KvSlot, element: usize) -> usize {
    let HeadLayout { kv_heads, head_dim, .. } = setting.heads;
    let of_head = setting.heads.stored_width() / kv_heads;
    let (head, width, before, element) = match element.checked_sub(kv_heads * head_dim) {
        None => (element / head_dim, head_dim, 0, element % head_dim),
        Some(value) => {
            let width = of_head - head_dim;
            (value / width, width, head_dim, value % width)
        }
    };
    let run = ((slot.page.ix() * kv_heads + head) * of_head + before) * PAGE;
    let bytes = element_bytes(setting);
    run * bytes + page_place(layout, slot.slot as usize, element, width, bytes)
}

/// The slots that rows of a forest see, each once, by page and place there.
fn seen_slots(grown: &GrownForest) -> BTreeMap<(u32, u32), KvSlot> {
    let contexts = (0..grown.rows.len()).flat_map(|row| context(&grown.forest, row));
    contexts.map(|slot| (number_of(slot), slot)).collect()
}

fn number_of(slot: KvSlot) -> (u32, u32) {
    (slot.page.0, slot.slot)
}

/// Keys and values of a layer, `[page][kv head][keys, values beside them][32][width]`; what no row sees is not a
/// number.
fn kv(setting: &Setting, layout: PageLayout, grown: &GrownForest) -> Vec<u8> {
    kv_where(setting, layout, grown, Some)
}

/// The same of those that `stored_at` gives a slot.
fn kv_where(
    setting: &Setting,
    layout: PageLayout,
    grown: &GrownForest,
    stored_at: impl Fn(KvSlot) -> Option<KvSlot>,
) -> Vec<u8> {
    let pages = grown.forest.pages.iter().map(|page| page.ix() + 1).max().unwrap_or(0);
    let (mut kv, bytes) = (no_kv(setting, pages), element_bytes(setting));
    for (slot, own) in seen_slots(grown).into_values().filter_map(|slot| Some((slot, stored_at(slot)?))) {
        for (i, x) in setting.kv(slot).enumerate() {
            let at = place(setting, layout, own, i);
            kv[at..][..bytes].copy_from_slice(&stored(setting, x)[..bytes]);
        }
    }
    kv
}

fn hints(setting: &Setting, tile: u32) -> PlanHints {
    let number = |n: usize| u32::try_from(n).expect("few heads");
    PlanHints {
        group: offshoot_core::ids::GroupIx(0),
        tile,
        window: setting.window,
        q_heads: number(setting.heads.q_heads),
        kv_heads: number(setting.heads.kv_heads),
        head_dim: number(setting.heads.head_dim),
        kv_element_bytes: number(element_bytes(setting)),
        latents: None,
        cost: CostModel::CUDA,
    }
}

/// A kernel's threads, and its shared memory as `shared_bytes_wgmma` of the CUDA backend has it.
fn launch_of(kernel: HopperKernel, widths: HeadWidths, kept: KvElement) -> (u32, usize) {
    match kernel {
        HopperKernel::Large => return (384, shared_bytes_large(widths)),
        HopperKernel::Latent => return (384, shared_bytes_latent(widths)),
        HopperKernel::Wgmma => {}
    }
    let head_dim = widths.key;
    let (raw, narrow) = match (kept, head_dim) {
        (KvElement::Fp8, 128) => (6 * 64, 4 * 3 * 32),
        (KvElement::Fp8, _) => (6 * 64, 4 * 4 * 32),
        (_, 128) => (0, 2 * 4 * 3 * 32),
        _ => (0, 2 * 4 * 4 * 32),
    };
    (512, (128 + 6 * 64) * 2 * head_dim.next_multiple_of(64) + (raw + narrow) * head_dim + 1008)
}

/// What computes attention: a kernel for Hopper, which merges its partial states itself, or another one.
struct Kernel {
    attention: Emulated,
    widths: HeadWidths,
    layout: PageLayout,
    threads: u32,
    shared_bytes: usize,
    ways: Ways,
}

enum Ways {
    Hopper { kernel: HopperKernel, deterministic: bool },
    Two { unit: Unit, merge: Emulated },
    Latent { launch: LatentLaunch, merge: Emulated },
}

impl Kernel {
    /// `None` if kernels cannot be emulated here.
    fn hopper(dtype: Dtype, widths: HeadWidths, kv: KvDtype, deterministic: bool) -> Option<Self> {
        let kernel = HopperKernel::of(dtype, widths).expect("heads of a kernel for Hopper");
        let unit = units::attention_hopper(dtype, kept(kv), widths, deterministic);
        let (unit, name) = unit.expect("a kernel of its own");
        let (threads, shared_bytes) = launch_of(kernel, widths, kept(kv));
        let (attention, layout) = (Emulated::compile(&unit, name)?, PageLayout::of(9, dtype, widths));
        Some(Self { attention, widths, layout, threads, shared_bytes, ways: Ways::Hopper { kernel, deterministic } })
    }

    /// That of other GPUs, and of deterministic mode.
    fn portable(dtype: Dtype, widths: HeadWidths, kv: KvDtype, deterministic: bool) -> Option<Self> {
        let [unit, merge] = units::attention(dtype, kept(kv), widths, deterministic);
        let (name, shared_bytes) = match unit.source == &units::TREE_ATTENTION {
            // What is left of half the shared memory of a multiprocessor of Hopper, as the emulator is one.
            true => ("tree_attention", (227 / 2 - 6) * 1024),
            false => ("tree_attention_any", shared_bytes_any(widths)),
        };
        let attention = Emulated::compile(&unit, name)?;
        let ways = Ways::Two { unit, merge: Emulated::compile(&merge, "merge_states")? };
        Some(Self { attention, widths, layout: PageLayout::Plain, threads: 128, shared_bytes, ways })
    }

    /// That of other GPUs for latents, by tiles of `groups` times 16 rows.
    fn latent(dtype: Dtype, widths: HeadWidths, kv: KvDtype, groups: usize) -> Option<Self> {
        let unit = units::attention_latent(dtype, kept(kv), widths, groups).expect("widths of latents");
        let attention = Emulated::compile(&unit, "tree_attention_latent_mma")?;
        let launch = LatentLaunch::of(widths, groups);
        let LatentLaunch { threads, shared_bytes, .. } = launch;
        let [_, merge] = units::attention(dtype, kept(kv), widths, false);
        let ways = Ways::Latent { launch, merge: Emulated::compile(&merge, "merge_states")? };
        Some(Self { attention, widths, layout: PageLayout::Plain, threads, shared_bytes, ways })
    }

    fn tiling(&self, setting: &Setting, blocks: usize) -> Tiling {
        match &self.ways {
            Ways::Latent { launch, .. } => launch.tiling(blocks),
            Ways::Hopper { kernel, deterministic } => {
                let tiling = hopper_tiling(*kernel, kept(setting.kv), self.widths, blocks, *deterministic);
                // So little that groups have fewer heads than there are.
                Tiling { cached_kv_blocks: tiling.cached_kv_blocks.map(|_| blocks), ..tiling }
            }
            Ways::Two { unit, .. } => portable_tiling(unit, self.widths, blocks),
        }
    }
}

/// The factor and the rate that kernels are given of a setting's scores.
pub fn score_factors(setting: &Setting) -> (f32, f32) {
    use std::f32::consts::LOG2_E;
    match setting.terms.softcap {
        None => (setting.scale() * LOG2_E, 0.0),
        Some(cap) => (cap * LOG2_E, 2.0 * LOG2_E * setting.scale() / cap),
    }
}

/// A step of which attention is computed: some of a forest's rows.
struct Step<'a> {
    setting: &'a Setting,
    plan: &'a AttentionPlan,
    /// What each row is called, so that it asks the same whoever is beside it.
    names: &'a [usize],
    kv: &'a [u8],
    /// Key heads that a warp takes of a narrow tile; `None`: as the plan says.
    narrow_heads: Option<u32>,
}

/// The same words as a plan of some steps before has them: by their positions, rows have moved on since.
fn made_earlier(words: &[u32]) -> Vec<u32> {
    const STEPS: u32 = 5;
    let mut words = words.to_vec();
    let first = PlanWord::FirstPosition as usize;
    words[first] = words[first].wrapping_sub(STEPS);
    for (count, at) in [(PlanWord::WideTiles, PlanWord::WideAt), (PlanWord::NarrowTiles, PlanWord::NarrowAt)] {
        let [count, at] = [count, at].map(|word| words[word as usize] as usize);
        for tile in words[at..at + count * TILE_WORDS].chunks_exact_mut(TILE_WORDS) {
            // The smallest and the largest position of its rows.
            tile[5..=6].iter_mut().for_each(|position| *position = position.wrapping_sub(STEPS));
        }
    }
    words
}

/// What a kernel of attention is given beside the place of its results.
struct Memory {
    words: Aligned<u32>,
    positions: Aligned<u32>,
    qkv: Aligned<u16>,
    kv: Aligned<u8>,
    partials: Aligned<f32>,
    sinks: Option<Vec<f32>>,
}

impl Memory {
    fn of(step: &Step<'_>, words: &[u32], partial_slots: usize) -> Self {
        let Step { setting, plan, .. } = step;
        let heads = setting.heads;
        let stored = heads.qkv_width() - heads.q_width();
        let query = |(&name, &position): (&usize, &u32)| {
            setting.query(name, position as usize).chain(std::iter::repeat_n(0.0, stored)).collect::<Vec<_>>()
        };
        let q = step.names.iter().zip(&plan.row_positions).flat_map(query);
        let q: Vec<u16> = q.map(|x| bits(setting.dtype, x)).collect();
        let partials = partial_slots * heads.q_heads * (heads.value_dim() + 2);
        Self {
            words: Aligned::of(words, 0, 0),
            positions: Aligned::of(&plan.row_positions, PADDED, 0),
            qkv: Aligned::of(&q, PADDED * heads.qkv_width(), 0),
            kv: Aligned::of(step.kv, 0, 0),
            partials: Aligned::of(&vec![f32::NAN; partials], 0, 0.0),
            sinks: setting.sinks(),
        }
    }

    /// Launches the kernel. `out`: results of `rows_padded` rows, and `lse` their log-sum-exps; null, of none, if
    /// states alone are asked for, or no log-sum-exps.
    #[expect(clippy::too_many_arguments, reason = "operands of one launch, each named once")]
    fn launch(
        &mut self,
        kernel: &Kernel,
        setting: &Setting,
        tiling: &Tiling,
        how: Schedule,
        mut out: *mut u16,
        mut lse: *mut f32,
        rows_padded: usize,
    ) {
        let heads = setting.heads;
        let blocks = match tiling.workers {
            Workers::Blocks(blocks)
            | Workers::BlocksAndDecodeWarps(blocks)
            | Workers::BlocksThenTeams { blocks, .. }
            | Workers::LatentBlocks(blocks) => blocks,
        };
        let number = |n: usize| u32::try_from(n).expect("few heads, rows and blocks");
        let (mut qkv, mut kv, mut words) = (self.qkv.at(), self.kv.at(), self.words.at());
        let (mut positions, mut partials) = (self.positions.at(), self.partials.at());
        let (mut group, mut kv_heads) = (number(heads.group()), number(heads.kv_heads));
        let mut width = number(heads.qkv_width());
        let (mut scale, mut cap_rate) = score_factors(setting);
        let mut sinks = self.sinks.as_ref().map_or(std::ptr::null(), |sinks| sinks.as_ptr());
        let mut padded = number(rows_padded);
        fn at<T>(argument: &mut T) -> *mut c_void {
            std::ptr::from_mut(argument).cast()
        }
        let args = [
            at(&mut out),
            at(&mut qkv),
            at(&mut kv),
            at(&mut words),
            at(&mut positions),
            at(&mut partials),
            at(&mut group),
            at(&mut kv_heads),
            at(&mut width),
            at(&mut scale),
            at(&mut cap_rate),
            at(&mut sinks),
            at(&mut lse),
            at(&mut padded),
        ];
        // SAFETY: the arguments of all kernels, in their order, each with memory for what its head says; only those for
        // Hopper take the last.
        unsafe { kernel.attention.launch(number(blocks), kernel.threads, kernel.shared_bytes, how, &args) };
        let (Ways::Two { merge, .. } | Ways::Latent { merge, .. }) = &kernel.ways else { return };
        let (mut q_heads, mut split) = (number(heads.q_heads), if how.seed.is_multiple_of(2) { 1 } else { 4 });
        let args = [
            at(&mut out),
            at(&mut words),
            at(&mut partials),
            at(&mut q_heads),
            at(&mut split),
            at(&mut sinks),
            at(&mut lse),
        ];
        let grid = [padded, (q_heads * split).div_ceil(8)];
        // SAFETY: the arguments of `merge_states`, in its order.
        unsafe { merge.launch_grid(grid, 256, how, &args) };
    }
}

/// Padded rows of a step.
const PADDED: usize = 3;

/// The result `[rows, out_width]` as bits, run after run of the same memory, so that what a run leaves behind is used
/// again. The last run writes its log-sum-exps `[rows and padded rows, q_heads]` to `lse`.
fn attend(
    kernel: &Kernel,
    step: &Step<'_>,
    tiling: &Tiling,
    runs: &[Schedule],
    mut lse: Option<&mut [f32]>,
) -> Vec<Vec<u16>> {
    let Step { setting, plan, .. } = step;
    let heads = setting.heads;
    let rows = plan.row_positions.len();
    let rows_padded = rows + PADDED;
    let plan_words = DevicePlan::build(plan, heads, rows_padded, tiling);
    let mut words = made_earlier(plan_words.words());
    if let Some(heads) = step.narrow_heads {
        words[PlanWord::NarrowHeads as usize] = heads;
    }
    let mut memory = Memory::of(step, &words, plan_words.partial_slots());
    let mut found = Vec::new();
    for (number, &how) in runs.iter().enumerate() {
        let nothing = vec![bits(setting.dtype, f32::NAN); rows_padded * heads.out_width()];
        let mut out = Aligned::of(&nothing, 0, 0);
        let lse = lse.as_mut().filter(|_| number + 1 == runs.len());
        let lse = lse.map_or(std::ptr::null_mut(), |lse| lse.as_mut_ptr());
        memory.launch(kernel, setting, tiling, how, out.at(), lse, rows_padded);
        assert_eq!(memory.words.values(), words, "the words are left as they were");
        let (real, padding) = out.values().split_at(rows * heads.out_width());
        assert!(padding.iter().all(|&bits| bits == 0), "padded rows are zeros");
        found.push(real.to_vec());
    }
    found
}

/// Members of a group have together what one alone has: each attends to its slots of all pages, and they merge what
/// they found.
fn check_members(kernel: &Kernel, setting: &Setting, shape: ForestShape, seed: u64, of: usize) {
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
fn merged(merge: &Emulated, setting: &Setting, mut found: Vec<Memory>, rows: usize) -> Vec<Vec<u16>> {
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
fn schedules(seed: u64) -> [Schedule; 3] {
    let schedule = |copies, products| Schedule { copies, products, seed: u32::try_from(seed).expect("a small seed") };
    [schedule(When::AtOnce, When::AtOnce), schedule(When::AtOnce, When::Late), schedule(When::Late, When::Late)]
}

fn assert_exact(setting: &Setting, found: &[u16], exact: &[Vec<f64>], case: &str) {
    let out: Vec<f32> = found.iter().map(|&bits| value(setting.dtype, bits)).collect();
    let error = relative_error(out.chunks_exact(setting.heads.out_width()).zip(exact.iter().map(Vec::as_slice)));
    assert!(error <= setting.tolerance(), "{case}: {error:.2e} off, {:.2e} allowed", setting.tolerance());
}

/// The results of a forest's rows by the definition.
fn exact(setting: &Setting, grown: &GrownForest) -> Vec<Vec<f64>> {
    exact_of(setting, grown, dense)
}

/// What a definition says of a forest's rows.
fn exact_of(setting: &Setting, grown: &GrownForest, dense: Definition) -> Vec<Vec<f64>> {
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

type Definition = fn(HeadLayout, &Scoring<'_, Vec<f32>>, &[f32], &[&[f32]]) -> Vec<f64>;

/// Room for the log-sum-exps of a step.
fn lse_of(step: &Step<'_>) -> Vec<f32> {
    vec![f32::NAN; (step.names.len() + PADDED) * step.setting.heads.q_heads]
}

/// Log-sum-exps are those of the definition; those of a blind row, which sees nothing, are its sinks alone.
fn assert_lse(setting: &Setting, found: &[f32], exact: &[Vec<f64>], blind: Option<usize>, case: &str) {
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
fn check_blind(kernel: &Kernel, step: &Step<'_>, exact: &[Vec<f64>], tiling: &Tiling, case: &str) {
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

fn check(kernel: &Kernel, setting: &Setting, shape: ForestShape, seed: u64, blocks: usize) {
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
fn laid_anew(setting: &Setting, layout: PageLayout, grown: &GrownForest, row: usize, kv: &[u8]) -> (Forest, Vec<u8>) {
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
fn check_deterministic(
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
struct LargestOpenings {
    steps: u32,
    rows: u32,
}

impl LargestOpenings {
    fn see(&mut self, words: &[u32]) {
        let [count, at] = [PlanWord::WideTiles, PlanWord::WideAt].map(|word| words[word as usize] as usize);
        for tile in words[at..at + count * TILE_WORDS].chunks_exact(TILE_WORDS) {
            // A tile's second word counts its packed rows, the fourth its KV blocks; the eighth says whether it opens.
            if tile[7] & 4 != 0 {
                *self = Self { steps: self.steps.max(tile[3] / 2), rows: self.rows.max(tile[1]) };
            }
        }
    }

    fn see_all(&mut self, other: &Self) {
        *self = Self { steps: self.steps.max(other.steps), rows: self.rows.max(other.rows) };
    }
}

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

/// Their states where there are fewer rows and heads than warps that merge them.
#[test]
fn few_rows_of_latents() {
    let widths = HeadWidths { key: 320, values: Values::InKeys(256) };
    Variant { widths, dtype: Dtype::F16, kv: KvDtype::Model }.few_latents();
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
