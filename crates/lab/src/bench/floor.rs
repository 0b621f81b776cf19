//! The machine's limits that measurements are compared with: given, or measured in the same run.

use clap::Args;

use offshoot_args::rate;
use offshoot_backend::{Dtype, Rates, Timed, WeightFormat};
use offshoot_core::error::Result;

#[derive(Clone, Copy, Debug, Args)]
pub struct FloorArgs {
    /// Memory bandwidth for the lower bound, in bytes per second (default: measured)
    #[arg(long, value_name = "B", value_parser = rate)]
    pub floor_bandwidth: Option<f64>,
    /// Compute rate for the lower bound, in operations per second (default: measured)
    #[arg(long, value_name = "F", value_parser = rate)]
    pub floor_flops: Option<f64>,
}

impl FloorArgs {
    /// The given rates, with measured ones in place of missing ones.
    pub fn rates<B: Timed>(self, backend: &mut B, dtype: Dtype, weights: WeightFormat) -> Result<Rates> {
        let FloorArgs { floor_bandwidth, floor_flops } = self;
        if let (Some(bytes_per_s), Some(flops_per_s)) = (floor_bandwidth, floor_flops) {
            return Ok(Rates { bytes_per_s, flops_per_s });
        }
        let measured = backend.rates(dtype, weights)?;
        log::info!("{measured:?}");
        Ok(Rates {
            bytes_per_s: floor_bandwidth.unwrap_or(measured.bytes_per_s),
            flops_per_s: floor_flops.unwrap_or(measured.flops_per_s),
        })
    }
}
