//! Normalisations. Each is one loop, compiled for every instruction set. Sums have a fixed order, so every instruction
//! set computes the same bits.

use super::rows::{for_each_isa, for_rows, sum};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{HeadKind, HeadLayout};

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`.
pub fn rms_norm(cores: &Cores, out: &mut CpuBuffer, x: &CpuBuffer, weight: &[f32], eps: f32) {
    assert_eq!((out.rows, out.width, weight.len()), (x.rows, x.width, x.width), "rms_norm: shapes");
    for_rows(&cores.team, out, |r, out| rms_norm_row(cores.isa, out, x.row(r), weight, eps));
}

/// `out[r] += x[r] / sqrt(mean(x[r]^2) + eps) * weight`.
pub fn rms_norm_add(cores: &Cores, out: &mut CpuBuffer, x: &CpuBuffer, weight: &[f32], eps: f32) {
    assert_eq!((out.rows, out.width, weight.len()), (x.rows, x.width, x.width), "rms_norm_add: shapes");
    for_rows(&cores.team, out, |r, out| rms_norm_add_row(cores.isa, out, x.row(r), weight, eps));
}

/// `out[r] = (x[r] - mean(x[r])) / sqrt(var(x[r]) + eps) * weight + bias`.
pub fn layer_norm(cores: &Cores, out: &mut CpuBuffer, x: &CpuBuffer, weight: &[f32], bias: &[f32], eps: f32) {
    assert_eq!((out.rows, out.width), (x.rows, x.width), "layer_norm: shape of the output");
    assert_eq!((weight.len(), bias.len()), (x.width, x.width), "layer_norm: lengths of weight and bias");
    for_rows(&cores.team, out, |r, out| layer_norm_row(cores.isa, out, x.row(r), weight, bias, eps));
}

/// `rms_norm` of the heads of one kind in `qkv`, in place: of each separately if `weight` is as long as a head, of all
/// as one vector if it is as long as they are together.
pub fn head_norm(cores: &Cores, qkv: &mut CpuBuffer, heads: HeadLayout, kind: HeadKind, weight: &[f32], eps: f32) {
    let (first, count) = kind.place(heads);
    let (first, width) = (first * heads.head_dim, count * heads.head_dim);
    assert_eq!(qkv.width, heads.qkv_width(), "head_norm: shape of qkv");
    assert!([heads.head_dim, width].contains(&weight.len()), "head_norm: length of the weights");
    for_rows(&cores.team, qkv, |_, row| heads_norm_row(cores.isa, &mut row[first..first + width], weight, eps));
}

for_each_isa! {
    fn rms_norm_row(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }

    fn rms_norm_add_row(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out += x * scale * weight;
        }
    }

    fn layer_norm_row(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
        let mean = sum(x, |x| x) / x.len() as f32;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
        let scale = 1.0 / (variance + eps).sqrt();
        for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
            *out = (x - mean) * scale * weight + bias;
        }
    }

    /// `rms_norm` of each part of `heads` as long as `weight`, in place.
    pub fn heads_norm_row(heads: &mut [f32], weight: &[f32], eps: f32) {
        for head in heads.chunks_exact_mut(weight.len()) {
            let scale = inverse_rms(head, eps);
            for (x, weight) in head.iter_mut().zip(weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}
