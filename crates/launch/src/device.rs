//! Chooses the device: parses `--device` and opens the backend for it, on which work runs (`work`); how the device's
//! memory is used is left to that.
#![warn(missing_docs)]

use std::fmt;
use std::str::FromStr;

use offshoot_backend::Backend;
use offshoot_backend::ranks::{Rank, Ranked, Ranks};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::memory;
use offshoot_core::setting::TENSOR_PARALLEL;
use offshoot_cpu::Cpu;
use offshoot_model::{SharedKeys, WhyCopied};

use super::gpu::{self, Cuda};
use super::{DeviceBackend, ModelSource, OnBackend, OnDevice};

/// `auto`, `cpu`, `cuda` (its first GPU) or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first usable GPU with room for the weights, else the CPU.
    #[default]
    Auto,
    /// The host's cores.
    Cpu,
    /// A GPU.
    Cuda {
        /// Its number, from 0, as the driver counts them.
        ordinal: usize,
    },
}

/// An open device. Displays as its name, followed by the reason if `auto` found no usable GPU.
pub struct Opened {
    backend: OpenBackend,
    name: String,
    not_cuda: Option<WhyNotCuda>,
}

enum OpenBackend {
    Cpu(Box<Cpu>),
    Cuda(Box<Cuda>),
}

impl Opened {
    pub(super) fn is_cpu(&self) -> bool {
        matches!(self.backend, OpenBackend::Cpu(_))
    }

    /// Runs `work` on the device. This is the only place that distinguishes devices.
    pub fn with<W: OnDevice>(self, work: W) -> Result<W::Output> {
        match self.backend {
            OpenBackend::Cpu(cpu) => work.run(*cpu),
            OpenBackend::Cuda(cuda) => work.run(*cuda),
        }
    }

    /// Runs `work` on the device as an engine uses it. `exact`: a GPU adds up as several that compute one model
    /// together would, so that results do not depend on their number ([`Rank::alone`]).
    pub fn with_engine<W: OnBackend>(self, exact: bool, work: W) -> Result<W::Output> {
        match self.backend {
            OpenBackend::Cpu(cpu) => work.run(*cpu),
            OpenBackend::Cuda(cuda) if exact => work.run(Rank::alone(*cuda)?),
            OpenBackend::Cuda(cuda) => work.run(*cuda),
        }
    }

    /// The same device for a second model ([`DeviceBackend::beside`]).
    pub(super) fn beside(&self) -> Result<Opened> {
        let backend = match &self.backend {
            OpenBackend::Cpu(cpu) => OpenBackend::Cpu(Box::new(DeviceBackend::beside(&**cpu)?)),
            OpenBackend::Cuda(cuda) => OpenBackend::Cuda(Box::new(DeviceBackend::beside(&**cuda)?)),
        };
        Ok(Opened { backend, name: self.name.clone(), not_cuda: None })
    }

    /// Why it is the CPU, if `auto` found no usable GPU.
    pub fn not_cuda(&self) -> Option<&WhyNotCuda> {
        self.not_cuda.as_ref()
    }
}

/// Open devices of one kind, as the ranks of one model.
pub(super) enum OpenRanks {
    Cpu(Ranks<Cpu>),
    Cuda(Ranks<Cuda>),
}

impl Opened {
    /// Connects devices, which have room together for the weights of `model`. `exact`: see [`Ranks::new`].
    ///
    /// # Errors
    ///
    /// One sentence: they are of different kinds, cannot be connected, or have too little memory.
    pub(super) fn join(opened: Vec<Opened>, exact: bool, model: ModelSource<'_>) -> Result<OpenRanks> {
        let names: Vec<String> = opened.iter().map(|opened| opened.name.clone()).collect();
        let (mut cpus, mut gpus) = (Vec::new(), Vec::new());
        for opened in opened {
            match opened.backend {
                OpenBackend::Cpu(cpu) => cpus.push(*cpu),
                OpenBackend::Cuda(cuda) => gpus.push(*cuda),
            }
        }
        if !cpus.is_empty() && !gpus.is_empty() {
            return Err(Error::value(TENSOR_PARALLEL, "devices of one kind", names.join(", ")));
        }
        Ok(match gpus.is_empty() {
            true => OpenRanks::Cpu(join_ranks(cpus, exact, model)?),
            false => OpenRanks::Cuda(join_ranks(gpus, exact, model)?),
        })
    }
}

