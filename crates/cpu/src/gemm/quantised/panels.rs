//! The layout of quantised weights: panels of 16 outputs, as dense ones have. Scales and zero points of a panel lie
//! group by group, so that a kernel reads those of 16 outputs at once.

use memmap2::MmapMut;
use rayon::prelude::*;

use super::scales::CodeScales;
use crate::memory::CacheLine;
use offshoot_backend::quantised::{ActivationScale, CodeFormat, QuantFormat, QuantRow, QuantView, row_of_stack};

use crate::gemm::pack::{PANEL, zeroed};

/// A quantised matrix `[rows, cols]` in panels of [`PANEL`] outputs, the last one padded. A panel's codes are, by
/// format:
///
/// * fp8: `[cols][16]` bytes;
/// * int8: `[cols / 4][16][4]` bytes: four inputs of each output, as the dot product of bytes reads them;
/// * int4, e2m1: `[cols / 8][16]` words of eight inputs, from the low bits on.
///
/// Inputs are padded to whole words by codes whose numbers do not matter, as activations are padded with zeros.
pub struct QuantPanels {
    pub rows: usize,
    pub cols: usize,
    pub format: QuantFormat,
    codes: MmapMut,
    /// `[panels][groups][16]`
    pub scales: CodeScales,
    /// `[panels][groups][16]`, or empty.
    zeros: Vec<u8>,
    /// int8: 128 times the sum of each output's codes, which dot products of activations with 128 added have too much.
    offsets: Vec<i32>,
    /// The inputs in the order of the codes; `None`: as they are.
    pub order: Option<Vec<u32>>,
    pub activations: ActivationScale,
}

impl QuantPanels {
    /// Stacks `views`, which agree in all but their rows and sources. Each row is read once.
    pub fn pack(views: &[QuantView<'_>]) -> Self {
        let first = views.first().expect("a matrix has at least one part");
        let (format, cols) = (first.format, first.cols);
        let rows: usize = views.iter().map(|view| view.rows).sum();
        let (panels, groups) = (rows.div_ceil(PANEL), format.groups(cols));
        let lines = panel_lines(format.codes, cols);
        let mut codes = zeroed(panels * lines);
        let mut scales = vec![0.0; panels * groups * PANEL];
        let mut factors = vec![1.0; panels * PANEL];
        let mut zeros = vec![0; if format.zeros { panels * groups * PANEL } else { 0 }];
        let by_panel = |p: usize| (p * PANEL..rows.min((p + 1) * PANEL)).map(|row| row_of_stack(views, row));
        let code_panels = bytemuck::cast_slice_mut::<u8, CacheLine>(&mut codes).par_chunks_exact_mut(lines.max(1));
        let zero_panels: Vec<&mut [u8]> = match format.zeros {
            true => zeros.chunks_exact_mut(groups * PANEL).collect(),
            false => (0..panels).map(|_| Default::default()).collect(),
        };
        code_panels
            .zip(scales.par_chunks_exact_mut((groups * PANEL).max(1)))
            .zip(factors.par_chunks_exact_mut(PANEL))
            .zip(zero_panels)
            .enumerate()
            .for_each_init(QuantRow::default, |row, (p, (((codes, scales), factors), zeros))| {
                let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
                for (lane, (view, from)) in by_panel(p).enumerate() {
                    view.read_row(from, row);
                    row.codes.iter().enumerate().for_each(|(k, &code)| put(codes, format.codes, k, lane, code));
                    row.scales.iter().enumerate().for_each(|(g, &scale)| scales[g * PANEL + lane] = scale);
                    factors[lane] = row.factor;
                    row.zeros.iter().enumerate().for_each(|(g, &zero)| zeros[g * PANEL + lane] = zero);
                }
            });
        let order = first.order.map(<[u32]>::to_vec);
        let (offsets, activations) = (Vec::new(), first.activations);
        let scales = CodeScales::of(format, scales, factors, groups);
        let mut packed = Self { rows, cols, format, codes, scales, zeros, offsets, order, activations };
        if format.codes == CodeFormat::Int8 {
            let sum = |p: usize, lane: usize| {
                let sum =
                    (0..cols).map(|k| i32::from(code(packed.codes_from(p).0, format.codes, k, lane).cast_signed()));
                sum.fold(0, i32::wrapping_add).wrapping_mul(128)
            };
            let outputs = (0..panels * PANEL).into_par_iter();
            packed.offsets = outputs.map(|output| sum(output / PANEL, output % PANEL)).collect();
        }
        packed
    }

    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub fn groups(&self) -> usize {
        self.format.groups(self.cols)
    }

    /// The codes from panel `p` on, and the bytes of a panel.
    pub fn codes_from(&self, p: usize) -> (&[u8], usize) {
        let bytes = panel_lines(self.format.codes, self.cols) * size_of::<CacheLine>();
        (&self.codes[p * bytes..], bytes)
    }

    /// The zero points from panel `p` on, `[groups][16]` each; empty where the format has none.
    pub fn zeros_from(&self, p: usize) -> &[u8] {
        let len = if self.format.zeros { self.groups() * PANEL } else { 0 };
        &self.zeros[p * len..]
    }

    /// The offsets from panel `p` on.
    pub fn offsets_from(&self, p: usize) -> &[i32] {
        &self.offsets[p * PANEL..]
    }

    /// Inputs with the padding of codes.
    pub fn padded_inputs(&self) -> usize {
        self.cols.next_multiple_of(word_codes(self.format.codes))
    }

    /// The number (without its scale) of place `k` in the order of the codes, of output `lane` of panel `p`.
    pub fn number(&self, p: usize, k: usize, lane: usize) -> f32 {
        let group = k / self.format.group_inputs(self.cols).max(1);
        let zero = self.zeros_from(p).get(group * PANEL + lane).copied();
        self.format.codes.number(code(self.codes_from(p).0, self.format.codes, k, lane), zero)
    }

    /// Row `row` as numbers, inputs in the model's order.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let (p, lane) = (row / PANEL, row % PANEL);
        let group = self.format.group_inputs(self.cols).max(1);
        for k in 0..self.cols {
            let input = self.order.as_ref().map_or(k, |order| order[k] as usize);
            out[input] = self.number(p, k, lane) * self.scales.get(p, k / group, lane);
        }
    }
}

