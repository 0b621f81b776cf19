//! The devices of an engine: one, or several of one kind, each of which holds the whole model (a replica). Parses
//! `--devices`.
#![warn(missing_docs)]

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use super::DeviceChoice;
use super::gpu::gpus;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{DEVICES, TENSOR_PARALLEL};

/// The device of an engine, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// One device.
    One(DeviceChoice),
    /// Devices of one kind: the CPU, several replicas of which share its cores and its memory, or GPUs, each once. At
    /// least one.
    Each(Vec<DeviceChoice>),
    /// Every GPU that the driver shows.
    AllGpus,
    /// Devices of one kind, each once: they compute one model together.
    Ranks(Vec<DeviceChoice>),
}

impl Default for Devices {
    fn default() -> Self {
        Devices::One(DeviceChoice::default())
    }
}

impl From<DeviceChoice> for Devices {
    fn from(device: DeviceChoice) -> Self {
        Devices::One(device)
    }
}

/// Most replicas.
const MOST: usize = 64;

impl Devices {
    /// Each device; `all` asks the driver.
    ///
    /// # Errors
    ///
    /// One sentence: no GPU was found, or one of them is unusable, or they are of different kinds.
    pub fn choices(&self) -> Result<Vec<DeviceChoice>> {
        let choices = match self {
            Devices::One(device) => return Ok(vec![*device]),
            Devices::Each(devices) | Devices::Ranks(devices) => devices.clone(),
            Devices::AllGpus => {
                let gpus = gpus().map_err(|error| {
                    Error::value(format!("{DEVICES} all"), "at least one GPU", format!("none: {error}"))
                })?;
                (0..gpus.len()).map(|ordinal| DeviceChoice::Cuda { ordinal }).collect()
            }
        };
        check_kinds(&choices)?;
        Ok(choices)
    }

    /// These devices as `ranks` ranks of one model. One device stands for itself and those after it.
    ///
    /// # Errors
    ///
    /// One sentence: they are more or fewer.
    pub fn together(self, ranks: usize) -> Result<Self> {
        let from = |first: usize| (first..first + ranks).map(|ordinal| DeviceChoice::Cuda { ordinal }).collect();
        let devices = match self {
            Devices::One(DeviceChoice::Cpu) => vec![DeviceChoice::Cpu; ranks],
            Devices::One(DeviceChoice::Cuda { ordinal }) => from(ordinal),
            Devices::One(DeviceChoice::Auto) => match gpus() {
                Ok(_) => from(0),
                Err(_) => vec![DeviceChoice::Cpu; ranks],
            },
            several => several.choices()?,
        };
        match devices.len() == ranks {
            true => Ok(Devices::Ranks(devices)),
            false => {
                let expected = format!("{ranks} devices, as {TENSOR_PARALLEL} says");
                Err(Error::value(DEVICES, expected, names(&devices)))
            }
        }
    }

    /// The first GPU among them; `auto` stands for the first one that there is, if there is one.
    pub fn first_gpu(&self) -> Option<usize> {
        match self.choices().ok()?.first()? {
            DeviceChoice::Cuda { ordinal } => Some(*ordinal),
            DeviceChoice::Auto => gpus().ok()?.iter().position(|gpu| gpu.is_ok()),
            DeviceChoice::Cpu => None,
        }
    }

    /// How many have the whole model. GPUs in a list need not exist; `all` asks the driver.
    ///
    /// # Errors
    ///
    /// `all` finds none.
    pub fn known_count(&self) -> Result<usize> {
        match self {
            Devices::One(_) | Devices::Ranks(_) => Ok(1),
            Devices::Each(devices) => Ok(devices.len()),
            Devices::AllGpus => Ok(self.choices()?.len()),
        }
    }
}