/// Connects devices, and says how they hold what several of them have of the model's keys and values.
fn join_ranks<B: Ranked>(devices: Vec<B>, exact: bool, model: ModelSource<'_>) -> Result<Ranks<B>> {
    let ranks = Ranks::new(devices, exact)?;
    let count = ranks.first().devices();
    let shared = model.config.shared_keys(count, exact, ranks.can_share_positions());
    match shared {
        SharedKeys::Nothing => {}
        SharedKeys::Divided { .. } | SharedKeys::Copied { why: WhyCopied::Deterministic | WhyCopied::Latents, .. } => {
            log::info!("{shared}")
        }
        SharedKeys::Copied { .. } => log::warn!("{TENSOR_PARALLEL}: {shared}"),
    }
    let ranks = ranks.sharing_positions(shared.members());
    can_hold(ranks.first(), ranks.free_bytes()?, 1, &[model])?;
    Ok(ranks)
}

/// Why `auto` chose the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNotCuda {
    /// No GPU was found.
    NoGpu(String),
    /// A GPU was found, but it cannot be used or lacks memory.
    Unusable(String),
}

impl DeviceChoice {
    /// Opens the chosen device, which must compute the layers of `model` and have free memory for its weights, as it
    /// holds them.
    ///
    /// # Errors
    ///
    /// One sentence: what is missing, which layers it does not compute, or the memory that is needed and the memory
    /// that is free.
    pub fn open(self, model: Option<ModelSource<'_>>) -> Result<Opened> {
        self.open_as_one_of(1, model)
    }

