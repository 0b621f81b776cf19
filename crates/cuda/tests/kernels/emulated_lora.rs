//! `add_lora` on the CPU, instruction by instruction (`emulator`): rows of several adapters and of none, in tiles that
//! they share; results against f64, and each row's bits against those of the row alone.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::{Dtype, LoraPiece, LoraShape, LoraWeights, WeightView};
use offshoot_core::dice::Dice;
use offshoot_cuda::compile::units;
use offshoot_cuda::lora::{
    LoraGrid, LoraSlotWords, NO_ADAPTER, chunks, packed, padded_rank, parts_of_outputs, sums_of_row,
};

const THREADS: u32 = 256;

/// A part of an adapter: its scale, A and B as they are stored.
type Part = (f32, Vec<f32>, Vec<f32>);

/// The kernels of one layer, and the layer's adapters.
struct Layer {
    shape: LoraShape,
    out: Dtype,
    adapters: Vec<Vec<Option<Part>>>,
    shrink: Emulated,
    expand: Emulated,
}

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// As u64, so that rows of any dtype begin where their vectors may.
fn words(bytes: &[u8]) -> Vec<u64> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(8), 0);
    padded.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()
}

fn numbers_of(dtype: Dtype, words: &[u64], count: usize) -> Vec<f32> {
    let view = WeightView { dtype, rows: 1, cols: count, bytes: bytemuck::cast_slice(words) };
    (0..count).map(|i| view.get(i)).collect()
}

impl Layer {
    fn new(dice: &mut Dice, dtype: Dtype, out: Dtype, inputs: usize, ranks: &[&[usize]]) -> Option<Self> {
        // Two modules, of which the first lies in two pieces.
        let piece = |part, rows| LoraPiece { part, rows };
        let pieces = vec![piece(0, 7..20), piece(1, 0..270), piece(0, 0..7)];
        let shape = LoraShape { dtype, inputs, parts: 2, pieces };
        let mut numbers = |count: usize| (0..count).map(|_| dtype.round(dice.number())).collect::<Vec<f32>>();
        let mut part =
            |rank: usize, outputs: usize| (rank > 0).then(|| (0.5, numbers(rank * inputs), numbers(outputs * rank)));
        let adapters = ranks.iter().map(|ranks| vec![part(ranks[0], 20), part(ranks[1], 270)]).collect();
        let shrink = Emulated::compile(&units::typed(&units::LORA_SHRINK, dtype), "lora_shrink")?;
        let expand = Emulated::compile(&units::lora_expand(dtype, out), "lora_expand")?;
        Some(Self { shape, out, adapters, shrink, expand })
    }

    /// What the two launches make of `before`. `adapters`: of each row of the step; `logit_rows`: the buffers' rows.
    fn add(&self, x: &[f32], before: &[f32], adapters: &[u32], logit_rows: Option<&[u32]>) -> Vec<f32> {
        let LoraShape { dtype, inputs, parts, .. } = self.shape;
        let (outputs, rows) = (self.shape.outputs(), x.len() / inputs);
        let bytes: Vec<Vec<Option<[Vec<u8>; 2]>>> = self
            .adapters
            .iter()
            .map(|parts| {
                let of = |part: &Option<Part>| part.as_ref().map(|(_, a, b)| [dtype.encode(a), dtype.encode(b)]);
                parts.iter().map(of).collect()
            })
            .collect();
        let mut memory = Vec::new();
        let mut slots = Vec::new();
        for (adapter, bytes) in self.adapters.iter().zip(&bytes) {
            let weights: Vec<Option<LoraWeights<'_>>> = adapter
                .iter()
                .zip(bytes)
                .map(|(part, bytes)| {
                    let ((scale, a, b), [a_bytes, b_bytes]) = (part.as_ref()?, bytes.as_ref()?);
                    let rank = a.len() / inputs;
                    let view = |rows, cols, bytes| WeightView { dtype, rows, cols, bytes };
                    Some(LoraWeights {
                        scale: *scale,
                        a: view(rank, inputs, a_bytes),
                        b: view(b.len() / rank, rank, b_bytes),
                    })
                })
                .collect();
            let rank = padded_rank(&self.shape, &weights);
            let [a, b] = packed(&self.shape, &weights, rank).map(|bytes| words(&bytes));
            slots.push(LoraSlotWords::new(&weights, rank, a.as_ptr() as u64, b.as_ptr() as u64));
            memory.push([a, b]);
        }
        let most_rank = slots.iter().map(|slot| slot.rank as usize).max().unwrap();
        // What no row has is not read.
        let mut h = vec![f32::NAN; rows * sums_of_row(inputs, parts, most_rank)];
        let (x, mut out) = (words(&dtype.encode(x)), words(&self.out.encode(before)));
        let part_of = parts_of_outputs(&self.shape);
        let (mut h_at, mut x_at, mut out_at) = (h.as_mut_ptr(), x.as_ptr(), out.as_mut_ptr());
        let (mut slots_at, mut adapters_at, mut parts_at) = (slots.as_ptr(), adapters.as_ptr(), part_of.as_ptr());
        let mut logit_rows_at = logit_rows.map_or(std::ptr::null(), <[u32]>::as_ptr);
        let (mut rows_of, mut inputs_of, mut outputs_of) = (rows as u32, inputs as u32, outputs as u32);
        let (mut parts_of, mut rank_of) = (parts as u32, most_rank as u32);
        let any = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
        let LoraGrid { blocks, groups } = LoraGrid::of_shrink(rows, inputs, parts, most_rank);
        let (mut groups_of, mut chunks_of) = (groups as u32, chunks(inputs) as u32);
        let args = [
            at(&mut h_at),
            at(&mut x_at),
            at(&mut slots_at),
            at(&mut adapters_at),
            at(&mut logit_rows_at),
            at(&mut rows_of),
            at(&mut inputs_of),
            at(&mut parts_of),
            at(&mut rank_of),
            at(&mut groups_of),
        ];
        // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
        unsafe { self.shrink.launch(blocks as u32, THREADS, 0, any, &args) };
        let LoraGrid { blocks, groups } = LoraGrid::of_expand(rows, outputs);
        let mut groups_of = groups as u32;
        let args = [
            at(&mut out_at),
            at(&mut h_at),
            at(&mut slots_at),
            at(&mut adapters_at),
            at(&mut logit_rows_at),
            at(&mut parts_at),
            at(&mut rows_of),
            at(&mut outputs_of),
            at(&mut parts_of),
            at(&mut rank_of),
            at(&mut chunks_of),
            at(&mut groups_of),
        ];
        // SAFETY: as above.
        unsafe { self.expand.launch(blocks as u32, THREADS, 0, any, &args) };
        numbers_of(self.out, &out, rows * outputs)
    }

