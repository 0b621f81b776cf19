//! `offshoot check`. With a model folder: prints its facts and checks its arithmetic against golden files and against
//! itself (`model`). Without: a test suite for the device (`device`): every op against the CPU's clear loops, attention
//! against f64, whole runs against the CPU, a long decode against the CPU step by step (`long`), and the deterministic
//! mode against itself bit by bit (`deterministic`). `kernels` compiles the CUDA kernels. This file only dispatches;
//! tolerances are stated in each part.

pub mod attention;
mod case;
pub mod dense;
mod deterministic;
mod device;
pub mod dice;
pub mod forests;
mod forks;
mod forward;
mod kernels;
mod leaves;
mod levels;
mod long;
mod model;
mod ops;
mod report;
mod sampling;
mod whole;

use std::path::PathBuf;

use crate::backend::cpu::Isa;
use crate::error::{Error, Result};
use crate::launch::{DeviceBackend, DeviceChoice, OnDevice};
use crate::out;

pub use deterministic::deterministic;
pub use device::{CheckEffort, suite};
pub use forks::{FORKED_TOKENS, ForkReport, forks};
pub use long::long;
pub use model::{Against, ModelCheck};
pub use ops::ops;
pub use report::{CheckReport, ReportRow};

/// The options of `offshoot check`.
#[derive(Clone, Debug)]
pub enum CheckOptions {
    Model {
        folder: PathBuf,
        how: ModelCheck,
    },
    Device(DeviceCheck),
    /// Whether every CUDA kernel compiles for these architectures.
    Kernels {
        archs: Vec<String>,
    },
    /// Checks nothing: prints the code paths that this CPU supports.
    Paths,
}

/// The options of the device's check.
#[derive(Clone, Debug, Default)]
pub struct DeviceCheck {
    /// A folder of model folders with golden files.
    pub goldens: Option<PathBuf>,
    /// Only few and small cases, for tools that slow the device down.
    pub quick: bool,
    /// Only the cases of the deterministic mode.
    pub deterministic: bool,
    pub json: bool,
}

/// Runs the check on the chosen device and prints the results.
///
/// # Errors
///
/// It cannot be run, or something does not hold: the results name it.
pub fn check(on: DeviceChoice, options: &CheckOptions) -> Result<()> {
    let holds = match options {
        CheckOptions::Model { folder, how } => model::model(on, folder, how)?,
        CheckOptions::Device(options) => {
            let opened = on.open(None)?;
            opened.not_cuda().into_iter().for_each(out::aside);
            opened.with(DeviceSuite(options))?
        }
        CheckOptions::Kernels { archs } => kernels::kernels(archs)?,
        CheckOptions::Paths => {
            Isa::available().iter().try_for_each(|isa| out::line(isa.name()))?;
            true
        }
    };
    if holds { Ok(()) } else { Err(Error::CheckFailed) }
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
