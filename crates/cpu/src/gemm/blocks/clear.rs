//! The definition of the products of codes. Of each group, or half of one, the sum of products is exact: it is below
//! `32 * 255 * 127`, which an f32 holds. It is multiplied by the product of both scales and added in one rounding; so
//! is the smallest value times the sum of the rounded activations subtracted.

use super::codes::{CodeLines, LINE, WORDS};
use super::kernel::{BlockKernels, BlockTile};
use crate::gemm::pack::PANEL;
use offshoot_gguf::LIFTED;

pub const KERNELS: BlockKernels = BlockKernels { rows: 16, panels: |_| 1, kernel: |_, _| tile };

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
                    if w.kind.has_least() {
                        *sum = (-tile.least_at(0, g, half)[lane]).mul_add(row.sums[g * splits + half], *sum);
                    }
                }
            }
        }
    }
}
