//! GPUs, which the feature `cuda` brings. Without it there is none, and whoever names one is told so.

use offshoot_backend::MemoryBlock;
use offshoot_core::error::Result;

pub(super) use with_feature::{Cuda, gpus, open};
pub use with_feature::{device_lender, trainer_link};

/// What GPUs of one kind have in common; others round differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuKind {
    /// "NVIDIA H200".
    pub name: String,
    /// "sm_90a".
    pub arch: String,
}

/// What a trainer in another process broadcasts, received into device memory where there is enough.
pub trait TrainerLink: Send {
    /// The next `bytes` bytes.
    ///
    /// # Errors
    ///
    /// They do not come in time, or the device fails; nothing comes any more then.
    fn receive(&mut self, bytes: usize) -> Result<MemoryBlock>;
}

/// The names of the usable GPUs of this machine, such as "NVIDIA H200"; none without a driver.
pub fn gpu_names() -> Vec<String> {
    gpus().into_iter().flatten().flatten().map(|kind| kind.name).collect()
}

#[cfg(feature = "cuda")]
mod with_feature {
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use super::{GpuKind, TrainerLink};
    use crate::DeviceBackend;
    use offshoot_backend::{DeviceLender, MemoryBlock};
    use offshoot_core::error::Result;
    pub use offshoot_cuda::Cuda;
    use offshoot_cuda::discovery::probe::{DeviceFacts, probe};
    use offshoot_cuda::memory::lent::Lender;
    use offshoot_cuda::ranks::trainer::TrainerComm;

    impl DeviceBackend for Cuda {
        fn opener(&self) -> Box<dyn Fn() -> Result<Self>> {
            let ordinal = self.device().facts().ordinal;
            Box::new(move || Cuda::open(ordinal))
        }

        fn beside(&self) -> Result<Self> {
            Cuda::beside(self)
        }
    }

    pub fn open(ordinal: usize) -> Result<Cuda> {
        Cuda::open(ordinal)
    }

    impl TrainerLink for TrainerComm {
        fn receive(&mut self, bytes: usize) -> Result<MemoryBlock> {
            TrainerComm::receive(self, bytes)
        }
    }

    /// What gives access to memory of a GPU that others own; opened once in a process.
    ///
    /// # Errors
    ///
    /// The GPU cannot be used.
    pub fn device_lender(ordinal: usize) -> Result<Arc<dyn DeviceLender>> {
        static LENDERS: Mutex<Vec<(usize, Lender)>> = Mutex::new(Vec::new());
        let mut lenders = LENDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lender)) = lenders.iter().find(|(own, _)| *own == ordinal) {
            return Ok(Arc::new(lender.clone()));
        }
        let lender = Lender::open(ordinal)?;
        lenders.push((ordinal, lender.clone()));
        Ok(Arc::new(lender))
    }

    /// Joins the communicator of NCCL with this id, whose rank 0 is a trainer, on a GPU.
    ///
    /// # Errors
    ///
    /// NCCL or the GPU cannot be used, or the others do not join within `patience`.
    pub fn trainer_link(
        ordinal: usize,
        id: [u8; 128],
        rank: usize,
        world: usize,
        patience: Duration,
    ) -> Result<Box<dyn TrainerLink>> {
        Ok(Box::new(TrainerComm::join(ordinal, id, rank, world, patience)?))
    }

    /// Every GPU that the driver shows, or why it is unusable. An error if there is no driver or no GPU.
    pub fn gpus() -> Result<Vec<Result<GpuKind>>> {
        let kind = |DeviceFacts { name, arch, .. }| GpuKind { name, arch };
        Ok(probe()?.into_iter().map(|facts| facts.map(kind)).collect())
    }
}

#[cfg(not(feature = "cuda"))]
mod with_feature {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{GpuKind, TrainerLink};
    use offshoot_backend::DeviceLender;
    use offshoot_core::error::{Error, Result};

    /// In the place of the GPU's backend: `open` makes none.
    pub type Cuda = offshoot_cpu::Cpu;

    pub fn open(ordinal: usize) -> Result<Cuda> {
        Err(not_built(format!("cuda:{ordinal}")))
    }

    pub fn gpus() -> Result<Vec<Result<GpuKind>>> {
        Err(not_built("cuda".to_string()))
    }

    pub fn trainer_link(ordinal: usize, _: [u8; 128], _: usize, _: usize, _: Duration) -> Result<Box<dyn TrainerLink>> {
        Err(not_built(format!("cuda:{ordinal}")))
    }

    pub fn device_lender(ordinal: usize) -> Result<Arc<dyn DeviceLender>> {
        Err(not_built(format!("cuda:{ordinal}")))
    }

    fn not_built(device: String) -> Error {
        Error::NoDevice { device, why: "offshoot was built without the feature `cuda`".to_string() }
    }
}
