//! The options of `offshoot check`.

use std::path::PathBuf;

use clap::Args;

use crate::backend::KvDtype;
use crate::lab::check::{CheckOptions, DeviceCheck, ModelCheck};

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Model folder in Hugging Face form
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Golden file for that model: transformers' logits, log-probabilities and greedy tokens
    #[arg(long, value_name = "FILE", requires = "model")]
    pub golden: Option<PathBuf>,
    /// Hold the device against every model folder with a golden.json beneath this one, too
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "kernels"])]
    pub goldens: Option<PathBuf>,
    /// Few and small cases of the device's check, for tools that slow it down
    #[arg(long, conflicts_with_all = ["model", "kernels"])]
    pub quick: bool,
    /// One JSON object a row of the device's check instead of a table
    #[arg(long, conflicts_with_all = ["model", "kernels"])]
    pub json: bool,
    /// The device's deterministic mode: with --model the model's arithmetic by it, without only the cases that hold its bits
    /// against each other
    #[arg(long, conflicts_with_all = ["kernels", "goldens"])]
    pub deterministic: bool,
    /// Also say how far off log-probabilities are when keys and values are rounded to it
    #[arg(long, value_enum, default_value_t, value_name = "DTYPE", requires = "model")]
    pub kv_dtype: KvDtype,
    /// Compile every CUDA kernel, which needs NVRTC but no GPU; registers that spill (but for those known to) fail the check
    #[arg(long, conflicts_with = "model")]
    pub kernels: bool,
    /// Architectures to compile for
    #[arg(long, value_name = "ARCH", requires = "kernels", default_values = ["sm_80", "sm_89", "sm_90a"])]
    pub arch: Vec<String>,
    /// Only print the paths of the CPU's arithmetic that this processor has, one a line, as OFFSHOOT_CPU names them
    #[arg(long, conflicts_with_all = ["model", "kernels", "goldens", "quick", "json", "deterministic"])]
    pub paths: bool,
}

impl From<CheckArgs> for CheckOptions {
    fn from(args: CheckArgs) -> Self {
        let CheckArgs { model, golden, goldens, quick, json, deterministic, kv_dtype: kv, kernels, arch, paths } = args;
        match model {
            Some(folder) => CheckOptions::Model { folder, how: ModelCheck { golden, deterministic, kv } },
            None if paths => CheckOptions::Paths,
            None if kernels => CheckOptions::Kernels { archs: arch },
            None => CheckOptions::Device(DeviceCheck { goldens, quick, deterministic, json }),
        }
    }
}
