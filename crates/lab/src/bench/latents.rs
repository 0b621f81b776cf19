//! `bench latents`: times the ops of latent attention beside attention itself, in steps by their rows and for expanded
//! tokens, beside the physical lower bound. Several layers are timed in turn, so that maps are read from memory as in a
//! step.

use std::fmt;

use clap::Args;
use serde::Serialize;

use super::floor::FloorArgs;
use super::tables::{median, print, rounded};
use offshoot_args::whole;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_backend::{
    ActivationDtype, CopyStore, Dtype, Expansion, HeldPart, KvShape, LatentHeads, LatentSteps, MatrixPart,
    RandomWeight, Rates, RopePairs, RopeTable, Split, StepBatch, Timed, Uniform, WeightFormat,
};
use offshoot_cases::case;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, LayerIx, PageId};
use offshoot_core::out;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, Csr};
use offshoot_launch::{DeviceBackend, OnDevice};

// The options of `bench latents`.
#[derive(Clone, Debug, Args)]
pub struct LatentOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Heads of a model: deepseek-v2-lite, glm-4.7-flash, minicpm3 or deepseek-v3
    #[arg(long, value_name = "NAME", default_value = "deepseek-v2-lite")]
    pub shape: String,
    /// Rows of steps
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<usize>(1..))]
    #[arg(default_value = "1,16,64,256,1024")]
    pub rows: Vec<usize>,
    /// Tokens that are expanded in a step
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<usize>(1..))]
    #[arg(default_value = "2048,8192")]
    pub tokens: Vec<usize>,
    /// Dtype of activations and maps
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    #[command(flatten)]
    pub floor: FloorArgs,
    /// Use the deterministic mode
    #[arg(long)]
    pub deterministic: bool,
}

/// The heads of models.
const SHAPES: [(&str, LatentHeads); 4] = [
    ("deepseek-v2-lite", LatentHeads { heads: 16, rank: 512, nope: 128, rope: 64, value: 128 }),
    ("glm-4.7-flash", LatentHeads { heads: 20, rank: 512, nope: 192, rope: 64, value: 256 }),
    ("minicpm3", LatentHeads { heads: 40, rank: 256, nope: 64, rope: 32, value: 64 }),
    ("deepseek-v3", LatentHeads { heads: 128, rank: 512, nope: 128, rope: 64, value: 128 }),
];

/// Layers that are timed in turn; of so many timings the median counts.
const LAYERS: usize = 4;
const TIMES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum LatentOp {
    PrepareLatents,
    AbsorbQueries,
    MapValues,
    MergeAttended,
    ExpandLatents,
}

impl LatentOp {
    /// Those whose rows are those of a step.
    const OF_ROWS: [Self; 4] = [Self::PrepareLatents, Self::AbsorbQueries, Self::MapValues, Self::MergeAttended];

    fn name(self) -> &'static str {
        match self {
            LatentOp::PrepareLatents => "prepare_latents",
            LatentOp::AbsorbQueries => "absorb_queries",
            LatentOp::MapValues => "map_values",
            LatentOp::MergeAttended => "merge_attended",
            LatentOp::ExpandLatents => "expand_latents",
        }
    }
}

/// One op of one layer in one step.
#[derive(Debug, Serialize)]
struct MeasuredLatentOp<'a> {
    shape: &'a str,
    op: LatentOp,
    /// Rows of the step, or tokens that are expanded.
    rows: usize,
    deterministic: bool,
    us: f64,
    floor_us: f64,
    ratio: f64,
}

impl fmt::Display for MeasuredLatentOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, rows, us, floor_us, ratio, .. } = self;
        write!(f, "{:<15} {rows:>7} {us:>10.1} {floor_us:>10.1} {ratio:>6.2}", op.name())
    }
}

/// Prints each result as soon as it is known.
impl OnDevice for &LatentOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let options = self;
        let named = SHAPES.iter().find(|(name, _)| *name == options.shape);
        let names = SHAPES.map(|(name, _)| name).join(", ");
        let &(_, heads) =
            named.ok_or_else(|| Error::value("--shape", format!("one of {names}"), options.shape.clone()))?;
        let rates = options.floor.rates(&mut backend, options.dtype, WeightFormat::Dense(options.dtype))?;
        if options.deterministic {
            backend.set_batch_invariant();
        }
        if !options.json {
            out::line(format_args!("{}: {rates}", backend.describe()))?;
            out::line(format_args!("heads {heads}; times are of one layer"))?;
            out::line(format_args!("{:<15} {:>7} {:>10} {:>10} {:>6}", "op", "rows", "us", "floor us", "ratio"))?;
        }
        let measured = |op: LatentOp, rows: usize, us: f64| {
            let floor = floor(op, heads, rows, options.dtype, rates);
            let (floor_us, ratio) = (rounded(floor, 2), rounded(us / floor, 2));
            let (shape, deterministic, us) = (options.shape.as_str(), options.deterministic, rounded(us, 2));
            print(options.json, &MeasuredLatentOp { shape, op, rows, deterministic, us, floor_us, ratio })
        };
        for &rows in &options.rows {
            for (op, us) in measure_rows(&mut backend, options, heads, rows)? {
                measured(op, rows, us)?;
            }
        }
        for &tokens in &options.tokens {
            let us = measure_expansion(&mut backend, options, heads, tokens)?;
            measured(LatentOp::ExpandLatents, tokens, us)?;
        }
        Ok(())
    }
}

