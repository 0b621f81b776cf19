//! Launches tree attention: chooses the kernel by element type and head width, its tiles and shared memory, and passes
//! the arguments of `tree_attention` and `merge_states`. `device_plan` encodes plans; the backend owns the buffers.

mod builder;
pub mod device_plan;
mod encode;
pub mod layout;
pub mod leaf_tiles;
pub mod level_words;
pub mod levels;
mod openings;
mod split_kv;
mod tiles;
mod tiling;

use self::layout::{DECODE_WARPS, KV_BLOCK_TOKENS, Tiling, Workers};
use crate::compile::elements::{HeadWidths, HopperKernel, KvElement, PageLayout};
use crate::compile::unit::Unit;
use crate::compile::units::{self, MemberStates};
use crate::discovery::probe::DeviceFacts;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::memory::Memory;
use offshoot_backend::{Dtype, HeadLayout, MOST_HEAD_DIM, Scoring, Values};
use offshoot_core::error::Result;

/// Threads of a block of tree_attention and tree_attention_any, of merge_states, of tree_attention_wgmma, and of
/// tree_attention_large and tree_attention_latent.
const THREADS: u32 = 128;
const MERGE_THREADS: u32 = 256;
const WGMMA_THREADS: u32 = 512;
const LARGE_THREADS: u32 = 384;
/// Warps of a block of `merge_states`; one or several merge a row and head.
const MERGE_WARPS: usize = MERGE_THREADS as usize / 32;
/// Resident warps of `merge_states` per multiprocessor.
const MOST_MERGE_WARPS: usize = 32;
/// Resident blocks per multiprocessor.
const BLOCKS: usize = 2;
/// Packed rows of a narrow tile; half as many where keys are wider than [`MOST_HEAD_DIM`] (tree_attention_any).
const NARROW_ROWS: usize = 16;
/// Packed rows of a narrow and of a wide tile of the kernels for Hopper; with heads of 512 half as many of the latter.
const HOPPER_NARROW_ROWS: usize = 8;
const HOPPER_WIDE_ROWS: usize = 128;
/// Bytes of keys and values that wide tiles of tree_attention_large read at a time: half of an H200's second-level
/// cache, which has each line twice while both halves of the device read it.
const CACHED_BYTES: usize = 24 << 20;
/// Packed rows of a tile of tree_attention_latent, whose tiles are all wide.
const LATENT_ROWS: usize = 64;
/// Steps that openings must spare each multiprocessor: about what they take themselves, as other tiles wait for them.
const OPENINGS_SPARE: usize = 12;
/// Elements of a part of a large head: a warp of a team computes one, as in kernels/attention/page.cuh.
const PART_DIM: usize = 128;
/// Warps of a block of tree_attention_large that take narrow tiles.
const TEAM_WARPS: usize = 8;
/// The widest keys that have values in them: with more, a KV block of tree_attention_any and the queries of a tile are
/// too large for the shared memory of a block.
pub const MOST_LATENT: usize = 576;
/// Positions per tile of plans for deterministic kernels: a multiple of the page and of a step of tree_attention_wgmma
/// (64). A row has a state for each tile; they merge in the order of positions.
const TILE: u32 = 512;
/// Positions per tile where rows that share a part of a tile compute it once (`openings`), so that tiles may be longer:
/// fewer states are written and merged. With 2,048, few rows would have too few tiles for all multiprocessors.
const OPENED_TILE: u32 = 1024;

/// Distinguishes the order of a row's sums in deterministic attention from that of earlier versions.
pub const DETERMINISTIC_ARITHMETIC: &str = ", attention in tiles of 512 and 1024";

/// The tile of plans that are not deterministic: reductions may break anywhere.
pub const fn tile(deterministic: bool) -> u32 {
    if deterministic { TILE } else { 1 }
}

