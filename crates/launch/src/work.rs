//! What runs on a device: code that needs the backend's type implements [`OnDevice`] or [`OnBackend`]. Also defines
//! what budgets know of a device. Which device it is, is chosen in `device`.

use offshoot_backend::{AttentionLevels, Backend, Timed};
use offshoot_core::error::Result;
use offshoot_cpu::Cpu;
use offshoot_model::RunnerFacts;

/// A backend of a real device.
pub trait DeviceBackend: Timed + AttentionLevels {
    /// Returns a function that opens the same device again, with its own memory and kernels.
    fn opener(&self) -> Box<dyn Fn() -> Result<Self>>;

    /// The same device for a second model, with memory of its own: steps of the two take turns.
    fn beside(&self) -> Result<Self>;
}

impl DeviceBackend for Cpu {
    fn opener(&self) -> Box<dyn Fn() -> Result<Self>> {
        Box::new(Cpu::open)
    }

    fn beside(&self) -> Result<Self> {
        Ok(Cpu::beside(self))
    }
}

/// Work that runs on any device.
pub trait OnDevice {
    type Output;

    fn run<B: DeviceBackend>(self, backend: B) -> Result<Self::Output>;
}

/// Work that runs on any backend.
pub trait OnBackend {
    type Output;

    fn run<B: Backend>(self, backend: B) -> Result<Self::Output>;
}

/// Properties of a kind of device that the budgets depend on.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    /// Tokens per KV page.
    pub page_tokens: usize,
    /// Whether it computes asynchronously, in its own memory (`Backend::IS_ASYNC`).
    pub is_async: bool,
    /// Devices that compute one model together (`Backend::devices`).
    pub devices: usize,
}

impl DeviceKind {
    pub fn of<B: Backend>(backend: &B) -> Self {
        let devices = backend.devices();
        DeviceKind { page_tokens: backend.page_tokens() as usize, is_async: B::IS_ASYNC, devices }
    }
}

impl From<&RunnerFacts> for DeviceKind {
    fn from(facts: &RunnerFacts) -> Self {
        let &RunnerFacts { page_tokens, is_async, devices, .. } = facts;
        DeviceKind { page_tokens: page_tokens as usize, is_async, devices }
    }
}
