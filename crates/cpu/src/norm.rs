//! Normalisations. Each is one loop, compiled for every instruction set. Sums have a fixed order, so every instruction
//! set computes the same bits.

use super::rows::{for_each_isa, for_rows, sum};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{HeadKind, HeadLayout, HeadNormForm};

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

/// See `Backend::head_norm`.
pub fn head_norm(
    cores: &Cores,
    qkv: &mut CpuBuffer,
    heads: HeadLayout,
    kind: HeadKind,
    form: HeadNormForm,
    weight: &[f32],
    eps: f32,
) {
    let (first, count) = kind.place(heads);
    let (first, width) = (first * heads.head_dim, count * heads.head_dim);
    let [unit, weights] = form.widths(heads, count);
    assert_eq!(qkv.width, heads.qkv_width(), "head_norm: shape of qkv");
    assert_eq!(weight.len(), weights, "head_norm: length of the weights");
    let centred = form.centred;
    for_rows(&cores.team, qkv, |_, row| {
        heads_norm_row(cores.isa, &mut row[first..first + width], unit, weight, centred, eps);
    });
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

    /// The norm of each part of `heads` that is `width` wide, in place: by the same weights, if there are so many, or
    /// each by its own.
    pub fn heads_norm_row(heads: &mut [f32], width: usize, weight: &[f32], centred: bool, eps: f32) {
        let apart = if weight.len() == width { 0 } else { width };
        for (ix, head) in heads.chunks_exact_mut(width).enumerate() {
            let mean = if centred { sum(head, |x| x) / width as f32 } else { 0.0 };
            let scale = 1.0 / (sum(head, |x| (x - mean) * (x - mean)) / width as f32 + eps).sqrt();
            for (x, weight) in head.iter_mut().zip(&weight[ix * apart..][..width]) {
                *x = (*x - mean) * scale * weight;
            }
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}