/// The tile of plans for the kernel of one kind of attention.
pub fn tile_of(
    facts: &DeviceFacts,
    element: Dtype,
    kv_element: KvElement,
    widths: HeadWidths,
    deterministic: bool,
    window: Option<u32>,
) -> u32 {
    match hopper_kernel(facts, element, widths) {
        Some(kernel) if deterministic && window.is_none() && kernel.has_openings(widths, kv_element) => OPENED_TILE,
        _ => tile(deterministic),
    }
}

/// The kernel for Hopper that computes attention on a device, if one does.
fn hopper_kernel(facts: &DeviceFacts, element: Dtype, widths: HeadWidths) -> Option<HopperKernel> {
    let is_plain = PageLayout::of(facts.major, element, widths) == PageLayout::Plain;
    HopperKernel::of(element, widths).filter(|_| !is_plain)
}

/// Device memory and an offset into it, in bytes.
pub type At<'a> = (&'a Memory, usize);

/// Operands of one launch; shapes as in `Backend::tree_attention`.
#[derive(Clone, Copy)]
pub struct AttentionOperands<'a> {
    /// `None` for a member's plan alone: no results are made, and all states stay partial ones.
    pub out: Option<&'a Memory>,
    /// f32 `[rows_padded, q_heads]`: the natural log-sum-exps of all scores and the sink.
    pub lse: Option<&'a Memory>,
    pub qkv: &'a Memory,
    /// Elements per row of `qkv`, which begins with the query heads.
    pub qkv_width: usize,
    /// Keys and values of the layer: `[page][kv head][keys, values beside them][32 slots][their width]`, rows as
    /// [`PageLayout`] says.
    pub kv: At<'a>,
    /// `DevicePlan::words`, at a multiple of 16 bytes.
    pub plan: At<'a>,
    /// u32 `[rows_padded]`: present absolute positions, which may have advanced since the plan was made.
    pub positions: At<'a>,
    /// [`AttentionKernels::scratch_bytes`] for the plan's partial slots.
    pub partials: &'a Memory,
}

/// The compiled kernels for one element type and head layout.
pub struct AttentionKernels {
    element: Dtype,
    heads: HeadLayout,
    kv_element: KvElement,
    kernels: KernelSet,
    tiling: Tiling,
    multiprocessors: usize,
    tiles: Tiles,
}

/// The tiles of plans without a window and with one.
struct Tiles {
    unbounded: u32,
    windowed: u32,
}

enum KernelSet {
    /// One kernel writes partial states, another merges them.
    Two {
        attention: Function,
        blocks: usize,
        threads: u32,
        shared_bytes: usize,
        merge: Function,
        /// Most warps that merge the states of one row and head.
        merge_warps: usize,
    },
    /// One kernel does both.
    Hopper { attention: Function, threads: u32, shared_bytes: usize },
}

