//! `e^x` compared with f64, and its widths with each other.

use offshoot_cpu::Isa;
use offshoot_cpu::exp::{HIGHEST, LOWEST, exp};

use crate::skip::skipped;

/// Every 977th f32 between -90 and 90, and edge cases.
fn arguments() -> Vec<f32> {
    let mut xs = vec![0.0, -0.0, LOWEST, HIGHEST, -1e-30, 1e-30, -1e30, 1e30, f32::NEG_INFINITY, f32::INFINITY];
    for bits in (0..90f32.to_bits()).step_by(977) {
        xs.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
    }
    xs.resize(xs.len().next_multiple_of(16), 0.0);
    xs
}

#[target_feature(enable = "avx2,fma")]
fn run_avx2(x: &[f32; 16]) -> [f32; 16] {
    x.map(exp)
}

#[target_feature(enable = "avx512f,fma")]
fn run_avx512(x: &[f32; 16]) -> [f32; 16] {
    x.map(exp)
}

#[test]
fn exp_is_good_to_one_and_a_half_units_in_the_last_place() {
    for x in arguments() {
        let y = exp(x);
        if x < LOWEST {
            assert_eq!(y, 0.0, "e^{x}");
        } else {
            let exact = f64::from(x.min(HIGHEST)).exp();
            // An f32 unit in the last place is at most 2^-23 of the value.
            assert!((f64::from(y) - exact).abs() <= 1.5 * exact * 2f64.powi(-23), "e^{x}: {y} for {exact}");
        }
    }
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn all_widths_give_the_same_bits() {
    if !Isa::available().contains(&Isa::Avx512) {
        skipped("this processor has no AVX-512");
    }
    for xs in arguments().as_chunks::<16>().0 {
        let one = xs.map(|x| exp(x).to_bits());
        if Isa::available().contains(&Isa::Avx2) {
            // SAFETY: the processor has AVX2 and FMA.
            assert_eq!(unsafe { run_avx2(xs) }.map(f32::to_bits), one);
        }
        if Isa::available().contains(&Isa::Avx512) {
            // SAFETY: the processor has AVX-512 F.
            assert_eq!(unsafe { run_avx512(xs) }.map(f32::to_bits), one);
        }
    }
}
