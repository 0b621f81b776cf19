//! Many rows by weights whose codes have become f32 numbers: the same chains of multiply-adds as `avx512`, bit for bit,
//! with the numbers of a strip made once for all groups of rows.

use std::arch::x86_64::*;

use super::wide::{WideKernel, WideTile};
use crate::gemm::pack::PANEL;

/// The kernel for exactly this many rows and panels.
pub fn kernel(rows: usize, panels: usize) -> WideKernel {
    macro_rules! one_of {
        ($($rows:literal)+) => {
            match (rows, panels) {
                $(($rows, 1) => tile::<$rows, 1>, ($rows, 2) => tile::<$rows, 2>,)+
                _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
            }
        };
    }
    one_of!(6 7 8 9 10 11 12)
}

#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &WideTile) {
    let x = tile.x.cast::<f32>();
    for piece in 0..tile.pieces {
        let first = piece * tile.inputs;
        let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
        if !tile.begins {
            for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: the tile has `ROWS * PANELS` registers of parts.
                *acc = unsafe { _mm512_loadu_ps(tile.parts.add(i * PANEL)) };
            }
        }
        for k in first..first + tile.inputs {
            let mut w = [_mm512_setzero_ps(); PANELS];
            for (p, w) in w.iter_mut().enumerate() {
                // SAFETY: the tile has the numbers of all inputs of `PANELS` panels.
                *w = unsafe { _mm512_loadu_ps(tile.numbers.add(p * tile.panel_numbers + k * PANEL)) };
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the tile has all inputs of `ROWS` rows.
                let x = _mm512_set1_ps(unsafe { *x.add(r * tile.stride + k) });
                for (acc, w) in acc.iter_mut().zip(&w) {
                    *acc = _mm512_fmadd_ps(x, *w, *acc);
                }
            }
        }
        for p in 0..PANELS {
            // SAFETY: the tile has scales of `PANELS` panels and all its groups, and `ROWS * PANELS` registers of sums
            // and of parts.
            unsafe {
                let scale = _mm512_loadu_ps(tile.scales.add((p * tile.groups + piece) * PANEL));
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(tile.factor));
                for (r, acc) in acc.iter().enumerate() {
                    let at = (r * PANELS + p) * PANEL;
                    if tile.ends {
                        let sum = tile.sums.add(at);
                        let is_first = tile.is_first && piece == 0;
                        let before = if is_first { _mm512_setzero_ps() } else { _mm512_loadu_ps(sum) };
                        _mm512_storeu_ps(sum, _mm512_fmadd_ps(acc[p], scale, before));
                    } else {
                        _mm512_storeu_ps(tile.parts.add(at), acc[p]);
                    }
                }
            }
        }
    }
}
