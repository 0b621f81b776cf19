//! A kernel of attention, what it is given for a step, and its runs.

use std::ffi::c_void;

use offshoot_backend::{Dtype, KvDtype};
use offshoot_cases::setting::Setting;
use offshoot_cuda::attention::device_plan::DevicePlan;
use offshoot_cuda::attention::layout::{PlanWord, TILE_WORDS, Tiling, Workers};
use offshoot_cuda::attention::{
    LatentLaunch, hopper_tiling, portable_tiling, shared_bytes_any, shared_bytes_large, shared_bytes_latent,
};
use offshoot_cuda::compile::elements::{HeadWidths, HopperKernel, KvElement, PageLayout};
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units;
use offshoot_kv::plan::{AttentionPlan, CostModel, PlanHints};

use super::memory::{Aligned, bits, element_bytes, kept};
use crate::emulator::{Emulated, Schedule};

pub(super) fn hints(setting: &Setting, tile: u32) -> PlanHints {
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
pub(super) fn launch_of(kernel: HopperKernel, widths: HeadWidths, kept: KvElement) -> (u32, usize) {
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
pub(super) struct Kernel {
    pub(super) attention: Emulated,
    pub(super) widths: HeadWidths,
    pub(super) layout: PageLayout,
    pub(super) threads: u32,
    pub(super) shared_bytes: usize,
    pub(super) ways: Ways,
}

pub(super) enum Ways {
    Hopper { kernel: HopperKernel, deterministic: bool },
    Two { unit: Unit, merge: Emulated },
    Latent { launch: LatentLaunch, merge: Emulated },
}

impl Kernel {
    /// `None` if kernels cannot be emulated here.
    pub(super) fn hopper(dtype: Dtype, widths: HeadWidths, kv: KvDtype, deterministic: bool) -> Option<Self> {
        let kernel = HopperKernel::of(dtype, widths).expect("heads of a kernel for Hopper");
        let unit = units::attention_hopper(dtype, kept(kv), widths, deterministic);
        let (unit, name) = unit.expect("a kernel of its own");
        let (threads, shared_bytes) = launch_of(kernel, widths, kept(kv));
        let (attention, layout) = (Emulated::compile(&unit, name)?, PageLayout::of(9, dtype, widths));
        Some(Self { attention, widths, layout, threads, shared_bytes, ways: Ways::Hopper { kernel, deterministic } })
    }

    /// That of other GPUs, and of deterministic mode.
    pub(super) fn portable(dtype: Dtype, widths: HeadWidths, kv: KvDtype, deterministic: bool) -> Option<Self> {
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
    pub(super) fn latent(dtype: Dtype, widths: HeadWidths, kv: KvDtype, groups: usize) -> Option<Self> {
        let unit = units::attention_latent(dtype, kept(kv), widths, groups).expect("widths of latents");
        let attention = Emulated::compile(&unit, "tree_attention_latent_mma")?;
        let launch = LatentLaunch::of(widths, groups);
        let LatentLaunch { threads, shared_bytes, .. } = launch;
        let [_, merge] = units::attention(dtype, kept(kv), widths, false);
        let ways = Ways::Latent { launch, merge: Emulated::compile(&merge, "merge_states")? };
        Some(Self { attention, widths, layout: PageLayout::Plain, threads, shared_bytes, ways })
    }

    pub(super) fn tiling(&self, setting: &Setting, blocks: usize) -> Tiling {
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
pub(super) struct Step<'a> {
    pub(super) setting: &'a Setting,
    pub(super) plan: &'a AttentionPlan,
    /// What each row is called, so that it asks the same whoever is beside it.
    pub(super) names: &'a [usize],
    pub(super) kv: &'a [u8],
    /// Key heads that a warp takes of a narrow tile; `None`: as the plan says.
    pub(super) narrow_heads: Option<u32>,
}

/// The words of a plan made some steps before: the positions say that rows have moved on since.
pub(super) fn made_earlier(words: &[u32]) -> Vec<u32> {
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
pub(super) struct Memory {
    pub(super) words: Aligned<u32>,
    pub(super) positions: Aligned<u32>,
    pub(super) qkv: Aligned<u16>,
    pub(super) kv: Aligned<u8>,
    pub(super) partials: Aligned<f32>,
    pub(super) sinks: Option<Vec<f32>>,
}

impl Memory {
    pub(super) fn of(step: &Step<'_>, words: &[u32], partial_slots: usize) -> Self {
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
    pub(super) fn launch(
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
pub(super) const PADDED: usize = 3;

/// The result `[rows, out_width]` as bits, run after run of the same memory, so that what a run leaves behind is used
/// again. The last run writes its log-sum-exps `[rows and padded rows, q_heads]` to `lse`.
pub(super) fn attend(
    kernel: &Kernel,
    step: &Step<'_>,
    tiling: &Tiling,
    runs: &[Schedule],
    lse: Option<&mut [f32]>,
) -> Vec<Vec<u16>> {
    let rows = step.plan.row_positions.len();
    let words = DevicePlan::build(step.plan, step.setting.heads, rows + PADDED, tiling);
    attend_by(kernel, step, &words, tiling, runs, lse)
}

/// Attention of `step` by the words of a plan that was made for it, or for a step before.
pub(super) fn attend_by(
    kernel: &Kernel,
    step: &Step<'_>,
    plan_words: &DevicePlan,
    tiling: &Tiling,
    runs: &[Schedule],
    mut lse: Option<&mut [f32]>,
) -> Vec<Vec<u16>> {
    let Step { setting, plan, .. } = step;
    let heads = setting.heads;
    let rows = plan.row_positions.len();
    let rows_padded = rows + PADDED;
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