/// The names as the command line has them.
fn names(devices: &[DeviceChoice]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Refuses GPUs of different kinds: they round differently, and the slower ones would be waited for.
fn check_kinds(choices: &[DeviceChoice]) -> Result<()> {
    let ordinals: Vec<usize> = choices
        .iter()
        .filter_map(|choice| match choice {
            DeviceChoice::Cuda { ordinal } => Some(*ordinal),
            DeviceChoice::Auto | DeviceChoice::Cpu => None,
        })
        .collect();
    let ([first, others @ ..], [_, _, ..]) = (&ordinals[..], choices) else { return Ok(()) };
    let gpus = gpus()?;
    let kind_of = |ordinal: usize| match gpus.get(ordinal) {
        Some(Ok(kind)) => Ok(kind),
        Some(Err(error)) => Err(Error::NoDevice { device: format!("cuda:{ordinal}"), why: error.to_string() }),
        None => {
            let why = format!("the driver shows {} GPUs", gpus.len());
            Err(Error::NoDevice { device: format!("cuda:{ordinal}"), why })
        }
    };
    let kind = kind_of(*first)?;
    for &other in others {
        let found = kind_of(other)?;
        if found != kind {
            let expected = format!("GPUs of one kind, as cuda:{first} ({})", kind.name);
            return Err(Error::value(DEVICES, expected, format!("cuda:{other} ({})", found.name)));
        }
    }
    Ok(())
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::One(device) => device.fmt(f),
            Devices::Each(devices) => f.write_str(&names(devices)),
            Devices::AllGpus => f.write_str("all"),
            Devices::Ranks(devices) => write!(f, "{} {TENSOR_PARALLEL} {}", names(devices), devices.len()),
        }
    }
}

/// Reads `--devices`: `all`, or names of devices with commas between them.
impl FromStr for Devices {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Devices::AllGpus);
        }
        let wrong = |found: &str| Error::value("devices", "all, or a list such as cuda:0,cuda:1 or cpu,cpu", found);
        let devices = text
            .split(',')
            .map(|name| match name.parse::<DeviceChoice>() {
                Ok(DeviceChoice::Auto) | Err(_) => Err(wrong(name)),
                Ok(device) => Ok(device),
            })
            .collect::<Result<Vec<_>>>()?;
        if devices.len() > MOST {
            return Err(Error::value("devices", format!("at most {MOST}"), devices.len().to_string()));
        }
        let is_cpu = |device: &DeviceChoice| *device == DeviceChoice::Cpu;
        if devices.iter().any(is_cpu) && !devices.iter().all(is_cpu) {
            return Err(Error::value("devices", "all of one kind, CPU or GPUs", text));
        }
        let mut seen = HashSet::new();
        for device in devices.iter().filter(|device| !is_cpu(device)) {
            if !seen.insert(device.to_string()) {
                return Err(Error::value("devices", "each GPU once", format!("{device} twice")));
            }
        }
        Ok(Devices::Each(devices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_printed() {
        let (cpu, cuda) = (DeviceChoice::Cpu, |ordinal| DeviceChoice::Cuda { ordinal });
        for (text, devices) in [
            ("all", Devices::AllGpus),
            ("cpu", Devices::Each(vec![cpu])),
            ("cpu,cpu,cpu", Devices::Each(vec![cpu; 3])),
            ("cuda:0,cuda:3", Devices::Each(vec![cuda(0), cuda(3)])),
        ] {
            assert_eq!(text.parse::<Devices>().expect(text), devices);
            assert_eq!(devices.to_string(), text);
        }
        for (text, word) in [
            ("", "cuda:0,cuda:1"),
            ("cuda:0,", "cuda:0,cuda:1"),
            ("auto,cpu", "auto"),
            ("cuda:1,cpu", "of one kind"),
            ("cuda:1,cuda:2,cuda:1", "cuda:1 twice"),
            ("cuda,cuda:0", "cuda:0 twice"),
            ("cpu,gpu", "gpu"),
        ] {
            let error = text.parse::<Devices>().expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn ranks_are_as_many_devices_as_are_asked_for() {
        let cuda = |ordinal| DeviceChoice::Cuda { ordinal };
        let together = |devices: Devices, ranks| devices.together(ranks).map_err(|error| error.to_string());
        assert_eq!(together(cuda(2).into(), 2), Ok(Devices::Ranks(vec![cuda(2), cuda(3)])));
        assert_eq!(together(DeviceChoice::Cpu.into(), 4), Ok(Devices::Ranks(vec![DeviceChoice::Cpu; 4])));
        let two = Devices::Each(vec![DeviceChoice::Cpu; 2]);
        assert_eq!(together(two.clone(), 2), Ok(Devices::Ranks(vec![DeviceChoice::Cpu; 2])));
        let said = together(two, 4).expect_err("two are not four");
        assert!(said.contains("4 devices") && said.contains("cpu,cpu"), "{said}");
        let four = together(DeviceChoice::Cpu.into(), 4).expect("four");
        assert_eq!(four.known_count().expect("a list"), 1, "they have the model together");
    }
}
