//! Rotary position embedding.
use super::{Buffer, HeadLayout, RopeTable};

pub fn rope(qkv: &mut Buffer, heads: HeadLayout, table: &RopeTable, positions: &[u32]) {
    let _ = (qkv, heads, table, positions);
    unimplemented!("owner: gemm")
}
