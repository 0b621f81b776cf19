//! `offshoot-lab check`: a test suite for the device (`device`): the list of `cases` for ops against the
//! CPU's clear loops and f64, whole runs against the CPU, a long decode against the CPU step by step (`long`), and the
//! deterministic mode against itself bit by bit (`deterministic`). `kernels` compiles the CUDA kernels. Tolerances are
//! stated in each part.

mod deterministic;
mod device;
mod forward;
mod kernels;
mod long;
mod whole;

use std::path::PathBuf;

use clap::Args;

use offshoot_core::error::Result;
use offshoot_core::out;
use offshoot_cpu::Isa;
use offshoot_launch::{DeviceBackend, DeviceChoice, OnDevice};

pub use deterministic::deterministic;
pub use device::suite;
pub use long::long;

// The options of `offshoot-lab check`.
#[derive(Clone, Debug, Args)]
pub struct DeviceCheck {
    /// Use the device's deterministic mode, and run only the cases that compare bits
    #[arg(long, conflicts_with_all = ["kernels", "goldens"])]
    pub deterministic: bool,
    /// Also check the device against every model folder with a golden.json below this folder
    #[arg(long, value_name = "DIR", conflicts_with = "kernels")]
    pub goldens: Option<PathBuf>,
    /// Only few and small cases, for tools that slow the device down
    #[arg(long, conflicts_with = "kernels")]
    pub quick: bool,
    /// One JSON object per row instead of a table
    #[arg(long, conflicts_with = "kernels")]
    pub json: bool,
    /// Compile every CUDA kernel (needs NVRTC but no GPU). The check fails if a kernel spills registers, except for
    /// known spills
    #[arg(long)]
    pub kernels: bool,
    /// Architectures to compile for
    #[arg(long, value_name = "ARCH", requires = "kernels", default_values = ["sm_80", "sm_89", "sm_90a"])]
    pub arch: Vec<String>,
    /// An architecture to compile those kernels for whose source is another there than for the next lower `--arch`
    #[arg(long, value_name = "ARCH", requires = "kernels")]
    pub also: Vec<String>,
    /// Only print the code paths that this CPU supports, one per line, as OFFSHOOT_CPU names them
    #[arg(long, conflicts_with_all = ["kernels", "goldens", "quick", "json", "deterministic"])]
    pub paths: bool,
}

impl DeviceCheck {
    /// Whether nothing is computed.
    pub fn uses_no_device(&self) -> bool {
        self.kernels || self.paths
    }
}

/// Runs the check on the chosen device and prints the results; returns whether everything holds.
///
/// # Errors
///
/// It cannot be run.
pub fn check(on: DeviceChoice, options: &DeviceCheck) -> Result<bool> {
    if options.paths {
        Isa::available().iter().try_for_each(|isa| out::line(isa.name()))?;
        return Ok(true);
    }
    if options.kernels {
        return kernels::kernels(&options.arch, &options.also);
    }
    let opened = on.open(None)?;
    opened.not_cuda().into_iter().for_each(out::aside);
    opened.with(DeviceSuite(options))
}

/// The suite for a device; whether all of it holds.
struct DeviceSuite<'a>(&'a DeviceCheck);

impl OnDevice for DeviceSuite<'_> {
    type Output = bool;

    fn run<B: DeviceBackend>(self, backend: B) -> Result<bool> {
        let again = backend.opener();
        device::device(backend, again, self.0)
    }
}
