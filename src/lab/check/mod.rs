//! Floor 8: `offshoot check`. With a model folder: its facts, its arithmetic against golden files and against itself (`model`).
//! Without: a suite for the device (`device`), every op against the CPU's clear loops, attention against f64, whole runs
//! against the CPU, a long decode against it step by step (`long`), and what is computed deterministically bit by bit against
//! itself (`deterministic`). `kernels` compiles what CUDA needs. This file only chooses; the suite states its tolerances beside
//! each part.

pub mod attention;
mod case;
pub mod dense;
mod deterministic;
mod device;
pub mod dice;
pub mod forests;
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
use std::process::ExitCode;

use crate::backend::cpu::Isa;
use crate::error::Result;
use crate::launch::{Device, DeviceChoice, OnDevice};
use crate::out;

pub use deterministic::deterministic;
pub use device::{Effort, suite};
pub use long::long;
pub use model::ModelCheck;
pub use report::{Report, Row};

/// What `offshoot check` is asked to do.
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
    /// Nothing: prints the paths of the CPU's arithmetic that this processor has.
    Paths,
}

/// How the device is checked.
#[derive(Clone, Debug, Default)]
pub struct DeviceCheck {
    /// A folder of model folders with golden files.
    pub goldens: Option<PathBuf>,
    /// Few and small cases: for tools that slow the device down.
    pub quick: bool,
    /// The cases of the deterministic mode alone.
    pub deterministic: bool,
    pub json: bool,
}

/// Prints what is asked for, on the device chosen. The exit code says whether all of it holds.
pub fn check(on: DeviceChoice, options: &CheckOptions) -> Result<ExitCode> {
    let holds = match options {
        CheckOptions::Model { folder, how } => model::model(on, folder, how)?,
        CheckOptions::Device(options) => {
            let opened = on.open(0)?;
            opened.not_cuda().into_iter().for_each(out::aside);
            opened.with(Suite(options))?
        }
        CheckOptions::Kernels { archs } => kernels::kernels(archs)?,
        CheckOptions::Paths => {
            Isa::available().iter().try_for_each(|isa| out::line(isa.name()))?;
            true
        }
    };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The suite for a device; whether all of it holds.
struct Suite<'a>(&'a DeviceCheck);

impl OnDevice for Suite<'_> {
    type Output = bool;

    fn run<B: Device>(self, backend: B) -> Result<bool> {
        let again = backend.opener();
        device::device(backend, again, self.0)
    }
}
