//! Rounding to bf16 compared with `half`.

use offshoot_cpu::rows::bf16_bits;

#[test]
fn rounding_to_bf16_agrees_with_half() {
    let spread = (0..100_000_u32).map(|i| i.wrapping_mul(2_654_435_761));
    for bits in spread.chain((0..u32::MAX - 70_001).step_by(70_001)) {
        let x = f32::from_bits(bits);
        assert_eq!(bf16_bits(x), u32::from(half::bf16::from_f32(x).to_bits()), "{x}");
    }
}
