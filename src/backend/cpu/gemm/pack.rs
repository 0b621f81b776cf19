//! The layout of weights: panels of 16 outputs, so that one vector register holds the same input's weight of 16
//! outputs. The one packed copy serves every instruction set and the embedding gather. How it is multiplied is its
//! neighbours'.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use memmap2::MmapMut;
use rayon::prelude::*;

use super::Isa;
use crate::backend::{Dtype, WeightFormat, WeightView};

/// Outputs of a panel: f32 lanes of the widest register.
pub const PANEL: usize = 16;

/// A cache line, the unit of panels.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line([u8; 64]);

/// A weight matrix `[rows, cols]` (outputs, inputs) in panels of `PANEL` outputs; the last one is filled up with zeros.
/// A panel is `[cols][16]` in f32 and f16; in bf16 `[cols / 2][16][2]`: pairs of inputs, as the bf16 dot product takes
/// them, an odd last one paired with zero.
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub format: WeightFormat,
    lines: MmapMut,
}

impl Matrix {
    /// Stacks `parts`, which have equal `cols` and dtype. The layout is the same for every instruction set.
    pub fn pack(_isa: Isa, parts: &[WeightView<'_>]) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let (cols, dtype) = (first.cols, first.dtype);
        assert!(parts.iter().all(|p| p.cols == cols && p.dtype == dtype), "stacked parts agree in width and dtype");
        assert!(parts.iter().all(|p| p.bytes.len() == p.rows * cols * dtype.bytes()), "a part's bytes fit its shape");
        let rows: usize = parts.iter().map(|p| p.rows).sum();
        let mut lines = zeroed(rows.div_ceil(PANEL) * panel_lines(dtype, cols));
        let sources: Vec<&[u8]> =
            parts.iter().flat_map(|p| p.bytes.chunks_exact((cols * dtype.bytes()).max(1))).collect();
        cast_mut(&mut lines)
            .par_chunks_exact_mut(panel_lines(dtype, cols).max(1))
            .zip(sources.par_chunks(PANEL))
            .for_each(|(panel, rows)| fill_panel(panel, rows, dtype));
        Self { rows, cols, format: WeightFormat::Dense(dtype), lines }
    }

    /// Of the elements of its panels.
    pub(super) fn dtype(&self) -> Dtype {
        match self.format {
            WeightFormat::Dense(dtype) => dtype,
        }
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(super) fn panel_lines(&self) -> usize {
        panel_lines(self.dtype(), self.cols)
    }

    /// All panels, one after another.
    pub(super) fn lines(&self) -> &[Line] {
        let lines: &[Line] = bytemuck::cast_slice(&self.lines);
        &lines[..self.panels() * self.panel_lines()]
    }

    pub(super) fn panel(&self, p: usize) -> &[Line] {
        &self.lines()[p * self.panel_lines()..][..self.panel_lines()]
    }

    /// Row `row`, widened to f32.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
        for (k, out) in out.iter_mut().enumerate() {
            *out = element(panel, self.dtype(), k, lane);
        }
    }
}

/// Input `k` of output `lane` of a panel, widened to f32.
#[inline(always)]
pub fn element(panel: &[Line], dtype: Dtype, k: usize, lane: usize) -> f32 {
    match dtype {
        Dtype::F32 => bytemuck::cast_slice::<_, f32>(panel)[k * PANEL + lane],
        Dtype::F16 => f16::from_bits(bytemuck::cast_slice::<_, u16>(panel)[k * PANEL + lane]).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bytemuck::cast_slice::<_, u16>(panel)[pair_at(k, lane)]).to_f32(),
    }
}

/// Where input `k` of output `lane` lies among the halves of a bf16 panel.
#[inline(always)]
fn pair_at(k: usize, lane: usize) -> usize {
    (k / 2 * PANEL + lane) * 2 + k % 2
}

fn panel_lines(dtype: Dtype, cols: usize) -> usize {
    match dtype {
        Dtype::F32 => cols,
        Dtype::F16 | Dtype::Bf16 => cols.div_ceil(2),
    }
}

/// Copies up to 16 rows (bytes as in the file, perhaps unaligned) into the lanes of a panel.
fn fill_panel(panel: &mut [Line], rows: &[&[u8]], dtype: Dtype) {
    for (lane, row) in rows.iter().enumerate() {
        match dtype {
            Dtype::F32 => {
                let out: &mut [f32] = bytemuck::cast_slice_mut(panel);
                for (k, b) in row.as_chunks::<4>().0.iter().enumerate() {
                    out[k * PANEL + lane] = f32::from_le_bytes(*b);
                }
            }
            Dtype::F16 => {
                let out: &mut [u16] = bytemuck::cast_slice_mut(panel);
                for (k, b) in row.as_chunks::<2>().0.iter().enumerate() {
                    out[k * PANEL + lane] = u16::from_le_bytes(*b);
                }
            }
            Dtype::Bf16 => {
                let out: &mut [u16] = bytemuck::cast_slice_mut(panel);
                for (k, b) in row.as_chunks::<2>().0.iter().enumerate() {
                    out[pair_at(k, lane)] = u16::from_le_bytes(*b);
                }
            }
        }
    }
}

/// Zeroed memory straight from the system: aligned to pages and, where the system has them, on huge pages, since
/// weights are streamed and small pages would cost a walk of the page table every 4 KB.
fn zeroed(lines: usize) -> MmapMut {
    let bytes = lines.max(1) * size_of::<Line>();
    let memory = MmapMut::map_anon(bytes).expect("memory for weights, without which no allocation would succeed");
    #[cfg(target_os = "linux")]
    if let Err(err) = memory.advise(memmap2::Advice::HugePage) {
        log::debug!("no huge pages for weights: {err}");
    }
    memory
}

fn cast_mut(memory: &mut MmapMut) -> &mut [Line] {
    bytemuck::cast_slice_mut(memory)
}
