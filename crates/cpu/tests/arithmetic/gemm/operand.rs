//! How activations are divided into strips.

use offshoot_cpu::gemm::operand::OperandFormat;

#[test]
fn strips_cover_every_word_once() {
    for (words, operand) in (0..2000).flat_map(|w| [(w, OperandFormat::F32), (w, OperandFormat::Tiles)]) {
        let mut next = 0;
        for strip in operand.strips(words) {
            assert_eq!((strip.first, strip.first % 16), (next, 0));
            assert!(strip.words < operand.row_stride() && strip.words > 0);
            next += strip.words;
        }
        assert_eq!(next, words);
    }
}
