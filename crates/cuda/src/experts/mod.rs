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
/// The matrices of a mixture's experts and their biases.
pub enum Experts {
    Dense(DenseExperts),
    Fp8(Fp8Experts),
    FourBit(FourBitExperts),
}

impl Experts {
    /// Whether both have the same memory, so that what was captured with one reads the other.
    pub fn is_over(&self, old: &Self) -> bool {
        match (self, old) {
            (Experts::Dense(new), Experts::Dense(old)) => new.is_over(old),
            (Experts::Fp8(new), Experts::Fp8(old)) => new.is_over(old),
            (Experts::FourBit(new), Experts::FourBit(old)) => new.is_over(old),
            _ => false,
        }
    }
}