impl AttentionKernels {
    /// `element`: dtype of queries and results, and of keys and values unless `kv_element` differs. If `deterministic`,
    /// a row's result depends on that row alone. Panics on heads wider than [`MOST_HEAD_DIM`], which no config may
    /// have, and on keys with values in them wider than [`MOST_LATENT`], which `latents::check` refuses before.
    pub fn load(
        device: &Device,
        element: Dtype,
        kv_element: KvElement,
        heads: HeadLayout,
        deterministic: bool,
    ) -> Result<Self> {
        let widths = HeadWidths::of(heads);
        let most = if widths.are_in_keys() { MOST_LATENT } else { MOST_HEAD_DIM };
        assert!(widths.key.max(widths.value()) <= most, "heads {heads}");
        let facts = device.facts();
        let multiprocessors = facts.multiprocessors as usize;
        let tile = |window| tile_of(facts, element, kv_element, widths, deterministic, window);
        let tiles = Tiles { unbounded: tile(None), windowed: tile(Some(1)) };
        if let Some(kernel) = hopper_kernel(facts, element, widths) {
            let unit = units::attention_hopper(element, kv_element, widths, deterministic);
            let (unit, name) = unit.expect("a unit for each of these kernels");
            let attention = device.function(&unit, name)?;
            let (threads, shared_bytes) = match kernel {
                HopperKernel::Wgmma => (WGMMA_THREADS, shared_bytes_wgmma(widths.key, kv_element)),
                HopperKernel::Large => (LARGE_THREADS, shared_bytes_large(widths)),
                HopperKernel::Latent => (LARGE_THREADS, shared_bytes_latent(widths)),
            };
            let tiling = hopper_tiling(kernel, kv_element, widths, multiprocessors, deterministic);
            let kernels = KernelSet::Hopper { attention, threads, shared_bytes };
            return Ok(Self { element, heads, kv_element, kernels, tiling, multiprocessors, tiles });
        }
        let is_read = kv_element != KvElement::Fp8 || widths.are_in_keys();
        assert!(is_read, "only the kernels for Hopper and those for latents read fp8");
        let merge_warps = if deterministic { 1 } else { MERGE_WARPS };
        let [attention, merge] = units::attention(element, kv_element, widths, deterministic);
        let (name, shared_bytes) = match attention.source == &units::TREE_ATTENTION {
            true => ("tree_attention", shared_bytes(facts, widths.key)),
            false => ("tree_attention_any", shared_bytes_any(widths)),
        };
        let merge = device.function(&merge, "merge_states")?;
        let latent = LatentLaunch::largest(facts, widths);
        let unit = units::attention_latent(element, kv_element, widths, latent.groups);
        if let Some(unit) = unit.filter(|_| !deterministic && latent.fits(facts)) {
            let attention = device.function(&unit, "tree_attention_latent_mma")?;
            let LatentLaunch { threads, shared_bytes, .. } = latent;
            let kernels =
                KernelSet::Two { attention, blocks: multiprocessors, threads, shared_bytes, merge, merge_warps };
            let tiling = latent.tiling(multiprocessors);
            return Ok(Self { element, heads, kv_element, kernels, tiling, multiprocessors, tiles });
        }
        let blocks = BLOCKS * multiprocessors;
        let tiling = portable_tiling(&attention, widths, blocks);
        let attention = device.function(&attention, name)?;
        let kernels = KernelSet::Two { attention, blocks, threads: THREADS, shared_bytes, merge, merge_warps };
        Ok(Self { element, heads, kv_element, kernels, tiling, multiprocessors, tiles })
    }

    pub fn heads(&self) -> HeadLayout {
        self.heads
    }

    /// Bytes of `partial_slots` partial states of a row: f32 `o`, `m` and `l` of all query heads.
    pub fn scratch_bytes(&self, partial_slots: usize) -> usize {
        partial_slots * self.heads.q_heads * (self.heads.value_dim() + 2) * size_of::<f32>()
    }

    /// What merges its states with those of other members.
    pub fn states_of(&self, ranks: usize, members: usize) -> MemberStates {
        let is_permuted = matches!(self.kernels, KernelSet::Hopper { .. });
        MemberStates { ranks, members, element: self.element, value_dim: self.heads.value_dim(), is_permuted }
    }

    /// The heads and the element type of the pages that it reads.
    pub fn reads(&self) -> (HeadLayout, KvElement) {
        (self.heads, self.kv_element)
    }

    /// Number of warps that merge the states of a row and head, at most `most`; as many as stay resident.
    fn merge_split(&self, rows_padded: usize, most: usize) -> usize {
        let room = self.multiprocessors * MOST_MERGE_WARPS;
        let fits = |split: &usize| *split <= most && rows_padded * self.heads.q_heads * split <= room;
        [MERGE_WARPS, MERGE_WARPS / 2, MERGE_WARPS / 4].into_iter().find(fits).unwrap_or(1)
    }

    /// The tiling of plans for these kernels.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// The tile of plans for these kernels (see `plan`).
    pub fn tile(&self, window: Option<u32>) -> u32 {
        match window {
            None => self.tiles.unbounded,
            Some(_) => self.tiles.windowed,
        }
    }

