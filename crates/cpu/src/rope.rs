//! Rotary position embedding: one loop for each way to pair elements, compiled for every instruction set.

use super::rows::{for_each_isa, for_rows};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{HeadLayout, RopePairs, RopeTable};

/// Rotates the first `table.rotary` elements of the query heads of `qkv`, and of the key heads if `table.keys`, in
/// place.
pub fn rope(cores: &Cores, qkv: &mut CpuBuffer, heads: HeadLayout, table: &RopeTable, positions: &[u32]) {
    assert_eq!((qkv.width, qkv.rows), (heads.qkv_width(), positions.len()), "rope: shapes");
    let rotated = (heads.q_heads + if table.keys { heads.kv_heads } else { 0 }) * heads.head_dim;
    for_rows(&cores.team, qkv, |r, row| {
        rotate(cores.isa, &mut row[..rotated], heads.head_dim, 0, table, positions[r]);
    });
}

/// Rotates `table.rotary` elements of each of `heads`, `head_dim` elements wide, from element `first` on, in place.
pub fn rotate(isa: Isa, heads: &mut [f32], head_dim: usize, first: usize, table: &RopeTable, position: u32) {
    let (rotary, half) = (table.rotary, table.rotary / 2);
    assert!(rotary.is_multiple_of(2) && first + rotary <= head_dim, "rope: rotated part of a head");
    let at = position as usize * half;
    let (cos, sin) = (&table.cos[at..][..half], &table.sin[at..][..half]);
    match table.pairs {
        RopePairs::Halves => rotate_halves(isa, heads, head_dim, first, cos, sin),
        RopePairs::Neighbours => rotate_neighbours(isa, heads, head_dim, first, cos, sin),
    }
}

for_each_isa! {
    fn rotate_halves(heads: &mut [f32], head_dim: usize, first: usize, cos: &[f32], sin: &[f32]) {
        for head in heads.chunks_exact_mut(head_dim) {
            let (low, rest) = head[first..].split_at_mut(cos.len());
            let high = &mut rest[..cos.len()];
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }

    fn rotate_neighbours(heads: &mut [f32], head_dim: usize, first: usize, cos: &[f32], sin: &[f32]) {
        for head in heads.chunks_exact_mut(head_dim) {
            let pairs = head[first..].as_chunks_mut::<2>().0;
            for (([a, b], cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}