    /// What is added to an output of a row of this adapter, and the sum of the sizes of all products.
    fn added(&self, adapter: u32, x: &[f32], output: usize) -> (f64, f64) {
        let part = parts_of_outputs(&self.shape)[output];
        let mut rows = self.shape.pieces.iter().flat_map(|piece| piece.rows.clone());
        let row = rows.nth(output).unwrap();
        let Some((scale, a, b)) = self.adapters.get(adapter as usize).and_then(|parts| parts[part as usize].as_ref())
        else {
            return (0.0, 0.0);
        };
        let rank = a.len() / self.shape.inputs;
        let (mut sum, mut size) = (0.0, 0.0);
        for (a, &b) in a.chunks_exact(self.shape.inputs).zip(&b[row * rank..]) {
            for (&a, &x) in a.iter().zip(x) {
                let product = f64::from(*scale) * f64::from(a) * f64::from(x) * f64::from(b);
                (sum, size) = (sum + product, size + product.abs());
            }
        }
        (sum, size)
    }

    fn hold(&self, dice: &mut Dice, adapters: &[u32], logit_rows: Option<&[u32]>) {
        let (inputs, outputs) = (self.shape.inputs, self.shape.outputs());
        let rows = logit_rows.map_or(adapters.len(), <[u32]>::len);
        let mut numbers = |dtype: Dtype, count| (0..count).map(|_| dtype.round(dice.number())).collect::<Vec<f32>>();
        let (x, before) = (numbers(self.shape.dtype, rows * inputs), numbers(self.out, rows * outputs));
        let found = self.add(&x, &before, adapters, logit_rows);
        for row in 0..rows {
            let adapter = adapters[logit_rows.map_or(row, |rows| rows[row] as usize)];
            let [x, before, found] =
                [(&x, inputs), (&before, outputs), (&found, outputs)].map(|(of, width)| &of[row * width..][..width]);
            for output in 0..outputs {
                let (sum, size) = self.added(adapter, x, output);
                let (y, found) = (f64::from(before[output]) + sum, f64::from(found[output]));
                // Each product passes as many sums as there are inputs and ranks, at most.
                let steps = (inputs + 64) as f64 * Dtype::F32.rounding();
                let tolerance = if size == 0.0 { 0.0 } else { steps * size + self.out.rounding() * y.abs() * 1.01 };
                assert!((found - y).abs() <= tolerance, "row {row}, output {output}: {found}, not {y}");
            }
            let alone = self.add(x, before, &[adapter], None);
            assert!(alone.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits()), "row {row} alone");
        }
    }
}

#[test]
fn rows_of_several_adapters_get_what_each_gets_alone() {
    let mut dice = Dice::new(49);
    let (bf16, f16, f32) = (Dtype::Bf16, Dtype::F16, Dtype::F32);
    // Through tensor cores and without; the last two in more than one chunk of the inputs.
    let layers =
        [(bf16, bf16, 264), (bf16, f32, 37), (f16, f16, 40), (f32, f32, 72), (f16, f32, 2312), (f32, f32, 1030)];
    for (dtype, out, inputs) in layers {
        let ranks: [&[usize]; 3] = [&[5, 16], &[0, 3], &[33, 0]];
        let Some(layer) = Layer::new(&mut dice, dtype, out, inputs, &ranks) else { return };
        let mixed = [0, 0, 0, 1, NO_ADAPTER, NO_ADAPTER, 2, 2, 2, 2, 2, 0, 1];
        layer.hold(&mut dice, &mixed, None);
        layer.hold(&mut dice, &mixed, Some(&[0, 3, 3, 4, 6, 12]));
        layer.hold(&mut dice, &[NO_ADAPTER; 3], None);
    }
}