/// Inputs of a word of codes.
pub const fn word_codes(codes: CodeFormat) -> usize {
    match codes {
        CodeFormat::Fp8 => 1,
        CodeFormat::Int8 => 4,
        CodeFormat::Int4 | CodeFormat::Fp4 => 8,
    }
}

/// Cache lines of a panel's codes.
fn panel_lines(codes: CodeFormat, cols: usize) -> usize {
    match codes {
        CodeFormat::Fp8 | CodeFormat::Int8 => cols.div_ceil(4),
        CodeFormat::Int4 | CodeFormat::Fp4 => cols.div_ceil(8),
    }
}

/// The byte of a panel that holds place `k` of output `lane`, and the bits before it.
fn place(codes: CodeFormat, k: usize, lane: usize) -> (usize, usize) {
    match codes {
        CodeFormat::Fp8 => (k * PANEL + lane, 0),
        CodeFormat::Int8 => ((k / 4 * PANEL + lane) * 4 + k % 4, 0),
        CodeFormat::Int4 | CodeFormat::Fp4 => ((k / 8 * PANEL + lane) * 4 + k % 8 / 2, k % 2 * 4),
    }
}

fn code(panel: &[u8], codes: CodeFormat, k: usize, lane: usize) -> u8 {
    let (byte, bits) = place(codes, k, lane);
    let mask = if codes.bits() == 4 { 15 } else { 255 };
    panel[byte] >> bits & mask
}

/// Writes a code into a panel of zeros.
fn put(panel: &mut [u8], codes: CodeFormat, k: usize, lane: usize, code: u8) {
    let (byte, bits) = place(codes, k, lane);
    panel[byte] |= code << bits;
}