/// Microseconds that no implementation can beat: to read what an op reads and write what it writes once, the maps among
/// it, or for its products.
fn floor(op: LatentOp, heads: LatentHeads, rows: usize, dtype: Dtype, rates: Rates) -> f64 {
    let LatentHeads { heads: count, rank, nope, rope, value } = heads;
    let maps = |of_head: usize| count * of_head * rank;
    let (of_rows, weights, products) = match op {
        // The rotated parts alone change of queries, and are written twice.
        LatentOp::PrepareLatents => (3 * count * rope + 2 * (rank + rope), 0, 0),
        LatentOp::AbsorbQueries => (count * (nope + rank), maps(nope), maps(nope)),
        LatentOp::MapValues => (count * (rank + value), maps(value), maps(value)),
        LatentOp::MergeAttended => (3 * count * value, 0, 0),
        LatentOp::ExpandLatents => {
            (rank + rope + heads.expanded().stored_width(), maps(nope + value), maps(nope + value))
        }
    };
    let bytes = (rows * of_rows + weights) * dtype.bytes();
    1e6 * (bytes as f64 / rates.bytes_per_s).max(2.0 * (rows * products) as f64 / rates.flops_per_s)
}

/// Maps of several layers.
fn maps<B: Timed>(backend: &mut B, heads: LatentHeads, dtype: Dtype) -> Result<Vec<B::LatentMaps>> {
    let one = |layer: usize| {
        let numbers = Uniform { stream: (1 + layer as u64) << 50, centre: 0.0, reach: 0.1 };
        let (rows, cols) = (heads.map_rows(), heads.rank);
        let part = MatrixPart::Random(RandomWeight::of(dtype, rows, cols, numbers));
        backend.latent_maps(&[HeldPart { part, becomes: None }], heads, dtype, &Split::Whole, None)
    };
    (0..LAYERS).map(one).collect()
}

/// Microseconds of each op of rows in one layer.
fn measure_rows<B: Timed>(
    backend: &mut B,
    options: &LatentOptions,
    heads: LatentHeads,
    rows: usize,
) -> Result<Vec<(LatentOp, f64)>> {
    let (dtype, page) = (options.dtype, backend.page_tokens() as usize);
    let maps = maps(backend, heads, dtype)?;
    let absorbed = heads.absorbed();
    let mut kv = backend.kv(&KvShape::uniform(LAYERS, absorbed, dtype, rows.div_ceil(page)))?;
    let norm = case::vector(backend, &drawn(10, heads.rank))?;
    let angles = drawn(11, rows * heads.rope / 2);
    let pairs = RopePairs::Neighbours;
    let table = RopeTable { rotary: heads.rope, pairs, keys: true, cos: angles.clone(), sin: angles };
    let table = backend.rope_table(&table)?;
    let operands = ActivationDtype::Operands(dtype);
    let mut step = backend.step(&[absorbed], dtype, 32)?;
    let batch = || {
        let slots = (0..rows).map(|row| KvSlot { page: PageId::new(row / page), slot: (row % page) as u32 });
        let positions: Vec<u32> = (0..rows as u32).collect();
        StepBatch { slots: vec![slots.collect()], ..case::rows_at(&positions) }
    };
    let shape = backend.load(&mut step, batch())?;
    let mut filled = |stream: u64, width: usize, holds: ActivationDtype| {
        case::buffer(backend, holds, shape.rows, width, &drawn(stream, shape.rows * width))
    };
    let mut queries = filled(20, heads.query_width(), operands)?;
    let mut latents = filled(21, heads.latent_width(), operands)?;
    let mut absorbing = filled(22, absorbed.q_width(), operands)?;
    let read = filled(23, absorbed.out_width(), operands)?;
    let [mut out, other] = [filled(24, heads.out_width(), operands)?, filled(25, heads.out_width(), operands)?];
    let sums = ActivationDtype::Sums;
    let [mut lse, other_lse] = [filled(26, heads.heads, sums)?, filled(27, heads.heads, sums)?];
    let mut all = Vec::new();
    for op in LatentOp::OF_ROWS {
        // Each op has a step of its own: a graph is known by its step and shape.
        let mut step = backend.step(&[absorbed], dtype, 32)?;
        let shape = backend.load(&mut step, batch())?;
        let us = backend.time(&mut step, shape, TIMES, |backend, step| {
            for (layer, maps) in maps.iter().enumerate() {
                match op {
                    LatentOp::PrepareLatents => {
                        let (ropes, layer) = ([Some(&table), None], LayerIx::new(layer));
                        let steps = LatentSteps { heads, norm: &norm, eps: 1e-6, ropes, layer };
                        let tails = Some(&mut absorbing);
                        backend.prepare_latents(&mut queries, Some(&mut latents), tails, &steps, &mut kv, step);
                    }
                    LatentOp::AbsorbQueries => backend.absorb_queries(&mut absorbing, &queries, maps),
                    LatentOp::MapValues => backend.map_values(&mut out, &read, maps),
                    LatentOp::MergeAttended => backend.merge_attended(&mut out, &mut lse, &other, &other_lse),
                    LatentOp::ExpandLatents => unreachable!("its rows are those of no step"),
                }
            }
            Ok(())
        })?;
        all.push((op, median(us) / LAYERS as f64));
    }
    Ok(all)
}