    /// Padded rows of the largest step.
    pub fn most_rows(&self) -> usize {
        match &self.kernels {
            KernelSet::Hopper { .. } => most_divided_rows(&self.heads),
            KernelSet::Two { .. } => usize::MAX,
        }
    }

    /// Enqueues tree attention by the plan at `plan`. The grid depends on `rows_padded` only, so that a captured graph
    /// serves every plan with as many padded rows.
    pub fn tree_attention(
        &self,
        device: &Device,
        operands: &AttentionOperands<'_>,
        scoring: Scoring<'_, Memory>,
        rows_padded: usize,
    ) {
        let AttentionOperands { out, lse, qkv, qkv_width, kv, plan, positions, partials } = *operands;
        let (group, kv_heads) = (argument(self.heads.group()), argument(self.heads.kv_heads));
        let ScoreFactors { scale, cap_rate } = ScoreFactors::of(&scoring);
        let args = Args::new().memory_or_null(out).memory(qkv).memory_at(kv.0, kv.1).memory_at(plan.0, plan.1);
        let args = args.memory_at(positions.0, positions.1).memory(partials);
        match &self.kernels {
            KernelSet::Hopper { attention, threads, shared_bytes } => {
                assert!(rows_padded <= self.most_rows(), "{rows_padded} rows, at most {}", self.most_rows());
                let args = args.u32(group).u32(kv_heads).u32(argument(qkv_width)).f32(scale).f32(cap_rate);
                let zeroed = if out.is_some() { rows_padded } else { 0 };
                let args = args.memory_or_null(scoring.sinks).memory_or_null(lse).u32(argument(zeroed));
                device.launch(attention, [argument(self.multiprocessors), 1, 1], *threads, *shared_bytes, &args);
            }
            KernelSet::Two { attention, blocks, threads, shared_bytes, merge, merge_warps } => {
                let args = args.u32(group).u32(kv_heads).u32(argument(qkv_width)).f32(scale).f32(cap_rate);
                let args = args.memory_or_null(scoring.sinks).memory_or_null(lse);
                device.launch(attention, [argument(*blocks), 1, 1], *threads, *shared_bytes, &args);

                let Some(out) = out else { return };
                let split = self.merge_split(rows_padded, *merge_warps);
                let args = Args::new().memory(out).memory_at(plan.0, plan.1).memory(partials);
                let args = args.u32(argument(self.heads.q_heads)).u32(argument(split)).memory_or_null(scoring.sinks);
                let args = args.memory_or_null(lse);
                let grid = [argument(rows_padded), argument((self.heads.q_heads * split).div_ceil(MERGE_WARPS)), 1];
                device.launch(merge, grid, MERGE_THREADS, 0, &args);
            }
        }
    }
}

/// Rows whose parts of heads `Divisor` (kernels/attention/tile.cuh) divides exactly: rows times the square of the parts
/// of each are below 2^32.
fn most_divided_rows(heads: &HeadLayout) -> usize {
    let parts = (heads.q_heads * heads.value_dim().div_ceil(PART_DIM)) as u64;
    usize::try_from(u64::from(u32::MAX) / (parts * parts)).expect("a quotient of 32 bits fits")
}

/// How the kernels take a product of a query and a key to a score in log2 units.
pub(super) struct ScoreFactors {
    /// Factor of products, or of capped ones, times log2 e.
    pub scale: f32,
    /// 0, or the rate of `capped` in kernels/attention/state.cuh.
    pub cap_rate: f32,
}

impl ScoreFactors {
    pub fn of<V>(scoring: &Scoring<'_, V>) -> Self {
        use std::f32::consts::LOG2_E;
        match scoring.softcap {
            None => Self { scale: scoring.scale * LOG2_E, cap_rate: 0.0 },
            Some(cap) => Self { scale: cap * LOG2_E, cap_rate: 2.0 * LOG2_E * scoring.scale / cap },
        }
    }
}

