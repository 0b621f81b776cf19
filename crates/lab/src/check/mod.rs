//! `offshoot-lab check`: a test suite for the device (`device`): the list of `cases` for ops against the
//! CPU's clear loops and f64, whole runs against the CPU, a long decode against the CPU step by step (`long`), and the
//! deterministic mode against itself bit by bit (`deterministic`). `kernels` compiles the CUDA kernels. Tolerances are
//! stated in each part.

mod deterministic;
mod device;
mod forward;
mod kernels;
mod late;
mod long;
mod options;
mod whole;

use offshoot_cases::CheckEffort;
use offshoot_core::error::Result;
use offshoot_core::out;
use offshoot_cpu::Isa;
use offshoot_launch::{DeviceBackend, DeviceChoice, OnDevice};

pub use deterministic::deterministic;
pub use device::suite;
pub use long::long;
pub use options::DeviceCheck;

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
        let effort = if options.quick { CheckEffort::Quick } else { CheckEffort::Full };
        return kernels::kernels(&options.arch, &options.also, effort);
    }
    let opened = on.open(None)?;
    opened.not_cuda().into_iter().for_each(out::aside);
    opened.with(options)
}

/// The suite for a device; whether all of it holds.
impl OnDevice for &DeviceCheck {
    type Output = bool;

    fn run<B: DeviceBackend>(self, backend: B) -> Result<bool> {
        let again = backend.opener();
        device::device(backend, again, self)
    }
}
