//! Kernels on the device: units are compiled, or read from the cache, and loaded once; kernels are looked up in them by
//! name.

use std::ffi::CString;
use std::fmt;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUmodule, CUresult};
use rayon::prelude::*;

use super::args::Args;
use super::device::Device;
use crate::compile::unit::Unit;
use offshoot_core::error::{Error, Result};

/// A kernel ready to launch.
#[derive(Clone)]
pub struct Function {
    /// Keeps the module loaded.
    _device: Device,
    name: &'static str,
    raw: CUfunction,
    /// Bytes of each parameter; `None` if neither the driver (before CUDA 12.4) nor the source tells.
    parameters: Option<Vec<usize>>,
}

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Function {
    pub(super) fn raw(&self) -> CUfunction {
        self.raw
    }

    /// Panics if count or sizes differ from the kernel's parameters: the driver would read past the arguments.
    pub(super) fn assert_takes(&self, args: &Args) {
        let Some(parameters) = &self.parameters else { return };
        assert!(
            args.sizes().eq(parameters.iter().copied()),
            "kernel {self} has parameters of {parameters:?} bytes, its launcher gives {:?}",
            args.sizes().collect::<Vec<_>>()
        );
    }
}

impl Device {
    /// The kernel `name` of `unit`, which is compiled and loaded on first use. It may use all of a block's shared
    /// memory.
    pub fn function(&self, unit: &Unit, name: &'static str) -> Result<Function> {
        let module = self.module(unit)?;
        let symbol =
            CString::new(name).map_err(|_| Error::Internal(format!("kernel name {name:?} holds a zero byte")))?;
        let optin = self.facts().shared_optin;
        self.call(&format!("take kernel {name} from {unit}"), || {
            // SAFETY: the module stays loaded as long as the device, which the function keeps.
            unsafe {
                let raw = result::module::get_function(module, symbol)?;
                let fixed =
                    result::function::get_function_attribute(raw, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
                let dynamic = i32::try_from(optin).unwrap_or(i32::MAX) - fixed;
                let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(raw, attribute, dynamic)?;
                let count = parameter_count(unit.source.text, name);
                let parameters = count.map_or(Ok(None), |count| parameter_sizes(raw, count))?;
                Ok(Function { _device: self.clone(), name, raw, parameters })
            }
        })
    }

    /// Compiles and loads `units` in parallel, so that no step waits for a compiler.
    pub fn prepare(&self, units: &[Unit]) -> Result<()> {
        units.par_iter().try_for_each(|unit| self.module(unit).map(drop))
    }

    fn module(&self, unit: &Unit) -> Result<CUmodule> {
        if let Some(module) = self.modules().get(unit) {
            return Ok(module);
        }
        // Not under the lock: `prepare` compiles on several threads.
        let cubin = self.compiler().cubin(unit, &self.facts().arch)?.bytes;
        let mut loaded = self.modules().lock();
        if let Some(&module) = loaded.get(unit) {
            return Ok(module);
        }
        // SAFETY: `cubin` is a whole ELF image, from NVRTC or from the cache, which checks what it reads.
        let module = self.bind().and_then(|()| unsafe { result::module::load_data(cubin.as_ptr().cast()) });
        let module = module.map_err(|error| self.refused(unit, error))?;
        loaded.insert(unit.clone(), module);
        Ok(module)
    }

    fn refused(&self, unit: &Unit, error: DriverError) -> Error {
        match error.0 {
            CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUresult::CUDA_ERROR_INVALID_SOURCE => Error::Kernel {
                unit: unit.to_string(),
                arch: self.facts().arch.clone(),
                why: format!(
                    "the driver (CUDA {}) does not load what {} has compiled: install the NVRTC of the driver's \
                     version",
                    self.facts().driver,
                    self.compiler().describe()
                ),
            },
            _ => self.error(&format!("load {unit}"), error),
        }
    }
}

/// Bytes of each of the `count` parameters of a kernel. The count comes from the source: asking the driver until it
/// fails would be reported by memory checkers.
///
/// # Safety
/// `function` is loaded and its context current.
unsafe fn parameter_sizes(function: CUfunction, count: usize) -> Result<Option<Vec<usize>>, DriverError> {
    type ParamInfo = unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> CUresult;
    // SAFETY: the driver is loaded; the symbol, where there is one, has this signature.
    let Ok(param_info) = (unsafe { sys::culib().get::<ParamInfo>(b"cuFuncGetParamInfo\0") }) else { return Ok(None) };
    let size = |index| {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: writes two words.
        unsafe { param_info(function, index, &mut offset, &mut bytes) }.result().map(|()| bytes)
    };
    (0..count).map(size).collect::<Result<_, _>>().map(Some)
}

/// Number of parameters of the kernel `name` in `source`; `None` if it is not there.
fn parameter_count(source: &str, name: &str) -> Option<usize> {
    let kernels = source.split("__global__").skip(1);
    let list = |kernel: &str| {
        let (_, behind) =
            kernel.split_once(&format!(" {name}(")).or_else(|| kernel.split_once(&format!("\n{name}(")))?;
        behind.split_once(')').map(|(list, _)| list.split(',').filter(|part| !part.trim().is_empty()).count())
    };
    kernels.into_iter().find_map(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_in_the_source() {
        let source = "__device__ void f(int a);\nextern \"C\" __global__ void __launch_bounds__(128, 2)\n\
                      f(int* a, const float* b,\n  unsigned c) {\n}\nextern \"C\" __global__ void g(int x) {}\n\
                      extern \"C\" __global__ void nothing() {}";
        assert_eq!(parameter_count(source, "f"), Some(3));
        assert_eq!(parameter_count(source, "g"), Some(1));
        assert_eq!(parameter_count(source, "nothing"), Some(0));
        assert_eq!(parameter_count(source, "h"), None);
    }
}
