//! Weights in the blocks of GGUF files, laid out in panels.

use offshoot_backend::BlockView;
use offshoot_core::dice::Dice;
use offshoot_cpu::gemm::blocks::panels::BlockPanels;
use offshoot_gguf::TensorType;

/// Any bits but those of infinities and NaN: rows are the numbers that their blocks decode to.
#[test]
fn rows_are_what_their_blocks_decode_to() {
    for kind in TensorType::ALL.into_iter().filter(|kind| kind.is_quantised()) {
        let (rows, cols) = (21, 512);
        let mut dice = Dice::new(1);
        let mut bytes: Vec<u8> = (0..rows * kind.row_bytes(cols)).map(|_| dice.below(256) as u8).collect();
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            // The exponents of f16 are not the largest, so all numbers are finite.
            for scales in kind.scale_bytes() {
                block[scales].iter_mut().for_each(|byte| *byte &= 0xbf);
            }
        }
        let view = BlockView { kind, rows, cols, bytes: &bytes, exact: false };
        let packed = BlockPanels::pack(&[view]);
        let (mut found, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..rows {
            packed.copy_row(row, &mut found);
            view.numbers(row, &mut expected);
            assert_eq!(found, expected, "{kind}, row {row}");
        }
    }
}
