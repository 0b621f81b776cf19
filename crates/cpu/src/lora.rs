//! What low-rank adapters add to linear layers: tables of slots, and the two products of each row. The first, with A,
//! has a clear loop, which sums over the inputs in rising order, and a fast one in lanes; the second, with B, is one
//! loop for all instruction sets. Both read f32, whatever the layer's dtype.

use super::rows::{for_each_isa, sum_lanes};
use super::{Cores, CpuBuffer, CpuStep, Isa};
use offshoot_backend::{AdapterSlot, LoraPiece, LoraShape, LoraWeights, MOST_ADAPTERS, StepRows};

/// The sums `h` of a row that one task computes.
const SUMS: usize = 8;

/// Outputs of one task.
const OUTPUTS: usize = 2048;

/// What the loaded adapters add to one layer.
pub struct CpuLora {
    shape: LoraShape,
    slots: Vec<Option<CpuLoraTerm>>,
}

/// What one adapter adds to one layer.
pub struct CpuLoraTerm {
    /// The largest rank of a part.
    rank: usize,
    /// For each part its rank and scale; rank 0: nothing.
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
        let (shape, rank) = (&self.shape, self.shape.rank(parts));
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
    let (shape, outputs) = (&lora.shape, out.width);
    assert_eq!((out.rows, outputs, x.width), (x.rows, shape.outputs(), shape.inputs), "add_lora: shapes");
    let batch = step.batch();
    let term = |row: usize| {
        let slot = rows.adapter(&batch.adapters, &batch.logit_rows, row)?;
        lora.slots[slot.ix()].as_ref().filter(|term| term.rank > 0)
    };
    let most = (0..out.rows).filter_map(term).map(|term| term.rank).max().unwrap_or(0).next_multiple_of(SUMS);
    if most == 0 {
        return;
    }
    let of_row = shape.parts * most;
    h.clear();
    h.resize(out.rows * of_row, 0.0);
    cores.team.for_chunks(h, SUMS, |task, sums| {
        let (row, first) = (task * SUMS / of_row, task * SUMS % of_row);
        let Some(term) = term(row) else { return };
        let (part, first) = (first / most, first % most);
        let (rank, scale) = term.parts[part];
        for (j, sum) in (first..rank).zip(sums) {
            let a = &term.a[(part * term.rank + j) * shape.inputs..][..shape.inputs];
            dot(cores.isa, sum, a, x.row(row));
            *sum *= scale;
        }
    });
    let h = &*h;
    cores.team.for_chunks(&mut out.data, OUTPUTS, |task, mut rest| {
        let mut at = task * OUTPUTS;
        while !rest.is_empty() {
            let (row, first) = (at / outputs, at % outputs);
            let (own, others) = rest.split_at_mut((outputs - first).min(rest.len()));
            if let Some(term) = term(row) {
                add_to_outputs(cores.isa, own, first, &shape.pieces, term, &h[row * of_row..][..of_row]);
            }
            at += own.len();
            rest = others;
        }
    });
}

/// Adds to neighbouring outputs of a row, from `first` on. `h`: the sums of the row's parts, of equal length.
fn add_to_outputs(isa: Isa, out: &mut [f32], first: usize, pieces: &[LoraPiece], term: &CpuLoraTerm, h: &[f32]) {
    let (of_part, outputs) = (h.len() / term.parts.len(), term.b.len() / term.rank);
    let mut begin = 0;
    for LoraPiece { part, rows } in pieces {
        let (from, to) = (first.max(begin), (first + out.len()).min(begin + rows.len()));
        let (rank, _) = term.parts[*part];
        if from < to && rank > 0 {
            let (b, h) = (&term.b[from..], &h[part * of_part..][..rank]);
            add_products(isa, &mut out[from - first..to - first], b, outputs, h);
        }
        begin += rows.len();
    }
}

for_each_isa! {
    /// The sum of the products of two rows.
    fn dot(sum: &mut f32, a: &[f32], x: &[f32]) = dot_clear or dot_lanes;
}

for_each_isa! {
    /// `out[i] += sum over j of b[j * outputs + i] * h[j]`, j rising, added when it is complete.
    fn add_products(out: &mut [f32], b: &[f32], outputs: usize, h: &[f32]) {
        let (chunks, rest) = out.as_chunks_mut::<16>();
        let first = 16 * chunks.len();
        for (i, out) in chunks.iter_mut().enumerate() {
            let mut sums = [0.0f32; 16];
            for (j, h) in h.iter().enumerate() {
                let b = &b[j * outputs + 16 * i..][..16];
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += b * h);
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
        for (i, out) in rest.iter_mut().enumerate() {
            let mut sum = 0.0;
            h.iter().enumerate().for_each(|(j, h)| sum += b[j * outputs + first + i] * h);
            *out += sum;
        }
    }
}

fn dot_clear(sum: &mut f32, a: &[f32], x: &[f32]) {
    *sum = 0.0;
    a.iter().zip(x).for_each(|(a, x)| *sum += a * x);
}

/// In 64 lanes, so that additions do not wait for each other, then across the lanes.
#[inline(always)]
fn dot_lanes(sum: &mut f32, a: &[f32], x: &[f32]) {
    let mut lanes = [[0.0f32; 16]; 4];
    let ((a, a_rest), (x, x_rest)) = (a.as_chunks::<64>(), x.as_chunks::<64>());
    for (a, x) in a.iter().zip(x) {
        for (i, lanes) in lanes.iter_mut().enumerate() {
            lanes.iter_mut().zip(&a[16 * i..]).zip(&x[16 * i..]).for_each(|((lane, a), x)| *lane += a * x);
        }
    }
    for (i, (a, x)) in a_rest.iter().zip(x_rest).enumerate() {
        lanes[i / 16][i % 16] += a * x;
    }
    let [first, second, third, fourth] = lanes;
    *sum = sum_lanes(std::array::from_fn(|i| (first[i] + second[i]) + (third[i] + fourth[i])));
}
