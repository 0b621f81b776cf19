//! Normalisations.
use super::{Buffer, HeadKind, HeadLayout, Isa};

pub fn rms_norm(isa: Isa, out: &mut Buffer, x: &Buffer, weight: &[f32], eps: f32) {
    let _ = (isa, out, x, weight, eps);
    unimplemented!("owner: gemm")
}

pub fn layer_norm(isa: Isa, out: &mut Buffer, x: &Buffer, weight: &[f32], bias: &[f32], eps: f32) {
    let _ = (isa, out, x, weight, bias, eps);
    unimplemented!("owner: gemm")
}

pub fn head_norm(isa: Isa, qkv: &mut Buffer, heads: HeadLayout, kind: HeadKind, weight: &[f32], eps: f32) {
    let _ = (isa, qkv, heads, kind, weight, eps);
    unimplemented!("owner: gemm")
}
