//! What low-rank adapters add to linear layers: tables of slots, and the two products of each row. Each has a clear
//! loop, which multiplies and adds in rising order, and a fast one, in lanes and with fused additions. Both read f32,
//! whatever the layer's dtype. How rows and outputs are shared out changes no sum.

use super::columns::OutputColumns;
use super::rows::{for_each_isa, sum_lanes};
use super::{Cores, CpuBuffer, CpuStep, Isa};
use offshoot_backend::{AdapterSlot, LoraPiece, LoraShape, LoraWeights, MOST_ADAPTERS, StepRows};

/// Sums of a row that one loop computes; ranks are rounded up to it.
const SUMS: usize = 8;

/// Rows of a task: they share what is read of an adapter.
const ROWS: usize = 16;

/// Outputs of a task: with a usual rank, what is read of B stays in a first-level cache.
const OUTPUTS: usize = 512;

/// What the loaded adapters add to one layer.
pub struct CpuLora {
    shape: LoraShape,
    slots: Vec<Option<CpuLoraTerm>>,
}

/// What one adapter adds to one layer.
pub struct CpuLoraTerm {
    /// The largest rank of a part, rounded up to [`SUMS`]; what lies behind a part's own rank is zero.
    rank: usize,
    /// For each part its own rank and scale; rank 0: nothing.
    parts: Vec<(usize, f32)>,
    /// `[parts, rank, inputs]`
    a: Vec<f32>,
    /// `[rank, outputs]`
    b: Vec<f32>,
}

impl CpuLora {
    pub fn new(shape: &LoraShape) -> Self {
        Self { shape: shape.clone(), slots: (0..MOST_ADAPTERS).map(|_| None).collect() }
    }

    pub fn term(&self, parts: &[Option<LoraWeights<'_>>]) -> CpuLoraTerm {
        let (shape, rank) = (&self.shape, self.shape.rank(parts).next_multiple_of(SUMS));
        let (rows, outputs) = (shape.stacked_b(parts, rank), shape.outputs());
        let mut b = vec![0.0; rows.len()];
        for (output, row) in rows.chunks_exact(rank.max(1)).enumerate() {
            row.iter().enumerate().for_each(|(j, &x)| b[j * outputs + output] = x);
        }
        let of =
            |weights: &Option<LoraWeights<'_>>| weights.map_or((0, 0.0), |weights| (weights.rank(), weights.scale));
        CpuLoraTerm { rank, parts: parts.iter().map(of).collect(), a: shape.stacked_a(parts, rank), b }
    }

    pub fn set(&mut self, slot: AdapterSlot, term: Option<CpuLoraTerm>) {
        self.slots[slot.ix()] = term;
    }
}

/// The sums of rows between the two products: for each [`SUMS`] of a row's sums those of all rows.
struct ShrunkRows<'a> {
    rows: usize,
    sums: &'a [f32],
}

impl ShrunkRows<'_> {
    /// Sums `first..first + h.len()` of a row; `first` is a multiple of [`SUMS`].
    fn read(&self, row: usize, first: usize, h: &mut [f32]) {
        for (i, h) in h.chunks_mut(SUMS).enumerate() {
            let at = ((first / SUMS + i) * self.rows + row) * SUMS;
            h.copy_from_slice(&self.sums[at..at + h.len()]);
        }
    }
}

/// See `Backend::add_lora`. `h`: room for the sums of all rows.
pub fn add_lora(
    cores: &Cores,
    h: &mut Vec<f32>,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    lora: &CpuLora,
    rows: StepRows,
    step: &CpuStep,
) {
    let (shape, outputs, count) = (&lora.shape, out.width, out.rows);
    assert_eq!((count, outputs, x.width), (x.rows, shape.outputs(), shape.inputs), "add_lora: shapes");
    let batch = step.batch();
    let term = |row: usize| {
        let slot = rows.adapter(&batch.adapters, &batch.logit_rows, row)?;
        lora.slots[slot.ix()].as_ref().filter(|term| term.rank > 0)
    };
    let most = (0..count).filter_map(term).map(|term| term.rank).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let of_task = ROWS.min(count);
    let (tasks, padded) = (count.div_ceil(of_task), count.next_multiple_of(of_task));
    h.clear();
    h.resize(shape.parts * most * padded, 0.0);
    cores.team.for_chunks(h, SUMS * of_task, |task, sums| {
        let (block, first_row) = (task / tasks * SUMS, task % tasks * of_task);
        let (part, first) = (block / most, block % most);
        for (row, sums) in (first_row..count).zip(sums.chunks_exact_mut(SUMS)) {
            let Some(term) = term(row).filter(|term| first < term.parts[part].0) else { continue };
            let a = &term.a[(part * term.rank + first) * shape.inputs..][..SUMS * shape.inputs];
            dots(cores.isa, sums, a, x.row(row));
            sums.iter_mut().for_each(|sum| *sum *= term.parts[part].1);
        }
    });
    let sums = ShrunkRows { rows: padded, sums: h };
    let (columns, of_row) = (OutputColumns::of(out), outputs.div_ceil(OUTPUTS));
    cores.team.run(tasks * of_row, |task| {
        let (first_row, from) = (task / of_row * of_task, task % of_row * OUTPUTS);
        let width = OUTPUTS.min(outputs - from);
        let mut own = [0.0; offshoot_backend::MOST_RANK];
        for row in first_row..count.min(first_row + of_task) {
            let Some(term) = term(row) else { continue };
            // SAFETY: each task has rows and columns of its own, and `out` is borrowed mutably until all have ended.
            let out = unsafe { columns.of_row(row, from, width) };
            for (part, at, outputs_of) in pieces_in(&shape.pieces, from, width) {
                let (rank, _) = term.parts[part];
                let h = &mut own[..rank];
                sums.read(row, part * most, h);
                let b = &term.b[from + at..];
                add_products(cores.isa, &mut out[at..at + outputs_of], b, outputs, h);
            }
        }
    });
}