/// The tiles and workers of a kernel for Hopper.
pub fn hopper_tiling(
    kernel: HopperKernel,
    kv_element: KvElement,
    widths: HeadWidths,
    multiprocessors: usize,
    deterministic: bool,
) -> Tiling {
    // The number of rows must not affect how a row is computed.
    let has_narrow = !deterministic && widths.one().is_some();
    let narrow_rows = if has_narrow { HOPPER_NARROW_ROWS } else { 0 };
    let openings = (deterministic && kernel.has_openings(widths, kv_element)).then_some(OPENINGS_SPARE);
    let (wide_rows, workers) = match kernel {
        HopperKernel::Wgmma => (HOPPER_WIDE_ROWS, Workers::BlocksAndDecodeWarps(multiprocessors)),
        HopperKernel::Large => {
            let teams = TEAM_WARPS / widths.key.div_ceil(PART_DIM);
            let rows = if widths.key > 256 { HOPPER_WIDE_ROWS / 2 } else { HOPPER_WIDE_ROWS };
            let workers = match widths.one() {
                Some(_) => Workers::BlocksThenTeams { blocks: multiprocessors, teams },
                None => Workers::Blocks(multiprocessors),
            };
            (rows, workers)
        }
        HopperKernel::Latent => (LATENT_ROWS, Workers::LatentBlocks(multiprocessors)),
    };
    Tiling {
        narrow_rows,
        wide_rows: Some(wide_rows),
        workers,
        most_slots: usize::MAX,
        openings_spare: openings,
        cached_kv_blocks: (kernel == HopperKernel::Large)
            .then(|| CACHED_BYTES / (KV_BLOCK_TOKENS as usize * 2 * (widths.key + widths.value()))),
    }
}

/// The tiles and workers of a unit of tree_attention or tree_attention_any, by so many resident blocks.
pub fn portable_tiling(attention: &Unit, widths: HeadWidths, blocks: usize) -> Tiling {
    let multiplies = attention.source == &units::TREE_ATTENTION;
    Tiling {
        narrow_rows: narrow_rows(widths),
        wide_rows: multiplies.then(|| widest(widths.key)),
        workers: Workers::Blocks(blocks),
        most_slots: usize::MAX,
        openings_spare: None,
        cached_kv_blocks: None,
    }
}

/// How tree_attention_latent_mma is launched: a block for each multiprocessor.
#[derive(Clone, Copy)]
pub struct LatentLaunch {
    /// Of 16 packed rows of a tile, which four warps share.
    pub groups: usize,
    pub threads: u32,
    /// The queries of a tile, and a ring of one KV block more than there are groups; rows are padded by 16 bytes.
    pub shared_bytes: usize,
}

impl LatentLaunch {
    pub fn of(widths: HeadWidths, groups: usize) -> Self {
        let rows = 16 * groups + 32 * (groups + 1);
        Self { groups, threads: 128 * groups as u32, shared_bytes: rows * (2 * widths.key + 16) }
    }

    /// The most groups that a multiprocessor has shared memory for; at least one.
    fn largest(facts: &DeviceFacts, widths: HeadWidths) -> Self {
        let two = Self::of(widths, 2);
        if two.fits(facts) { two } else { Self::of(widths, 1) }
    }

    fn fits(self, facts: &DeviceFacts) -> bool {
        self.shared_bytes + LATENT_STATIC_BYTES <= facts.shared_optin
    }

    /// All tiles are narrow.
    pub fn tiling(self, blocks: usize) -> Tiling {
        Tiling {
            narrow_rows: 16 * self.groups,
            wide_rows: None,
            workers: Workers::Blocks(blocks),
            most_slots: usize::MAX,
            openings_spare: None,
            cached_kv_blocks: None,
        }
    }
}

/// More than the static shared memory of tree_attention_latent_mma.
const LATENT_STATIC_BYTES: usize = 5 * 1024;

