//! Cost models of GPUs by architecture, each with the origin of its constants. `cost` defines the constants.

use super::CostModel;
use super::cost::Tiles;

/// The GPUs from one compute capability up to the next that is listed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    pub name: &'static str,
    /// Major, minor.
    capability: (u32, u32),
    pub origin: Origin,
    pub cost: CostModel,
}

/// Origin of a cost model's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured on this GPU.
    Measured(&'static str),
    /// Estimated from this GPU's data sheet, not measured.
    Estimated(&'static str),
}

impl Gpu {
    /// By rising capability.
    const ALL: [Gpu; 6] = [
        Gpu::estimated("Ampere", (8, 0), "an A100 of 80 GB", Sheet { bytes: 2039.0, flops: 312.0, units: 108.0 }),
        Gpu::estimated("Ampere", (8, 6), "an A10", Sheet { bytes: 600.0, flops: 125.0, units: 72.0 }),
        Gpu::estimated("Ada", (8, 9), "an L40S", Sheet { bytes: 864.0, flops: 362.0, units: 142.0 }),
        Gpu { name: "Hopper", capability: (9, 0), origin: Origin::Measured("an H200"), cost: CostModel::CUDA },
        Gpu::estimated("Blackwell", (10, 0), "a B200", Sheet { bytes: 8000.0, flops: 2250.0, units: 148.0 }),
        Gpu::estimated("Blackwell", (12, 0), "an RTX 5090", Sheet { bytes: 1792.0, flops: 209.0, units: 170.0 }),
    ];

    /// The entry for a GPU of this compute capability; for one older than all, the oldest.
    pub fn of(major: u32, minor: u32) -> &'static Gpu {
        static ALL: [Gpu; 6] = Gpu::ALL;
        ALL.iter().rev().find(|gpu| gpu.capability <= (major, minor)).unwrap_or(&ALL[0])
    }

    const fn estimated(name: &'static str, capability: (u32, u32), of: &'static str, sheet: Sheet) -> Gpu {
        Gpu { name, capability, origin: Origin::Estimated(of), cost: sheet.cost() }
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
    /// By the tiles of `tree_attention.cu`: up to 16 packed rows are narrow, up to 128 fill a tile, of which a token
    /// takes four operations a row and element of heads of 128. A half full tile takes 0.6 of that, and a tile 3 us to
    /// begin and to end, as on the H200.
    const fn cost(&self) -> CostModel {
        let byte = 1.0 / (MEMORY_SHARE * self.bytes);
        // TFLOP/s are 1000 operations a nanosecond.
        let token = 4.0 * 128.0 * 128.0 / (PRODUCT_SHARE * self.flops * 1000.0);
        let tiles = Tiles { narrow_rows: 16, rows: 128, start: 3000.0 / self.units, token, half_token: 0.6 * token };
        CostModel { item: 0.0, kv_byte: byte, state_byte: 2.0 * byte, split: None, tiles: Some(tiles) }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Measured(on) => write!(f, "measured on {on}"),
            Origin::Estimated(of) => write!(f, "estimated from the data sheet of {of}, never measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_its_capability() {
        assert!(Gpu::ALL.is_sorted_by_key(|gpu| gpu.capability));
        let found = |major, minor| (Gpu::of(major, minor).name, Gpu::of(major, minor).capability);
        assert_eq!(found(9, 0), ("Hopper", (9, 0)));
        assert_eq!(found(8, 7), ("Ampere", (8, 6)));
        assert_eq!(found(7, 5), ("Ampere", (8, 0)));
        assert_eq!(found(10, 3), ("Blackwell", (10, 0)));
        assert_eq!(found(13, 0), ("Blackwell", (12, 0)));
    }

    #[test]
    fn only_the_h200_was_measured_and_its_constants_are_the_measured_ones() {
        let measured: Vec<&Gpu> = Gpu::ALL.iter().filter(|gpu| matches!(gpu.origin, Origin::Measured(_))).collect();
        assert!(measured.len() == 1 && measured[0].cost == CostModel::CUDA);
        assert!(Gpu::of(8, 9).origin.to_string().ends_with("never measured"));
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
