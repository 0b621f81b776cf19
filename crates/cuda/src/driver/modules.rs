//! The compiled units that are loaded in a device's context.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use cudarc::driver::result;
use cudarc::driver::sys::CUmodule;

use crate::compile::unit::Unit;
use crate::discovery::probe;

/// The modules loaded in a device's context.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<Unit, CUmodule>>);

impl Modules {
    pub fn get(&self, unit: &Unit) -> Option<CUmodule> {
        self.lock().get(unit).copied()
    }

    /// All of them, while nobody else loads one.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<Unit, CUmodule>> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }

    /// Unloads all, with the context current.
    ///
    /// # Safety
    /// No function of a module is used afterwards.
    pub unsafe fn unload(&self) {
        for (unit, module) in self.lock().drain() {
            // SAFETY: loaded by `Device::module`, unloaded once; the caller promises the rest.
            if let Err(error) = unsafe { result::module::unload(module) } {
                log::warn!("cannot unload {unit}: {}", probe::describe(error));
            }
        }
    }
}
