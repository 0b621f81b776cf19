//! Products of unrounded activations: weights become f32 numbers, 32 inputs of a panel at a time, and every output is
//! one chain of f32 products and sums over the inputs in rising order. This is its own definition.

use super::kernel::BlockKernels;
use super::panels::{BlockPanels, PanelScales};
use crate::Isa;
use crate::gemm::pack::PANEL;
use crate::rows::for_each_isa;
use offshoot_gguf::LIFTED;

/// How many rows and panels are multiplied at a time.
pub const KERNELS: BlockKernels =
    BlockKernels { rows: 8, panels: |_| 1, kernel: |_, _| unreachable!("numbers are multiplied without kernels") };

/// Activations of a row.
type Row<'a> = &'a dyn Fn(usize) -> &'a [f32];

for_each_isa! {
    /// The products of panel `panel` and some rows: `sums[row][16]`.
    pub fn multiply(w: &BlockPanels, panel: usize, scales: &PanelScales, rows: usize, row: Row<'_>, sums: &mut [f32]) {
        sums.fill(0.0);
        let mut numbers = [[0.0; PANEL]; LIFTED];
        let (sums, _) = sums.as_chunks_mut::<PANEL>();
        for g in 0..w.groups() {
            w.numbers(panel, g, scales, &mut numbers);
            for (r, sums) in sums.iter_mut().enumerate().take(rows) {
                let mut own = *sums;
                for (numbers, x) in numbers.iter().zip(&row(r)[g * LIFTED..]) {
                    own.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += x * number);
                }
                *sums = own;
            }
        }
    }
}
