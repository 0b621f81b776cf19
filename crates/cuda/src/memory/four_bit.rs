//! Matrices of 4-bit codes on the device, packed as panels (kernels/four_bit/panels.cuh) row by row while they are
//! uploaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::staging::Staging;
use super::weights::{Matrix, over};
use crate::compile::four_bit::{FourBit, FourBitCodes};
use crate::driver::device::Device;
use offshoot_backend::{QuantRow, QuantView, WeightFormat};
use offshoot_core::error::{Error, Result};

/// Bytes of panels that are packed before they are uploaded.
const MOST_PACKED: usize = 32 << 20;

/// Kernels of Hopper make numbers of bf16 of e2m1 and its power of two in one product (kernels/four_bit/decode.cuh),
/// which would not hold a larger one. Weights of models are smaller than 12.
const MOST_FP4_SCALE: f32 = 2.0;

/// What scales of NVFP4 are divided by and factors multiplied by, so that the largest scale, 448, becomes 3.5.
const NVFP4_UNIT: f32 = 128.0;

/// The zero point of symmetric int4.
const SYMMETRIC_ZERO: u8 = 8;

/// Stacks matrices of one 4-bit format, none of which has an order of inputs of its own, into panels.
/// `old`: the matrix in whose memory it is put.
pub fn matrix(device: &Device, staging: &mut Staging, views: &[QuantView<'_>], old: Option<&Matrix>) -> Result<Matrix> {
    let QuantView { format, cols, .. } = *views.first().expect("a matrix has at least one part");
    let layout = FourBit::of(format).expect("a format that the device multiplies, by `multiplies`");
    assert!(views.iter().all(|view| view.order.is_none()), "an order of inputs, which `ORDERS_INPUTS` denies");
    let rows: Vec<(&QuantView<'_>, usize)> =
        views.iter().flat_map(|view| (0..view.rows).map(move |row| (view, row))).collect();
    let outputs = rows.len();
    let (groups, group_bytes) = (outputs.div_ceil(FourBit::OUTPUTS), layout.group_bytes(cols));
    let memory = over(device, old, groups * group_bytes)?;
    let together = (MOST_PACKED / group_bytes.max(1)).max(1);
    // Bits of the largest scale without its sign: they rise with the number, and those of NaN are the largest.
    let largest = AtomicU32::new(0);
    let mut packed = vec![0u8; together.min(groups) * group_bytes];
    for first in (0..groups).step_by(together) {
        let end = groups.min(first + together);
        let packed = &mut packed[..(end - first) * group_bytes];
        packed.fill(0);
        packed.par_chunks_exact_mut(group_bytes).enumerate().for_each_init(
            QuantRow::default,
            |row, (group, panels)| {
                let begin = (first + group) * FourBit::OUTPUTS;
                let own = &rows[begin..outputs.min(begin + FourBit::OUTPUTS)];
                for (output, (view, from)) in own.iter().enumerate() {
                    view.read_row(*from, row);
                    let sizes = (0..row.scales.len()).map(|group| row.scale(group).abs().to_bits());
                    largest.fetch_max(sizes.max().unwrap_or(0), Ordering::Relaxed);
                    pack_row(layout, format.group_inputs(cols), row, output, panels);
                }
            },
        );
        staging.upload(&memory, first * group_bytes, packed)?;
    }
    device.check()?;
    let largest = f32::from_bits(largest.into_inner());
    if !largest.is_finite() {
        return Err(Error::value("a scale of 4-bit weights", "a finite number", largest.to_string()));
    }
    let has_powers = layout.codes == FourBitCodes::Fp4 && !layout.has_factors();
    if has_powers && device.facts().major == 9 && largest > MOST_FP4_SCALE {
        let expected = format!("at most {MOST_FP4_SCALE} on this GPU; the CPU takes any");
        return Err(Error::value("a scale of MXFP4 weights", expected, largest.to_string()));
    }
    let format = WeightFormat::Quantised(format);
    Ok(Matrix { memory: Arc::new(memory), outputs, inner: cols, format, fp8: None })
}

/// Scales below this count as 0. Kernels keep sums in units of a scale and multiply them by the quotient of two, which
/// then stays within f32 for scales of up to 2^27.
const LEAST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// Writes a row as output `output` of the panels of 64 outputs, which are zeros there. `group_inputs`: inputs that
/// share one of the row's scales. Groups of scale 0 get codes that stand for 0, and a scale of 1. `panels` has the
/// factors too, where there are any.
pub fn pack_row(layout: FourBit, group_inputs: usize, row: &QuantRow, output: usize, panels: &mut [u8]) {
    let group_inputs = group_inputs.max(1);
    let zero = |group: usize| match layout.codes {
        FourBitCodes::Int4 => row.zeros.get(group).copied().unwrap_or(SYMMETRIC_ZERO),
        FourBitCodes::Fp4 => 0,
    };
    let counts = |group: usize| row.scales.get(group).is_some_and(|scale| scale.abs() >= LEAST_SCALE);
    // Nearly always: then no code asks for its group.
    let all_count = row.scales.iter().all(|scale| scale.abs() >= LEAST_SCALE);
    if layout.has_factors() {
        let at = layout.factors_at(row.codes.len()) + output * 4;
        panels[at..][..4].copy_from_slice(&(row.factor * NVFP4_UNIT).to_le_bytes());
    }
    let panels = panels.chunks_exact_mut(layout.panel_bytes()).zip(row.codes.chunks(FourBit::INPUTS));
    for (number, (panel, codes)) in panels.enumerate() {
        for (k, &code) in codes.iter().enumerate() {
            let group = || (number * FourBit::INPUTS + k) / group_inputs;
            let code = if all_count || counts(group()) { code } else { zero(group()) };
            // Thread, register and half of it that hold input k, as in attention/mma.cuh.
            let thread = output / 16 * 32 + output % 8 * 4 + k % 8 / 2;
            let (register, high) = (output / 8 % 2 + k / 8 % 2 * 2, k % 2);
            let half = k / 64 * (FourBit::SCALES_AT / 2) + thread * 16 + k % 64 / 16 * 4 + high * 2;
            let bits = match layout.codes {
                FourBitCodes::Int4 => u16::from(code) << (4 * register),
                FourBitCodes::Fp4 => fp4_bits(code, register),
            };
            let [low, high] = bits.to_le_bytes();
            panel[half] |= low;
            panel[half + 1] |= high;
        }
        for own in 0..layout.groups() {
            let group = (number * FourBit::INPUTS + own * layout.group) / group_inputs;
            let scale = if counts(group) { row.scales[group] } else { 1.0 };
            let at = own * FourBit::OUTPUTS + output;
            match layout.codes {
                FourBitCodes::Int4 => {
                    panel[FourBit::SCALES_AT + at * 4..][..4].copy_from_slice(&scale.to_le_bytes());
                    panel[layout.zeros_at() + at] = zero(group);
                }
                FourBitCodes::Fp4 if layout.has_factors() => {
                    let word = own / 2 * 32 + output / 16 * 8 + output % 8;
                    panel[FourBit::SCALES_AT + word * 4 + own % 2 * 2 + output / 8 % 2] = nvfp4_scale(scale);
                }
                // A power of two: its exponent.
                FourBitCodes::Fp4 => panel[FourBit::SCALES_AT + at] = (scale.to_bits() >> 23) as u8,
            }
        }
    }
}

/// A positive number of e4m3 as panels have it, in units: five bits of exponent with 29 added, and three of mantissa.
fn nvfp4_scale(scale: f32) -> u8 {
    // The exponent of an f32 has 127 added. The smallest number of e4m3 is 2^-9, so that of the unit's part is 13.
    ((scale / NVFP4_UNIT).to_bits() >> 20).wrapping_sub((127 - 29) << 3) as u8
}

/// The bits of an e2m1 code in register `register` of a word's half.
fn fp4_bits(code: u8, register: usize) -> u16 {
    let (sign, size) = (u16::from(code >> 3), u16::from(code & 7));
    match register {
        3 => sign << 14 | (size >> 2) << 13 | (size & 3) << 10,
        _ => sign << (15 - 3 * register) | size << (6 - 3 * register),
    }
}
