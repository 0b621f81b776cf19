//! Which device works: what the user asks for (`--device`), and the backend that this comes to on the machine at hand.
//! Whoever needs the backend itself passes what is to be done there (`OnDevice`); what becomes of its memory is left to
//! that.

use std::fmt;
use std::str::FromStr;

use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::discovery::probe::probe;
use crate::backend::{AttentionLevels, Backend, Timed};
use crate::error::{Error, Result};
use crate::figures::bytes;

/// `auto`, `cpu`, `cuda` (its first GPU) or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU that will do and has room for the weights, else the CPU.
    #[default]
    Auto,
    Cpu,
    Cuda {
        ordinal: usize,
    },
}

/// A backend that this machine may have.
pub trait Device: Timed + AttentionLevels {
    /// Opens the same device once more, with memory and kernels of its own.
    fn opener(&self) -> Box<dyn Fn() -> Result<Self>>;
}

impl Device for Cpu {
    fn opener(&self) -> Box<dyn Fn() -> Result<Self>> {
        Box::new(Cpu::open)
    }
}

impl Device for Cuda {
    fn opener(&self) -> Box<dyn Fn() -> Result<Self>> {
        let ordinal = self.device().facts().ordinal;
        Box::new(move || Cuda::open(ordinal))
    }
}

/// What is done on a device, whichever it is.
pub trait OnDevice {
    type Output;

    fn run<B: Device>(self, backend: B) -> Result<Self::Output>;
}

/// What is known of a kind of device before one is opened.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    /// Tokens of a page of keys and values.
    pub page_tokens: usize,
    /// Whether it computes by itself, in memory of its own (`Backend::IS_ASYNC`).
    pub is_async: bool,
}

impl DeviceFacts {
    pub fn of<B: Backend>(backend: &B) -> Self {
        DeviceFacts { page_tokens: backend.page_tokens() as usize, is_async: B::IS_ASYNC }
    }
}

/// A device that can be worked on. Prints as its name, and why it is no GPU where the choice was the machine's.
pub struct Opened {
    backend: Either,
    name: String,
    not_cuda: Option<WhyNotCuda>,
}

enum Either {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

impl Opened {
    /// Does `work` there. The one place that tells devices apart.
    pub fn with<W: OnDevice>(self, work: W) -> Result<W::Output> {
        match self.backend {
            Either::Cpu(cpu) => work.run(cpu),
            Either::Cuda(cuda) => work.run(*cuda),
        }
    }

    pub fn not_cuda(&self) -> Option<&WhyNotCuda> {
        self.not_cuda.as_ref()
    }
}

/// Why a choice that was left to the machine fell on its CPU. Printable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNotCuda {
    /// Nothing here says that it has a GPU.
    NoGpu(String),
    /// It has one, which cannot be used or has no room.
    Unusable(String),
}

impl DeviceChoice {
    /// Opens what is chosen, which must have `weights` bytes of memory free. Errors are one sentence: what is missing,
    /// or what is needed and what there is.
    pub fn open(self, weights: usize) -> Result<Opened> {
        let opened = match self {
            DeviceChoice::Cpu => on_cpu(weights, None)?,
            DeviceChoice::Cuda { ordinal } => on_cuda(ordinal, weights)?,
            DeviceChoice::Auto => match first_gpu(weights) {
                Ok(cuda) => cuda,
                Err(why) => on_cpu(weights, Some(why))?,
            },
        };
        log::info!("device: {opened}");
        Ok(opened)
    }
}

fn on_cpu(weights: usize, not_cuda: Option<WhyNotCuda>) -> Result<Opened> {
    if let Some(WhyNotCuda::Unusable(why)) = &not_cuda {
        log::warn!("the CPU works instead: {why}");
    }
    let cpu = Cpu::open()?;
    has_room(&cpu, weights)?;
    let name = cpu.describe();
    Ok(Opened { backend: Either::Cpu(cpu), name, not_cuda })
}

fn on_cuda(ordinal: usize, weights: usize) -> Result<Opened> {
    let cuda = Cuda::open(ordinal)?;
    has_room(&cuda, weights)?;
    let name = cuda.describe();
    Ok(Opened { backend: Either::Cuda(Box::new(cuda)), name, not_cuda: None })
}

/// The first GPU that opens and has room; of several that do not, the first one's reason.
fn first_gpu(weights: usize) -> Result<Opened, WhyNotCuda> {
    let gpus = probe().map_err(|error| WhyNotCuda::NoGpu(error.to_string()))?;
    let mut reason = None;
    for ordinal in 0..gpus.len() {
        match on_cuda(ordinal, weights) {
            Ok(opened) => return Ok(opened),
            Err(error) => drop(reason.get_or_insert(error.to_string())),
        }
    }
    Err(WhyNotCuda::Unusable(reason.expect("a probe without an error shows a GPU")))
}

fn has_room<B: Backend>(backend: &B, weights: usize) -> Result<()> {
    let free = backend.free_bytes()?;
    if weights > free {
        let what = format!("free memory of {}", backend.describe());
        let expected = format!("at least {}, the size of the weights", bytes(weights as u64));
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
    use super::*;

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
        let Err(error) = DeviceChoice::Cpu.open(1 << 60) else { panic!("an exbibyte fits nowhere") };
        let said = error.to_string();
        assert!(said.contains("cpu") && said.contains("TiB") && said.contains("weights"), "{said}");
        assert_eq!(error.exit_code(), 2);
    }
}
