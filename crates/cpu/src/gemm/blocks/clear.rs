//! The definition of the products of codes. Of each group, or half of one, the sum of products is exact: it is below
//! `32 * 255 * 127`, which an f32 holds. It is multiplied by the product of both scales and added in one rounding; so is
//! the smallest value times the sum of the rounded activations subtracted.

use super::super::pack::PANEL;
use super::codes::{CodeLines, LINE, WORDS};
use super::drive::{BlockKernels, BlockTile};
use offshoot_gguf::LIFTED;

pub const KERNELS: BlockKernels = BlockKernels { rows: 16, panels: |_| 1, kernel: |_, _, _| tile };

unsafe fn tile(tile: &BlockTile<'_>, sums: &mut [f32]) {
    sums.fill(0.0);
    let (w, lines) = (tile.w, CodeLines::of(tile.w.kind));
    let (splits, mut codes) = (w.splits(), [[0; LINE]; WORDS]);
    for (g, packed) in w.codes_from(tile.panel).chunks_exact(lines.bytes()).take(w.groups()).enumerate() {
        lines.unpack(packed, &mut codes);
        for (r, sums) in sums.chunks_exact_mut(PANEL).enumerate() {
            let (row, x) = (tile.x.row(tile.first + r), &tile.x.codes_from(tile.first + r)[g * LIFTED..][..LIFTED]);
            for (lane, sum) in sums.iter_mut().enumerate() {
                for half in 0..splits {
                    let inputs = half * LIFTED / splits..(half + 1) * LIFTED / splits;
                    let products = inputs.map(|k| i32::from(codes[k / 4][lane * 4 + k % 4]) * i32::from(x[k]));
                    let dot = row.starts[g * splits + half] + products.sum::<i32>();
                    *sum = (dot as f32).mul_add(tile.scales_at(0, g, half)[lane] * row.scales[g], *sum);
                }
                if w.kind.has_least() {
                    *sum = (-tile.least_at(0, g)[lane]).mul_add(row.sums[g], *sum);
                }
            }
        }
    }
}

/// What kernels of an instruction set for `codes` and `form` are compared with: there are none but x86's.
#[cfg(all(test, target_arch = "x86_64"))]
pub mod tests {
    use super::super::drive::BlockForm;
    use super::super::operand::RoundedRows;
    use super::super::panels::{BlockPanels, PanelScales};
    use super::*;
    use crate::{Cores, Isa};
    use offshoot_backend::BlockView;
    use offshoot_core::mix::mix;
    use offshoot_gguf::TensorType;

    fn form(kind: TensorType) -> BlockForm {
        match kind {
            TensorType::Q6K => BlockForm::Halves,
            _ if kind.has_least() => BlockForm::Least,
            _ => BlockForm::Plain,
        }
    }

    /// Compares kernels for each type of blocks with the definition, bit for bit, with codes and activations at their
    /// limits among them. `kernels`: for codes.
    pub fn compare(what: &str, kernels: impl Fn(CodeLines) -> BlockKernels) {
        let (outputs, cols) = (64, 512);
        for kind in TensorType::ALL.into_iter().filter(|kind| kind.is_quantised()) {
            let mut bytes: Vec<u8> = (0..outputs * kind.row_bytes(cols)).map(|i| mix(i as u64) as u8).collect();
            for (i, block) in bytes.chunks_exact_mut(kind.block_bytes()).enumerate() {
                if i % 5 == 0 {
                    block.fill(if i % 2 == 0 { 0xff } else { 0x80 });
                }
                block[kind.scale_bytes()].iter_mut().for_each(|byte| *byte &= 0xbf);
            }
            let w = BlockPanels::pack(&[BlockView { kind, rows: outputs, cols, bytes: &bytes, exact: false }]);
            let kernels = kernels(CodeLines::of(kind));
            for rows in 1..=kernels.rows {
                let number = |i: usize| if i % 7 < 2 { 1.0 } else { (mix(i as u64) >> 40) as f32 / 8_388_608.0 - 1.0 };
                let numbers: Vec<f32> = (0..rows * cols).map(number).collect();
                let mut x = RoundedRows::default();
                x.round(&Cores::new(Isa::Portable), &w, rows, |r| &numbers[r * cols..][..cols]);
                for count in [1, (kernels.panels)(rows)] {
                    let mut scales = PanelScales::default();
                    (0..count).for_each(|p| w.read_scales(p, &mut scales));
                    let tile = BlockTile { w: &w, panel: 0, scales: &scales, x: &x, first: 0 };
                    let mut found = vec![f32::NAN; rows * count * PANEL];
                    // SAFETY: the caller has checked that the processor has the instructions.
                    unsafe { (kernels.kernel)(rows, count, form(kind))(&tile, &mut found) };
                    for p in 0..count {
                        let mut scales = PanelScales::default();
                        w.read_scales(p, &mut scales);
                        let mut expected = vec![f32::NAN; rows * PANEL];
                        let tile = BlockTile { w: &w, panel: p, scales: &scales, x: &x, first: 0 };
                        // SAFETY: it needs no instructions of its own.
                        unsafe { super::tile(&tile, &mut expected) };
                        for (r, expected) in expected.chunks_exact(PANEL).enumerate() {
                            let found = &found[(r * count + p) * PANEL..][..PANEL];
                            assert_eq!(found, expected, "{what}: {kind}, {rows} rows, {count} panels, {r} and {p}");
                        }
                    }
                }
            }
        }
    }
}
