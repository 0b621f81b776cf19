//! Linear layers by tile registers: outputs are those of the instruction's definition.

use half::bf16;
use offshoot_backend::{Dtype, OutputMode, WeightView};
use offshoot_core::dice::Dice;
use offshoot_cpu::amx::TILE_ROWS;
use offshoot_cpu::gemm::operand::OperandFormat;
use offshoot_cpu::gemm::{CpuMatrix, DenseScratch, linear};
use offshoot_cpu::{Cores, CpuBuffer, Isa};

use crate::bf16_dot;
use crate::skip::skipped;

/// Each output is the chain of [`bf16_dot::tile_dot`]s over 32 inputs, for all numbers of rows, of panels, and of
/// inputs that fill no tile.
#[test]
fn outputs_are_those_of_the_instruction_s_definition() {
    if !Isa::available().contains(&Isa::Amx) {
        return skipped("this processor has no AMX");
    }
    let cores = Cores::new(Isa::Amx);
    let mut scratch = DenseScratch::default();
    let mut dice = Dice::new(1);
    let mut number = || dice.number() * 2f32.powi(dice.below(8) as i32 - 4);
    for (rows, outputs, inputs) in [
        (1, 16, 32),
        (1, 1, 1),
        (3, 20, 0),
        (3, 130, 31),
        (16, 64, 64),
        (17, 70, 66),
        (32, 48, 576),
        (50, 33, 1030),
        (70, 16, 2),
        (15, 20, 1030),
        (33, 20, 1030),
        (1, 260, 600),
        (16, 150, 600),
        (32, 150, 600),
        (48, 70, 600),
        (1, 130, 601),
        (1, 115, 33),
        (1, 240, 70),
    ] {
        let weights: Vec<bf16> = (0..outputs * inputs).map(|_| bf16::from_f32(number())).collect();
        let view =
            WeightView { dtype: Dtype::Bf16, rows: outputs, cols: inputs, bytes: bytemuck::cast_slice(&weights) };
        let w = CpuMatrix::pack(&[view]);
        let mut x = CpuBuffer::new(rows, inputs);
        // What the padding of rows held before, which must not matter.
        let mut garbage = CpuBuffer::new(96, inputs);
        garbage.data.fill(f32::NAN);
        linear(&cores, &mut scratch, &mut CpuBuffer::new(96, outputs), &garbage, &w, None, OutputMode::Replace);
        x.data.iter_mut().for_each(|x| *x = number());
        let mut out = CpuBuffer::new(rows, outputs);
        linear(&cores, &mut scratch, &mut out, &x, &w, None, OutputMode::Replace);
        let before = out.data.clone();
        let pairs = |x: &[bf16]| -> Vec<u32> {
            let bits = |x: Option<&bf16>| x.map_or(0, |x| u32::from(x.to_bits()));
            x.chunks(2).map(|x| bits(x.first()) | bits(x.get(1)) << 16).collect()
        };
        for r in 0..rows {
            let x = pairs(&x.row(r).iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
            for o in 0..outputs {
                let w = pairs(&weights[o * inputs..][..inputs]);
                let mut sum = 0.0;
                for strip in OperandFormat::Tiles.strips(x.len()) {
                    let strip = strip.first..strip.first + strip.words;
                    for (x, w) in x[strip.clone()].chunks(TILE_ROWS).zip(w[strip].chunks(TILE_ROWS)) {
                        sum = bf16_dot::tile_dot(sum, x.iter().copied(), w.iter().copied());
                    }
                }
                assert_eq!(out.row(r)[o].to_bits(), sum.to_bits(), "{rows} x {inputs} -> {outputs}: row {r}, {o}");
            }
        }
        linear(&cores, &mut scratch, &mut out, &x, &w, None, OutputMode::Add);
        let twice = before.iter().map(|x| x + x);
        assert!(out.data.iter().zip(twice).all(|(out, twice)| out.to_bits() == twice.to_bits()), "added");
    }
}
