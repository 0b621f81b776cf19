//! Lists GPUs and checks whether they are usable, by the driver alone: no context is made and no library but libcuda is
//! opened. Each problem becomes one sentence.

use std::ffi::c_int;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};

use offshoot_core::error::{Error, Result};

/// mma.sync on bf16 and cp.async need it.
const OLDEST_MAJOR: u32 = 8;
/// CUDA 12.0: the oldest driver that has every call made here.
const OLDEST_DRIVER: CudaVersion = CudaVersion { major: 12, minor: 0 };

/// The CUDA version that a driver or NVRTC speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    pub major: u32,
    pub minor: u32,
}

impl std::fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Facts of a GPU that kernels and budgets need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub ordinal: usize,
    /// "NVIDIA H200".
    pub name: String,
    pub driver: CudaVersion,
    /// Compute capability.
    pub major: u32,
    pub minor: u32,
    /// The architecture for NVRTC: "sm_80", "sm_90a".
    pub arch: String,
    pub multiprocessors: u32,
    pub total_bytes: usize,
    /// The most shared memory that a block can ask for, bytes.
    pub shared_optin: usize,
}

/// "cuda:0, NVIDIA H200, sm_90a, 132 multiprocessors, 140 GiB".
impl std::fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DeviceFacts { ordinal, name, arch, multiprocessors, total_bytes, .. } = self;
        write!(f, "cuda:{ordinal}, {name}, {arch}, {multiprocessors} multiprocessors, {} GiB", total_bytes >> 30)
    }
}

/// Every GPU that the driver shows: its facts, or why it is unusable. An error if there is no driver or no GPU.
pub fn probe() -> Result<Vec<Result<DeviceFacts>>> {
    let (driver, count) = start()?;
    Ok((0..count).map(|ordinal| facts(driver, ordinal)).collect())
}

/// The facts of one usable GPU.
pub fn probe_one(ordinal: usize) -> Result<DeviceFacts> {
    let (driver, count) = start().map_err(|error| match error {
        Error::NoDevice { why, .. } => no_device(ordinal, why),
        other => other,
    })?;
    if ordinal >= count {
        let shown = if count == 1 { "one GPU, cuda:0".to_string() } else { format!("{count} GPUs") };
        return Err(no_device(ordinal, format!("the driver shows {shown}")));
    }
    facts(driver, ordinal)
}

/// The driver's handle of a GPU that `probe_one` has seen.
pub fn handle(ordinal: usize) -> Result<CUdevice> {
    let refused = |error| no_device(ordinal, format!("the driver does not open it: {}", describe(error)));
    result::device::get(ordinal as c_int).map_err(refused)
}

/// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
pub fn describe(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| text.ok().map(|text| text.to_string_lossy().into_owned());
    let name = text(error.error_name()).unwrap_or_else(|| format!("CUDA error {}", error.0 as u32));
    match text(error.error_string()) {
        Some(meaning) => format!("{name} ({meaning})"),
        None => name,
    }
}

pub fn no_device(ordinal: usize, why: impl Into<String>) -> Error {
    Error::NoDevice { device: format!("cuda:{ordinal}"), why: why.into() }
}

/// The architecture to compile for: from 9.0 on with the features of that very generation ('a').
pub fn arch(major: u32, minor: u32) -> String {
    format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
}

/// Starts the driver: its version and how many GPUs it shows (at least one).
fn start() -> Result<(CudaVersion, usize)> {
    let fail = |why: String| Error::NoDevice { device: "CUDA".into(), why };
    // SAFETY: opens and closes the driver's library, whose initialisers are safe to run.
    if !unsafe { sys::is_culib_present() } {
        return Err(fail("the NVIDIA driver is not installed or hidden (libcuda.so.1 is not found)".into()));
    }
    let driver = driver_version().map_err(|error| fail(format!("the driver does not answer: {}", describe(error))))?;
    if driver < OLDEST_DRIVER {
        let why = format!("the driver is too old: it speaks CUDA {driver}, {OLDEST_DRIVER} or newer is needed");
        return Err(fail(why));
    }
    let none = || {
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES").map(|list| format!(" (CUDA_VISIBLE_DEVICES is `{list}`)"));
        fail(format!("the NVIDIA driver shows no GPU{}", hidden.unwrap_or_default()))
    };
    let count = result::init().and_then(|()| result::device::get_count()).map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => none(),
        _ => fail(format!("the NVIDIA driver does not start: {}", describe(error))),
    })?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok((driver, count)),
        _ => Err(none()),
    }
}

fn driver_version() -> Result<CudaVersion, DriverError> {
    let mut version: c_int = 0;
    // SAFETY: writes one int; needs no initialised driver.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    let version = version.cast_unsigned();
    Ok(CudaVersion { major: version / 1000, minor: version % 1000 / 10 })
}

fn facts(driver: CudaVersion, ordinal: usize) -> Result<DeviceFacts> {
    let device = handle(ordinal)?;
    let refused = |error| no_device(ordinal, format!("the driver does not describe it: {}", describe(error)));
    let attribute = |which: Attribute| -> Result<u32> {
        // SAFETY: `device` comes from the driver.
        let value = unsafe { result::device::get_attribute(device, which) }.map_err(refused)?;
        Ok(value.cast_unsigned())
    };
    let name = result::device::get_name(device).map_err(refused)?;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if major < OLDEST_MAJOR {
        let why = format!(
            "the {name} is too old: it has compute capability {major}.{minor}, {OLDEST_MAJOR}.0 (Ampere) or newer is \
             needed"
        );
        return Err(no_device(ordinal, why));
    }
    Ok(DeviceFacts {
        ordinal,
        name,
        driver,
        major,
        minor,
        arch: arch(major, minor),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: `device` comes from the driver.
        total_bytes: unsafe { result::device::total_mem(device) }.map_err(refused)?,
        shared_optin: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
    })
}
