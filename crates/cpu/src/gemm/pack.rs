//! The layout of weights: panels of 16 outputs, so that one vector register holds the weights of one input for 16
//! outputs. One packed copy serves every instruction set and the embedding lookup. `drive` and the kernels multiply it.

use half::{bf16, f16};
use memmap2::MmapMut;
use rayon::prelude::*;

use crate::memory::CacheLine;
use offshoot_backend::{Dtype, Elements, WeightView};
use offshoot_core::memory::MemoryFault;

/// Outputs per panel: f32 lanes of the widest register.
pub const PANEL: usize = 16;

/// A weight matrix `[rows, cols]` (outputs, inputs) in panels of `PANEL` outputs, the last one padded with zeros. A
/// panel is `[cols][16]` in f32 and f16. In bf16 it is `[cols / 2][16][2]`: pairs of inputs, as the dot product
/// instruction reads them, an odd number of inputs padded with a zero.
pub struct CpuMatrix {
    pub rows: usize,
    pub cols: usize,
    dtype: Dtype,
    lines: MmapMut,
}

impl CpuMatrix {
    /// Stacks `parts`, which have equal `cols` and dtype. Panics if parts differ or a part's bytes do not fit its
    /// shape.
    pub fn pack(parts: &[WeightView<'_>]) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let (cols, dtype) = (first.cols, first.dtype);
        assert!(parts.iter().all(|p| p.cols == cols && p.dtype == dtype), "stacked parts agree in width and dtype");
        assert!(parts.iter().all(|p| p.bytes.len() == p.rows * cols * dtype.bytes()), "a part's bytes fit its shape");
        let rows: usize = parts.iter().map(|p| p.rows).sum();
        let mut lines = zeroed(rows.div_ceil(PANEL) * panel_lines(dtype, cols));
        let sources: Vec<&[u8]> =
            parts.iter().flat_map(|p| p.bytes.chunks_exact((cols * dtype.bytes()).max(1))).collect();
        bytemuck::cast_slice_mut::<u8, CacheLine>(&mut lines)
            .par_chunks_exact_mut(panel_lines(dtype, cols).max(1))
            .zip(sources.par_chunks(PANEL))
            .for_each(|(panel, rows)| fill_panel(panel, rows, dtype));
        Self { rows, cols, dtype, lines }
    }

    /// The dtype of its elements.
    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(super) fn panel_lines(&self) -> usize {
        panel_lines(self.dtype(), self.cols)
    }

    /// All panels, one after another.
    pub(super) fn lines(&self) -> &[CacheLine] {
        let lines: &[CacheLine] = bytemuck::cast_slice(&self.lines);
        &lines[..self.panels() * self.panel_lines()]
    }

    pub(super) fn panel(&self, p: usize) -> &[CacheLine] {
        &self.lines()[p * self.panel_lines()..][..self.panel_lines()]
    }

    /// All elements, as they were packed.
    pub fn elements(&self) -> Elements {
        let mut elements = Elements::zeros(self.dtype, self.rows, self.cols);
        let width = self.cols * self.dtype.bytes();
        elements.bytes.par_chunks_exact_mut(width.max(1)).enumerate().for_each(|(row, bytes)| {
            let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
            match self.dtype {
                Dtype::F32 => {
                    let inputs: &[[f32; PANEL]] = bytemuck::cast_slice(panel);
                    let to = bytes.as_chunks_mut().0.iter_mut();
                    to.zip(inputs).for_each(|(to, lanes)| *to = lanes[lane].to_le_bytes());
                }
                Dtype::F16 => {
                    let inputs: &[[u16; PANEL]] = bytemuck::cast_slice(panel);
                    let to = bytes.as_chunks_mut().0.iter_mut();
                    to.zip(inputs).for_each(|(to, lanes)| *to = lanes[lane].to_le_bytes());
                }
                Dtype::Bf16 => {
                    let elements: &[u16] = bytemuck::cast_slice(panel);
                    let to = bytes.as_chunks_mut().0.iter_mut().enumerate();
                    to.for_each(|(k, to)| *to = elements[bf16_index(k, lane)].to_le_bytes());
                }
            }
        });
        elements
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
pub fn element(panel: &[CacheLine], dtype: Dtype, k: usize, lane: usize) -> f32 {
    match dtype {
        Dtype::F32 => bytemuck::cast_slice::<_, f32>(panel)[k * PANEL + lane],
        Dtype::F16 => f16::from_bits(bytemuck::cast_slice::<_, u16>(panel)[k * PANEL + lane]).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bytemuck::cast_slice::<_, u16>(panel)[bf16_index(k, lane)]).to_f32(),
    }
}

/// Index of input `k` of output `lane` among the elements of a bf16 panel.
#[inline(always)]
fn bf16_index(k: usize, lane: usize) -> usize {
    (k / 2 * PANEL + lane) * 2 + k % 2
}

/// Cache lines per panel.
fn panel_lines(dtype: Dtype, cols: usize) -> usize {
    match dtype {
        Dtype::F32 => cols,
        Dtype::F16 | Dtype::Bf16 => cols.div_ceil(2),
    }
}

/// Copies up to 16 rows (bytes as in the file, possibly unaligned) into the lanes of a panel, which is zero.
fn fill_panel(panel: &mut [CacheLine], rows: &[&[u8]], dtype: Dtype) {
    for (lane, row) in rows.iter().enumerate() {
        match dtype {
            Dtype::F32 => {
                let inputs: &mut [[f32; PANEL]] = bytemuck::cast_slice_mut(panel);
                let elements = row.as_chunks().0.iter();
                inputs.iter_mut().zip(elements).for_each(|(lanes, &x)| lanes[lane] = f32::from_le_bytes(x));
            }
            Dtype::F16 => {
                let inputs: &mut [[u16; PANEL]] = bytemuck::cast_slice_mut(panel);
                let elements = row.as_chunks().0.iter();
                inputs.iter_mut().zip(elements).for_each(|(lanes, &x)| lanes[lane] = u16::from_le_bytes(x));
            }
            Dtype::Bf16 => {
                let pairs: &mut [[[u16; 2]; PANEL]] = bytemuck::cast_slice_mut(panel);
                let (elements, odd) = row.as_chunks::<4>();
                for (lanes, &[low, high, next_low, next_high]) in pairs.iter_mut().zip(elements) {
                    lanes[lane] = [u16::from_le_bytes([low, high]), u16::from_le_bytes([next_low, next_high])];
                }
                if let &[low, high] = odd {
                    pairs[elements.len()][lane][0] = u16::from_le_bytes([low, high]);
                }
            }
        }
    }
}

/// Zeroed memory mapped from the system, on huge pages where available: weights are streamed, and small pages would
/// cost a page-table walk every 4 KB.
pub fn zeroed(lines: usize) -> MmapMut {
    let bytes = lines.max(1) * size_of::<CacheLine>();
    // Whether there is room for weights is asked before they are loaded; an allocation in their place would fail, too.
    let memory = MmapMut::map_anon(bytes).unwrap_or_else(|error| panic!("memory for weights: {}", MemoryFault(&error)));
    #[cfg(target_os = "linux")]
    if let Err(err) = memory.advise(memmap2::Advice::HugePage) {
        log::debug!("no huge pages for weights: {err}");
    }
    memory
}
