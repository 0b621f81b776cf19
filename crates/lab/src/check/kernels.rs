//! `offshoot-lab check --kernels`: compiles every CUDA kernel for some architectures, on any machine with NVRTC. A
//! kernel that does not compile is an error; a kernel that spills more registers than `units` allows fails the check.
//! The quick check compiles units of every define without optimisation, and knows nothing of registers.

use offshoot_cases::CheckEffort;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_cuda::compile::{Compiler, KernelReport, compile_all, units};

/// Prints a line per kernel, unit and architecture; returns false if a kernel spills more registers than allowed.
pub fn kernels(archs: &[String], also: &[String], effort: CheckEffort) -> Result<bool> {
    let unusable = |why| Error::NoDevice { device: "CUDA".into(), why };
    let compiler = Compiler::open(None).map_err(unusable)?;
    archs.iter().chain(also).try_for_each(|arch| compiler.knows(arch)).map_err(unusable)?;
    out::line(compiler.describe())?;
    match effort {
        CheckEffort::Quick => {
            let reports = compile_all(&compiler.without_optimisation(), &units::of_every_define(), archs, also)?;
            out::line(format_args!("{} kernels compiled without optimisation", reports.len()))?;
            Ok(true)
        }
        CheckEffort::Full => registers(&compile_all(&compiler, &units::all(), archs, also)?),
    }
}

/// Prints what each kernel uses; returns false if one spills more registers than allowed.
fn registers(reports: &[KernelReport]) -> Result<bool> {
    out::line(format_args!("{:<8} {:>9} {:>6} {:>7}  kernel", "arch", "registers", "spills", "shared"))?;
    for report in reports {
        out::line(row(report))?;
    }
    let (spilling, known): (Vec<_>, Vec<_>) =
        reports.iter().filter(|report| report.usage.spill_bytes > 0).partition(|report| report.spills());
    for report in &spilling {
        out::line(format_args!("{}: spills more than {} bytes", row(report), report.allowed_spills))?;
    }
    out::line(match (spilling.len(), known.len()) {
        (0, 0) => format!("{} kernels compiled, no register spills", reports.len()),
        (0, known) => format!("{} kernels compiled, registers of {known} spill as is known of them", reports.len()),
        (more, _) => {
            format!("{} kernels compiled, registers of {more} spill more than is known of them", reports.len())
        }
    })?;
    Ok(spilling.is_empty())
}

fn row(report: &KernelReport) -> String {
    let KernelReport { unit, arch, usage, .. } = report;
    let (registers, spills, shared) = (usage.registers, usage.spill_bytes, usage.shared_bytes);
    format!("{arch:<8} {registers:>9} {spills:>6} {shared:>7}  {} ({unit})", usage.kernel)
}