/// Packed rows of the widest tile, as `WIDEST` of kernels/attention/tile.cuh.
fn widest(head_dim: usize) -> usize {
    if head_dim <= 128 { 128 } else { 64 }
}

/// Dynamic shared memory of a block, as `SHARED_BYTES` of kernels/attention/tile.cuh.
fn shared_bytes(facts: &DeviceFacts, head_dim: usize) -> usize {
    let kilobytes = match (facts.major, facts.minor) {
        (8, 0 | 7) => 163,
        (8 | 12.., _) => 99,
        _ => 227,
    };
    let kilobytes = if kilobytes == 99 && head_dim > 96 { kilobytes - 6 } else { kilobytes / 2 - 6 };
    kilobytes * 1024
}

/// Dynamic shared memory of a block of tree_attention_wgmma.cu: queries, three slots each for keys and values of 64
/// tokens, the rings of four warps (with slots of 32 tokens), and padding to a multiple of 1024. fp8 keys and values
/// take half the bytes in the warps' rings, and three more slots each for the raw bytes. Kernels that prefer short
/// tiles have further slots in place of the warps' rings.
fn shared_bytes_wgmma(head_dim: usize, kv_element: KvElement) -> usize {
    let is_fp8 = kv_element == KvElement::Fp8;
    let slots = if head_dim == 128 { 3 } else { 4 };
    // Queries and wide tiles take whole panels of 64 elements.
    let (widened, element) = ((HOPPER_WIDE_ROWS + 6 * 64) * head_dim.next_multiple_of(64), if is_fp8 { 1 } else { 2 });
    let raw = if is_fp8 { 6 * 64 } else { 0 };
    2 * widened + (raw + element * DECODE_WARPS * slots * 32) * head_dim + 1008
}

/// Shared bytes of tree_attention_large.cu: queries of 64 KiB and five slots of 32 KiB, or of heads of 192 queries of
/// 48 KiB and seven slots of 24 KiB, and padding to a multiple of 1024.
pub fn shared_bytes_large(widths: HeadWidths) -> usize {
    let kib = if widths.key == 192 { 48 + 7 * 24 } else { 64 + 5 * 32 };
    kib * 1024 + 1008
}

/// Shared bytes of tree_attention_latent.cu: the queries of 64 rows, two buffers of 64 keys, and padding to a multiple
/// of 1024.
pub fn shared_bytes_latent(widths: HeadWidths) -> usize {
    3 * 64 * widths.key * 2 + 1008
}

/// Packed rows of a narrow tile of tree_attention and tree_attention_any.
fn narrow_rows(widths: HeadWidths) -> usize {
    if widths.key > MOST_HEAD_DIM { NARROW_ROWS / 2 } else { NARROW_ROWS }
}

/// Shared bytes of tree_attention_any.cu: keys and the values beside them of a KV block, which take turns in heads of
/// more than 256, padded by an element per row, and the queries of a tile.
pub fn shared_bytes_any(widths: HeadWidths) -> usize {
    let (key, value) = (widths.key + 1, widths.value() + 1);
    let rows = match widths.values {
        Values::InKeys(_) => key,
        Values::Beside(_) if key.max(value) > 257 => key.max(value),
        Values::Beside(_) => key + value,
    };
    (32 * rows + narrow_rows(widths) * widths.key) * size_of::<f32>()
}

fn argument(number: usize) -> u32 {
    u32::try_from(number).expect("heads, rows and blocks are far fewer than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::LatentHeads;

    #[test]
    fn rows_times_the_square_of_their_parts_of_heads_are_below_2_to_32() {
        let latents = LatentHeads { heads: 128, rank: 512, nope: 128, rope: 64, value: 128 };
        for (heads, most) in [(latents.absorbed(), 16_383), (latents.expanded(), 262_143)] {
            assert_eq!(most_divided_rows(&heads), most, "{heads:?}");
        }
    }
}
