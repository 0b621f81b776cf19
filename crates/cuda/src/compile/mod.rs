//! Compiles units to machine code: from the cache, else by NVRTC. `compile_all` compiles every unit without a GPU, as a
//! check.

pub mod cache;
pub mod elements;
pub mod four_bit;
pub mod four_bit_layers;
pub mod nvrtc;
pub mod ptxas;
pub mod unit;
pub mod units;

use rayon::prelude::*;

use self::cache::{Cache, Cubin, Key};
use self::nvrtc::Nvrtc;
use self::ptxas::KernelUsage;
use self::unit::Unit;
use crate::discovery::libraries;
use crate::discovery::probe::CudaVersion;
use offshoot_core::error::{Error, Result};

/// NVRTC and the cache before it.
pub struct Compiler {
    nvrtc: Nvrtc,
    cache: Cache,
    is_optimising: bool,
}

impl Compiler {
    /// Finds NVRTC, preferably of the driver's CUDA version. The error says where it was looked for and how to install
    /// it.
    pub fn open(driver: Option<CudaVersion>) -> Result<Compiler, String> {
        Ok(Compiler {
            nvrtc: libraries::load_nvrtc(driver, Nvrtc::open)?,
            cache: Cache::of_user(),
            is_optimising: true,
        })
    }

    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Compiler {
        Compiler { cache, ..self }
    }

    /// Compiles in an eighth of the time, for checks that run nothing: what it says of registers is not what they will
    /// be. NVRTC from 12.9 on knows how.
    #[must_use]
    pub fn without_optimisation(self) -> Compiler {
        Compiler { is_optimising: false, ..self }
    }

    /// "NVRTC 13.0 (/usr/lib/libnvrtc.so.13)".
    pub fn describe(&self) -> String {
        self.nvrtc.describe()
    }

    /// "13.0": of NVRTC.
    pub fn version(&self) -> String {
        self.nvrtc.version().to_string()
    }

    /// An error that lists what NVRTC supports if it cannot compile for `arch`.
    pub fn knows(&self, arch: &str) -> Result<(), String> {
        self.nvrtc.knows(arch)
    }

    /// Machine code of `unit` for `arch` ("sm_90a").
    pub fn cubin(&self, unit: &Unit, arch: &str) -> Result<Cubin> {
        let mut options = options(unit, arch);
        if !self.is_optimising {
            // Kernels for Hopper say how many registers a warpgroup has, which needs functions inlined.
            let level = if arch_number(arch) >= 900 { "mid" } else { "max" };
            options.push(format!("--Ofast-compile={level}"));
        }
        let version = self.nvrtc.version().to_string();
        let headers = units::HEADERS.iter().flat_map(|header| [header.name, header.text]);
        let source = [version.as_str(), unit.source.name, unit.source.text];
        let key = Key::of(source.into_iter().chain(options.iter().map(String::as_str)).chain(headers));
        if let Some(cubin) = self.cache.get(&key) {
            return Ok(cubin);
        }
        log::info!("compiling {unit} for {arch}");
        let failed = |why| Error::Kernel { unit: unit.to_string(), arch: arch.to_string(), why };
        let cubin = self.nvrtc.compile(unit.source, units::HEADERS, arch, &options).map_err(failed)?;
        self.cache.put(&key, &cubin);
        Ok(cubin)
    }
}

fn options(unit: &Unit, arch: &str) -> Vec<String> {
    // Lambdas and constexpr functions are the device's: NVRTC before 13.5 takes them for the host's unless told.
    let default_device = "--device-as-default-execution-space".into();
    let fixed =
        [format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--ptxas-options=-v".into(), default_device];
    let defines = unit.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
    fixed.into_iter().chain(defines).collect()
}

/// One kernel as compiled for one architecture.
#[derive(Clone, Debug)]
pub struct KernelReport {
    /// The unit with its defines.
    pub unit: String,
    pub arch: String,
    pub usage: KernelUsage,
    /// Spilled bytes that are allowed.
    pub allowed_spills: u32,
}

impl KernelReport {
    /// Whether it spills more registers than allowed.
    pub fn spills(&self) -> bool {
        self.usage.spill_bytes > self.allowed_spills
    }
}

/// Compiles these units for the architectures `archs`, and for each of `also` those of them that are another program
/// there than for the nearest of `archs` below it. The first kernel that does not compile is the error.
pub fn compile_all(
    compiler: &Compiler,
    units: &[Unit],
    archs: &[String],
    also: &[String],
) -> Result<Vec<KernelReport>> {
    let mut jobs: Vec<_> = units.iter().flat_map(|unit| archs.iter().map(move |arch| (unit, arch.as_str()))).collect();
    for arch in also {
        let number = arch_number(arch);
        let below = archs.iter().map(|arch| arch_number(arch)).filter(|&other| other < number).max();
        let is_own =
            |unit: &&Unit| below.is_none_or(|below| unit::differs_by_arch(unit.source, units::HEADERS, number, below));
        jobs.extend(units.iter().filter(is_own).map(|unit| (unit, arch.as_str())));
    }
    let compile = |&(unit, arch): &(&Unit, &str)| -> Result<Vec<KernelReport>> {
        let allowed_spills = units::allowed_spills(unit);
        let report = |usage| KernelReport { unit: unit.to_string(), arch: arch.to_string(), usage, allowed_spills };
        Ok(compiler.cubin(unit, arch)?.usage().into_iter().map(report).collect())
    };
    let reports: Vec<Vec<_>> = jobs.par_iter().map(compile).collect::<Result<_>>()?;
    Ok(reports.into_iter().flatten().collect())
}

/// 890 of "sm_89" and 900 of "sm_90a", as `__CUDA_ARCH__` has it; 0 of what names no number.
fn arch_number(arch: &str) -> u32 {
    let digits: String = arch.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u32>().map_or(0, |number| number.saturating_mul(10))
}