/// The parts of outputs `from..from + width` of a layer: the part, the first of its outputs, counted from `from`, and
/// how many are neighbours.
fn pieces_in(pieces: &[LoraPiece], from: usize, width: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut begin = 0;
    pieces.iter().filter_map(move |LoraPiece { part, rows }| {
        let (first, end) = (from.max(begin), (from + width).min(begin + rows.len()));
        begin += rows.len();
        (first < end).then(|| (*part, first - from, end - first))
    })
}

for_each_isa! {
    /// The sums of the products of each row of `a`, `[SUMS, inputs]`, and `x`.
    fn dots(sums: &mut [f32], a: &[f32], x: &[f32]) = dots_clear or dots_lanes;

    /// `out[i] += sum over j of b[j * outputs + i] * h[j]`, j rising, added when it is complete.
    fn add_products(out: &mut [f32], b: &[f32], outputs: usize, h: &[f32]) = add_products_clear or add_products_lanes;
}

fn dots_clear(sums: &mut [f32], a: &[f32], x: &[f32]) {
    for (sum, a) in sums.iter_mut().zip(a.chunks_exact(x.len())) {
        *sum = 0.0;
        a.iter().zip(x).for_each(|(a, x)| *sum += a * x);
    }
}

/// In 64 lanes, so that additions do not wait for each other, then across the lanes.
#[inline(always)]
fn dots_lanes(sums: &mut [f32], a: &[f32], x: &[f32]) {
    const LANES: usize = 64;
    let (chunks, rest) = x.as_chunks::<LANES>();
    for (sum, a) in sums.iter_mut().zip(a.chunks_exact(x.len())) {
        let (a, a_rest) = a.as_chunks::<LANES>();
        let mut lanes = [0.0f32; LANES];
        for (a, x) in a.iter().zip(chunks) {
            lanes.iter_mut().zip(a).zip(x).for_each(|((lane, a), x)| *lane = a.mul_add(*x, *lane));
        }
        lanes.iter_mut().zip(a_rest).zip(rest).for_each(|((lane, a), x)| *lane = a.mul_add(*x, *lane));
        let fours: [f32; 16] = std::array::from_fn(|i| (lanes[i] + lanes[i + 16]) + (lanes[i + 32] + lanes[i + 48]));
        *sum = sum_lanes(fours);
    }
}

fn add_products_clear(out: &mut [f32], b: &[f32], outputs: usize, h: &[f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let mut sum = 0.0;
        h.iter().enumerate().for_each(|(j, h)| sum += b[j * outputs + i] * h);
        *out += sum;
    }
}

#[inline(always)]
fn add_products_lanes(out: &mut [f32], b: &[f32], outputs: usize, h: &[f32]) {
    const WIDTH: usize = 64;
    let (chunks, rest) = out.as_chunks_mut::<WIDTH>();
    let first = WIDTH * chunks.len();
    for (i, out) in chunks.iter_mut().enumerate() {
        let mut sums = [0.0f32; WIDTH];
        for (j, h) in h.iter().enumerate() {
            let b = &b[j * outputs + WIDTH * i..][..WIDTH];
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum = b.mul_add(*h, *sum));
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        let mut sum = 0.0f32;
        h.iter().enumerate().for_each(|(j, h)| sum = b[j * outputs + first + i].mul_add(*h, sum));
        *out += sum;
    }
}
