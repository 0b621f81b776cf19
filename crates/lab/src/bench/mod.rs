//! The measurements of `offshoot-lab bench`, each compared with the machine's limit, which is measured in the same run.
//! Each module has the options of its command, and runs it.

pub mod adapters;
pub mod allreduce;
pub mod batches;
pub mod decode;
pub mod delta_rule;
mod floor;
pub mod forms;
mod latent_trees;
pub mod latents;
mod layers;
pub mod masks;
mod mixtures;
pub mod products;
pub mod sampling;
pub mod tables;
pub mod tree_attention;
mod tree_forms;
pub mod trees;
pub mod workload_file;
pub mod workloads;

use clap::{Args, Subcommand};

use self::adapters::AdapterOptions;
use self::allreduce::AllreduceOptions;
use self::batches::BatchesOptions;
use self::decode::DecodeOptions;
use self::delta_rule::DeltaRuleOptions;
use self::forms::FormOptions;
use self::latents::LatentOptions;
use self::layers::ProductOptions;
use self::masks::MaskOptions;
use self::tree_attention::TreeOptions;
use self::workloads::WorkloadOptions;
use offshoot_core::error::{Error, Result};
use offshoot_launch::{DeviceChoice, Devices};

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Tokens per second of N samples of one prompt
    Decode(DecodeOptions),
    /// Linear layers of a model's shape, compared with their lower bound
    Gemm(ProductOptions),
    /// Tree attention of one decode step, on the trees of a file
    Attention(TreeOptions),
    /// Gated delta-rule layers of a model's shape, in decode steps and prompts, compared with their lower bound
    DeltaRule(DeltaRuleOptions),
    /// What latent attention computes beside attention itself, compared with its lower bound
    Latents(LatentOptions),
    /// Decode steps with low-rank adapters, beside steps without and the lower bound
    Adapters(AdapterOptions),
    /// Samples that must be JSON of a schema, beside samples without a form, as JSON lines
    Forms(FormOptions),
    /// Sampling from rows with sets of allowed tokens of their own, beside rows without
    Masks(MaskOptions),
    /// Sums over the GPUs of one model, by size: own kernels and NCCL, beside what the link allows
    Allreduce(AllreduceOptions),
    /// Whole jobs on a model with random weights, as JSON lines
    Workloads(WorkloadOptions),
    /// The papers' batches, arrivals and rates through the scheduler, on a model with random weights, as JSON lines
    Batches(BatchesOptions),
    /// Peak multiply rates and read bandwidth
    Machine(JsonArgs),
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// Whether it measures several devices together.
    pub fn uses_several(&self) -> bool {
        matches!(self.what, Bench::Workloads(_) | Bench::Allreduce(_))
    }

    /// # Errors
    ///
    /// An option that its table would ignore.
    pub fn refuse_ignored_options(&self) -> Result<()> {
        match &self.what {
            Bench::Batches(batches) => batches.refuse_ignored_options(),
            _ => Ok(()),
        }
    }

    /// Measures.
    ///
    /// # Errors
    ///
    /// Those of the measurement; a device of which there is none.
    pub fn run(&self, device: DeviceChoice, devices: &Devices) -> Result<()> {
        match &self.what {
            Bench::Decode(options) => decode::main(device, options),
            Bench::Gemm(options) => device.open(None)?.with(options),
            Bench::Attention(options) => device.open(None)?.with(options),
            Bench::DeltaRule(options) => device.open(None)?.with(options),
            Bench::Latents(options) => device.open(None)?.with(options),
            Bench::Adapters(options) => device.open(None)?.with(options),
            Bench::Forms(options) => device.open(None)?.with(options),
            Bench::Masks(options) => device.open(None)?.with(options),
            Bench::Allreduce(options) => allreduce::main(devices, options),
            Bench::Workloads(options) => workloads::main(devices, options),
            Bench::Batches(options) => match &options.simulated {
                Some(profile) => on_the_cpu(device).and_then(|()| batches::simulated(profile, options)),
                None => device.open(None)?.with(options),
            },
            Bench::Machine(options) => on_the_cpu(device).and_then(|()| tables::machine(options.json)),
        }
    }
}

/// Refuses `--device cuda` for measurements of the CPU.
fn on_the_cpu(device: DeviceChoice) -> Result<()> {
    match device {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(()),
        DeviceChoice::Cuda { .. } => {
            Err(Error::value("--device", "auto or cpu, which this measures", device.to_string()))
        }
    }
}
