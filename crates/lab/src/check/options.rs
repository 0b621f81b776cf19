//! The options of `offshoot-lab check`.

use std::path::PathBuf;

use clap::Args;

// No doc comment: clap would print it as the command's.
#[derive(Clone, Debug, Args)]
pub struct DeviceCheck {
    /// Use the device's deterministic mode, and run only the cases that compare bits
    #[arg(long, conflicts_with_all = ["kernels", "goldens"])]
    pub deterministic: bool,
    /// Also check the device against every model folder with a golden.json below this folder
    #[arg(long, value_name = "DIR", conflicts_with = "kernels")]
    pub goldens: Option<PathBuf>,
    /// Only few and small cases, for tools that slow the device down. With --kernels: not every combination
    /// of defines, and without optimisation, which tells what does not compile but not what spills
    #[arg(long)]
    pub quick: bool,
    /// Only the cases of rows whose name holds this text: latent
    #[arg(long, value_name = "TEXT", conflicts_with = "kernels")]
    pub only: Option<String>,
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
    #[arg(long, conflicts_with_all = ["kernels", "goldens", "quick", "only", "json", "deterministic"])]
    pub paths: bool,
}

impl DeviceCheck {
    /// Whether nothing is computed.
    pub fn uses_no_device(&self) -> bool {
        self.kernels || self.paths
    }
}