    /// Opens the chosen device for several models, whose weights it must hold together.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceChoice::open`].
    pub(super) fn open_for(self, models: &[ModelSource<'_>]) -> Result<Opened> {
        self.open_with(1, models)
    }

    /// Opens the chosen device for one of so many replicas: those on the CPU share its cores, and its memory must hold
    /// all of their weights.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceChoice::open`].
    pub fn open_as_one_of(self, replicas: usize, model: Option<ModelSource<'_>>) -> Result<Opened> {
        self.open_with(replicas, model.as_slice())
    }

    fn open_with(self, replicas: usize, models: &[ModelSource<'_>]) -> Result<Opened> {
        let opened = match self {
            DeviceChoice::Cpu => on_cpu(replicas, models, None)?,
            DeviceChoice::Cuda { ordinal } => on_cuda(ordinal, models)?,
            DeviceChoice::Auto => match first_gpu(models) {
                Ok(cuda) => cuda,
                Err(why) => on_cpu(replicas, models, Some(why))?,
            },
        };
        log::info!("device: {opened}");
        Ok(opened)
    }
}

fn on_cpu(replicas: usize, models: &[ModelSource<'_>], not_cuda: Option<WhyNotCuda>) -> Result<Opened> {
    if let Some(WhyNotCuda::Unusable(why)) = &not_cuda {
        log::warn!("using the CPU instead: {why}");
    }
    let free = memory::free();
    if free.is_limited_by_process() {
        log::warn!("free memory: {free}");
    }
    let cpu = Cpu::open()?.on_a_share_of_cores(replicas);
    can_hold(&cpu, cpu.free_bytes()?, replicas, models)?;
    let name = cpu.describe();
    Ok(Opened { backend: OpenBackend::Cpu(Box::new(cpu)), name, not_cuda })
}

fn on_cuda(ordinal: usize, models: &[ModelSource<'_>]) -> Result<Opened> {
    let cuda = gpu::open(ordinal)?;
    can_hold(&cuda, cuda.free_bytes()?, 1, models)?;
    let name = cuda.describe();
    Ok(Opened { backend: OpenBackend::Cuda(Box::new(cuda)), name, not_cuda: None })
}

/// The first GPU that opens, computes the models' layers and has enough memory; if all fail, the first GPU's reason.
fn first_gpu(models: &[ModelSource<'_>]) -> Result<Opened, WhyNotCuda> {
    let gpus = gpu::gpus().map_err(|error| WhyNotCuda::NoGpu(error.to_string()))?;
    let mut reason = None;
    for ordinal in 0..gpus.len() {
        match on_cuda(ordinal, models) {
            Ok(opened) => return Ok(opened),
            Err(error) => drop(reason.get_or_insert(error.to_string())),
        }
    }
    Err(WhyNotCuda::Unusable(reason.expect("a list without an error has a GPU")))
}

/// Whether the device, which has `free` bytes, has room for the models' weights, `copies` times.
fn can_hold<B: Backend>(backend: &B, free: usize, copies: usize, models: &[ModelSource<'_>]) -> Result<()> {
    let each = models.iter().map(|model| model.weight_bytes_on(backend).saturating_mul(copies));
    let weights = each.clone().fold(0_usize, usize::saturating_add);
    if weights > free {
        let what = format!("free memory of {}", backend.describe());
        let each: Vec<String> = each.map(|weights| bytes(weights as u64)).collect();
        let of_all = match (copies, &*each) {
            (1, [_]) => String::new(),
            (1, each) => format!(" of the models: {}", each.join(" and ")),
            (copies, _) => format!(" of {copies} replicas"),
        };
        let expected = format!("at least {}, the size of the weights{of_all}", bytes(weights as u64));
        return Err(Error::value(what, expected, bytes(free as u64)));
    }
    Ok(())
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.not_cuda {
            Some(why) => write!(f, "{}; {why}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for WhyNotCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNotCuda::NoGpu(why) | WhyNotCuda::Unusable(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ordinal = match text {
            "auto" => return Ok(DeviceChoice::Auto),
            "cpu" => return Ok(DeviceChoice::Cpu),
            "cuda" => Some(0),
            _ => text
                .strip_prefix("cuda:")
                .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|n| n.parse().ok()),
        };
        let wrong = || Error::value("device", "auto, cpu, cuda or cuda:N", text);
        ordinal.map(|ordinal| DeviceChoice::Cuda { ordinal }).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use offshoot_backend::Dtype;
    use offshoot_model::{ModelConfig, ModelFolder};

    #[test]
    fn choices_are_read_as_they_are_printed() {
        let cuda = |ordinal| DeviceChoice::Cuda { ordinal };
        for (text, choice) in
            [("auto", DeviceChoice::Auto), ("cpu", DeviceChoice::Cpu), ("cuda:0", cuda(0)), ("cuda:12", cuda(12))]
        {
            assert_eq!(text.parse::<DeviceChoice>().expect(text), choice);
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().expect("the first GPU"), cuda(0));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda0", "CUDA"] {
            let error = wrong.parse::<DeviceChoice>().expect_err(wrong).to_string();
            assert!(error.contains("cuda:N"), "{error}");
        }
    }

    #[test]
    fn weights_that_do_not_fit_are_said_in_bytes_people_read() {
        let demo =
            ModelFolder::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo"))
                .expect("the demo");
        let config = ModelConfig { vocab: 1 << 40, ..demo.config };
        let model = ModelSource::random(&config, Dtype::F32);
        let Err(error) = DeviceChoice::Cpu.open(Some(model)) else { panic!("a trillion tokens fit nowhere") };
        let said = error.to_string();
        assert!(said.contains("cpu") && said.contains("TiB") && said.contains("weights"), "{said}");
        assert_eq!(error.exit_code(), 2);
    }
}
