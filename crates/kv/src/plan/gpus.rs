//! Cost models of GPUs by architecture, each with the origin of its constants. `cost` defines the constants.

use super::cost::Tiles;
use super::{CostModel, LatentRates};

/// Cost models by compute capability (major, minor), rising: each is that of the GPUs up to the next one. The H200's is
/// measured; the others are estimated from data sheets, of the GPUs that stand beside them, and were never measured.
static BY_CAPABILITY: [((u32, u32), CostModel); 6] = [
    // Ampere: an A100 of 80 GB, an A10.
    ((8, 0), Sheet { bytes: 2039.0, flops: 312.0, units: 108.0 }.cost()),
    ((8, 6), Sheet { bytes: 600.0, flops: 125.0, units: 72.0 }.cost()),
    // Ada: an L40S.
    ((8, 9), Sheet { bytes: 864.0, flops: 362.0, units: 142.0 }.cost()),
    // Hopper: an H200, measured.
    ((9, 0), CostModel::CUDA),
    // Blackwell: a B200, an RTX 5090.
    ((10, 0), Sheet { bytes: 8000.0, flops: 2250.0, units: 148.0 }.cost()),
    ((12, 0), Sheet { bytes: 1792.0, flops: 209.0, units: 170.0 }.cost()),
];

impl CostModel {
    /// That of a GPU of this compute capability; for one older than all that are listed, the oldest's.
    pub fn of_gpu(major: u32, minor: u32) -> CostModel {
        let listed = BY_CAPABILITY.iter().rev().find(|(capability, _)| *capability <= (major, minor));
        listed.unwrap_or(&BY_CAPABILITY[0]).1
    }
}

/// Figures of a data sheet.
struct Sheet {
    /// Bytes of memory per nanosecond.
    bytes: f64,
    /// TFLOP/s of 16-bit products, dense, summed in 32 bits.
    flops: f64,
    /// Multiprocessors.
    units: f64,
}

/// Shares of the data sheet's figures that kernels reach: of bandwidth the H200's measured share, 4.3 of 4.8 TB/s; of
/// products, the usual share for `mma.sync`.
const MEMORY_SHARE: f64 = 0.9;
const PRODUCT_SHARE: f64 = 0.5;

impl Sheet {
    /// The cost model by the tiles of `tree_attention.cu`: up to 16 packed rows are narrow, up to 128 fill a tile, of
    /// which a token takes four operations a row and element of heads of 128. A half full tile takes 0.6 of that, and a
    /// tile 3 us to begin and to end, as on the H200.
    const fn cost(&self) -> CostModel {
        let byte = 1.0 / (MEMORY_SHARE * self.bytes);
        // TFLOP/s are 1000 operations a nanosecond.
        let token = 4.0 * 128.0 * 128.0 / (PRODUCT_SHARE * self.flops * 1000.0);
        let tiles = Tiles { narrow_rows: 16, rows: 128, start: 3000.0 / self.units, token, half_token: 0.6 * token };
        // A product is two operations.
        let product = 2.0 / (PRODUCT_SHARE * self.flops * 1000.0);
        let latents = LatentRates { byte, product, expanding: product, ..LatentRates::CUDA };
        CostModel { item: 0.0, kv_byte: byte, state_byte: 2.0 * byte, split: None, tiles: Some(tiles), latents }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_its_capability() {
        assert!(BY_CAPABILITY.is_sorted_by_key(|(capability, _)| *capability));
        let listed = |capability: (u32, u32)| BY_CAPABILITY.iter().find(|(of, _)| *of == capability).expect("listed").1;
        assert_eq!(CostModel::of_gpu(9, 0), CostModel::CUDA);
        assert_eq!(CostModel::of_gpu(8, 7), listed((8, 6)));
        assert_eq!(CostModel::of_gpu(7, 5), listed((8, 0)));
        assert_eq!(CostModel::of_gpu(10, 3), listed((10, 0)));
        assert_eq!(CostModel::of_gpu(13, 0), listed((12, 0)));
    }

    #[test]
    fn the_estimate_is_near_what_was_measured() {
        // An H200's data sheet, held against its measured constants: products there are wgmma's, which reach a little
        // more.
        let estimate = Sheet { bytes: 4800.0, flops: 989.0, units: 132.0 }.cost();
        let (estimated, measured) = (estimate.tiles.expect("tiles"), CostModel::CUDA.tiles.expect("tiles"));
        for (a, b) in [
            (estimate.kv_byte, CostModel::CUDA.kv_byte),
            (estimated.token, measured.token),
            (estimated.half_token, measured.half_token),
            (estimated.start, measured.start),
        ] {
            assert!((0.8..1.25).contains(&(a / b)), "{a} beside {b}");
        }
    }
}
