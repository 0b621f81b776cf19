//! Mixtures of experts: the experts' matrices, dense (`dense`), of e4m3 (`fp8`) or of 4 bits (`four_bit`), and the
//! launchers of their grouped products. `routes` holds which rows each expert has; counts and offsets stay on the device,
//! so that a graph can repeat a step whose rows choose differently.

pub mod dense;
pub mod four_bit;
pub mod fp8;
mod kernels;
pub mod routes;

pub use self::kernels::ExpertKernels;

use self::dense::DenseExperts;
use self::four_bit::FourBitExperts;
use self::fp8::Fp8Experts;
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::memory::weights::Vector;
use offshoot_core::error::{Error, Result};

/// The most experts of a mixture: as many as a block's table of tiles has, as in kernels/experts/tile.cuh.
pub const MOST_EXPERTS: usize = 1024;

/// The matrices of a mixture's experts and their biases.
pub enum Experts {
    Dense(DenseExperts),
    Fp8(Fp8Experts),
    FourBit(FourBitExperts),
}

/// One bias of `outputs` elements for each expert, in one piece of memory.
fn stack(device: &Device, biases: &[Vector], count: usize, outputs: usize) -> Result<Memory> {
    assert_eq!(biases.len(), count, "experts: a bias for each");
    let bytes = outputs * size_of::<f32>();
    let all = device.alloc(count * bytes)?;
    for (expert, bias) in biases.iter().enumerate() {
        assert_eq!(bias.len, outputs, "experts: length of a bias");
        device.copy(&all, expert * bytes, &bias.memory, 0..bytes)?;
    }
    Ok(all)
}

/// An error if there are more experts than the kernels' tables hold.
fn check_count(experts: usize) -> Result<()> {
    match experts {
        1..=MOST_EXPERTS => Ok(()),
        _ => Err(Error::value("the number of experts", format!("1 to {MOST_EXPERTS} on a GPU"), experts.to_string())),
    }
}