/// Microseconds in which one layer expands so many tokens, whole pages of them.
fn measure_expansion<B: Timed>(
    backend: &mut B,
    options: &LatentOptions,
    heads: LatentHeads,
    tokens: usize,
) -> Result<f64> {
    let (dtype, page) = (options.dtype, backend.page_tokens());
    let maps = maps(backend, heads, dtype)?;
    let pages = tokens.div_ceil(page as usize);
    let kv = backend.kv(&KvShape::uniform(LAYERS, heads.absorbed(), dtype, pages))?;
    let mut copies = backend.kv(&KvShape::uniform(1, heads.expanded(), dtype, pages))?;
    let layouts = [heads.absorbed(), heads.expanded(), heads.expanded()];
    let mut step = backend.step(&layouts, dtype, 32)?;
    let all =
        (0..pages).map(|page_of| Expansion { from: PageId::new(page_of), to: PageId::new(page_of), slots: 0..page });
    let nothing = |heads| AttentionPlan {
        page_tokens: page,
        tile: backend.attention_tile(heads, dtype, None),
        group: GroupIx(0),
        window: None,
        member: None,
        joins_beginnings: false,
        items: Vec::new(),
        spans: Vec::new(),
        pages: Vec::new(),
        row_positions: vec![0],
        merge: Csr { offsets: vec![0, 0], values: Vec::new() },
        growing: Vec::new(),
        flat_kv_tokens: 0,
    };
    let plans = layouts.map(nothing).into();
    let expansions = Some([Vec::new(), all.collect()]);
    let shape = backend.load(&mut step, StepBatch { plans, expansions, ..case::rows_at(&[0]) })?;
    let us = backend.time(&mut step, shape, TIMES, |backend, step| {
        for (layer, maps) in maps.iter().enumerate() {
            let (to, from) = (LayerIx(0), LayerIx::new(layer));
            backend.expand_latents(&mut copies, to, &kv, from, maps, CopyStore::Again, step);
        }
        Ok(())
    })?;
    Ok(median(us) / LAYERS as f64)
}

/// Numbers in [-1, 1).
fn drawn(stream: u64, len: usize) -> Vec<f32> {
    let numbers = Uniform { stream: stream << 50, centre: 0.0, reach: 1.0 };
    (0..len).map(|i| numbers.at(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_bound_by_maps_and_many_by_products() {
        let (_, heads) = SHAPES[0];
        let rates = Rates { bytes_per_s: 4e12, flops_per_s: 8e14 };
        let floor = |op, rows| super::floor(op, heads, rows, Dtype::Bf16, rates);
        // 16 maps of 128 x 512, and a row of 16 x (192 + 576).
        let bytes = 2.0 * (16.0 * 128.0 * 512.0 + 16.0 * 640.0);
        assert!((floor(LatentOp::AbsorbQueries, 1) - bytes / 4e6).abs() < 1e-9);
        let products = 2.0 * 8192.0 * 16.0 * 256.0 * 512.0;
        assert!((floor(LatentOp::ExpandLatents, 8192) - products / 8e8).abs() < 1e-9);
    }
}
