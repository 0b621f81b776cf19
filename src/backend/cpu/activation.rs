//! Activations. The clear loops use the library's exponential and hyperbolic tangent; the others the polynomial of `exp`.

use super::rows::for_rows;
use super::{Buffer, Isa};

/// `out[r][i] = silu(x[r][i]) * x[r][F + i]`, where `silu(x) = x / (1 + e^-x)` and `F = out.width`.
pub fn gated_silu(isa: Isa, out: &mut Buffer, x: &Buffer) {
    assert_eq!((x.rows, x.width), (out.rows, 2 * out.width), "gated_silu: shapes");
    let _ = isa;
    for_rows(out, |r, out| {
        let (gate, up) = x.row(r).split_at(out.len());
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + (-gate).exp()) * up;
        }
    });
}

/// In place, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu(isa: Isa, x: &mut Buffer) {
    let _ = isa;
    for_rows(x, |_, row| {
        for x in row {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (*x + 0.044715 * *x * *x * *x);
            *x = 0.5 * *x * (1.0 + inner.tanh());
        }
    });
}
