//! Mixtures of experts: the experts' matrices, dense (`dense`), of e4m3 (`fp8`) or of 4 bits (`four_bit`), and the
//! launchers of their grouped products. `routes` holds which rows each expert has; counts and offsets stay on the
//! device, so that a graph can repeat a step whose rows choose differently.

mod biases;
pub mod dense;
pub mod four_bit;
pub mod fp8;
mod kernels;
pub mod routes;

pub use self::kernels::ExpertKernels;

use self::dense::DenseExperts;
use self::four_bit::FourBitExperts;
use self::fp8::Fp8Experts;
use crate::driver::memory::Memory;
use offshoot_backend::Gate;

/// The matrices of a mixture's experts and their biases.
pub enum Experts {
    Dense(DenseExperts),
    Fp8(Fp8Experts),
    FourBit(FourBitExperts),
}

impl Experts {
    /// f32 `[experts, outputs]`
    pub fn biases(&self) -> Option<&Memory> {
        match self {
            Experts::Dense(experts) => experts.biases(),
            Experts::Fp8(experts) => experts.biases(),
            Experts::FourBit(experts) => experts.biases(),
        }
    }
}

/// As in kernels/experts/store.cuh.
fn gate_number(gate: Option<Gate>) -> u32 {
    match gate {
        None | Some(Gate::Silu) => 0,
        Some(Gate::Gelu) => 1,
        Some(Gate::Clamped) => 2,
    }
}
