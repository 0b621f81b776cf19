//! The command line of `offshoot-lab`.

use clap::{Parser, Subcommand};

use offshoot_args::command::{MachineArgs, read};
use offshoot_core::error::{Error, Result};

use crate::bench::BenchArgs;
use crate::check::{DeviceCheck, check};
use crate::forms::FormsArgs;

/// Checks devices against the definition of every op, and measures them
#[derive(Debug, Parser)]
#[command(name = "offshoot-lab", version, about, max_term_width = 110)]
pub struct Lab {
    #[command(subcommand)]
    command: LabCommand,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Check the device's arithmetic against the CPU's definition. With --kernels: compile the CUDA kernels
    Check(DeviceCheck),
    /// Measure: decode steps, matrix products, attention, the machine itself
    Bench(Box<BenchArgs>),
    /// Compile forms, and say which texts have them. Reads lines from stdin such as {"name": "a", "form": {"regex":
    /// "a+"}, "texts": ["aa"]}, and answers each with a line
    Forms(FormsArgs),
}

impl Lab {
    /// Reads the command line, and refuses options that the command would ignore. Prints clap's own messages (help,
    /// version, unknown options) and ends the process.
    ///
    /// # Errors
    ///
    /// An option does not take its value, or is one that the command would ignore.
    pub fn read() -> Result<Self> {
        let (lab, _): (Self, _) = read(ignored_options, |_| None)?;
        match &lab.command {
            LabCommand::Bench(bench) if bench.uses_several() => {}
            LabCommand::Bench(_) | LabCommand::Check(_) | LabCommand::Forms(_) => {
                lab.machine.refuse_several("bench workloads and bench allreduce")?;
            }
        }
        match &lab.command {
            LabCommand::Bench(bench) => bench.refuse_ignored_options()?,
            LabCommand::Check(check) if check.uses_no_device() => {
                let expected = || "no such option with --kernels or --paths, which compute on no device".to_owned();
                lab.machine.refuse(&["device", "threads"], expected)?;
            }
            LabCommand::Forms(_) => {
                let expected = || "no such option with forms, which computes on no device".to_owned();
                lab.machine.refuse(&["device", "threads"], expected)?;
            }
            LabCommand::Check(_) => {}
        }
        lab.machine.start_log();
        Ok(lab)
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Those of the command; a check that does not hold.
    pub fn run(&self) -> Result<()> {
        self.machine.start_threads()?;
        let device = self.machine.one_device();
        match &self.command {
            LabCommand::Check(options) => match check(device, options)? {
                true => Ok(()),
                false => Err(Error::CheckFailed),
            },
            LabCommand::Bench(bench) => bench.run(device, &self.machine.chosen_devices()?),
            LabCommand::Forms(forms) => forms.run(),
        }
    }
}

/// Global options that the command of this name ignores.
fn ignored_options(command: &str) -> &'static [&'static str] {
    match command {
        "check" => &["devices", "tensor_parallel"],
        "forms" => &["device", "devices", "tensor_parallel", "threads"],
        _ => &[],
    }
}
