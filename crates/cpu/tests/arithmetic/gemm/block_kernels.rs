//! Kernels for the blocks of GGUF files compared with their definition, bit for bit.

use offshoot_backend::BlockView;
use offshoot_core::mix::mix;
use offshoot_cpu::gemm::blocks::kernel::{BlockKernels, BlockTile};
use offshoot_cpu::gemm::blocks::operand::RoundedRows;
use offshoot_cpu::gemm::blocks::panels::{BlockPanels, PanelScales};
use offshoot_cpu::gemm::blocks::{avx2, avx512, clear};
use offshoot_cpu::gemm::pack::PANEL;
use offshoot_cpu::{Cores, Isa};
use offshoot_gguf::TensorType;

use crate::skip::skipped;

/// Compares kernels for each type of blocks with the definition, bit for bit, with codes and activations at their
/// limits among them. `kernels`: for a type.
fn compare(what: &str, kernels: impl Fn(TensorType) -> BlockKernels) {
    let (outputs, cols) = (64, 512);
    for kind in TensorType::ALL.into_iter().filter(|kind| kind.is_quantised()) {
        let mut bytes: Vec<u8> = (0..outputs * kind.row_bytes(cols)).map(|i| mix(i as u64) as u8).collect();
        for (i, block) in bytes.chunks_exact_mut(kind.block_bytes()).enumerate() {
            if i % 5 == 0 {
                block.fill(if i % 2 == 0 { 0xff } else { 0x80 });
            }
            for scales in kind.scale_bytes() {
                block[scales].iter_mut().for_each(|byte| *byte &= 0xbf);
            }
        }
        let w = BlockPanels::pack(&[BlockView { kind, rows: outputs, cols, bytes: &bytes, exact: false }]);
        let kernels = kernels(kind);
        for rows in 1..=kernels.rows {
            let number = |i: usize| if i % 7 < 2 { 1.0 } else { (mix(i as u64) >> 40) as f32 / 8_388_608.0 - 1.0 };
            let numbers: Vec<f32> = (0..rows * cols).map(number).collect();
            let mut x = RoundedRows::default();
            x.round(&Cores::new(Isa::Portable), &w, rows, |r| &numbers[r * cols..][..cols]);
            for count in [1, (kernels.panels)(rows)] {
                let mut scales = PanelScales::default();
                (0..count).for_each(|p| w.read_scales(p, &mut scales));
                let tile = BlockTile { w: &w, panel: 0, scales: &scales, x: &x, first: 0 };
                let mut found = vec![f32::NAN; rows * count * PANEL];
                // SAFETY: the caller has checked that the processor has the instructions.
                unsafe { (kernels.kernel)(rows, count)(&tile, &mut found) };
                for p in 0..count {
                    let mut scales = PanelScales::default();
                    w.read_scales(p, &mut scales);
                    let mut expected = vec![f32::NAN; rows * PANEL];
                    let tile = BlockTile { w: &w, panel: p, scales: &scales, x: &x, first: 0 };
                    // SAFETY: it needs no instructions of its own.
                    unsafe { (clear::KERNELS.kernel)(rows, 1)(&tile, &mut expected) };
                    for (r, expected) in expected.chunks_exact(PANEL).enumerate() {
                        let found = &found[(r * count + p) * PANEL..][..PANEL];
                        assert_eq!(found, expected, "{what}: {kind}, {rows} rows, {count} panels, {r} and {p}");
                    }
                }
            }
        }
    }
}

#[test]
fn kernels_of_avx2_compute_the_bits_of_the_definition() {
    if !Isa::available().contains(&Isa::Avx2) {
        return skipped("this processor has no AVX2");
    }
    compare("AVX2", avx2::pairs);
    if is_x86_feature_detected!("avxvnni") {
        compare("AVX-VNNI", avx2::vnni);
    } else {
        skipped("this processor has no AVX-VNNI");
    }
}

#[test]
fn kernels_of_avx_512_compute_the_bits_of_the_definition() {
    if !Isa::available().contains(&Isa::Avx512) || !is_x86_feature_detected!("avx512vnni") {
        return skipped("this processor has no AVX-512 with VNNI");
    }
    compare("AVX-512 VNNI", avx512::kernels);
}
