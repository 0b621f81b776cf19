//! Rotary position embedding: one loop, compiled for every instruction set.

use super::rows::{for_each_isa, for_rows};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{HeadLayout, RopeTable};

/// Rotates the query heads of `qkv`, and the key heads if `table.keys`, in place: (x[i], x[i + r/2]) -> (x[i] cos -
/// x[i+r/2] sin, x[i+r/2] cos + x[i] sin) for the first `r = table.rotary` elements of each head.
pub fn rope(cores: &Cores, qkv: &mut CpuBuffer, heads: HeadLayout, table: &RopeTable, positions: &[u32]) {
    assert_eq!((qkv.width, qkv.rows), (heads.qkv_width(), positions.len()), "rope: shapes");
    assert!(table.rotary.is_multiple_of(2) && table.rotary <= heads.head_dim, "rope: rotated part of a head");
    let half = table.rotary / 2;
    let rotated = (heads.q_heads + if table.keys { heads.kv_heads } else { 0 }) * heads.head_dim;
    for_rows(&cores.team, qkv, |r, row| {
        let at = positions[r] as usize * half;
        rotate_heads(
            cores.isa,
            &mut row[..rotated],
            heads.head_dim,
            &table.cos[at..][..half],
            &table.sin[at..][..half],
        );
    });
}

for_each_isa! {
    fn rotate_heads(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        for head in heads.chunks_exact_mut(head_dim) {
            let (low, rest) = head.split_at_mut(cos.len());
            let high = &mut rest[..cos.len()];
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}
